"""tile_text: write the C code of a tile. All sizes are literals except the tile's extent along the mapped axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from dovetail.loops.code.generate import IN_TURN, Expressions, c_type
from dovetail.loops.expressions import Read
from dovetail.pipeline.tiles import Face, Rows, Tile

STRUCT = "struct rows { char *data; int64_t stride, blocks; };  // where an operand lies"
INCLUDES = "#include <math.h>\n#include <stdint.h>"
LEAST_MOST = """static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }"""


class TileWriter(Expressions):
    """Write the C code of one tile."""

    def __init__(self, tile: Tile) -> None:
        super().__init__(tile.dtypes)
        self.tile = tile
        self.rows = {rows.array: rows for rows in tile.rows}
        self.is_skewed = tile.skew is not None

    def element(self, read: Read) -> str:
        array, ahead, place = self.tile.elements[str(read)]
        rows = self.rows[array]
        terms = [f"(x{_signed(ahead)}) * {prod(rows.plane)}"] if rows.moves else []
        for k, (loop, by) in enumerate(place):
            stride = prod(rows.plane[k + 1 :])
            terms.append(f"{by * stride}" if loop is None else f"(i{loop}{_signed(by)}) * {stride}")
        return f"{array}_data[{' + '.join(terms) or '0'}]"

    def text(self) -> str:
        tile = self.tile
        body = [
            f"{self.element(s.target)} = {self.expression(s.value, self.dtypes[s.target.array])};"
            for s in tile.statements
        ]
        notes = "\n".join(f" *   {statement}" for statement in tile.statements)
        head = f"/* {tile.label}: tiles of\n *\n{notes}\n */"
        lines = [f"void {tile.label}(const struct rows *o, const int64_t *sizes)", "{"]
        lines += ["    const int64_t count = sizes[0];  // positions of the tile"]
        lines += ["    const int64_t start = sizes[1], width = sizes[2];  // those of its first row"] * self.is_skewed
        lines += [f"    {line}" for number, rows in enumerate(tile.rows) for line in self._pointer(number, rows)]
        for number, face in enumerate(tile.faces):
            lines += [f"    {line}" for line in self._put(len(tile.rows) + number, face)]
        order: list[int | None] = [*range(len(tile.box))]
        order.insert(tile.outer, None)
        paired = tile.lag is not None
        heads = [line for loop in (order[:-2] if paired else order) for line in self._head(loop, loop == order[-1])]
        indent = "    "
        for line in heads:
            lines.append(f"{indent}{line}")
            indent += "    " * line.endswith("{")
        lines += [f"{indent}{line}" for line in (self._pair(order[-2], order[-1]) if paired else body)]
        lines += [f"{'    ' * depth}}}" for depth in reversed(range(1, len(indent) // 4))]
        helpers = [LEAST_MOST] * (self.is_skewed or paired) + [*self.helpers]
        point = [_macro(f"POINT({_index(order[-2])}, {_index(order[-1])})", body)] if paired else []
        return "\n\n".join([head, INCLUDES, STRUCT, *helpers, *point, "\n".join([*lines, "}"])]) + "\n"

    def _head(self, loop: int | None, innermost: bool) -> Iterator[str]:
        """Yield the head of a loop in C; None is the loop over positions, preceded by the bounds of a skewed row."""
        if loop is None and self.is_skewed:
            yield from self._row("")
        low, high = self._range(loop) if loop is None else map(str, self.tile.box[loop])
        index, up = _index(loop), self._goes_up(loop)
        if up:
            yield f"for (int64_t {index} = {low}; {index} < {high}; ++{index}) {{"
        else:
            first, end = (low, high) if loop is not None else (f"count - {high}", f"count - {low}")
            yield f"for (int64_t {index} = {end} - 1; {index} >= {first}; --{index}) {{"
        if not innermost or self.tile.in_turn:
            yield IN_TURN

    def _goes_up(self, loop: int | None) -> bool:
        return self.tile.turns[0 if loop is None else 1 + loop].sign > 0

    def _counted(self, loop: int) -> str:
        """Return how many iterations a loop has done, as a C expression of its index."""
        low, high = self.tile.box[loop]
        return f"i{loop} - {low}" if self._goes_up(loop) else f"{high - 1} - i{loop}"

    def _range(self, loop: int | None, row: str = "") -> tuple[str, str]:
        """Return the bounds of a loop; for a skewed row, variables whose names end in `row`."""
        if loop is not None:
            low, high = self.tile.box[loop]
            return "0", str(high - low)
        return (f"low{row}", f"high{row}") if self.is_skewed else ("0", "count")

    def _place(self, loop: int | None, counter: str) -> str:
        """Return the index after a loop has counted `counter` iterations."""
        up = self._goes_up(loop)
        if loop is None:
            return counter if up else f"count - 1 - ({counter})"
        low, high = self.tile.box[loop]
        return f"{low} + {counter}" if up else f"{high - 1} - ({counter})"

    def _row(self, row: str, replaced: int | None = None, by: str = "") -> Iterator[str]:
        """Yield the bounds of a skewed tile's row, in which loop `replaced` has counted `by`."""
        terms = [
            f"{turn.skew} * ({by if k == replaced else self._counted(k)})"
            for k, turn in enumerate(self.tile.turns[1:])
            if turn.skew
        ]
        yield f"const int64_t skew{row} = {' + '.join(terms) or '0'};"
        yield f"const int64_t low{row} = most(start - skew{row}, 0);"
        yield f"const int64_t high{row} = most(least(start + width - skew{row}, count), low{row});"

    def _pair(self, rows: int | None, points: int | None) -> Iterator[str]:
        """Yield loops over two rows at once, the second behind the first, so that each hides the other's latency."""
        low, high = self._range(rows)
        if rows is None and self.is_skewed:
            yield from self._row("")
        yield f"for (int64_t r = {low}; r < {high}; r += 2) {{  // two rows at once"
        yield f"    {IN_TURN}"
        for row, counted in enumerate(("r", "r + 1")):
            if points is None and self.is_skewed:
                yield from (f"    {line}" for line in self._row(str(row), rows, counted))
            begin, end = self._range(points, str(row))
            end = f"(r + 1 < {high} ? {end} : {begin})" if row else end
            late = _signed(row * (self.tile.lag or 0))
            yield f"    const int64_t begin{row} = {begin}{late}, end{row} = {end}{late};"
        yield "    const int64_t both = most(begin0, begin1), last = most(end0, end1);"
        yield "    int64_t t = least(begin0, begin1);"
        for condition, alone in (("t < both && t < last", True), ("t < end0 && t < end1", False), ("t < last", True)):
            yield f"    for (; {condition}; ++t) {{"
            for row, counted in enumerate(("r", "r + 1")):
                at = self._place(points, f"t{_signed(-row * (self.tile.lag or 0))}")
                guard = f"if (t >= begin{row} && t < end{row}) " * alone
                yield f"        {guard}POINT(({self._place(rows, counted)}), ({at}));"
            yield "    }"
        yield "}"

    def _pointer(self, number: int, rows: Rows) -> list[str]:
        """Return the pointer to the first of the tile's own positions."""
        kind = c_type(self.dtypes[rows.array])
        start = f" + {rows.back * prod(rows.plane)}" if rows.back and rows.moves else ""
        return [f"{kind} *restrict {rows.array}_data = ({kind} *)o[{number}].data{start};", f"(void){rows.array}_data;"]

    def _put(self, number: int, face: Face) -> Iterator[str]:
        """Yield the copy of a face into the slots of its array."""
        kind, plane = c_type(self.dtypes[face.array]), self.rows[face.array].plane
        first, last = "0", "1"
        if face.moves and self.is_skewed:
            first, last = f"first{number}", f"last{number}"
            yield from self._span(number, face)
        elif face.moves:
            first = str(min(need.ahead for need in face.needs))
            last = f"count{_signed(max(need.ahead for need in face.needs))}"
        yield f"for (int64_t x = {first}, k = 0; x < {last}; ++x)"
        indent, places = "    ", [f"x * {prod(plane)}"]
        for k, (low, high) in enumerate(face.box):
            yield f"{indent}for (int64_t i{k} = {low}; i{k} < {high}; ++i{k})"
            places.append(f"i{k} * {prod(plane[k + 1 :])}")
            indent += "    "
        yield f"{indent}{face.array}_data[{' + '.join(places)}] = ((const {kind} *)o[{number}].data)[k++];"

    def _span(self, number: int, face: Face) -> Iterator[str]:
        """Yield the range of positions of a face that was received, as `skews.span_of` computes it."""
        first, last, up = f"first{number}", f"last{number}", self.tile.turns[0].sign > 0
        yield f"int64_t {first} = INT64_MAX, {last} = INT64_MIN;"
        for need in face.needs:
            yield "{"
            yield f"    const int64_t low = most(start{_signed(-need.most)}, 0);"
            yield f"    const int64_t high = least(start + width{_signed(-need.least)}, count);"
            low, high = ("low", "high") if up else ("count - high", "count - low")
            yield "    if (low < high) {"
            yield f"        {first} = least({first}, {low}{_signed(need.ahead)});"
            yield f"        {last} = most({last}, {high}{_signed(need.ahead)});"
            yield "    }"
            yield "}"


def _macro(head: str, body: Sequence[str]) -> str:
    """Return the definition of a macro.

    >>> print(_macro("POINT(x)", ["u[x] = 1;", "v[x] = 2;"]))
    #define POINT(x) do { \\
        u[x] = 1; \\
        v[x] = 2; \\
    } while (0)
    """
    return "\n".join([f"#define {head} do {{ \\", *(f"    {line} \\" for line in body), "} while (0)"])


def _index(loop: int | None) -> str:
    return "x" if loop is None else f"i{loop}"


def _signed(by: int) -> str:
    """Return ` + 2`, ` - 1`, or nothing."""
    return f" {'+' if by > 0 else '-'} {abs(by)}" if by else ""
