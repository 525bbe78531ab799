"""matmul_all_reduce: A and B are cut along k; every rank gets all of C, the sum of all ranks' products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from dovetail.core import PlanError, parse_count
from dovetail.ir import Builder, Heuristic, Kind, Option, Program, Region, Sample, Schedule, Term, Work, Workload
from dovetail.ir.arrays import ArraySpec, slots_of
from dovetail.ir.operator import Costs, LibraryCall
from dovetail.matmul.blockwise import MANY_OPS, OURS_RANKS
from dovetail.matmul.contracting import Contracting
from dovetail.matmul.families import Pipeline, learned, scheduled, sliced, usual_align
from dovetail.matmul.ficco import NO_RULE
from dovetail.matmul.local_search import better, hopeful, moved
from dovetail.matmul.product import SIZES, TILING, row_work, workload_of
from dovetail.matmul.reduced_tile import of_rows
from dovetail.matmul.samples import add_products
from dovetail.matmul.tiles import READINGS, check_tiles, serial
from dovetail.matmul.variations import variations
from dovetail.passes import inline_collectives, slice_messages
from dovetail.passes.concatenate import concatenate

WAYS = ("library", "exchange", "ring")
MANY_RANKS = f"Our own all-reduces are considered for at most {OURS_RANKS} ranks, unless asked for by name."
DEPTH = 16  # depth of the channels of our own all-reduces
USUAL_RANKS = 8  # assumed number of ranks, and so of messages per tile, if none is given


@dataclass(frozen=True)
class MatmulAllReduce(Contracting):
    """C = A·B with A (m, k) and B (k, n) cut along k over the ranks; every rank gets all of C (m, n).

    Parameters
    ----------
    m, k, n : int
        Sizes of the whole product, over all ranks. Any may be 0.
    dtype : str
        float16, bfloat16, float32 or float64. Half types accumulate in float32.
    shares : tuple of int
        Columns of A, and rows of B, on each rank. Default: shared evenly.

    Notes
    -----
    Source: seed 000 (MatmulAllReduce of MC²).

    >>> MatmulAllReduce(4096, 3072, 8192, "float16").title
    'matmul_all_reduce 4096 × 3072 × 8192 float16'
    >>> MatmulAllReduce.sized(2, "float32", 110e9, 118e6)
    MatmulAllReduce(m=2048, k=3728, n=896, dtype='float32', shares=None)
    """

    name: ClassVar[str] = "matmul_all_reduce"
    families: ClassVar[tuple[str, ...]] = ("serial", "uniform", "mc2", "optimal")
    heuristics: ClassVar[tuple[Heuristic, ...]] = (
        *NO_RULE,
        *(Heuristic(f"MC², {r}", "mc2", {"reading": r}) for r in READINGS),
    )
    options: ClassVar[tuple[Option, ...]] = (
        *SIZES,
        *TILING,
        Option("by", str, "How each tile is reduced.", "auto", choices=("auto", *WAYS), of="schedules"),
    )

    def resolve(self, facts: Mapping[str, Any], ranks: int) -> tuple[MatmulAllReduce, tuple[str, ...]]:
        operator, notes = super().resolve(facts, ranks)
        return operator, (*notes, MANY_RANKS) if ranks > OURS_RANKS else notes

    def program(self, schedule: Schedule, ranks: int) -> Program:
        """Return the program that computes tiles of rows one after another and all-reduces each as soon as it is ready.

        Buffers: A input (m slots, a row of k_r), B input (1 slot), P scratch and C output (m slots, a row of n).

        Parameters of the schedule: `tiles`, the rows of each; `by`: `library` calls the library's all_reduce for each
        tile, on lane `net`; `exchange` (all pairs) and `ring` use our own messages on lanes `send` and `recv`, of at
        most `rows_per_message` rows. One tile is the serial schedule. Raises PlanError if the tiles do not add up to m.
        Source: seed 000 (tiling along M).
        """
        ranks, by, most = parse_count(ranks, "ranks", least=1), schedule.get("by"), schedule.get("rows_per_message")
        tiled = _tiled(self, ranks, check_tiles(self.m, schedule.tiles))
        if by not in WAYS:
            raise PlanError(f"no all-reduce '{by}'", hint=f"one of {', '.join(WAYS)}")
        if by == "library":
            if most is not None:
                raise PlanError("the library's all-reduce chooses its own messages", hint="leave out rows_per_message")
            return tiled
        return slice_messages(_inlined(tiled, by), most)

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, float]:
        """Simulate one tile of each length for all of that length; with our own messages a short one, scaled up."""
        by, most, tiles = schedule["by"], schedule.get("rows_per_message"), check_tiles(self.m, schedule.tiles)
        if by not in WAYS or ranks == 1 or not tiles or (by == "library" and most is not None):
            program = self.program(schedule, ranks)
        else:
            made = {rows: _one_tile(ranks, by, rows, most) for rows in set(tiles)}
            program = concatenate([made[rows] for rows in tiles])
        return program, self.workload(program, schedule), 1.0

    def workload(self, program: Program, schedule: Schedule) -> Workload:
        """Describe a program: slots are rows of A and of products; B is one slot."""
        ranks = program.num_ranks
        slots = slots_of([*self.inputs(schedule, ranks), *self.outputs(schedule, ranks)])
        slots |= dict.fromkeys(("P", "scratch"), slots["C"])
        return workload_of(program, slots)

    def works(self, ranks: int) -> list[Work]:
        """Return the work of one row, on each rank."""
        return [row_work(k, self.n, self.dtype) for k in self.depths(ranks)]

    def inputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the specs of A (m, k_r) and B (k_r, n)."""
        depths = self.depths(ranks)
        return (
            self.array("A", ((self.m, k) for k in depths)),
            self.array("B", ((k, self.n) for k in depths), within=2),
        )

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the spec of C (m, n)."""
        return (self.array("C", [(self.m, self.n)] * ranks),)

    def serial(self, ranks: int) -> Schedule:
        return scheduled(serial(self.m), "library")

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        for by in self._ways(costs):
            ours, most = by != "library", costs.options["rows_per_message"]
            ops_per_tile = costs.ranks * 4 * costs.ranks if ours else 0
            for tiling in self._pipeline(costs, by).tilings(costs):
                if len(tiling.tiles) * ops_per_tile <= (1 if tiling.family == "uniform" else 4) * MANY_OPS:
                    yield scheduled(tiling, by, most if ours else None)

    def refine(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        """Yield the best schedules with sliced messages; then with other tile lengths (only if the product was
        measured: with a published rate, lengths finer than `align` make no difference)."""
        ranked, found = hopeful(costs, ranked), list[Schedule]()
        if turn == 0 and costs.options["rows_per_message"] is None and self.row_bytes:
            ours = [by for by in self._ways(costs) if by != "library"]
            yield from (
                each for each in sliced(ranked, self.row_bytes, ours, costs.ranks) if is_small(each, costs.ranks)
            )
        measured = costs.options["align"] is None and costs.is_measured(self.works(costs.ranks))
        align, floor = usual_align(self.m), self._floor(costs)
        if turn == 1 and measured:
            yield from (found := list(moved(costs, ranked, align, floor)))
        if turn == 2 or (turn == 1 and not found):
            yield from better(costs, ranked, partial(near, costs.ranks), align if measured else None, floor)

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        return variations(schedule, USUAL_RANKS)

    def describe(self, schedule: Schedule, ranks: int) -> str:
        ours = {"exchange": "our own all-pairs exchange", "ring": "our own ring"}
        if ranks == 1:
            return "copied, as there is only one rank"
        most = schedule.get("rows_per_message")
        cut = f", messages of at most {most} rows" if most else ""
        return f"reduced by {ours.get(schedule['by'], 'the library’s all-reduce')}{cut}"

    def samples(self, ranks: int) -> Sequence[Sample]:
        if not self.m or not self.n:
            return ()
        return (Sample("the product, by rows", self.m, lambda b, r, rows: add_products(b, r, rows, self.m)),)

    def library_calls(self, ranks: int) -> Sequence[LibraryCall]:
        return (LibraryCall("all_reduce", self.m * self.row_bytes),) if ranks > 1 else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the result."""
        return self.n * self.element_bytes

    def _pipeline(self, costs: Costs, by: str) -> Pipeline:
        floor, works = self._floor(costs), self.works(costs.ranks)
        align = costs.options["align"] or usual_align(self.m)
        library: Any = lambda rows: costs.collective_s("all_reduce", np.asarray(rows) * self.row_bytes)  # noqa: E731
        comm_s = library if by == "library" else learned(partial(self._messages_s, costs, by), floor, self.m)
        about = self.m, -(-self.k // costs.ranks), self.n
        stretch = costs.stretch(scheduled(serial(self.m), by))
        return Pipeline(*about, partial(costs.work_s, works), comm_s, floor, align, stretch)

    def _messages_s(self, costs: Costs, by: str, rows: int) -> float:
        part = replace(self, m=rows)
        return costs.messages_s(part, scheduled(serial(rows), by))

    def _floor(self, costs: Costs) -> int:
        asked = costs.options["floor"]
        least = int(np.ceil(costs.least_amount(self.works(costs.ranks)))) if asked is None else asked
        return max(1, min(least, self.m))

    def _ways(self, costs: Costs) -> tuple[str, ...]:
        """Return the requested all-reduces for which the machine has costs. Raises CostError if there are none."""
        asked = WAYS if costs.options["by"] == "auto" else (costs.options["by"],)
        if costs.ranks == 1 and "library" in asked:
            return ("library",)
        known = tuple(by for by in asked if costs.knows_messages() or by == "library")
        known = tuple(by for by in known if by != "library" or costs.knows_collective("all_reduce"))
        if not known:
            raise costs.unknown("all_reduce")
        many = costs.ranks > OURS_RANKS and known[0] == "library"
        return known[:1] if many else known


def is_small(schedule: Schedule, ranks: int) -> bool:
    """Return whether a schedule can be predicted quickly: by the library, or with few enough messages of our own."""
    most = schedule.get("rows_per_message") or max(schedule.tiles, default=1)
    pieces = sum(-(-rows // (ranks * most)) for rows in schedule.tiles)
    return schedule["by"] == "library" or pieces * 4 * ranks * ranks <= 3 * MANY_OPS


def near(ranks: int, schedule: Schedule) -> Iterator[Schedule]:
    """Yield the neighbours of a schedule that can be predicted quickly."""
    return (each for each in variations(schedule, ranks) if is_small(each, ranks))


@lru_cache(maxsize=1024)
def _one_tile(ranks: int, by: str, rows: int, most: int | None) -> Program:
    """Return the program of one tile of `rows` rows, with messages of at most `most` rows."""
    if by == "library":
        return _tiled(MatmulAllReduce(rows, 1, 1), ranks, (rows,))
    chunks = _chunks(ranks, by)
    return _short_tile(ranks, by, rows) if rows < chunks else of_rows(_short_tile(ranks, by, chunks), rows, most)


@lru_cache
def _chunks(ranks: int, by: str) -> int:
    """Return into how many chunks one of our own all-reduces cuts a tile."""
    from dovetail.collective import family

    algorithm = family(by)("all_reduce", ranks, False)  # type: ignore[arg-type]
    assert algorithm is not None
    return max(algorithm.slots_of(buffer.name, 0) for buffer in algorithm.buffers if buffer.role == "input")


@lru_cache
def _short_tile(ranks: int, by: str, rows: int) -> Program:
    """Return the program of a tile with at most one row for each chunk, so that none of its messages is cut."""
    return _inlined(_tiled(MatmulAllReduce(rows, 1, 1), ranks, (rows,)), by)


def _inlined(tiled: Program, by: Any) -> Program:
    from dovetail.collective import family  # imported here, since plans by the library need no algorithms

    return inline_collectives(tiled, family(by), DEPTH)


def _tiled(operator: MatmulAllReduce, ranks: int, tiles: tuple[int, ...]) -> Program:
    """Return the program with a compute lane and a net lane, which calls the library's all_reduce for each tile."""
    b, everyone = Builder("matmul_all_reduce", ranks), range(ranks)
    b.buffer("A", "input", operator.m)
    b.buffer("B", "input", 1)
    b.buffer("P", "scratch", operator.m)
    b.buffer("C", "output", operator.m)
    compute, net = b.lane("compute", "compute"), b.lane("net", "net")
    matmul, reduce = b.kernel("matmul", ("each", "all")), b.collective("all_reduce", everyone)
    whole, weights = Region("A", 0, operator.m), Region("B", 0, 1)
    b.post(
        everyone, Region("C", 0, operator.m), [Term("matmul", ((rank, whole), (rank, weights))) for rank in everyone]
    )
    for rank in everyone:
        for tile, (start, count) in enumerate(zip(accumulate(tiles, initial=0), tiles, strict=False), start=1):
            line = f"tile {tile} of {len(tiles)} ({count} rows)"
            a, p, c = (Region(name, start, count) for name in "APC")
            done = b.add(Kind.compute, rank, compute, reads=[a, weights], writes=[p], call=matmul, line=line)
            b.add(Kind.collective, rank, net, reads=[p], writes=[c], call=reduce, after=[done], line=line)
    return b.build()
