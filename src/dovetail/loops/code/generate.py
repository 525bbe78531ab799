"""generate: readable C of a whole nest, for one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dovetail.loops.affine import Affine
from dovetail.loops.analysis.order import carries, statements
from dovetail.loops.arguments import margins
from dovetail.loops.code.evaluate import compared_in
from dovetail.loops.expressions import ATOM, COMPARISONS, CONDITIONS, Apply, Number, Read, Taken, Value, bracketed, rank
from dovetail.loops.levels import levels_of, time_offset
from dovetail.loops.recording import WRAPS, Loop, Recording, Statement, Take
from dovetail.loops.types import is_real

C_TYPES = {"float32": "float", "float64": "double"}
IN_TURN = '__asm__ volatile("");  // not vectorised: GCC 12 would vectorise rows that depend on one another'
NARROW = ("int8", "uint8", "int16", "uint16")  # C would compute in int
_MATH = {"sqrt": "sqrt", "exp": "exp", "sin": "sin", "cos": "cos", "abs": "fabs"}
_HELPERS = {
    "maximum": "static inline {c} maximum_{d}({c} a, {c} b) {{ return a > b{nan} ? a : b; }}",
    "minimum": "static inline {c} minimum_{d}({c} a, {c} b) {{ return a < b{nan} ? a : b; }}",
    "abs": "static inline {c} abs_{d}({c} a) {{ return a < 0 ? ({c})-a : a; }}",
}


def c_text(nest: Recording, dtype: str) -> str:
    """Return the C function `void NAME(arrays…, sizes and parameters…)`. Arrays without a dtype have `dtype`.

    An array with a time axis is a ring of levels: level l lies at place l % depth, each with the margins of
    `arguments.margins` around it.
    """
    return _Writer(nest, {name: array.dtype or dtype for name, array in nest.arrays.items()}).text()


def symbols_of(nest: Recording) -> list[str]:
    """Return sizes and parameters, in the order in which the C function takes them."""
    return sorted(nest.code.symbols)


def c_type(dtype: str) -> str:
    """Return the C type of a dtype.

    >>> c_type("float32"), c_type("uint8")
    ('float', 'uint8_t')
    """
    return C_TYPES.get(dtype, f"{dtype}_t")


class Expressions:
    """Writes expressions as C; derived classes define how `element` writes one. `helpers`: C functions needed."""

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        self.dtypes, self.helpers = dtypes, dict[str, None]()

    def element(self, read: Read) -> str:
        raise NotImplementedError

    def expression(self, value: Value, dtype: str) -> str:
        """Write an expression in C; its numbers have this dtype."""
        if isinstance(value, Read):
            return self.element(value)
        if isinstance(value, Taken):
            return value.name
        if isinstance(value, Number):
            return number_text(value.value, dtype)
        assert isinstance(value, Apply)
        if value.name == "where":
            condition, then, otherwise = value.of
            chosen = f"{self.expression(then, dtype)} : {self.expression(otherwise, dtype)}"
            return f"({self.expression(condition, dtype)} ? {chosen})"
        if value.name in CONDITIONS:
            of = [self.expression(child, dtype) for child in value.of]
            return f"!({of[0]})" if value.name == "~" else bracketed(value, of)
        if value.name in COMPARISONS:
            dtype = compared_in(value, self.dtypes)
        of = [self.expression(child, dtype) for child in value.of]
        if rank(value) == ATOM:
            return self._call(value.name, of, dtype)
        if dtype in NARROW and value.name not in COMPARISONS:
            of = [f"({text})" if rank(child) < ATOM else text for child, text in zip(value.of, of, strict=True)]
            return f"({c_type(dtype)})({bracketed(value, of)})"
        return bracketed(value, of)

    def _call(self, name: str, of: Sequence[str], dtype: str) -> str:
        if name in _MATH and is_real(dtype):
            return f"{_MATH[name]}{'f' * (dtype == 'float32')}({', '.join(of)})"
        nan = " || a != a" if is_real(dtype) else ""  # NaN if either is NaN, as in NumPy
        self.helpers[_HELPERS[name].format(c=c_type(dtype), d=dtype, nan=nan)] = None
        return f"{name}_{dtype}({', '.join(of)})"


def number_text(value: int | float, dtype: str) -> str:
    """Write a number as a C constant of this dtype.

    >>> number_text(0.1, "float32"), number_text(2, "float64"), number_text(7, "int64")
    ('0.1f', '2.0', 'INT64_C(7)')
    """
    if dtype == "float32":
        return f"{np.float32(value)!s}f"
    if dtype == "float64":
        return repr(float(value))
    if dtype in ("int32", "int64") and value == np.iinfo(dtype).min:
        return f"{dtype.upper()}_MIN"  # C has no negative constants: -2147483648 is a long
    return f"{dtype.upper()}_C({value})" if dtype in ("int64", "uint32", "uint64") else str(value)


class _Writer(Expressions):
    """Writes the C function of a whole nest."""

    def __init__(self, nest: Recording, dtypes: Mapping[str, str]) -> None:
        super().__init__(dtypes)
        self.nest = nest
        self.margins = {name: margins(nest, name) for name in nest.arrays}

    def text(self) -> str:
        body = [line for each in self.nest.body for line in self._lines(each, "    ")]
        arrays = [
            f"{'' if name in self.nest.written else 'const '}{c_type(self.dtypes[name])} *restrict {name}_data"
            for name in self.nest.arrays
        ]
        numbers = [f"int64_t {name}" for name in symbols_of(self.nest)]
        shown = "\n".join(f" * {line}" for line in str(self.nest).splitlines())
        head = f"/* {self.nest.name}, made by dovetail.loops of\n *\n{shown}\n */"
        includes = "\n".join(f"#include <{name}.h>" for name in ("math", "stdint", "string"))
        fills = [text for name in levels_of(self.nest) for text in self._fill_function(name)]
        start = [line for name in self.nest.arrays for line in self._start(name)]
        function = f"void {self.nest.name}({', '.join([*arrays, *numbers])})\n{{\n" + "\n".join([*start, *body]) + "\n}"
        stop = "volatile int stop_;  // set where the caller is interrupted"
        return "\n\n".join([head, includes, stop, *self.helpers, *fills, function]) + "\n"

    def element(self, read: Read) -> str:
        array = self.nest.arrays[read.array]
        places = zip(read.at[array.time :], self.margins[read.array], strict=True)
        return self._pointer(read) + "".join(f"[{at + below}]" for at, (below, _) in places)

    def _pointer(self, read: Read) -> str:
        if not self.nest.arrays[read.array].time:
            return read.array
        return self._level_name(read.array, time_offset(read, levels_of(self.nest)[read.array].loop))

    def _level_name(self, name: str, offset: int) -> str:
        """The C name of the pointer to level t + offset."""
        return f"{name}_{'m' * (offset < 0)}{abs(offset)}"

    def _padded(self, name: str) -> list[Affine]:
        """The axes of a level with its margins."""
        sizes = [self.nest.code.symbol(size) for size in self.nest.arrays[name].shape]
        return [size + below + beyond for size, (below, beyond) in zip(sizes, self.margins[name], strict=True)]

    def _count(self, name: str) -> str:
        """Elements of a level with its margins."""
        return " * ".join(f"({axis})" if axis.constant else str(axis) for axis in self._padded(name))

    def _declared(self, name: str, pointer: str, start: str, const: bool) -> str:
        """The declaration of a pointer in C, such as `double (*restrict u_0)[m] = (double (*)[m])(start);`."""
        kind = f"{'const ' * const}{c_type(self.dtypes[name])}"
        inner = "".join(f"[{axis}]" for axis in self._padded(name)[1:])
        cast = "" if not inner else f"({kind} (*){inner})"
        shown = f"{kind} (*restrict {pointer}){inner}" if inner else f"{kind} *restrict {pointer}"
        return f"{shown} = {cast}({start});" if cast else f"{shown} = {start};"

    def _start(self, name: str) -> Iterator[str]:
        if not self.nest.arrays[name].time:
            yield "    " + self._declared(name, name, f"{name}_data", name not in self.nest.written)
        elif self.margins[name] and self.nest.arrays[name].boundary in WRAPS:
            count = self._count(name)
            given = levels_of(self.nest)[name].given
            yield f"    for (int64_t l_ = 0; l_ < {given}; ++l_)"
            yield f"        fill_{name}({', '.join([f'{name}_data + l_ * {count}', *symbols_of(self.nest)])});"

    def _lines(self, each: Loop | Statement | Take, indent: str) -> Iterator[str]:
        if isinstance(each, Statement):
            dtype = self.dtypes[each.target.array]
            yield f"{indent}{self.element(each.target)} = {self.expression(each.value, dtype)};"
            return
        if isinstance(each, Take):
            yield f"{indent}const {c_type(self.dtypes[each.read.array])} {each.name} = {self.element(each.read)};"
            return
        timed = [name for name, levels in levels_of(self.nest).items() if levels.loop is each]
        in_turn = carries(self.nest, each)
        if not in_turn:
            yield "#pragma GCC ivdep"
        yield f"{indent}for (int64_t {each.index} = {each.low}; {each.index} < {each.high}; ++{each.index}) {{"
        if each in self.nest.body and _may_last(self.nest, each):
            yield f"{indent}    if (stop_)\n{indent}        return;"
        if in_turn and (len(each.body) > 1 or isinstance(each.body[0], Loop)):
            yield f"{indent}    {IN_TURN}"
        for name in timed:
            yield from (f"{indent}    {line}" for line in self._step_start(name))
        for child in each.body:
            yield from self._lines(child, indent + "    ")
            for name in timed:
                if self.nest.arrays[name].boundary in WRAPS and name in _targets(child):
                    pointer = self._level_name(name, levels_of(self.nest)[name].ahead)
                    kind = c_type(self.dtypes[name])
                    yield f"{indent}    fill_{name}(({kind} *){', '.join([pointer, *symbols_of(self.nest)])});"
        yield f"{indent}}}"

    def _step_start(self, name: str) -> Iterator[str]:
        """Pointers to the levels of this step. The first levels that are written start as copies of the level before;
        if the set of unwritten elements varies from step to step, all levels do."""
        loop, ahead, depth, varies = levels_of(self.nest)[name]
        count = self._count(name)
        used = {time_offset(read, loop) for _, read in self.nest.accesses(name)} | {ahead - 1}
        for offset in sorted(used):
            level = Affine(((loop.index, 1),), offset)
            start = f"{name}_data + {f'({level})' if offset else level} % {depth} * {count}"
            yield self._declared(name, self._level_name(name, offset), start, offset < ahead)
        new, old = (self._level_name(name, offset) for offset in (ahead, ahead - 1))
        if not varies:
            yield f"if ({loop.index} < {loop.low + (depth - 1)})"
        yield f"{'    ' * (not varies)}memcpy({new}, {old}, sizeof({c_type(self.dtypes[name])}) * {count});"

    def _fill_function(self, name: str) -> Iterator[str]:
        """A C function that fills the margins of a level from its elements."""
        if self.nest.arrays[name].boundary not in WRAPS:
            return
        kind = c_type(self.dtypes[name])
        numbers = [f"int64_t {symbol}" for symbol in symbols_of(self.nest)]
        lines = [f"    {self._declared(name, 'u_', 'level_', False)}"]
        for axis in range(len(self.margins[name])):
            lines += self._fill_axis(name, axis)
        unused = "".join(f" (void){symbol};" for symbol in symbols_of(self.nest))
        text = f"static void fill_{name}({', '.join([f'{kind} *level_', *numbers])})\n{{\n   {unused}\n"
        yield text + "\n".join(lines) + "\n}"

    def _fill_axis(self, name: str, axis: int) -> Iterator[str]:
        shape, padded = self.nest.arrays[name].shape, self._padded(name)
        (below, beyond), size = self.margins[name][axis], self.nest.code.symbol(shape[axis])
        mirrored = self.nest.arrays[name].boundary == "reflecting"
        indent, others = "    ", [f"x{number}_" for number in range(len(shape))]
        for number in (n for n in range(len(shape)) if n != axis and (below or beyond)):
            yield f"{indent}for (int64_t x{number}_ = 0; x{number}_ < {padded[number]}; ++x{number}_)"
            indent += "    "
        k = Affine((("k_", 1),))
        lines = [(below, -k + below, k + below if mirrored else size + below - k)] if below else []
        lines += [(beyond, size + below - 1 + k, size + below - 1 - k if mirrored else k + below - 1)] if beyond else []
        if lines and len(shape) > 1:
            yield indent[:-4] + "{"
        for count, to, source in lines:
            places = ["".join(f"[{at if n == axis else o}]" for n, o in enumerate(others)) for at in (to, source)]
            yield f"{indent}for (int64_t k_ = 1; k_ <= {count} && k_ <= {size - int(mirrored)}; ++k_)"
            yield f"{indent}    u_{places[0]} = u_{places[1]};"
        if lines and len(shape) > 1:
            yield indent[:-4] + "}"


def _may_last(nest: Recording, loop: Loop) -> bool:
    """Whether a loop can run for long: it holds others, or its length is a parameter."""
    counted = {*loop.low.names, *loop.high.names} & {*nest.parameters}
    return bool(counted) or any(isinstance(each, Loop) for each in loop.body)


def _targets(each: Loop | Statement | Take) -> set[str]:
    return {statement.target.array for statement in statements(each)}
