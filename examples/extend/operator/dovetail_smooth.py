"""smooth: an operator of another package; y[i] = ¼·x[i−1] + ½·x[i] + ¼·x[i+1] on a ring of rows that ranks share."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from dovetail.core import OperatorError
from dovetail.ir import Builder, KernelForm, Kind, Option, Region, Sample, Schedule, Slot, Term, Work, Workload
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.operator import OfFields


def smoothed(reads, writes):
    """The kernel in NumPy: rows before, the rows themselves, rows after."""
    before, rows, after = reads
    writes[0][...] = 0.25 * before + 0.5 * rows + 0.25 * after


def work(reads, writes):
    """What the kernel costs: 5 FLOP an element; time is measured by rows, as `samples` counts."""
    rows = writes[0]
    key = f"smooth:width={rows.slot.shape[0]}:{rows.slot.dtype}"
    return Work(key, rows.slots, 5 * rows.elements, 4 * rows.slots * rows.slot.num_bytes)


SMOOTH = KernelForm("smooth", smoothed, work)


@dataclass(frozen=True)
class Smooth(OfFields):
    """Smooth the rows of a matrix x (n, width), of which every rank has a block: each row with its two neighbours."""

    name: ClassVar[str] = "smooth"
    families: ClassVar[tuple[str, ...]] = ("serial", "overlap")
    by_size: ClassVar[bool] = False
    options: ClassVar[tuple[Option, ...]] = (
        Option("n", int, "Rows, over all ranks.", least=1, needed=True),
        Option("width", int, "Columns.", 1024, least=1),
        Option("dtype", str, "Element type.", "float64", ("float32", "float64")),
    )

    n: int
    width: int = 1024
    dtype: str = "float64"

    @property
    def title(self):
        return f"smooth {self.n} × {self.width} {self.dtype}"

    def blocks(self, ranks):
        """Each rank's rows; OperatorError where one has fewer than two."""
        if self.n < 2 * ranks:
            raise OperatorError(f"{self.n} rows are too few for {ranks} ranks", hint="two rows a rank, or more")
        ends = [self.n * rank // ranks for rank in range(ranks + 1)]
        return list(pairwise(ends))

    # Arrays

    def inputs(self, schedule, ranks):
        return [self._array("x", ranks)]

    def outputs(self, schedule, ranks):
        return [self._array("y", ranks)]

    def _array(self, name, ranks):
        boxes = [(slice(*block),) for block in self.blocks(ranks)]
        return ArraySpec.of_blocks(name, self.dtype, (self.n, self.width), boxes)

    # Calls: dovetail.smooth(x, comm)

    @classmethod
    def call_arrays(cls):
        return {"x": "of two axes, float32 or float64"}

    @classmethod
    def call_options(cls):
        return {}

    @classmethod
    def fault_of(cls, given):
        """What is wrong with one rank's arrays, in words; how many they are is checked for all operators alike."""
        x = given[0]
        if not isinstance(x, np.ndarray) or x.ndim != 2 or x.dtype.name not in ("float32", "float64"):
            return f"smooth takes an array of two axes, float32 or float64, not {getattr(x, 'dtype', type(x).__name__)}"
        return ""

    @classmethod
    def of_ranks(cls, arguments):
        """The operator of all ranks' rows, shared as `blocks` shares them; OperatorError for others."""
        rows, widths = zip(*(rank.shapes[0] for rank in arguments), strict=True)
        operator = cls(sum(rows), widths[0], arguments[0].dtype)
        wanted = [(high - low, widths[0]) for low, high in operator.blocks(len(rows))]
        if wanted != list(zip(rows, widths, strict=True)):
            raise OperatorError("ranks have other rows of x", found=f"{rows}", hint=f"shapes {wanted}")
        return operator

    # Programs

    def serial(self, ranks):
        return Schedule.of("serial")

    def schedules(self, costs):
        yield self.serial(costs.ranks)
        yield Schedule.of("overlap", first="inner")

    def describe(self, schedule, ranks):
        return "wait for the neighbours' rows, then compute" if schedule.is_serial else "inner rows while rows travel"

    def program(self, schedule, ranks):
        """Exchange edge rows with both neighbours; inner rows need none of them, and wait only when serial."""
        sizes = [high - low for low, high in self.blocks(ranks)]
        b = Builder("smooth", ranks)
        b.buffer("x", "input", sizes), b.buffer("y", "output", sizes), b.buffer("edge", "scratch", 2)
        net, compute = b.lane("net", "net"), b.lane("compute", "compute")
        kernel = b.kernel("smooth", ("each",) * 3)
        for rank, rows in enumerate(sizes):
            left, right = (rank - 1) % ranks, (rank + 1) % ranks
            came = self._exchange(b, net, rank, rows, left, right)
            parts = [(1, rows - 2, ())] if rows > 2 else []
            edges = [(0, 1, came), (rows - 1, 1, came)]
            for first, count, after in [*edges, *parts] if schedule.is_serial else [*parts, *edges]:
                reads = [Region(*_row("x", "edge", first + step, rows), count) for step in (-1, 0, 1)]
                b.add(Kind.compute, rank, compute, reads=reads, writes=[Region("y", first, count)], call=kernel,
                      after=after)  # fmt: skip
                places = [_place(first + step, rank, sizes) for step in (-1, 0, 1)]
                args = tuple((owner, Region("x", row, count)) for owner, row in places)
                b.post([rank], Region("y", first, count), [Term("smooth", args)])
        return b.build()

    def _exchange(self, b, net, rank, rows, left, right):
        """Send edge rows and receive the neighbours' into `edge`; alone, copy them. Returns the ops that end it."""
        sent, got = (Region("x", 0, 1), Region("x", rows - 1, 1)), (Region("edge", 1, 1), Region("edge", 0, 1))
        if left == rank:
            return [b.add(Kind.copy, rank, net, reads=[a], writes=[z]) for a, z in zip(sent, got, strict=True)]
        for row, peer, channel in zip(sent, (left, right), (0, 1), strict=True):
            b.add(Kind.send, rank, net, reads=[row], chan_out=b.channel(rank, peer, channel))
        return [
            b.add(Kind.recv, rank, net, writes=[row], chan_in=b.channel(peer, rank, channel))
            for row, peer, channel in zip(got, (right, left), (0, 1), strict=True)
        ]

    def workload(self, program, schedule):
        slot = Slot((self.width,), self.dtype)
        return Workload({b.name: (slot,) * program.num_ranks for b in program.buffers}, (SMOOTH,))

    # Benchmarks

    def samples(self, ranks):
        most = max(high - low for low, high in self.blocks(ranks))
        return [Sample("smooth", most, self._add_samples)]

    def _add_samples(self, b, ranks, amounts):
        """Smooth these numbers of rows, one op after the other, on every rank; none, where messages are timed alone."""
        most = max(amounts, default=1)
        b.buffer("x", "input", most), b.buffer("y", "scratch", most)
        lane, kernel = b.lane("compute", "compute"), b.kernel("smooth", ("each",) * 3)
        rows = {rank: [] for rank in range(ranks)}
        for count in amounts:
            for rank in range(ranks):
                reads, writes = [Region("x", 0, count)] * 3, [Region("y", 0, count)]
                rows[rank].append(b.add(Kind.compute, rank, lane, reads=reads, writes=writes, call=kernel))
        return rows


def _row(inner, outer, row, rows):
    """Buffer and slot of a rank's row, -1 and `rows` being the neighbours'."""
    return (inner, row) if 0 <= row < rows else (outer, 0 if row < 0 else 1)


def _place(row, rank, sizes):
    """Who has a row of a rank, and as which of its own."""
    if row < 0:
        return (rank - 1) % len(sizes), sizes[rank - 1] - 1
    return ((rank + 1) % len(sizes), 0) if row == sizes[rank] else (rank, row)


def smooth(x: np.ndarray) -> np.ndarray:
    """What all ranks together compute, in one line of NumPy."""
    return 0.25 * np.roll(x, 1, 0) + 0.5 * x + 0.25 * np.roll(x, -1, 0)
