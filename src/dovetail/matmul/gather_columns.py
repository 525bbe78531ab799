"""gather_columns: Programs that bring columns of A to the ranks that multiply them, which add up the products."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core import PlanError
from dovetail.ir import Kind, Program, Region, Schedule, Term
from dovetail.ir.operator import Times
from dovetail.matmul.blocks import Blocks, Part
from dovetail.matmul.gather import Gather, in_chains
from dovetail.matmul.product import MODES
from dovetail.passes.slice_messages import slice_messages


def gather_columns_program(
    name: str, m: int, ranks: int, schedule: Schedule, *, results: int = 1, gathered: bool = False
) -> Program:
    """Return the program that sends each rank's columns of A, part by part, to all ranks, and multiplies them there.

    Buffers: A input (m slots: rows of the rank's columns), B0 … input (a slot for each rank's columns), C0 … output (m
    slots), G scratch (received parts), and `gathered` output (m × ranks slots) if A is a result. Parameters: those of
    `gather_program` without `slices`. Products are never fused, as each adds to the rows of the one before. A rank's
    own columns come first, the others in the order in which they arrive, which is the same in every run. Raises
    PlanError if the parameters do not fit. Source: seed 001 (2-D schedules), for A cut along K.
    """
    made = _made(name, m, ranks, schedule, results, gathered, range(ranks))
    return slice_messages(made.build(), schedule.get("rows_per_message"))


def gather_columns_model(
    name: str, m: int, ranks: int, schedule: Schedule, *, results: int = 1, gathered: bool = False
) -> tuple[Program, Times]:
    """Return (program, repeats) to predict the time of `gather_columns_program` if all ranks have equally many columns.
    There are no post-conditions; rank 0's ops stand for all."""
    made = _made(name, m, ranks, schedule, results, gathered, range(1))
    return in_chains(made.build(asked=False), schedule, alike=True)


def _made(name: str, m: int, ranks: int, schedule: Schedule, results: int, gathered: bool, doing: range) -> Gather:
    if schedule.get("fused") or schedule.get("slices"):
        raise PlanError("columns are multiplied one rank's at a time", hint="use fused=False, and tiles of rows")
    blocks = Blocks.gathered((m,) * ranks)
    return _GatherColumns(name, blocks, schedule, results, gathered, "all_gather", doing)


class _GatherColumns(Gather):
    """As `Gather`, but block (q, r) consists of all rows of rank q's columns."""

    def _buffers(self) -> None:
        rows = self.blocks.longest
        self.b.buffer("A", "input", rows)
        for i in range(self.results):
            self.b.buffer(f"B{i}", "input", self.ranks)
            self.b.buffer(f"C{i}", "output", rows)
        self.b.buffer("G", "scratch", rows * self.ranks)
        if self.gathered:
            self.b.buffer("gathered", "output", rows * self.ranks)

    def _ask(self, rank: int) -> None:
        rows, everyone = self.blocks.longest, range(self.ranks)
        whole = Region("A", 0, rows)
        for i in range(self.results if rows else 0):
            terms = [Term("matmul", ((q, whole), (rank, Region(f"B{i}", q, 1)))) for q in everyone]
            self.b.post([rank], Region(f"C{i}", 0, rows), terms)
        for q in everyone if self.gathered and rows else ():
            self.b.post([rank], self._column(q, Part(0, rows)), [Term(None, ((q, whole),))])

    def _column(self, q: int, part: Part) -> Region:
        """Return the region of these rows of rank q's columns, among all columns."""
        return Region("gathered", part.first * self.ranks + q, 1, self.ranks, part.rows)

    def _product(
        self, rank: int, what: Region, parts: list[tuple[int, Part]], step: int | None, after: Sequence[int]
    ) -> None:
        [(q, part)] = parts
        call = self.b.kernel("matmul", MODES, accumulate=q != rank)
        line = f"{'own columns' if step is None else f'step {step + 1}: columns of rank {q}'}, {part.rows} rows"
        for i in range(self.results):
            reads, writes = [what, Region(f"B{i}", q, 1)], [Region(f"C{i}", part.first, part.rows)]
            self.b.add(Kind.compute, rank, self.compute, reads=reads, writes=writes, call=call, after=after, line=line)

    def _keep(self, rank: int) -> None:
        for q in range(self.ranks):
            for step in range(self.steps.count):
                part, received = self.part(q, rank, step), self.received.get((rank, q, step), [])
                if part.rows:
                    reads = [self.source(q, rank, step) if q == rank and not received else self.landing(q, rank, step)]
                    writes, line = [self._column(q, part)], "columns kept"
                    self.b.add(Kind.copy, rank, self.compute, reads=reads, writes=writes, after=received, line=line)
