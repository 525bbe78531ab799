"""tile_code: C loops over the tiles of a space, of any shape, and over the points in each, with exact bounds.

The loops scan the set of all (tile, point), given as linear conditions on integers. A loop's bounds are the conditions
whose last variable is its own, and those that projecting out the inner variables adds. A projection may be too large,
so that some iterations of a loop are empty; but no visited point breaks a condition. (islpy's own generator of loops
left out points of some spaces that are only one tile wide.)
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from dovetail.core import EnvironmentFault, OperatorError, compile_c, find_tool
from dovetail.loops.matrices import Matrix, Vector
from dovetail.tiling.spaces import Condition, Space, check_loops, project_last, without_redundant
from dovetail.tiling.tile_points import MOST_POINTS, messages
from dovetail.tiling.tiling import Fractions, Tiling

_WHAT = "Loops over tiles, made by dovetail: every point of the space once, in an order that keeps the dependences."
HELPERS = """#include <stdint.h>

static inline int64_t min2(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max2(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t floord(int64_t n, int64_t d) { return n / d - (n % d < 0); }
static inline int64_t ceild(int64_t n, int64_t d) { return n / d + (n % d > 0); }
"""


def nest(tiling: Tiling, space: Space, statement: str = "POINT") -> str:
    """Return C loops over tiles t0, t1, … and, in each, over points p0, p1, … in the order of the original nest.

    Raises PlanError if tiles of this shape cannot be executed one after another.

    >>> rows = Tiling(((1, 1), (0, 1)), ((2, 0), (0, 3)))
    >>> print(nest(rows, Space.parse("[N] -> { [i, j] : 0 <= i < N and 0 <= j < N }")))
    if (N - 1 >= 0)
      for (int64_t t0 = 0; t0 <= floord(N - 1, 2); t0++)
        for (int64_t t1 = 0; t1 <= floord(N - 1, 3); t1++)
          for (int64_t p0 = max2(0, 2*t0); p0 <= min2(N - 1, 2*t0 + 1); p0++)
            for (int64_t p1 = max2(0, 3*t1); p1 <= min2(N - 1, 3*t1 + 2); p1++)
              POINT(p0, p1);
    <BLANKLINE>
    """
    tiling.check_legal()
    check_loops(tiling, space)
    n = tiling.num_loops
    names = [f"{letter}{k}" for letter in "tp" for k in range(n)]
    taken = sorted(set(space.parameters) & {*names, statement, "min2", "max2", "floord", "ceild"})
    if taken:
        hint = "names like t0 and p0 are those of the loops; rename it, to N for example"
        raise OperatorError(f"a parameter cannot be called '{taken[0]}'", found=space.text, hint=hint)
    return _indented([*_loops(tiling, space, names, 0), part_test(space, names[n:]), _call(statement, names[n:])])


def point_loops(tiling: Tiling, space: Space, statement: str) -> str:
    """Return C loops over the points of tile (t0, t1, …), in the order of the original nest; none for empty tiles.

    >>> rows = Tiling(((1, 1), (0, 1)), ((2, 0), (0, 3)))
    >>> print(point_loops(rows, Space.parse("5x7"), "POINT"))
    if (t0 >= 0 && -t0 + 2 >= 0 && t1 >= 0 && -t1 + 2 >= 0)
      for (int64_t p0 = max2(0, 2*t0); p0 <= min2(4, 2*t0 + 1); p0++)
        for (int64_t p1 = max2(0, 3*t1); p1 <= min2(6, 3*t1 + 2); p1++)
          POINT(p0, p1);
    <BLANKLINE>
    """
    n = tiling.num_loops
    names = [f"{letter}{k}" for letter in "tp" for k in range(n)]
    return _indented([*_loops(tiling, space, names, n), part_test(space, names[n:]), _call(statement, names[n:])])


def _loops(tiling: Tiling, space: Space, names: list[str], given: int) -> list[str]:
    """C lines: the test whether any point exists for the first `given` variables and the parameters, then the heads of
    the loops over the other variables, the outermost first."""
    level, loops = _scanned(tiling, space), list[str]()
    for k in reversed(range(given, len(names))):
        level = without_redundant(level, k + 1)
        loops.append(_loop(names[k], [row for row in level if row[k]], [*names[: k + 1], *space.parameters]))
        level = [row[:k] + row[k + 1 :] for row in level if not row[k]] + project_last(level, k + 1)
    return [_test([without_redundant(level, given)], [*names[:given], *space.parameters]), *loops[::-1]]


def _call(statement: str, points: Sequence[str]) -> str:
    return f"{statement}({', '.join(points)});"


def part_test(space: Space, points: Sequence[str]) -> str:
    """Return the C test whether a point lies in a part of the space; "" if the loops' bounds suffice."""
    return _test(space.parts if len(space.parts) > 1 else [[]], [*points, *space.parameters])


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"{'  ' * depth}{line}\n" for depth, line in enumerate(filter(None, lines)))


def _scanned(tiling: Tiling, space: Space) -> list[Condition]:
    """Conditions of all (tile, point): a point lies between the faces of its tile, and in the hull of the space."""
    n, volume = tiling.num_loops, tiling.volume
    found: list[Condition] = [(0,) * n + row for row in space.hull]
    fixed = (0,) * len(space.parameters)
    for k, normal in enumerate(tiling.normals):
        tile = tuple(volume * (i == k) for i in range(n))
        found.append((*(-entry for entry in tile), *normal, *fixed, 0))
        found.append((*tile, *(-entry for entry in normal), *fixed, volume - 1))
    return found


def _loop(name: str, rows: list[Condition], words: Sequence[str]) -> str:
    """The head of the loop over a variable that these conditions bound. It must be the last variable in them."""
    at = words.index(name)
    ends: dict[str, list[str]] = {"max2": [], "min2": []}
    for row in rows:
        sign = 1 if row[at] < 0 else -1  # x <= rest / |a|, or x >= -rest / a
        rest = linear([0 if k == at else sign * entry for k, entry in enumerate(row)], words)
        divisor, way = abs(row[at]), "floord" if sign > 0 else "ceild"
        ends["min2" if sign > 0 else "max2"].append(rest if divisor == 1 else f"{way}({rest}, {divisor})")
    low, high = (_nested(way, sorted(set(each), key=lambda text: (len(text), text))) for way, each in ends.items())
    return f"for (int64_t {name} = {low}; {name} <= {high}; {name}++)"


def _nested(way: str, texts: list[str]) -> str:
    """`max2(a, max2(b, c))` for a, b and c."""
    return texts[0] if len(texts) == 1 else f"{way}({texts[0]}, {_nested(way, texts[1:])})"


def linear(row: Sequence[int], words: Sequence[str]) -> str:
    """Return a linear expression in C.

    >>> linear([2, -1, 0, 3], ["t0", "p0", "N"])
    '2*t0 - p0 + 3'
    """
    terms = [(entry, word) for entry, word in zip(row, [*words, ""], strict=True) if entry]
    texts = [
        f"{'-' if e < 0 else '+'} {word if abs(e) == 1 and word else f'{abs(e)}*{word}'.rstrip('*')}"
        for e, word in terms
    ]
    text = " ".join(texts) or "0"
    return text[2:] if text.startswith("+ ") else text.replace("- ", "-", 1) if text.startswith("- ") else text


def _test(parts: Sequence[Sequence[Condition]], words: Sequence[str]) -> str:
    """The C test whether all conditions of any part hold; "" if a part has no conditions."""
    each = [" && ".join(f"{linear(row, words)} >= 0" for row in rows) for rows in parts]
    return f"if ({' || '.join(f'({text})' if len(each) > 1 else text for text in each)})" if all(each) else ""


def source(tiling: Tiling, space: Space, name: str = "tiled_nest", point: str | None = None) -> str:
    """Return a C99 file with a function of the space's parameters that visits every point once, tile after tile.

    At each point it runs the macro POINT(p0, p1, …): `point`, or a definition by the file that includes this one.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise OperatorError(f"'{name}' is no name of a C function")
    arguments = ", ".join(f"p{k}" for k in range(tiling.num_loops))
    what = f"#define POINT({arguments}) {point}" if point else f'#error "define POINT({arguments}) first"'
    macro = f"#ifndef POINT\n{what}\n#endif\n"
    parameters = ", ".join(f"int64_t {parameter}" for parameter in space.parameters) or "void"
    body = "".join(f"  {line}\n" for line in nest(tiling, space).splitlines())
    return f"{header(tiling, space)}{HELPERS}{macro}\nvoid {name}({parameters})\n{{\n{body}}}\n"


def compiled(text: str, what: str = "a tiled nest") -> ctypes.CDLL:
    """Compile C text to a shared library, or take it from the cache, and load it."""
    compiler = find_tool("cc", "gcc", "clang")
    if compiler is None:
        raise EnvironmentFault("no C compiler found", found="neither cc, gcc nor clang", hint="install gcc")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "nest.c"
        path.write_text(text, encoding="utf-8")
        return ctypes.CDLL(str(compile_c(compiler, [path], "nest", what)))


def header(tiling: Tiling, space: Space, *more: str, what: str = _WHAT) -> str:
    """Return the comment that opens the file: the tiles and what leaves them."""
    lines = [
        what,
        f"space     {space.text}",
        f"D         {_rows(tiling.deps)} (columns are dependence vectors)",
        f"P         {_rows(tiling.sides)} (columns are the sides of a tile)",
        f"H         {_rows(tiling.h)}",
        f"HD        {_rows(tiling.hd)}",
        f"tile      {tiling.volume} points",
    ]
    if tiling.volume <= MOST_POINTS:
        each = (f"{len(message.points)} points to {vector_text(message.to)}" for message in messages(tiling))
        lines.append(f"messages  {', '.join(each) or 'none'}")
    return "/* " + "\n * ".join(line.replace("*/", "* /") for line in (*lines, *more)) + "\n */\n"


def _rows(matrix: Matrix | Fractions) -> str:
    return "[" + "; ".join(" ".join(map(str, row)) for row in matrix) + "]"


def vector_text(vector: Vector) -> str:
    return f"({', '.join(map(str, vector))})"
