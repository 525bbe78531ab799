"""mpi_code: a standalone MPI program in C for tiles of any shape: chains of tiles along one loop, each on one rank.

It needs only mpicc. The part that depends on the nest is generated here; `mpi_chains.c` is the part that does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dovetail.core import native_folder
from dovetail.loops.code.generate import c_type
from dovetail.loops.matrices import Vector
from dovetail.tiling.hyperplanes import best_mapping, check_dimension, non_overlapping, overlapping
from dovetail.tiling.nest_analysis import Field
from dovetail.tiling.nest_code import NestCode
from dovetail.tiling.spaces import Space, tiles_of
from dovetail.tiling.tile_code import HELPERS, header, linear, point_loops, vector_text
from dovetail.tiling.tile_points import messages, tile_dependences
from dovetail.tiling.tiling import Tiling

_SHARED = native_folder("tiling") / "mpi_chains.c"
_WHAT = """Tiles of a loop nest on the ranks of MPI, made by dovetail. It needs only mpicc:
 *     mpicc -O3 -march=native -ffp-contract=off THIS.c -lm && mpiexec -n 4 ./a.out check
 *"""
_LISTED = 24  # points of a message that the header lists
_EXAMPLE = """/* The statement of a point: replace it by your own, which may read A at the distances in D. */
#define POINT({point}) A({point}) = {value}
#define START({point}) 1.0 /* what A holds outside the space */"""
_OVERLAPPED = """
#ifndef OVERLAPPED
#define OVERLAPPED 1 /* 0: receive, compute, send; 1: compute a tile while messages are sent and received */
#endif
"""
_RUN = "    run();\n"
_SWEEPS = """    for (int sweep = 0; sweep < {sweeps}; sweep++) {{
        run();
        close_sweep();
    }}
"""
_CLOSING = """
/* Broadcast a value from the rank that has computed it. */
static void fetch(int f, const int64_t* p) {{
    int64_t q[N], t[N];
    if (!inside(f, p)) return;
    point_of(f, p, q), tile_of(q, t);
    MPI_Bcast(cell(f, p), (int)value_bytes[f], MPI_BYTE, owner_of(chain_of(t)), MPI_COMM_WORLD);
}}

/* Runs on every rank between two sweeps. */
static void close_sweep(void) {{
{fetch}
{close}
}}
"""


def program(tiling: Tiling, space: Space, mapped: int | None = None, code: NestCode | None = None) -> str:
    """Return the C99 text. `mapped`: the loop whose tiles are on one rank; default: `best_mapping`. `code`: what is
    computed (see `nest_code`); default: an example to be replaced.

    The program runs on any number of ranks. Chains on one rank are neighbours, and send each other no messages.
    """
    space.need_sizes()
    tiling.check_legal()
    mapped = best_mapping(tiling, space) if mapped is None else mapped
    check_dimension(mapped, tiling.num_loops)
    code = code or _example(tiling, space)
    parts = [_header(tiling, space, mapped, code.notes), _includes(), _facts(tiling, space, mapped, code)]
    parts += [_values(code), f"\n{code.macros}\n", _OVERLAPPED, _inside(code)]
    shared = _SHARED.read_text()
    if code.close:
        assert shared.count(_RUN) == 1
        shared = "\nstatic void close_sweep(void);\n" + shared.replace(_RUN, _SWEEPS.format(sweeps=code.sweeps))
    return "".join([*parts, _by_field(code), shared, _computing(tiling, space, code), _closing(code)])


def _header(tiling: Tiling, space: Space, mapped: int, notes: Sequence[str]) -> str:
    one, other = non_overlapping(tiling, space), overlapping(tiling, space, mapped)
    lines = [
        *(f"note      {note}" for note in notes),
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


def _facts(tiling: Tiling, space: Space, mapped: int, code: NestCode) -> str:
    """All constants of the nest."""
    n, tiles, fields = tiling.num_loops, tiles_of(tiling, space), code.fields
    ends = _offsets(tiling, mapped)
    deps = [(number, vector) for number, field in enumerate(fields) for vector in field.vectors]
    images = 1 << sum(map(bool, code.folded))
    sizes = f"N = {n}, NUM_DEPS = {len(deps)}, MAPPED = {mapped}, NUM_OFFSETS = {len(ends)}"
    lines = [
        f"enum {{ {sizes}, NUM_FIELDS = {len(fields)}, NUM_IMAGES = {images} }};",
        f"static const int64_t volume = {tiling.volume}, num_points = {code.num_points};",
        _table("deps[NUM_DEPS][N]", [vector for _, vector in deps], "D: one dependence per row"),
        _table("read_of[NUM_DEPS]", [number for number, _ in deps], "the field that each one reads"),
        _table("sides[N][N]", tiling.sides, "P"),
        _table("normals[N][N]", tiling.normals, "H times the volume"),
        _table("tile_low[N]", [low for low, _ in tiles.ranges], "bounds of all tile coordinates"),
        _table("tile_high[N]", [high for _, high in tiles.ranges], ""),
        _table("shifts[NUM_FIELDS][N]", [field.shift for field in fields], "point minus the statement's indices"),
        _table("folded[N]", code.folded, "lengths of folded axes, else 0"),
        _table("array_low[NUM_FIELDS][N]", [_side(field, 0) for field in fields], "indices that are stored"),
        _table("array_high[NUM_FIELDS][N]", [_side(field, 1) for field in fields], ""),
        _table("offsets[NUM_OFFSETS + 1][N]", [*ends, (0,) * n], "offsets of neighbouring processors, in tiles"),
        _table("first_step[NUM_OFFSETS + 1]", [*ends.values(), 0], "how many tiles later the first use is"),
    ]
    return "\n" + "\n".join(lines) + "\n"


def _side(field: Field, which: int) -> Vector:
    return tuple(ends[which] for ends in field.ranges)


def _values(code: NestCode) -> str:
    """C for each statement: its array, the macro of an iteration's value, and the test for an iteration."""
    lines, n = list[str](), len(code.folded)
    for number, field in enumerate(code.fields):
        low, high = _side(field, 0), _side(field, 1)
        lines.append(f"static {c_type(field.dtype)}* values{number};")
        lines.append(f"#define {field.values}({_points(n)}) values{number}[{_index(low, high)}]")
        words = [f"(p{k})" for k in range(n)]
        parts = (" && ".join(f"{linear(row, words)} >= 0" for row in part) for part in field.domain.parts)
        lines.append(f"#define IN{number}({_points(n)}) ({' || '.join(f'({part})' for part in parts)})")
    return "\n".join(lines) + "\n"


def _offsets(tiling: Tiling, mapped: int) -> dict[Vector, int]:
    """The offsets of processors that need values of a tile, and how many tiles later each first needs them."""
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
    """C for the row-major index of A(p0, p1, …)."""
    found = ""
    for k, (first, last) in enumerate(zip(low, high, strict=True)):
        found = f"({found}) * {last - first + 1} + " if found else ""
        found += f"(p{k}) - {first}" if first >= 0 else f"(p{k}) + {-first}"
    return found


def _points(n: int) -> str:
    return ", ".join(f"p{k}" for k in range(n))


def _example(tiling: Tiling, space: Space) -> NestCode:
    """An example: the sum of a point's operands over their number + 1, plus 1."""
    n = tiling.num_loops
    names = [f"p{k}" for k in range(n)]
    terms = []
    for vector in tiling.vectors:
        places = (linear([int(k == i) for i in range(n)] + [-d], names) for k, d in enumerate(vector))
        terms.append(f"A({', '.join(places)})")
    value = f"({' + '.join(terms)}) / {len(terms) + 1}.0 + 1.0"
    macros = _EXAMPLE.format(point=_points(n), value=value)
    reach = [max(0, *(abs(vector[k]) for vector in tiling.vectors)) for k in range(n)]
    ranges = tuple((a - r, b + r) for (a, b), r in zip(space.ranges, reach, strict=True))
    field = Field("POINT", "A", "START", "float64", space, ranges, (0,) * n, tiling.vectors)
    return NestCode(space, (field,), (0,) * n, macros, _box(space))


def _box(space: Space) -> str:
    """The plain loops of a space."""
    names, lines = [f"p{k}" for k in range(space.num_loops)], list[str]()
    for name, (low, high) in zip(names, space.ranges, strict=True):
        lines.append(f"{'    ' * (len(lines) + 1)}for (int64_t {name} = {low}; {name} <= {high}; {name}++)")
    at = ", ".join(names)
    return "\n".join([*lines, f"{'    ' * (len(lines) + 1)}if (IN0({at})) POINT({at});"])


def _inside(code: NestCode) -> str:
    """The C function that tests whether a point is an iteration of field f's statement."""
    tests = (f"f == {number} ? IN{number}({_places(len(code.folded))}) : " for number in range(len(code.fields)))
    return f"\nstatic int inside(int f, const int64_t* p) {{ return {''.join(tests)}0; }}\n"


def _by_field(code: NestCode) -> str:
    """C functions of fields: set their memory, bytes of a value, initial value, and value as double."""
    at, fields = _places(len(code.folded)), list(enumerate(code.fields))
    sizes = ", ".join(f"sizeof({c_type(field.dtype)})" for _, field in fields)
    take = "".join(f"    values{number} = (void*)memory[{number}];\n" for number, _ in fields)
    start = "".join(f"    if (f == {number}) {f.values}({at}) = {f.start}({at});\n" for number, f in fields)
    values = "".join(f"f == {number} ? (double){field.values}({at}) : " for number, field in fields)
    return (
        f"\nstatic const size_t value_bytes[NUM_FIELDS] = {{{sizes}}};\n"
        f"static char* memory[NUM_FIELDS];\n\n"
        f"static void use_memory(void) {{\n{take}}}\n\n"
        f"static void start(int f, const int64_t* p) {{\n{start}}}\n\n"
        f"static double value_at(int f, const int64_t* p) {{ return {values}0; }}\n\n"
        f"static void plain_loops(void) {{\n{code.plain}\n}}\n"
    )


def _computing(tiling: Tiling, space: Space, code: NestCode) -> str:
    """C functions that compute a point, if it has more than one statement, and a tile."""
    statement, point = code.fields[0].name, ""
    if len(code.fields) > 1 or any(code.folded):
        statement, point = "compute_point", _point(code)
    loops = "".join(f"  {line}\n" for line in point_loops(tiling, space, statement).splitlines())
    loops = re.sub(r"\bt(\d+)\b", r"t[\1]", loops)
    return f"\n{point}static void compute_tile(const int64_t* t) {{\n  (void)t;\n{loops}}}\n"


def _closing(code: NestCode) -> str:
    return _CLOSING.format(fetch=code.fetch, close=code.close) if code.close else ""


def _point(code: NestCode) -> str:
    """The C function that runs all statements of a point in order."""
    n, lines = len(code.folded), list[str]()
    arguments = ", ".join(f"int64_t q{k}" for k in range(n))
    if any(code.folded):
        lines.append(f"    const int64_t q[N] = {{{', '.join(f'q{k}' for k in range(n))}}};")
    for number, field in enumerate(code.fields):
        if any(code.folded):
            lines.append("    for (int image = 0; image < NUM_IMAGES; image++) {")
            lines.append("        int64_t p[N];")
            lines.append(f"        if (place(q, {number}, image, p)) {field.name}({_places(n)});")
        else:
            own = (f"p{k} = {linear([1, -by], [f'q{k}'])}" for k, by in enumerate(field.shift))
            lines.append(f"    {{\n        const int64_t {', '.join(own)};")
            lines.append(f"        if (IN{number}({_points(n)})) {field.name}({_points(n)});")
        lines.append("    }")
    return f"static inline void compute_point({arguments}) {{\n" + "\n".join(lines) + "\n}\n\n"


def _places(n: int) -> str:
    return ", ".join(f"p[{k}]" for k in range(n))
