"""convergence: measure how much a step changes a grid: a kernel on rows, and an all-reduce that later steps overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Builder, CFunction, KernelForm, Kind, Operand, Region, Work, dtype_bytes
from dovetail.loops.code.generate import c_type
from dovetail.loops.code.run import address
from dovetail.stencil.storage import Parts

Array = NDArray[Any]
CHANGE, PART = "change", "change_part"  # buffers, one slot a test: the sum over all ranks, and this rank's share of it
LANES = 8  # partial sums, so that the compiler can vectorise


def change_name(stencil: str) -> str:
    """Return the name of the kernel that measures a stencil's change."""
    return f"{stencil}_change"


@dataclass(frozen=True)
class ChangeKernel:
    """A kernel that computes Σ (new - old)² in float64 over rows of two versions of an array.

    `width`: elements of a row without margins; 0 if a row is one element. `margins`: elements before and after a row.
    """

    name: str
    dtype: str
    width: int
    margins: tuple[int, int]

    @property
    def form(self) -> KernelForm:
        return KernelForm(self.name, self.call, self.work, self.native)

    def call(self, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        """Compute the sum by NumPy: the kernel's reference."""
        inside = slice(self.margins[0], self.margins[0] + self.width)
        new, old = (np.asarray(rows[:, inside] if self.width else rows, np.float64) for rows in reads)
        writes[0][0] = np.square(new - old).sum()

    def work(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
        rows = reads[0].slots
        points = rows * max(self.width, 1)
        return Work(
            f"{self.name}:{self.width}:{self.dtype}", rows, 3.0 * points, 2.0 * points * dtype_bytes(self.dtype)
        )

    def native(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> CFunction | None:
        found = address(self.c_text(), self.name)
        return CFunction(found, (reads[0].slots, self.width)) if found else None

    def c_text(self) -> str:
        kind, (below, beyond) = c_type(self.dtype), self.margins
        row = f"(m + {below + beyond})" if self.width else "1"
        lines = [
            f"/* {self.name}: the sum of squares of the difference of rows */",
            "",
            "#include <stdint.h>",
            "",
            "struct rows { char *data; int64_t stride, blocks; };  // bytes from one block of rows to the next",
            "",
            f"void {self.name}(const struct rows *o, const int64_t *sizes)",
            "{",
            "    const int64_t count = sizes[0] / o[0].blocks, m = sizes[1] ? sizes[1] : 1;",
            f"    double sums[{LANES}] = {{0}};",
            "    for (int64_t b = 0; b < o[0].blocks; ++b)",
            "        for (int64_t r = 0; r < count; ++r) {",
            f"            const {kind} *u = (const {kind} *)(o[0].data + b * o[0].stride) + r * {row} + {below};",
            f"            const {kind} *v = (const {kind} *)(o[1].data + b * o[1].stride) + r * {row} + {below};",
            "            int64_t j = 0;",
            f"            for (; j + {LANES} <= m; j += {LANES})",
            f"                for (int k = 0; k < {LANES}; ++k) {{",
            "                    const double d = (double)u[j + k] - (double)v[j + k];",
            "                    sums[k] += d * d;",
            "                }",
            "            for (; j < m; ++j) {",
            "                const double d = (double)u[j] - (double)v[j];",
            "                sums[0] += d * d;",
            "            }",
            "        }",
            "    double total = 0;",
            f"    for (int k = 0; k < {LANES}; ++k) total += sums[k];",
            "    *(double *)o[2].data = total;",
            "}",
        ]
        return "\n".join(lines) + "\n"


class Tests:
    """Append tests of convergence to the ops of a stencil, after the last sweep of every `how.test`-th step."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.count = parts, parts.how.steps // parts.how.test
        b, ranks = parts.builder, parts.builder.num_ranks
        b.buffer(CHANGE, "output", self.count)
        own = [self.count * len(parts.given), *[0] * (ranks - 1)] if parts.gathers else self.count
        b.buffer(PART, "scratch", own)
        self._lane, self._made = b.lane("test", "net"), 0

    def after(self, version: int) -> None:
        """Append a test if one is due after this version of the tested array."""
        parts, name = self.parts, self.parts.stencil.tested
        assert name is not None
        if (version - parts.stencil.given[name] + 1) % parts.how.test:
            return
        call = parts.builder.kernel(change_name(parts.stencil.name), ("all", "all"))
        about = f"change by {name} version {version}"
        found = Region(CHANGE, self._made, 1)
        for place, box in enumerate(parts.given):
            part = parts.parts[0 if parts.gathers else place]
            reads = [parts.region(part, name, each, box) for each in (version, version - 1)]
            own = Region(PART, self._made * len(parts.given) + place if parts.gathers else self._made, 1)
            parts.builder.add(Kind.compute, part.rank, parts.compute, reads=reads, writes=[own], call=call, line=about)
            self._sum(part.rank, place, own, found, about)
        for rank in range(1, parts.builder.num_ranks if parts.gathers else 0):
            parts.message(0, found, rank, found, about)
        self._made += 1

    def _sum(self, rank: int, place: int, own: Region, found: Region, line: str) -> None:
        b = self.parts.builder
        if self.parts.gathers or b.num_ranks == 1:
            kind = Kind.reduce if place else Kind.copy
            b.add(kind, rank, self.parts.compute, reads=[own], writes=[found], line=line)
        else:
            call = b.collective("all_reduce", range(b.num_ranks))
            b.add(Kind.collective, rank, self._lane, reads=[own], writes=[found], call=call, line=line)


def add_changes(stencil: str, plane: str, b: Builder, ranks: int, amounts: Sequence[int]) -> dict[int, list[int]]:
    """Append one computation of the change for each of `amounts` (rows) on every rank; return the ops' rows by rank."""
    lane, call = b.lane("compute", "compute"), b.kernel(change_name(stencil), ("all", "all"))
    b.buffer(f"{plane}0", "input", max(amounts, default=0)), b.buffer(f"{plane}1", "input", max(amounts, default=0))
    b.buffer(PART, "scratch", 1)
    found = dict[int, list[int]]()
    for rank in range(ranks):
        pairs = [[Region(f"{plane}{level}", 0, rows) for level in (0, 1)] for rows in amounts]
        about = {"writes": [Region(PART, 0, 1)], "call": call}
        found[rank] = [b.add(Kind.compute, rank, lane, reads=reads, **about) for reads in pairs]  # type: ignore[arg-type]
    return found
