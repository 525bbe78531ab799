"""A standalone MPI program in C for tiles of any shape: chains of tiles along one loop, each on one rank.

It needs mpicc alone. What is particular to a nest is generated here; what all programs share is in `mpi_chains.c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dovetail.loops.hyperplanes import best_mapping, check_dimension, non_overlapping, overlapping
from dovetail.loops.matrices import Vector
from dovetail.loops.spaces import Space, tiles_of
from dovetail.loops.tile_code import HELPERS, header, linear, point_loops, vector_text
from dovetail.loops.tile_points import messages, tile_dependences
from dovetail.loops.tiling import Tiling

_SHARED = Path(__file__).with_name("mpi_chains.c")
_WHAT = """Tiles of a loop nest on the ranks of MPI, made by dovetail. Needs mpicc alone:
 *     mpicc -O3 -march=native THIS.c -lm && mpiexec -n 4 ./a.out check
 *"""
_LISTED = 24  # points of a message that are named in the header
_EXAMPLE = """/* The statement: what is computed at a point. Put your own in its place; it may need of A what D says. */
#define POINT({point}) A({point}) = {value}
#define START({point}) 1.0 /* what A holds outside the space */"""
_STATEMENT = """
{statement}
#ifndef OVERLAPPED
#define OVERLAPPED 1 /* 0: receive, compute, send; 1: a tile is computed while messages come and go */
#endif
"""


def program(tiling: Tiling, space: Space, mapped: int | None = None, statement: str = "") -> str:
    """The C99 text. `mapped`: the loop whose tiles are on one rank; None: that with most tiles. `statement`: what is
    computed (see `nest_code`); none: an example to be replaced.

    Any number of ranks will do: chains of tiles that are next to each other share a rank, and send each other nothing.
    """
    space.need_sizes()
    tiling.check_legal()
    mapped = best_mapping(tiling, space) if mapped is None else mapped
    check_dimension(mapped, tiling.num_loops)
    what = _STATEMENT.format(statement=statement or _example(tiling))
    parts = [_header(tiling, space, mapped), _includes(), _facts(tiling, space, mapped), what]
    parts += [_inside(space), _computing(tiling, space), _SHARED.read_text()]
    return "".join(parts)


def _header(tiling: Tiling, space: Space, mapped: int) -> str:
    one, other = non_overlapping(tiling, space), overlapping(tiling, space, mapped)
    lines = [
        f"chains    of tiles along loop {mapped}, each on one rank",
        f"Pi        {list(one.pi)}, {one.steps} steps; overlapping {list(other.pi)}, {other.steps} steps",
    ]
    for message in messages(tiling, mapped):
        shown = ", ".join(vector_text(tuple(point)) for point in message.points[:_LISTED].tolist())
        more = f", and {len(message.points) - _LISTED} more" if len(message.points) > _LISTED else ""
        lines.append(f"to ranks  {vector_text(message.to)} on: {len(message.points)} values, of {shown}{more}")
    return header(tiling, space, *lines, what=_WHAT)


def _includes() -> str:
    names = ("math", "mpi", "stdio", "stdlib", "string")
    return "".join(f"#include <{name}.h>\n" for name in names) + HELPERS


def _facts(tiling: Tiling, space: Space, mapped: int) -> str:
    """All constants of the nest."""
    n, tiles = tiling.num_loops, tiles_of(tiling, space)
    ends = _offsets(tiling, mapped)
    reach = [max(0, *(abs(vector[k]) for vector in tiling.vectors)) for k in range(n)]
    low, high = zip(*((a - r, b + r) for (a, b), r in zip(space.ranges, reach, strict=True)), strict=True)
    sizes = f"N = {n}, NUM_DEPS = {len(tiling.vectors)}, MAPPED = {mapped}, NUM_OFFSETS = {len(ends)}"
    lines = [
        f"enum {{ {sizes} }};",
        f"static const int64_t volume = {tiling.volume}, num_points = {space.num_points};",
        _table("deps[NUM_DEPS][N]", tiling.vectors, "D: a dependence a row"),
        _table("sides[N][N]", tiling.sides, "P"),
        _table("normals[N][N]", tiling.normals, "H times the volume"),
        _table("tile_low[N]", [low for low, _ in tiles.ranges], "all tiles lie between"),
        _table("tile_high[N]", [high for _, high in tiles.ranges], ""),
        _table("array_low[N]", low, "the space, and what it depends on"),
        _table("array_high[N]", high, ""),
        _table("offsets[NUM_OFFSETS + 1][N]", [*ends, (0,) * n], "next processors, in tiles"),
        _table("first_step[NUM_OFFSETS + 1]", [*ends.values(), 0], "the first of their steps that needs them"),
        "static double* array;",
        f"#define A({_points(n)}) array[{_index(low, high)}]",
    ]
    return "\n" + "\n".join(lines) + "\n"


def _offsets(tiling: Tiling, mapped: int) -> dict[Vector, int]:
    """Where the processors are that need something of a tile, and how many steps later their first tiles do."""
    found: dict[Vector, int] = {}
    for tile in tile_dependences(tiling):
        offset = tuple(0 if k == mapped else entry for k, entry in enumerate(tile))
        if any(offset):
            found[offset] = min(tile[mapped], found.get(offset, tile[mapped]))
    return dict(sorted(found.items()))


def _table(name: str, values: Iterable[object], about: str) -> str:
    comment = f" /* {about} */" if about else ""
    return f"static const int64_t {name} = {_braces(values)};{comment}"


def _braces(values: Iterable[object]) -> str:
    shown = (_braces(value) if isinstance(value, tuple) else str(value) for value in values)
    return f"{{{', '.join(shown)}}}"


def _index(low: Sequence[int], high: Sequence[int]) -> str:
    """Where A(p0, p1, …) lies, row by row."""
    found = ""
    for k, (first, last) in enumerate(zip(low, high, strict=True)):
        found = f"({found}) * {last - first + 1} + " if found else ""
        found += f"(p{k}) - {first}" if first >= 0 else f"(p{k}) + {-first}"
    return found


def _points(n: int) -> str:
    return ", ".join(f"p{k}" for k in range(n))


def _example(tiling: Tiling) -> str:
    """The mean of what a point depends on, and 1."""
    names = [f"p{k}" for k in range(tiling.num_loops)]
    terms = []
    for vector in tiling.vectors:
        places = (linear([int(k == i) for i in range(len(names))] + [-d], names) for k, d in enumerate(vector))
        terms.append(f"A({', '.join(places)})")
    value = f"({' + '.join(terms)}) / {len(terms) + 1}.0 + 1.0"
    return _EXAMPLE.format(point=_points(tiling.num_loops), value=value)


def _inside(space: Space) -> str:
    """A function that says whether a point lies in the space."""
    words = [f"p[{k}]" for k in range(space.num_loops)]
    parts = (" && ".join(f"{linear(row, words)} >= 0" for row in part) for part in space.parts)
    test = " || ".join(f"({part})" for part in parts)
    return f"\nstatic int inside(const int64_t* p) {{ return {test}; }}\n"


def _computing(tiling: Tiling, space: Space) -> str:
    """Functions that compute a tile, and a point; what is there at the start."""
    n = tiling.num_loops
    loops = "".join(f"  {line}\n" for line in point_loops(tiling, space, "POINT").splitlines())
    loops = re.sub(r"\bt(\d+)\b", r"t[\1]", loops)
    tile = f"static void compute_tile(const int64_t* t) {{\n  (void)t;\n{loops}}}\n"
    place = ", ".join(f"p[{k}]" for k in range(n))
    point = f"static void compute_point(const int64_t* p) {{ POINT({place}); }}\n"
    start = f"static double start_of(const int64_t* p) {{ (void)p; return START({place}); }}\n"
    return f"\n{tile}\n{point}{start}"
