"""C loops over the tiles of a space, of any shape, and over the points in each; islpy derives the bounds exactly."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from dovetail.core import EnvironmentFault, WishError, compile_c, find_tool
from dovetail.loops.matrices import Matrix, Vector
from dovetail.loops.spaces import Space, scan_set
from dovetail.loops.tile_points import MOST_POINTS, messages
from dovetail.loops.tiling import Fractions, Tiling

_MACROS = """#include <stdint.h>

#ifndef floord
#define floord(n, d) (((n) < 0) ? -((-(n) + (d) - 1) / (d)) : (n) / (d))
#endif
#ifndef min
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#endif
"""


def nest(tiling: Tiling, space: Space, statement: str = "POINT") -> str:
    """The loops: over tiles t0, t1, …, in them over points p0, p1, … in the order of the original nest.

    PlanError where tiles of this shape cannot be executed one after another.

    >>> rows = Tiling(((1, 1), (0, 1)), ((2, 1), (0, 1)))
    >>> print(nest(rows, Space.parse("[N] -> { [i, j] : 0 <= i < N and 0 <= j < N }")).splitlines()[0])
    for (int64_t t0 = -N + floord(N + 1, 2); t0 < floord(N + 1, 2); t0 += 1)
    """
    import islpy as isl

    tiling.check_legal()
    n = tiling.num_loops
    names = [f"{letter}{k}" for letter in "tp" for k in range(n)]
    taken = sorted(set(space.parameters) & {*names, statement, "min", "max", "floord"})
    if taken:
        hint = "t0, p0 and their kin name the loops; call it N, say"
        raise WishError(f"a parameter cannot be called '{taken[0]}'", found=space.text, hint=hint)
    domain = scan_set(tiling, space).set_tuple_name(statement)
    order = isl.UnionMap.from_map(domain.identity().reset_tuple_id(isl.dim_type.out))
    iterators = isl.IdList.alloc(domain.get_ctx(), len(names))
    for name in names:
        iterators = iterators.add(isl.Id.read_from_str(domain.get_ctx(), name))
    build = isl.AstBuild.from_context(isl.Set.universe(domain.get_space().params())).set_iterators(iterators)
    loops = str(build.node_from_schedule_map(order).to_C_str())
    return re.sub(rf"\b{statement}\((.*)\);", lambda match: _statement(statement, match[1], n), loops)


def source(tiling: Tiling, space: Space, name: str = "tiled_nest", point: str | None = None) -> str:
    """A C99 file with a function of the space's parameters that visits every point once, tile after tile.

    What is done at a point is the macro POINT(p0, p1, …): `point`, or what whoever includes the file has defined.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise WishError(f"'{name}' is no name of a C function")
    arguments = ", ".join(f"p{k}" for k in range(tiling.num_loops))
    what = f"#define POINT({arguments}) {point}" if point else f'#error "define POINT({arguments}) first"'
    macro = f"#ifndef POINT\n{what}\n#endif\n"
    parameters = ", ".join(f"int64_t {parameter}" for parameter in space.parameters) or "void"
    body = "".join(f"  {line}\n" for line in nest(tiling, space).splitlines())
    return f"{_header(tiling, space)}{_MACROS}{macro}\nvoid {name}({parameters})\n{{\n{body}}}\n"


def compiled(text: str, what: str = "a tiled nest") -> ctypes.CDLL:
    """The C text as a loaded library, compiled once and found in the cache from then on."""
    compiler = find_tool("cc", "gcc", "clang")
    if compiler is None:
        raise EnvironmentFault("no C compiler found", found="neither cc, gcc nor clang", hint="install gcc")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "nest.c"
        path.write_text(text, encoding="utf-8")
        return ctypes.CDLL(str(compile_c(compiler, [path], "nest", what)))


def _statement(name: str, arguments: str, num_loops: int) -> str:
    """The macro's call with the point only; isl gives tile and point, of which some may be constants.

    >>> _statement("POINT", "t0, t1, p0, min(p1, 3)", 2)
    'POINT(p0, min(p1, 3));'
    """
    words, depth = [""], 0
    for letter in arguments:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            words.append("")
        else:
            words[-1] += letter
    return f"{name}({', '.join(word.strip() for word in words[num_loops:])});"


def _header(tiling: Tiling, space: Space) -> str:
    """What the tiles are and what leaves them, as the comment that opens the file."""
    lines = [
        "Loops over tiles, made by dovetail: every point of the space once, in an order that keeps the dependences.",
        f"space     {space.text}",
        f"D         {_rows(tiling.deps)} (columns are dependence vectors)",
        f"P         {_rows(tiling.sides)} (columns are the sides of a tile)",
        f"H         {_rows(tiling.h)}",
        f"HD        {_rows(tiling.hd)}",
        f"tile      {tiling.volume} points",
    ]
    if tiling.volume <= MOST_POINTS:
        each = (f"{len(message.points)} points to {_vector(message.to)}" for message in messages(tiling))
        lines.append(f"messages  {', '.join(each) or 'none'}")
    return "/* " + "\n * ".join(line.replace("*/", "* /") for line in lines) + "\n */\n"


def _rows(matrix: Matrix | Fractions) -> str:
    return "[" + "; ".join(" ".join(map(str, row)) for row in matrix) + "]"


def _vector(vector: Vector) -> str:
    return f"({', '.join(map(str, vector))})"
