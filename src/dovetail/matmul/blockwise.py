"""blockwise: base class of operators whose ranks exchange blocks of rows, before or after multiplying them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dovetail.ir import Heuristic, LibraryCall, Schedule, Work
from dovetail.ir.operator import Costs
from dovetail.matmul.blocks import Blocks
from dovetail.matmul.families import COUNTS, POINTS, learned, sliced, usual_align
from dovetail.matmul.local_search import better, hopeful, moved
from dovetail.matmul.optimum import optimal
from dovetail.matmul.product import Product
from dovetail.matmul.tiles import Seconds, Tiling, mc2_shard, mc2_short_shard, uniform
from dovetail.matmul.variations import cut_otherwise, driven_otherwise, retiled_from

OURS_RANKS = 16  # with more ranks, schedules with our own messages are not tried: predictions would take seconds
MC2 = Heuristic("MC²", "mc2")
AT_ONCE = ("library", "messages")  # ways that send all blocks at the same time, as serial schedules do
SHARDS = {"ring": "shard-ring", "two_rings": "shard-two-rings", "messages": "shard-messages"}
MANY_OPS = 4000  # uniform tiles with our own messages are not tried if a program would have more ops, roughly


def without_rings(kind: type[Product]) -> tuple[str, ...]:
    """Return the families of `kind` in which no block travels around a ring.

    >>> without_rings(Product)
    ('serial',)
    """
    return tuple(family for family in kind.families if family not in (SHARDS["ring"], SHARDS["two_rings"]))


@dataclass(frozen=True)
class Blockwise(Product):
    """A product of blocks of rows that travel between ranks. `kind`: the library's collective that moves them. `ways`:
    all ways to move them. `gathers`: whether they travel before the product, or after."""

    kind: ClassVar[str] = ""
    ways: ClassVar[tuple[str, ...]] = ("library", "messages")
    gathers: ClassVar[bool] = True

    def blocks(self, ranks: int) -> Blocks:
        """Return which rows of A each rank multiplies."""
        raise NotImplementedError

    def works(self, ranks: int) -> list[Work]:
        """Return the work of one row, on each rank."""
        raise NotImplementedError

    def row_bytes(self, ranks: int) -> int:
        """Return the bytes of a row that travels."""
        raise NotImplementedError

    def at_once(self, ranks: int) -> int:
        """Return how many blocks are multiplied in a step."""
        return max(ranks - 1, 1) if self.gathers else ranks

    def part(self, rows: int, ranks: int) -> Blockwise:
        """Return the same operator with blocks of `rows` rows."""
        return replace(self, m=rows * ranks)

    def serial(self, ranks: int) -> Schedule:
        return self._serial("library", ranks)

    def _serial(self, by: str, ranks: int) -> Schedule:
        longest = self.blocks(ranks).longest
        return Schedule.of("serial", tiles=(longest,) if longest else (), by=by, own_block="together", fused=True)

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Yield serial schedules; whole blocks by rings or messages; tiles; FiCCO's schedules.

        If all messages of a rank leave by one link, direct messages are sent one after another: sent at once, all would
        arrive late, and at the same time. Serial schedules, which wait for all of them anyway, send them at once.
        """
        in_turn = costs.ranks > 2 and costs.has_one_way_out()
        for each in self._schedules(costs):
            if not in_turn or each["by"] != "messages" or each.is_serial:
                yield each
            if in_turn and each["by"] == "messages":
                yield each.with_parameters(in_turn=True)

    def _schedules(self, costs: Costs) -> Iterator[Schedule]:
        ranks, longest, ways = costs.ranks, self.blocks(costs.ranks).longest, self.known_ways(costs)
        at_once = [by for by in ways if by in AT_ONCE]
        yield from (self._serial(by, ranks) for by in at_once or self._known(costs, AT_ONCE))
        if ranks == 1:
            return
        whole = (longest,) if longest else ()
        yield from (self._stepwise(SHARDS[by], whole, by) for by in ways if by != "library")
        for by in [by for by in ways if by != "ring" or "two_rings" not in ways]:
            for tiling in self.tilings(costs, by):
                made = replace(self._stepwise(tiling.family, tiling.tiles, by), steps=tiling.steps, notes=tiling.notes)
                yield made
                if by in at_once and len(tiling.tiles) > 1:
                    yield made.with_parameters(fused=True)
        yield from self.ficco(costs, at_once)

    def ficco(self, costs: Costs, ways: Sequence[str]) -> Iterator[Schedule]:
        """Yield FiCCO's schedules (or their mirror images) by these ways, which move all blocks at the same time."""
        return iter(())

    def _stepwise(self, family: str, tiles: tuple[int, ...], by: str) -> Schedule:
        """Return the schedule that multiplies one tile after another; the own block while those of others travel."""
        return Schedule.of(family, tiles=tiles, by=by, own_block="first" if self.gathers else "last", fused=False)

    def tilings(self, costs: Costs, by: str) -> Iterator[Tiling]:
        """Yield tilings of the longest block: uniform ones, by MC²'s rule, and the optimum for these costs."""
        longest, ranks, works = self.blocks(costs.ranks).longest, costs.ranks, self.works(costs.ranks)
        most, align = costs.options["max_tiles"], costs.options["align"] or usual_align(longest)
        compute_s: Seconds = lambda rows: self.at_once(ranks) * costs.work_s(works, np.asarray(rows))  # noqa: E731
        comm_s = self._library_s(costs) if by == "library" else self._messages_s(costs, by)
        for count in COUNTS:
            if count <= -(-longest // align) and (most is None or count <= most) and worth(by, count, ranks):
                yield uniform(longest, count, align)
        short = mc2_short_shard(max(self.k, 1), max(self.n, 1), ranks, self.row_bytes(ranks))
        own_s = float(costs.work_s(works, np.array([longest]))[0])
        rule = mc2_shard(longest, short, own_s, compute_s, comm_s, gathers=self.gathers)
        if most is None or len(rule.tiles) <= most:
            yield rule
        first, second = (comm_s, compute_s) if self.gathers else (compute_s, comm_s)
        floor = self._floor(costs)
        yield optimal(longest, first, second, align=align, floor=floor, max_count=most, max_points=POINTS)

    def _library_s(self, costs: Costs) -> Seconds:
        return lambda rows: costs.collective_s(self.kind, np.asarray(rows) * self.row_bytes(costs.ranks) * costs.ranks)

    def _messages_s(self, costs: Costs, by: str) -> Seconds:
        def alone_s(rows: int) -> float:
            return costs.messages_s(self.part(rows, costs.ranks), self._stepwise("shard", (rows,), by))

        return learned(alone_s, self._floor(costs), self.blocks(costs.ranks).longest)

    def refine(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        """Yield the best schedules with our own messages, with sliced messages; then the best schedules with other tile
        lengths (only if the product was measured); then neighbours of the best."""
        if costs.ranks == 1 or not self.row_bytes(costs.ranks):
            return
        tiled, found = hopeful(costs, ranked), list[Schedule]()
        if turn == 0 and costs.options["rows_per_message"] is None:
            ours = [by for by in self.known_ways(costs) if by != "library"]
            yield from sliced(tiled, self.row_bytes(costs.ranks), ours)
        measured = costs.options["align"] is None and costs.is_measured(self.works(costs.ranks))
        align, floor = usual_align(self.blocks(costs.ranks).longest), self._floor(costs)
        if turn == 1 and measured:
            yield from (found := list(moved(costs, tiled, align, floor)))
        if turn == 2 or (turn == 1 and not found):
            yield from better(costs, ranked, self.neighbours, align if measured else None, floor)

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield schedules with other progress settings, message slices or tile lengths, or with `fused` changed."""
        yield from driven_otherwise(schedule)
        yield schedule.with_parameters(fused=not schedule.get("fused"))
        if schedule["by"] != "library" and not schedule.get("slices"):
            yield from cut_otherwise(schedule, max(schedule.tiles, default=0))
        yield from retiled_from(schedule)

    def library_calls(self, ranks: int) -> Sequence[LibraryCall]:
        longest = max((self.blocks(ranks).rows(r) for r in range(ranks)), default=0)
        return (LibraryCall(self.kind, longest * self.row_bytes(ranks)),) if ranks > 1 else ()

    def _floor(self, costs: Costs) -> int:
        asked = costs.options["floor"]
        least = int(np.ceil(costs.least_amount(self.works(costs.ranks)))) if asked is None else asked
        return max(1, min(least, self.blocks(costs.ranks).longest))

    def known_ways(self, costs: Costs) -> tuple[str, ...]:
        """Return the requested ways for which the machine has costs. Raises CostError if there are none."""
        asked = costs.options["by"]
        return self._known(costs, self.ways if asked == "auto" else (asked,))

    def _known(self, costs: Costs, ways: Sequence[str]) -> tuple[str, ...]:
        """Return those of `ways` for which the machine has costs. Raises CostError if there are none."""
        if costs.ranks == 1:
            return ("library",)
        known = tuple(
            by for by in ways if (costs.knows_collective(self.kind) if by == "library" else costs.knows_messages())
        )
        if not known:
            raise costs.unknown(self.kind)
        many = costs.ranks > OURS_RANKS and known[0] == "library"
        return known[:1] if many else known


def worth(by: str, count: int, ranks: int) -> bool:
    """Return whether a tiling by our own messages is small enough to be predicted quickly."""
    return by == "library" or count * 3 * ranks * ranks <= MANY_OPS
