"""row_kernels: one sweep of a stencil as a kernel on rows: NumPy reference, C, and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import CFunction, KernelForm, Operand, Work, dtype_bytes
from dovetail.loops.code.evaluate import evaluated
from dovetail.loops.code.generate import Expressions, c_type
from dovetail.loops.code.run import address
from dovetail.loops.expressions import FUNCTIONS, Read, Value, names_of, operations
from dovetail.stencil.sweeps import Element

Array = NDArray[Any]
Margins = tuple[int, int]
SMALL = 8  # if at most this many columns at an end are not computed, their number is a constant in the C code
AT_ONCE = 2048  # most elements in one loop over several rows: they stay in the L1 cache until ends are corrected


@dataclass(frozen=True, eq=False)
class RowKernel:
    """A kernel that computes columns `low` to `high` of each row of the result from rows of its operands.

    `width`: elements of a row; 0 if a row is one element. `margins`: elements before and after a row, of each operand
    and, last, of the result. `keeps`: copy the other columns from the first operand. `boundary`: how to fill the
    result's margins. `dtypes`: of the arrays that the expression reads. `apart`: the result overlaps no operand in
    memory.
    """

    name: str
    value: Value
    elements: Mapping[str, Element]
    dtypes: Mapping[str, str]
    dtype: str
    width: int
    low: int
    high: int
    margins: tuple[Margins, ...]
    keeps: bool = False
    boundary: str | None = None
    apart: bool = False

    @property
    def form(self) -> KernelForm:
        return KernelForm(self.name, self.call, self.work, self.native)

    def call(self, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        """Compute the rows by NumPy, whole columns at once: the kernel's reference."""
        (out,) = writes
        with np.errstate(all="ignore"):
            result = self._evaluate(self.value, reads)
        if not self.width:
            out[...] = result
            return
        below, beyond = self.margins[-1]
        row = out[:, below : below + self.width]
        row[:, self.low : self.high] = result
        if self.keeps:
            row[:, : self.low], row[:, self.high :] = reads[0][:, : self.low], reads[0][:, self.high :]
        if below or beyond:
            mode: Any = "wrap" if self.boundary == "periodic" else "reflect"
            out[...] = np.pad(row, ((0, 0), (below, beyond)), mode)

    def _evaluate(self, value: Value, reads: Sequence[Array]) -> Any:
        return evaluated(value, lambda read: self._element(read, reads), self.dtypes, self.dtype)

    def _element(self, read: Read, reads: Sequence[Array]) -> Any:
        operand, along = self.elements[str(read)]
        if not self.width:
            return reads[operand]
        start = self.margins[operand][0] + along
        return reads[operand][:, start + self.low : start + self.high]

    def work(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        """Return the work in rows; its cost curve is specific to this sweep and this width."""
        rows = writes[0].slots
        points = rows * (self.high - self.low if self.width else 1)
        arrays = len({text.split("[")[0] for text in self.elements}) + 1
        num_bytes = arrays * points * dtype_bytes(self.dtype)
        key = f"{self.name}-{self.mark}:{self.width}:{self.dtype}"
        return Work(key, rows, points * operations(self.value), num_bytes)

    @property
    def at_once(self) -> bool:
        """Whether the C code may compute several rows and their margins in one loop and correct the margins afterwards.

        It may if rows of all operands are equally long, and the expression is cheap.
        """
        calls = {*names_of(self.value)} & {*FUNCTIONS}
        return self.apart and len({*self.margins}) == 1 and not calls

    @cached_property
    def mark(self) -> str:
        """A hash of the computation, so that kernels of equal names do not share costs."""
        about = str(self.value), self.low, self.width - self.high, self.margins, self.boundary
        return sha256(repr(about).encode()).hexdigest()[:6]

    def native(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> CFunction | None:
        """Return the compiled C function; None, with a warning, if it cannot be compiled."""
        found = address(self.c_text(), self.name)
        return CFunction(found, (writes[0].slots, self.width, self.low, self.high)) if found else None

    def c_text(self) -> str:
        return _RowWriter(self).text()


class _RowWriter(Expressions):
    """Write the C code of one kernel."""

    def __init__(self, kernel: RowKernel) -> None:
        super().__init__(kernel.dtypes)
        self.kernel = kernel

    def element(self, read: Read) -> str:
        operand, along = self.kernel.elements[str(read)]
        shift = f" {'-' if along < 0 else '+'} {abs(along)}" if along else ""
        return f"r{operand}[j{shift}]"

    def text(self) -> str:
        kernel, value = self.kernel, self.expression(self.kernel.value, self.kernel.dtype)
        last = len(kernel.margins) - 1
        names = {element.operand: text for text, element in reversed([*kernel.elements.items()])}
        notes = [f" *   r{number} is the row of {text}" for number, text in sorted(names.items())]
        head = "\n".join([f"/* {kernel.name}: rows of {kernel.value}, where", *notes, " */"])
        struct = "struct rows { char *data; int64_t stride, blocks; };  // bytes from one block of rows to the next"
        lines = [
            f"void {kernel.name}(const struct rows *o, const int64_t *sizes)",
            "{",
            f"    const int64_t count = sizes[0] / o[{last}].blocks, m = sizes[1];",
            f"    const int64_t low = {self._low}, high = {self._high};",
            "    (void)m, (void)low, (void)high;",
            *self._rows_at_once(),
            f"    for (int64_t b = 0; b < o[{last}].blocks; ++b) {{",
            *(self._rows(value) if kernel.width else self._points(value)),
            "    }",
            "}",
        ]
        includes = "#include <math.h>\n#include <stdint.h>"
        return "\n\n".join([head, includes, struct, *self.helpers, "\n".join(lines)]) + "\n"

    def _pointers(self, indent: str, row: str) -> list[str]:
        """Return declarations `const float *r0 = …` for each operand, and of `out`."""
        found = []
        for number, (below, beyond) in enumerate(self.kernel.margins):
            is_out = number == len(self.kernel.margins) - 1
            kind = c_type(self.kernel.dtype) if is_out else f"const {c_type(self._dtype(number))}"
            width = f"(m + {below + beyond})" if below + beyond else "m"
            place = f" + {row} * {width}{f' + {below}' if below else ''}" if row else ""
            start = f"({kind} *)(o[{number}].data + b * o[{number}].stride)"
            found.append(f"{indent}{kind} *{'out' if is_out else f'r{number}'} = {start}{place};")
        return found

    def _dtype(self, number: int) -> str:
        arrays = [text.split("[")[0] for text, element in self.kernel.elements.items() if element.operand == number]
        return self.dtypes[arrays[0]] if arrays else self.kernel.dtype

    def _points(self, value: str) -> list[str]:
        loop = ["#pragma GCC ivdep", "        for (int64_t j = 0; j < count; ++j)", f"            out[j] = {value};"]
        return [*self._pointers("        ", ""), *loop]

    @property
    def _low(self) -> str:
        """The first computed column: a constant in the C code if it is small, as in most stencils."""
        return str(self.kernel.low) if self.kernel.low <= SMALL else "sizes[2]"

    @property
    def _high(self) -> str:
        ends = self.kernel.width - self.kernel.high
        return "sizes[3]" if ends > SMALL else f"m - {ends}" if ends else "m"

    def _rows_at_once(self) -> list[str]:
        if not self.kernel.at_once:
            return []
        beyond = sum(self.kernel.margins[-1])
        few = f"4 * (row - (high - low)) <= row && row < {AT_ONCE}"
        return [
            f"    const int64_t row = m{f' + {beyond}' if beyond else ''};",
            f"    const int64_t most = {few} ? {AT_ONCE} / row : 1;  // rows computed in one loop, ends included",
        ]

    def _rows(self, value: str) -> list[str]:
        together = self.kernel.at_once
        indent = " " * (16 if together else 12)
        outer = " " * 12
        body = self._pointers(outer, "r")
        end = "high"
        if together:
            body.append(f"{outer}const int64_t rows = count - r < most ? count - r : most;")
            end = "(rows - 1) * row + high"
        body += ["#pragma GCC ivdep", f"{outer}for (int64_t j = low; j < {end}; ++j)", f"{outer}    out[j] = {value};"]
        ends = self._ends(indent)
        if together and ends:
            step = [f"{indent}out += row{', r0 += row' if self.kernel.keeps else ''};"]
            body += [f"{outer}for (int64_t s = 0; s < rows; ++s) {{", *ends, *step, f"{outer}}}"]
        else:
            body += ends
        by = "r += most" if together else "++r"
        return [f"        for (int64_t r = 0; r < count; {by}) {{", *body, "        }"]

    def _ends(self, indent: str) -> list[str]:
        """Return C code that fills the uncomputed columns of a row, and its margins."""
        found = []
        if self.kernel.keeps:
            for first, last in (("0", "low"), ("high", "m")):
                found += [f"{indent}for (int64_t j = {first}; j < {last}; ++j)", f"{indent}    out[j] = r0[j];"]
        below, beyond = self.kernel.margins[-1]
        mirrored = self.kernel.boundary == "reflecting"
        most = self.kernel.width - mirrored  # margins may be wider than a short row
        below, beyond = min(below, most), min(beyond, most)
        found += [f"{indent}out[{-k}] = out[{k if mirrored else f'm - {k}'}];" for k in range(1, below + 1)]
        found += [f"{indent}out[m + {k}] = out[{f'm - {k + 2}' if mirrored else k}];" for k in range(beyond)]
        return found


def moving(name: str, dtype: str, width: int, margins: tuple[Margins, Margins], boundary: str | None) -> RowKernel:
    """Return a kernel that copies rows into a buffer with other margins."""
    row = Read(name, ())
    return RowKernel(
        name, row, {str(row): Element(0, 0)}, {name: dtype}, dtype, width, 0, width, margins, False, boundary
    )
