"""scatter: Programs that multiply rows of A part by part, and send each part of the result to its rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from dovetail.core import PlanError
from dovetail.ir import Builder, Kind, Program, Region, Schedule, Term
from dovetail.ir.operator import Times
from dovetail.matmul.blocks import Blocks, Parts, Steps
from dovetail.matmul.gather import DEPTH, apart_alike, before, heard_by, in_chains
from dovetail.matmul.product import MODES
from dovetail.matmul.tiles import check_tiles
from dovetail.passes.slice_messages import slice_messages

WAYS = ("library", "messages", "ring", "two_rings")


def scatter_program(name: str, blocks: Blocks, schedule: Schedule, *, sums: bool) -> Program:
    """Return the program that multiplies blocks of A's rows and sends each product to its rank.

    Rank q computes block (q, r) for rank r. With `sums`, the result of rank r is Σ_q of the blocks (q, r); else it is
    these blocks in the order of q.

    Buffers: A input (rows), B input (1 slot), P scratch (products to send), R scratch (received products that are added
    later), G scratch (rows copied together), C output.

    Parameters of the schedule:

    - `tiles` (along the longest block): the steps;
    - `own_block`: when a rank computes its own block: "first", "last", or "together" with the others' in each step;
    - `fused`: one product per step for all ranks, after copying their rows together unless they are adjacent in A; else
      one product for each rank;
    - `by`: the library's reduce_scatter or all_to_all for each step; `messages` directly to each rank; for sums also a
      `ring`, in which each rank adds its own product to the sum that it forwards, or `two_rings`, one in each
      direction, which meet at the rank that gets the sum. Messages have at most `rows_per_message` rows;
    - `in_turn`: see `gather_program`.

    Raises PlanError if the parameters do not fit. Source: seed 000 (MC²), seed 001.
    """
    made = _Scatter(name, blocks, schedule, sums, range(blocks.ranks)).build()
    return slice_messages(made, schedule.get("rows_per_message"))


def scatter_model(name: str, blocks: Blocks, schedule: Schedule, *, sums: bool) -> tuple[Program, Times]:
    """Return (program, repeats) to predict `scatter_program`; rank 0's ops stand for all if ranks are alike."""
    apart = schedule["by"] == "messages" and schedule.get("own_block") != "together"
    alike = blocks.alike and not (schedule.get("fused") and apart and not apart_alike(blocks, schedule))
    made = _Scatter(name, blocks, schedule, sums, range(1) if alike else range(blocks.ranks))
    return in_chains(made.build(asked=False), schedule, alike=alike)


class _Scatter:
    """Build the Program of `scatter_program`, with only the ops of the ranks `doing`."""

    def __init__(self, name: str, blocks: Blocks, schedule: Schedule, sums: bool, doing: range) -> None:
        self.blocks, self.ranks, self.sums, self.doing = blocks, blocks.ranks, sums, doing
        self.by, self.fused, self.own = schedule["by"], bool(schedule.get("fused")), schedule.get("own_block", "last")
        self.in_turn = bool(schedule.get("in_turn"))
        self.apart = self.own != "together" and self.by == "messages"  # the own block is a separate product
        self.steps = Steps(schedule.tiles, 1)
        self._check()
        self.part = Parts(blocks, self.steps, self.apart)
        self.b = Builder(name, self.ranks)
        self.made: dict[tuple[int, int, int], int] = {}  # (rank, r, step) -> row of the op that made it
        self.received: dict[tuple[int, int, int], int] = {}  # (rank, q, step) -> row of the op that received the part
        self.to_add: dict[int, list[tuple[int, int, int]]] = {
            r: [] for r in range(self.ranks)
        }  # received products to add

    def _check(self) -> None:
        ways = WAYS if self.sums else WAYS[:2]
        if self.by not in ways:
            raise PlanError(f"parts cannot travel by '{self.by}'", hint=f"one of {', '.join(ways)}")
        check_tiles(self.blocks.longest, self.steps.tiles, "the {rows} rows of the longest block")

    def build(self, *, asked: bool = True) -> Program:
        """Build the Program. `asked`: add its post-conditions; a prediction needs none."""
        b, everyone = self.b, range(self.ranks)
        held, wanted = list(self.blocks.held), [self.wanted(rank) for rank in everyone]
        received = [sum(self.blocks.counts[q][r] for q in everyone) for r in everyone]
        b.buffer("A", "input", held)
        b.buffer("B", "input", 1)
        b.buffer("P", "scratch", held)
        if self.fused and (self.steps.count > 1 or self.apart):
            b.buffer("G", "scratch", held)
        if self.sums and self.by == "messages":
            b.buffer("R", "scratch", received)
        b.buffer("C", "output", wanted)
        self.compute = b.lane("compute", "compute")
        for rank in self.doing if asked else ():
            self._ask(rank)
        if self.by in ("ring", "two_rings"):
            self._pass_on()
        else:
            for rank in self.doing:
                self._multiply(rank)
            self._communicate()
        for rank in self.doing:
            self._add_up(rank)
        return b.build()

    # Places in buffers

    def wanted(self, rank: int) -> int:
        """Return the rows of a rank's result."""
        return max((each[rank] for each in self.blocks.counts), default=0) if self.sums else self.blocks.rows(rank)

    def source(self, q: int, r: int, step: int) -> Region:
        """Return the rows of A, on rank q, whose product with B is the part for rank r."""
        part = self.part(q, r, step)
        return Region("A", self.blocks.starts[q][r] + part.first, part.rows)

    def made_at(self, q: int, r: int, step: int) -> Region:
        """Return the region where rank q puts the product for rank r. Products are stored by step, then by rank, so
        that the data of one call are contiguous."""
        return Region("P", self.part.made_before(q, r, step), self.part(q, r, step).rows)

    def result(self, q: int, r: int, step: int) -> Region:
        """Return the region of that part in rank r's result."""
        part = self.part(q, r, step)
        return Region("C", part.first + (0 if self.sums else self.blocks.place(q, r)), part.rows)

    def landing(self, q: int, r: int, step: int) -> Region:
        """Return the region where rank r receives the part: its final place, or R if it must be added."""
        part = self.part(q, r, step)
        aside = self.sums and self.by == "messages"
        return Region("R", self.blocks.place(q, r) + part.first, part.rows) if aside else self.result(q, r, step)

    def _ask(self, rank: int) -> None:
        sources = [(q, self.blocks.starts[q][rank], self.blocks.counts[q][rank]) for q in range(self.ranks)]
        terms = [Term("matmul", ((q, Region("A", s, c)), (q, Region("B", 0, 1)))) for q, s, c in sources]
        if self.sums:
            if self.wanted(rank):
                self.b.post([rank], Region("C", 0, self.wanted(rank)), terms)
            return
        for (q, _, count), term in zip(sources, terms, strict=True):
            if count:
                self.b.post([rank], Region("C", self.blocks.place(q, rank), count), [term])

    # Products

    def _multiply(self, rank: int) -> None:
        """Append, for each step, the products for other ranks, the next rank's first; the own product as `own` says."""
        if self.apart and self.own == "first":
            self._own(rank)
        for step in range(self.steps.count):
            if self.fused:
                self._fused(rank, step)
            else:
                order = [(rank + turn) % self.ranks for turn in range(1, self.ranks)]
                for r in order if self.apart else [*order, rank]:
                    self._single(rank, r, step)
        if self.apart and self.own == "last":
            self._own(rank)

    def _own(self, rank: int) -> None:
        """Append the product of the whole own block, written to its final place."""
        count, start = self.blocks.counts[rank][rank], self.blocks.starts[rank][rank]
        if count:
            place = 0 if self.sums else self.blocks.place(rank, rank)
            row = self._product(rank, Region("A", start, count), Region("C", place, count), "own block")
            self.made.update({(rank, rank, step): row for step in range(self.steps.count)})

    def _single(self, rank: int, r: int, step: int) -> None:
        what = self.source(rank, r, step)
        if what.num_slots:
            stays = r == rank and self.by != "library"
            into = self.result(rank, rank, step) if stays else self.made_at(rank, r, step)
            self.made[rank, r, step] = self._product(rank, what, into, f"step {step + 1}: for rank {r}")

    def _fused(self, rank: int, step: int) -> None:
        """Append one product for all ranks, without the own part if that is a separate product."""
        found = [r for r in range(self.ranks) if self.part(rank, r, step).rows and not (self.apart and r == rank)]
        if not found:
            return
        parts = [self.source(rank, r, step) for r in found]
        into = [self.made_at(rank, r, step) for r in found]
        count = sum(part.count for part in parts)
        what = Region("A", parts[0].offset, count)
        if parts[-1].offset + parts[-1].count != parts[0].offset + count:
            what = Region("G", into[0].offset, count)
            self._copy_together(rank, parts, what)
        row = self._product(rank, what, Region("P", into[0].offset, count), f"step {step + 1}: {count} rows")
        self.made.update({(rank, r, step): row for r in found})
        if rank in found and self.by != "library":
            reads, writes = [self.made_at(rank, rank, step)], [self.result(rank, rank, step)]
            self.b.add(Kind.copy, rank, self.compute, reads=reads, writes=writes, line="own part to its rows")

    def _copy_together(self, rank: int, parts: Sequence[Region], what: Region) -> None:
        offset = what.offset
        for part in parts:
            writes = [Region("G", offset, part.count)]
            self.b.add(Kind.copy, rank, self.compute, reads=[part], writes=writes, line="rows copied together")
            offset += part.count

    def _product(self, rank: int, what: Region, into: Region, line: str) -> int:
        call, reads = self.b.kernel("matmul", MODES), [what, Region("B", 0, 1)]
        return self.b.add(Kind.compute, rank, self.compute, reads=reads, writes=[into], call=call, line=line)

    # Communication

    def _communicate(self) -> None:
        for step in range(self.steps.count):
            if self.by == "library":
                self._call(step)
            else:
                self._send(step)

    def _call(self, step: int) -> None:
        kind = "reduce_scatter" if self.sums else "all_to_all"
        net, call, everyone = self.b.lane("net", "net"), self.b.collective(kind, range(self.ranks)), range(self.ranks)
        for rank in self.doing:
            parts = [self.made_at(rank, r, step) for r in everyone]
            if self.sums:
                reads = [Region("P", parts[0].offset, sum(part.count for part in parts))]
                writes = [self.result(rank, rank, step)]
            else:
                reads, writes = parts, [self.result(q, rank, step) for q in everyone]
            after = sorted({self.made[rank, r, step] for r in everyone if (rank, r, step) in self.made})
            about = {"reads": reads, "writes": writes, "call": call, "after": after}
            self.b.add(Kind.collective, rank, net, line=f"step {step + 1}: {kind}", **about)  # type: ignore[arg-type]

    def _send(self, step: int) -> None:
        """Send each part directly to its rank, on one lane per distance, so that messages travel at the same time if
        links allow; with `in_turn`, one after another."""
        for turn in range(1, self.ranks):
            send, recv = (self.b.lane(f"{name}{turn - 1 or ''}", "net") for name in ("send", "recv"))
            for rank in heard_by(self.doing, turn, self.ranks):
                to = (rank + turn) % self.ranks
                if not self.part(rank, to, step).rows:
                    continue
                channel = self.b.channel(rank, to, 0, DEPTH)
                line = f"step {step + 1}: from rank {rank} for rank {to}"
                if rank in self.doing:
                    reads, other = [self.made_at(rank, to, step)], before(rank, turn, step, self.ranks)
                    after = [self.made[rank, to, step]]
                    after += [self.received[other]] if self.in_turn and other in self.received else []
                    self.b.add(Kind.send, rank, send, reads=reads, chan_out=channel, after=after, line=line)
                if to in self.doing:
                    writes = [self.landing(rank, to, step)]
                    row = self.b.add(Kind.recv, to, recv, writes=writes, chan_in=channel, line=line)
                    self.received[to, rank, step] = row
                    self.to_add[to].append((rank, step, row))

    def _add_up(self, rank: int) -> None:
        """Add the products received in R to the own product, in the order of arrival."""
        if not (self.sums and self.by == "messages"):
            return
        for q, step, row in self.to_add[rank]:
            after, line = [row, self.made[rank, rank, step]], f"step {step + 1}: product of rank {q} added"
            reads, writes = [self.landing(q, rank, step)], [self.result(q, rank, step)]
            self.b.add(Kind.reduce, rank, self.compute, reads=reads, writes=writes, after=after, line=line)

    def _pass_on(self) -> None:
        """Sum each part along its way around the ring, from the farthest rank on: each rank adds its own product to the
        sum that it forwards. With two rings, sums arrive from both sides. A rank computes its own part last."""
        far, two = self.ranks - 1, self.by == "two_rings"
        ways = [(0, -1, far - far // 2), (1, 1, far // 2)] if two else [(0, -1, far)]
        passed: dict[tuple[int, int, int], int] = {}  # (rank, target, step) -> row of the op that made the sum
        for away, step in product(range(far, -1, -1), range(self.steps.count)):
            for (way, towards, most), rank in product(ways, range(self.ranks)):
                r = (rank + towards * away) % self.ranks
                if away > most or (away == 0 and way) or not self.part(rank, r, step).rows:
                    continue
                into = self.made_at(rank, r, step) if away else self.result(rank, rank, step)
                done = -1
                if rank in self.doing:
                    done = self._product(rank, self.source(rank, r, step), into, f"step {step + 1}: for rank {r}")
                for way_in, comes_by, farthest in [(way, towards, most)] if away else ways:
                    if away < farthest:
                        done = self._add(rank - comes_by, rank, r, step, way_in, into, done, passed)
                passed[rank, r, step] = done

    def _add(self, src: int, dst: int, r: int, step: int, way: int, into: Region, after: int, passed: Any) -> int:
        """Send the sum for rank r from rank `src` to rank `dst`, which adds it to its own product of op `after`."""
        src %= self.ranks
        send, recv = (self.b.lane(f"{name}{way or ''}", "net") for name in ("send", "recv"))
        channel, line = self.b.channel(src, dst, way, DEPTH), f"step {step + 1}: sum for rank {r}"
        if src in self.doing:
            reads, made = [self.made_at(src, r, step)], [passed[src, r, step]]
            self.b.add(Kind.send, src, send, reads=reads, chan_out=channel, after=made, line=line)
        if dst not in self.doing:
            return after
        about: Any = {"chan_in": channel, "after": [after], "line": line}
        return self.b.add(Kind.recv_reduce, dst, recv, reads=[into], writes=[into], **about)
