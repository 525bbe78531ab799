"""tile_text: the C of one tile of a sweep; sizes are numbers in it, but for what the tile has of each row."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from dovetail.loops.expressions import Read
from dovetail.loops.generate import Expressions, c_type

if TYPE_CHECKING:
    from dovetail.loops.tile_kernels import Face, Rows, TileKernel

STRUCT = "struct rows { char *data; int64_t stride, blocks; };  // where an operand lies"
INCLUDES = "#include <math.h>\n#include <stdint.h>"
LEAST_MOST = """static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }"""


class TileWriter(Expressions):
    """Writes the C of one kernel."""

    def __init__(self, kernel: TileKernel) -> None:
        super().__init__(kernel.dtypes)
        self.kernel = kernel
        self.rows = {rows.array: rows for rows in kernel.rows}
        self.leans = kernel.tile is not None

    def element(self, read: Read) -> str:
        array, ahead, place = self.kernel.elements[str(read)]
        rows = self.rows[array]
        terms = [f"(x{_signed(ahead)}) * {prod(rows.plane)}"] if rows.moves else []
        for k, (loop, by) in enumerate(place):
            stride = prod(rows.plane[k + 1 :])
            terms.append(f"{by * stride}" if loop is None else f"(i{loop}{_signed(by)}) * {stride}")
        return f"{array}_data[{' + '.join(terms) or '0'}]"

    def text(self) -> str:
        kernel = self.kernel
        body = [
            f"{self.element(s.target)} = {self.expression(s.value, self.dtypes[s.target.array])};"
            for s in kernel.statements
        ]
        notes = "\n".join(f" *   {statement}" for statement in kernel.statements)
        head = f"/* {kernel.label}: tiles of\n *\n{notes}\n */"
        lines = [f"void {kernel.label}(const struct rows *o, const int64_t *sizes)", "{"]
        lines += ["    const int64_t count = sizes[0];  // positions of the tile"]
        lines += ["    const int64_t start = sizes[1], width = sizes[2];  // those of its first row"] * self.leans
        lines += [f"    {line}" for number, rows in enumerate(kernel.rows) for line in self._pointer(number, rows)]
        for number, face in enumerate(kernel.faces):
            lines += [f"    {line}" for line in self._put(len(kernel.rows) + number, face)]
        indent = "    "
        for line in self._loops():
            lines.append(f"{indent}{line}")
            indent += "    " * line.endswith("{")
        lines += [f"{indent}{line}" for line in body]
        lines += [f"{'    ' * depth}}}" for depth in reversed(range(1, len(indent) // 4))]
        helpers = [LEAST_MOST] * self.leans + [*self.helpers]
        return "\n\n".join([head, INCLUDES, STRUCT, *helpers, "\n".join([*lines, "}"])]) + "\n"

    def _loops(self) -> Iterator[str]:
        """The heads of the loops, from the outermost in."""
        turns, box = self.kernel.turns, self.kernel.box
        for loop in range(len(box) + 1):
            if loop == self.kernel.outer:
                yield from self._positions()
            if loop < len(box):
                yield _loop(f"i{loop}", str(box[loop][0]), str(box[loop][1]), turns[1 + loop].sign)

    def _positions(self) -> Iterator[str]:
        up = self.kernel.turns[0].sign
        if not self.leans:
            yield _loop("x", "0", "count", up)
            return
        pairs = enumerate(zip(self.kernel.turns[1:], self.kernel.box, strict=True))
        terms = [
            f"{turn.lean} * ({f'i{k} - {low}' if turn.sign > 0 else f'{high - 1} - i{k}'})"
            for k, (turn, (low, high)) in pairs
            if turn.lean
        ]
        yield f"const int64_t lean = {' + '.join(terms)};"
        yield "const int64_t low = most(start - lean, 0), high = least(start + width - lean, count);"
        yield _loop("x", *(("low", "high") if up > 0 else ("count - high", "count - low")), up)

    def _pointer(self, number: int, rows: Rows) -> list[str]:
        """The first of the tile's own positions."""
        kind = c_type(self.dtypes[rows.array])
        start = f" + {rows.back * prod(rows.plane)}" if rows.back and rows.moves else ""
        return [f"{kind} *restrict {rows.array}_data = ({kind} *)o[{number}].data{start};", f"(void){rows.array}_data;"]

    def _put(self, number: int, face: Face) -> Iterator[str]:
        """A face, into the slots of its array."""
        kind, plane = c_type(self.dtypes[face.array]), self.rows[face.array].plane
        first, last = "0", "1"
        if face.moves and self.leans:
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
        """Which positions of a face came, as `skews.span_of` has it."""
        first, last, up = f"first{number}", f"last{number}", self.kernel.turns[0].sign > 0
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


def _loop(index: str, low: str, high: str, sign: int) -> str:
    if sign > 0:
        return f"for (int64_t {index} = {low}; {index} < {high}; ++{index}) {{"
    last = str(int(high) - 1) if high.lstrip("-").isdigit() else f"{high} - 1"
    return f"for (int64_t {index} = {last}; {index} >= {low}; --{index}) {{"


def _signed(by: int) -> str:
    """` + 2`, ` - 1`, or nothing."""
    return f" {'+' if by > 0 else '-'} {abs(by)}" if by else ""
