"""nest_text: the C of a nest in a standalone program: its data, its statements as macros, and its plain loops."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.loops.code.generate import Expressions, c_type
from dovetail.loops.expressions import Read
from dovetail.loops.levels import levels_of
from dovetail.loops.recording import WRAPS, Loop, Statement, Take
from dovetail.loops.types import is_real
from dovetail.tiling.nest_analysis import Analysis, Source

FACTORS = (7919, 104729, 1299709, 15485863)
WHOLE = 1000  # distinct numbers in given data; 8-bit arrays have 4, like the letters of a small alphabet
_DATA = "/* {name} before the loops: replace it by your own data. */\n#define GIVEN_{name}({axes}) (({c})({value}))"
_WRAPS = {
    "periodic": "static inline int64_t periodic(int64_t x, int64_t n) { return x < 0 ? x + n : x < n ? x : x - n; }",
    "reflecting": "static inline int64_t reflecting(int64_t x, int64_t n)\n"
    "{\n    return x < 0 ? -x : x < n ? x : 2 * n - 2 - x;\n}",
}


class NestText(Expressions):
    """Writes a nest in C. A value that statement 0 writes is V0(…); a value of the user's array a is GIVEN_a(…)."""

    def __init__(self, found: Analysis, dtype: str) -> None:
        super().__init__({name: array.dtype or dtype for name, array in found.nest.arrays.items()})
        self.found, self.nest = found, found.nest
        self.points = [f"p{k}" for k in range(found.num_loops)]
        self.statement = found.nest.statements[0]  # the one that is being written

    def names(self, number: int) -> tuple[str, str, str]:
        """Return the names of a statement's macros: compute, value, initial value."""
        return f"S{number}", f"V{number}", f"START{number}"

    def macros(self) -> str:
        statements = [line for number in range(len(self.nest.statements)) for line in self._statement(number)]
        wraps = [text for kind, text in _WRAPS.items() if any(a.boundary == kind for a in self.nest.arrays.values())]
        data = [_data(name, self._num_given_axes(name), self.dtypes[name]) for name in self.nest.arrays]
        return "\n".join([*data, *wraps, *self.helpers, *statements])

    def _statement(self, number: int) -> list[str]:
        self.statement = statement = self.nest.statements[number]
        name, values, start = self.names(number)
        value = self.expression(statement.value, self.dtypes[statement.target.array])
        points = ", ".join(self.points)
        return [
            f"/* {statement} */",
            f"#define {name}({points}) {values}({points}) = {value}",
            f"#define {start}({points}) {self._given(statement.target)} /* where it computes nothing */",
        ]

    def _num_given_axes(self, name: str) -> int:
        array = self.nest.arrays[name]
        return len(array.shape) + (array.time and levels_of(self.nest)[name].given > 1)

    def element(self, read: Read) -> str:
        sources = self.found.sources[self.nest.statements.index(self.statement)].get(str(read), [])
        if len(sources) == 1:
            return self._of(sources[0], read)
        text = self._given(read)
        for source in reversed(sources):
            text = f"(IN{source.number}({self._place(source, read)}) ? {self._of(source, read)} : {text})"
        return text

    def _of(self, source: Source, read: Read) -> str:
        return f"V{source.number}({self._place(source, read)})"

    def _place(self, source: Source, read: Read) -> str:
        """The iteration that wrote an element: by its distance, or by its subscripts on axes that wrap or mirror."""
        words = [_back(f"(p{k})", by) for k, by in enumerate(source.distance)]
        writer, elements = self.nest.statements[source.number], self._elements(read)
        for loop, axis in self.found.axes(writer).items():
            words[loop] = elements[axis]
        return ", ".join(words)

    def _elements(self, read: Read) -> list[str]:
        """Subscripts of all axes but time, wrapped or mirrored into the array."""
        array = self.nest.arrays[read.array]
        indices: dict[str, str | int] = {**self.found.sizes}
        indices |= {loop.index: f"({point})" for loop, point in zip(self.statement.loops, self.points, strict=True)}
        found = []
        for each, size in zip(read.at[array.time :], array.shape, strict=True):
            text = each.named(indices)
            plain = len(each.terms) == 1 and not each.constant
            wraps = array.boundary in WRAPS and not plain
            found.append(f"{array.boundary}({text}, {self.found.size(size)})" if wraps else text)
        return found

    def _given(self, read: Read) -> str:
        """The initial value of an array's element."""
        words = self._elements(read)
        if self._num_given_axes(read.array) > len(words):
            last = levels_of(self.nest)[read.array].given - 1
            step = read.at[0].named({**self.found.sizes, self.statement.loops[0].index: "(p0)"})
            words.insert(0, f"min2({step}, {last})")
        return f"GIVEN_{read.array}({', '.join(words)})"

    def plain(self) -> str:
        """Return the original loops."""
        return "\n".join(line for each in self.nest.body for line in self._lines(each, "    "))

    def _lines(self, each: Loop | Statement | Take, indent: str) -> Iterator[str]:
        if isinstance(each, Statement):
            number = self.nest.statements.index(each)
            yield f"{indent}S{number}({', '.join(loop.index for loop in each.loops)});"
            return
        assert isinstance(each, Loop)
        low, high = (end.named(self.found.sizes) for end in (each.low, each.high))
        yield f"{indent}for (int64_t {each.index} = {low}; {each.index} < {high}; {each.index}++) {{"
        for child in each.body:
            yield from self._lines(child, indent + "    ")
        yield f"{indent}}}"


def _back(point: str, by: int) -> str:
    return f"{point} - {by}" if by > 0 else f"{point} + {-by}" if by else point


def _data(name: str, axes: int, dtype: str) -> str:
    """Test data: numbers from 0 to 1 that differ by place, in thousandths, so that every machine has the same bits."""
    names = [f"i{k}" for k in range(axes)]
    place = " + ".join(f"({axis}) * {factor}" for axis, factor in zip(names, FACTORS, strict=False))
    c = c_type(dtype)
    value = f"({place}) % {WHOLE if dtype[-1] != '8' else 4}"
    value = f"({c})({value}) / {WHOLE}" if is_real(dtype) else value
    return _DATA.format(name=name, axes=", ".join(names), value=value, c=c)
