"""gather: Programs that bring rows of A, part by part, to the ranks that multiply them as they arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from dovetail.core import PlanError
from dovetail.ir import Builder, Kind, Program, Region, Schedule, Term
from dovetail.ir.collectives import traits_of
from dovetail.ir.operator import Times
from dovetail.matmul.blocks import Blocks, Part, Parts, Steps
from dovetail.matmul.product import MODES
from dovetail.matmul.tiles import check_tiles
from dovetail.passes.broadcast_rank0 import broadcast_rank0
from dovetail.passes.pieces import collapse_repeats, in_pieces
from dovetail.passes.regions import split
from dovetail.passes.slice_messages import slice_messages

WAYS = ("library", "messages", "ring", "two_rings")
DEPTH = 16  # depth of the channels of our own messages, before these are sliced


def gather_program(
    name: str, blocks: Blocks, schedule: Schedule, *, results: int = 1, gathered: bool = False, kind: str = "all_gather"
) -> Program:
    """Return the program that sends blocks of A part by part and multiplies them as they arrive.

    Buffers: A input (rows × slices slots), B0 … input (slices slots), C0 … output (rows that the rank multiplies),
    G scratch (received parts), T scratch (results that must be moved), and `gathered` output if A is a result.

    Parameters of the schedule:

    - `tiles` (along the longest block) or `slices` of K: the steps;
    - `own_block`: "first" multiplies the rank's own block before anything arrives, "together" multiplies its parts with
      those of other ranks in each step;
    - `fused`: one product per step, of parts stored side by side, whose result is then copied to its rows; else one
      product per part, in place;
    - `by`: the library's collective `kind` for each step; `messages` directly to each rank; a `ring`, or `two_rings`
      (one in each direction), whose ranks forward what they receive. Messages have at most `rows_per_message` rows;
    - `in_turn`: direct messages go to one rank after another, each after the rank has received what arrives meanwhile;
      for machines on which all messages of a rank leave by one link.

    Raises PlanError if the parameters do not fit. Source: seed 000 (MC²), seed 001.
    """
    made = Gather(name, blocks, schedule, results, gathered, kind, range(blocks.ranks)).build()
    return slice_messages(made, schedule.get("rows_per_message"))


def gather_model(
    name: str, blocks: Blocks, schedule: Schedule, *, results: int = 1, gathered: bool = False, kind: str = "all_gather"
) -> tuple[Program, Times]:
    """Return (program, repeats) to predict `gather_program`; rank 0's ops stand for all if ranks are alike."""
    several = schedule.get("fused") and schedule.get("own_block") == "first" and not apart_alike(blocks, schedule)
    alike = blocks.alike and not several
    made = Gather(name, blocks, schedule, results, gathered, kind, range(1) if alike else range(blocks.ranks))
    return in_chains(made.build(asked=False), schedule, alike=alike)


def apart_alike(blocks: Blocks, schedule: Schedule) -> bool:
    """Return whether all ranks make equal products of the parts of other ranks.

    They do not for whole blocks, which are adjacent on the first and the last rank only: on other ranks, the rank's own
    block lies between them.
    """
    ours = schedule["by"] != "library" and schedule.get("slices", 1) == 1
    return ours and (len(schedule.tiles) > 1 or blocks.ranks == 2)


def in_chains(made: Program, schedule: Schedule, *, alike: bool) -> tuple[Program, Times]:
    """Return `made` with its messages sliced, and how many pieces each op stands for.

    `alike`: `made` has only rank 0's ops, which stand for all ranks'. Pieces of direct messages follow one another in a
    chain, which one op represents.
    """
    most = schedule.get("rows_per_message")
    straight = most is not None and schedule["by"] == "messages" and not schedule.get("in_turn")
    whole = made if straight or most is None else in_pieces(made, most)
    whole = broadcast_rank0(whole) if alike else whole
    return collapse_repeats(whole, most) if straight else (whole, 1.0)


def before(rank: int, turn: int, step: int, ranks: int) -> tuple[int, int, int]:
    """Return (rank, source, step) of the part that a rank receives while it sends the message before this one.

    >>> before(0, 2, 5, 4), before(0, 1, 5, 4)
    ((0, 3, 5), (0, 1, 4))
    """
    return (rank, (rank - turn + 1) % ranks, step) if turn > 1 else (rank, (rank + 1) % ranks, step - 1)


def heard_by(doing: Sequence[int], towards: int, ranks: int) -> Sequence[int]:
    """Return the ranks that must send to the rank `towards` places after them so that the ranks `doing` send and
    receive all their messages.

    >>> heard_by([0], 1, 4), heard_by(range(4), 1, 4)
    ([0, 3], range(0, 4))
    """
    if len(doing) == ranks:
        return doing
    return sorted({*doing, *((rank - towards) % ranks for rank in doing)})


class Gather:
    """Build the Program of `gather_program`, with only the ops of the ranks `doing`."""

    def __init__(
        self, name: str, blocks: Blocks, schedule: Schedule, results: int, gathered: bool, kind: str, doing: range
    ) -> None:
        self.doing = doing
        self.blocks, self.ranks, self.results, self.gathered, self.kind = blocks, blocks.ranks, results, gathered, kind
        self.by, self.fused = schedule["by"], bool(schedule.get("fused"))
        self.own_first = schedule.get("own_block") == "first"
        self.in_turn = bool(schedule.get("in_turn"))
        self.steps = Steps(schedule.tiles, schedule.get("slices", 1))
        self._check(schedule)
        self.b = Builder(name, self.ranks)
        ours = self.steps.slices == 1 and self.by != "library"
        self.alike = ours and not self.fused
        self.without_own = ours and self.fused and self.own_first  # others' parts are stored side by side
        self.part = Parts(blocks, self.steps, self.without_own)
        self.received: dict[
            tuple[int, int, int], list[int]
        ] = {}  # (rank, q, step) -> row of the op that received the part
        self.lanes: dict[int, tuple[int, int]] = {}  # lanes (send, receive) by way
        self.summed: set[tuple[int, int]] = set()  # (rank, first row) of results that already hold a product

    def _check(self, schedule: Schedule) -> None:
        if self.by not in WAYS:
            raise PlanError(f"parts cannot travel by '{self.by}'", hint=f"one of {', '.join(WAYS)}")
        if self.by in ("ring", "two_rings") and traits_of(self.kind).exchanges:
            raise PlanError("only what every rank needs can travel around a ring", hint="use messages, or the library")
        if self.steps.slices == 1:
            check_tiles(self.blocks.longest, self.steps.tiles, "the {rows} rows of the longest block")

    def build(self, *, asked: bool = True) -> Program:
        """Return the Program; without post-conditions unless `asked`."""
        self._buffers()
        self.compute = self.b.lane("compute", "compute")
        for rank in self.doing if asked else ():
            self._ask(rank)
        self._communicate()
        for rank in self.doing:
            self._multiply(rank)
        return self.b.build()

    def _buffers(self) -> None:
        b, blocks, slices = self.b, self.blocks, self.steps.slices
        multiplied = [blocks.rows(rank) for rank in range(self.ranks)]
        b.buffer("A", "input", [rows * slices for rows in blocks.held])
        for i in range(self.results):
            b.buffer(f"B{i}", "input", slices)
            b.buffer(f"C{i}", "output", multiplied)
        b.buffer("G", "scratch", [rows * slices for rows in multiplied])
        if self.gathered:
            b.buffer("gathered", "output", [rows * slices for rows in multiplied])
        moved = self.without_own or (self.fused and slices == 1 and self.steps.count > 1)
        for i in range(self.results if moved else 0):
            b.buffer(f"T{i}", "scratch", multiplied)

    # Places in buffers

    def source(self, q: int, r: int, step: int) -> Region:
        """Return the region of a step's part of block (q, r) in A of rank q."""
        slices, start, part = self.steps.slices, self.blocks.starts[q][r], self.part(q, r, step)
        return column_of(start + part.first, part.rows, step if slices > 1 else 0, slices)

    def landing(self, q: int, r: int, step: int) -> Region:
        """Return the region where rank r receives that part: by the result's rows, or by step and source rank."""
        part = self.part(q, r, step)
        if self.alike:
            return Region("G", self.blocks.place(q, r) + part.first, part.rows)
        return Region("G", self.part.before(q, r, step), part.rows)

    # Post-conditions

    def _ask(self, rank: int) -> None:
        slices = self.steps.slices
        for q in range(self.ranks):
            count, start = self.blocks.counts[q][rank], self.blocks.starts[q][rank]
            if not count:
                continue
            for i in range(self.results):
                terms = []
                for s in range(slices):
                    rows = column_of(start, count, s, slices)
                    terms.append(Term("matmul", ((q, rows), (rank, Region(f"B{i}", s, 1)))))
                self.b.post([rank], Region(f"C{i}", self.blocks.place(q, rank), count), terms)
            if self.gathered:
                held, there = Region("A", start * slices, count * slices), self.blocks.place(q, rank) * slices
                self.b.post([rank], Region("gathered", there, count * slices), [Term(None, ((q, held),))])

    # Communication

    def _communicate(self) -> None:
        for step in range(self.steps.count):
            if self.ranks == 1:
                return
            if self.by == "library":
                self._call(step)
            elif self.by == "messages":
                self._send(step)
            else:
                self._pass_on(step)

    def _call(self, step: int) -> None:
        net, call = self.b.lane("net", "net"), self.b.collective(self.kind, range(self.ranks))
        everyone = range(self.ranks)
        for rank in self.doing:
            places = [self.landing(q, rank, step) for q in everyone]
            if not traits_of(self.kind).exchanges:
                reads = [self.source(rank, rank, step)]
                writes = [Region("G", places[0].offset, sum(place.count for place in places))]
            else:
                reads, writes = [self.source(rank, r, step) for r in everyone], places
            row = self.b.add(
                Kind.collective, rank, net, reads=reads, writes=writes, call=call, line=f"step {step + 1}: {self.kind}"
            )
            for q in everyone:
                self.received[rank, q, step] = [row]

    def _send(self, step: int) -> None:
        """Send a step's parts directly to each rank, in a lane for each: at the same time, or one after another."""
        for turn in range(1, self.ranks):
            for rank in heard_by(self.doing, turn, self.ranks):
                after = self.received.get(before(rank, turn, step, self.ranks), []) if self.in_turn else []
                self._message(rank, (rank + turn) % self.ranks, rank, step, turn - 1, after)

    def _message(self, src: int, dst: int, q: int, step: int, way: int, after: Sequence[int] = ()) -> None:
        """Send the part of block (q, dst) from rank `src`, which holds it, to rank `dst`, after the ops `after`."""
        if not self.part(q, dst, step).rows:
            return
        send, recv = self._lanes(way)
        channel, line = self.b.channel(src, dst, way, DEPTH), f"step {step + 1}: block of rank {q}"
        what = self.source(q, dst, step) if src == q else self.landing(q, src, step)
        if src in self.doing:
            self.b.add(Kind.send, src, send, reads=[what], chan_out=channel, after=after, line=line)
        if dst in self.doing:
            writes = [self.landing(q, dst, step)]
            self.received[dst, q, step] = [self.b.add(Kind.recv, dst, recv, writes=writes, chan_in=channel, line=line)]

    def _lanes(self, way: int) -> tuple[int, int]:
        """Return the lanes on which messages of a way are sent and received."""
        if way not in self.lanes:
            self.lanes[way] = self.b.lane(f"send{way or ''}", "net"), self.b.lane(f"recv{way or ''}", "net")
        return self.lanes[way]

    def _pass_on(self, step: int) -> None:
        """Forward parts around the ring: in each hop every rank sends what it received last to the rank before it and,
        with two rings, also to the rank after it."""
        back, forth = self.hops
        for hop in range(max(back, forth)):
            for way, most in ((0, back), (1, forth)):
                towards = -1 if way == 0 else 1
                for rank in heard_by(self.doing, towards, self.ranks) if hop < most else ():
                    q, dst = (rank - towards * hop) % self.ranks, (rank + towards) % self.ranks
                    after = [] if hop == 0 else self.received.get((rank, q, step), [])
                    self._message(rank, dst, q, step, way, after)

    @property
    def hops(self) -> tuple[int, int]:
        """The number of hops in each direction."""
        far = self.ranks - 1
        return (far, 0) if self.by == "ring" else (far - far // 2, far // 2)

    # Products

    def _multiply(self, rank: int) -> None:
        if self.own_first and self.blocks.counts[rank][rank]:
            self._product(rank, self._own(rank), [(rank, Part(0, self.blocks.counts[rank][rank]))], None, [])
        for step in range(self.steps.count):
            if self.fused:
                for run in self._runs(rank, step):
                    self._fused(rank, step, run)
            else:
                for q in self._order(rank):
                    if self.part(q, rank, step).rows:
                        self._single(rank, q, step)
        if self.gathered:
            self._keep(rank)

    def _own(self, rank: int) -> Region:
        slices = self.steps.slices
        start, count = self.blocks.starts[rank][rank], self.blocks.counts[rank][rank]
        return Region("A", start * slices, count * slices)

    def _order(self, rank: int) -> Iterator[int]:
        """Yield ranks in the order in which their parts arrive, after the own rank unless its block is done."""
        if not self.own_first:
            yield rank
        if self.by in ("ring", "two_rings"):
            back, forth = self.hops
            for hop in range(1, max(back, forth) + 1):
                yield from [(rank + hop) % self.ranks] * (hop <= back)
                yield from [(rank - hop) % self.ranks] * (hop <= forth)
        else:
            yield from ((rank - turn) % self.ranks for turn in range(1, self.ranks))

    def _runs(self, rank: int, step: int) -> Iterator[list[int]]:
        """Yield groups of ranks whose parts are stored side by side and multiplied together."""
        found = [q for q in range(self.ranks) if self.part(q, rank, step).rows and not (self.own_first and q == rank)]
        apart = self.own_first and not self.without_own
        runs = [[q for q in found if q < rank], [q for q in found if q > rank]] if apart else [found]
        yield from filter(None, runs)

    def _single(self, rank: int, q: int, step: int) -> None:
        received = self.received.get((rank, q, step), [])
        what = self.source(rank, rank, step) if q == rank and not received else self.landing(q, rank, step)
        self._product(rank, what, [(q, self.part(q, rank, step))], step, received)

    def _fused(self, rank: int, step: int, run: list[int]) -> None:
        """Append one product of all parts of a run, after copying the own part there unless a call did so."""
        after = [row for q in run for row in self.received.get((rank, q, step), [])]
        if rank in run and (rank, rank, step) not in self.received:
            reads, writes = [self.source(rank, rank, step)], [self.landing(rank, rank, step)]
            line = f"step {step + 1}: own part beside the others"
            self.b.add(Kind.copy, rank, self.compute, reads=reads, writes=writes, line=line)
        first = self.landing(run[0], rank, step)
        parts = [(q, self.part(q, rank, step)) for q in run]
        what = Region("G", first.offset, sum(part.rows for _, part in parts))
        self._product(rank, what, parts, step, sorted(set(after)))

    def _product(
        self, rank: int, what: Region, parts: list[tuple[int, Part]], step: int | None, after: Sequence[int]
    ) -> None:
        """Append the product of `what` and every B into these parts' rows: in place if adjacent, else via a copy."""
        slices = self.steps.slices
        blocks = Region("B0", 0, slices) if step is None or slices == 1 else Region("B0", step, 1)
        rows = [(self.blocks.place(q, rank) + part.first, part.rows) for q, part in parts]
        side_by_side = all(a[0] + a[1] == b[0] for a, b in pairwise(rows))
        start, count = rows[0][0], sum(each for _, each in rows)
        call = self.b.kernel("matmul", MODES, accumulate=slices > 1 and self._adds(rank, rows))
        line = f"{'own block' if step is None else f'step {step + 1}'}: {count} rows"
        for i in range(self.results):
            into = Region(f"C{i}", start, count) if side_by_side else Region(f"T{i}", what.offset, count)
            reads = [what, blocks._replace(buffer=f"B{i}")]
            self.b.add(Kind.compute, rank, self.compute, reads=reads, writes=[into], call=call, after=after, line=line)
            if not side_by_side:
                self._move(rank, i, what.offset, rows)

    def _adds(self, rank: int, rows: list[tuple[int, int]]) -> bool:
        """Return whether these rows already hold a product, and record that they now do."""
        firsts = {(rank, first) for first, _ in rows}
        adds = firsts <= self.summed
        assert adds or not firsts & self.summed
        self.summed |= firsts
        return adds

    def _move(self, rank: int, i: int, offset: int, rows: list[tuple[int, int]]) -> None:
        """Append copies of results to their rows."""
        for first, count in rows:
            reads, writes = [Region(f"T{i}", offset, count)], [Region(f"C{i}", first, count)]
            self.b.add(Kind.copy, rank, self.compute, reads=reads, writes=writes, line="results to their rows")
            offset += count

    def _keep(self, rank: int) -> None:
        """Append copies of the gathered rows to the buffer `gathered`, in order."""
        slices = self.steps.slices
        own = (rank, rank, 0) not in self.received
        for q in range(self.ranks):
            count, there = self.blocks.counts[q][rank], self.blocks.place(q, rank)
            if count and q == rank and own:
                writes = [Region("gathered", there * slices, count * slices)]
                self.b.add(Kind.copy, rank, self.compute, reads=[self._own(rank)], writes=writes, line="own rows kept")
                continue
            for step in range(self.steps.count):
                part = self.part(q, rank, step)
                at = there + part.first
                into = Region("gathered", at, part.rows)
                if slices > 1:
                    into = Region("gathered", at * slices + step, 1, slices, part.rows)
                if part.rows:
                    after = self.received.get((rank, q, step), [])
                    reads = [self.landing(q, rank, step)]
                    self.b.add(Kind.copy, rank, self.compute, reads=reads, writes=[into], after=after, line="rows kept")


def column_of(start: int, count: int, s: int, slices: int, buffer: str = "A") -> Region:
    """Return the region of slice `s` of K of `count` rows from `start` on; whole rows if K is not cut.

    >>> print(column_of(2, 3, 0, 1), column_of(2, 3, 1, 4))
    A[2:5] A[9:10; 3 x 4]
    """
    if slices == 1 or not count:
        return Region(buffer, start * slices, count)
    first = start * slices + s
    return Region(buffer, first, 1) if count == 1 else Region(buffer, first, 1, slices, count)


def even_tiles(longest: int, steps: int) -> tuple[int, ...]:
    """Return the longest block cut into `steps` even tiles, or into as many as it has rows.

    >>> even_tiles(10, 4), even_tiles(2, 4)
    ((3, 3, 2, 2), (1, 1))
    """
    return tuple(rows for rows in split(longest, steps) if rows)
