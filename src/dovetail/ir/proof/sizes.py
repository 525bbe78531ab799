"""sizes: slots of unequal sizes: which slots have equal sizes whatever the counts, and the sizes for given counts."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError, ProgramError
from dovetail.ir.collectives import COLLECTIVES
from dovetail.ir.op_lists import OpLists, part_slots
from dovetail.ir.program import Program
from dovetail.ir.proof.calls import calls_of
from dovetail.ir.proof.certificate import Fault
from dovetail.ir.proof.greedy import Greedy
from dovetail.ir.slots import Slot
from dovetail.ir.types import RECVS, SENDS, Kind, Region
from dovetail.ir.workload import Sizes, Workload, owners

Ints = NDArray[np.int64]
# The message of these ops consists of slots that they read; the message of other ops, of slots that they write.
_MOVES_READS = (Kind.send, Kind.recv_reduce_send, Kind.copy, Kind.reduce, Kind.put, Kind.get)
_READS_LIKE_WRITES = (*(Kind.copy, Kind.reduce, Kind.put, Kind.get), *(Kind.recv_reduce, Kind.recv_reduce_copy_send))


def uneven(program: Program, known: Sizes, dtype: str) -> Workload:
    """Return a Workload of flat arrays, in which each slot has its own number of elements (see `slot_sizes`)."""
    slots = {buffer.name: (Slot((), dtype),) * program.num_ranks for buffer in program.buffers}
    return Workload(slots, sizes=slot_sizes(program, known))


def slot_sizes(program: Program, known: Sizes) -> Sizes:
    """Return the elements of every slot, `sizes[buffer][rank][slot]`, derived from the `known` ones.

    A slot that no op connects to a known one has 0 elements. Raises ProgramError if the program moves a slot into one
    of another size, and OperatorError if `known` is not one whole number for each slot of each rank.

    >>> from dovetail.ir import parse
    >>> relay = parse('''
    ... program relay ranks 2
    ... buffer x input 2,0
    ... buffer y scratch 0,2
    ... lane net net
    ... channel 0->1 0 depth 1
    ... rank 0 lane net
    ...   send x[0:2] to 1
    ... rank 1 lane net
    ...   recv from 0 -> y[0:2]
    ... ''')
    >>> slot_sizes(relay, {"x": (np.array([3, 2]), np.zeros(0, int))})["y"][1].tolist()
    [3, 2]
    """
    numbers, label = _Numbers(program), _labels(program)
    given = np.full(numbers.total, -1, np.int64)
    for name, parts in known.items():
        if len(parts) != program.num_ranks:
            what = f"sizes of buffer '{name}' are for {len(parts)} ranks"
            raise OperatorError(what, found=f"{program.num_ranks} ranks")
        for rank, part in enumerate(parts):
            given[numbers.of(name, rank)] = _checked(program, name, rank, part)
    size = np.full(int(label.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(size, label, given)
    wrong = np.flatnonzero((given >= 0) & (given != size[label]))
    if len(wrong):
        other = int(np.flatnonzero((label == label[wrong[0]]) & (given == size[label[wrong[0]]]))[0])
        one = int(wrong[0])
        raise ProgramError(
            f"program '{program.name}' moves slots of {given[one]} elements into slots of {given[other]}",
            found=f"{numbers.name(one)} and {numbers.name(other)}",
            hint="give counts that divide evenly, or use separate slots for parts of different sizes",
        )
    return numbers.by_slot(np.maximum(size, 0)[label])


def slot_classes(program: Program) -> Sizes:
    """Return the class of every slot: slots of one class have equal sizes whatever the counts.

    Copies, reductions and messages connect the slots at their two ends, slot by slot; a call of a library collective
    connects the slots that its members read and write.
    """
    return _Numbers(program).by_slot(_labels(program))


def sizes_fault(program: Program) -> Fault | None:
    """Return the fault of a program that does not suit all counts; None if it does.

    A program suits all counts if it connects no two slots whose sizes the post-conditions allow to differ. A
    post-condition requires that a slot and the slots that it sums have one size: in an all_to_all_v, one for each pair
    of ranks. Slots in no post-condition have the size of what ops write to them.
    """
    numbers, label, asked = _Numbers(program), _labels(program), _Numbers(program)
    edges, named = [], np.zeros(numbers.total, np.bool_)
    for post in program.posts:
        own = [(rank, post.region) for rank in post.ranks]
        same = [asked.slots(*each) for each in (*own, *(term.source for term in post.terms if term.kernel is None))]
        for each in same:
            named[each] = True
            edges.append((same[0], each))
    wanted = _connected(numbers.total, edges)
    slots = np.flatnonzero(named)
    slots = slots[np.argsort(label[slots], kind="stable")]
    apart = np.flatnonzero((label[slots[1:]] == label[slots[:-1]]) & (wanted[slots[1:]] != wanted[slots[:-1]]))
    if not len(apart):
        return None
    one, other = (numbers.name(int(slot)) for slot in slots[apart[0] : apart[0] + 2])
    return Fault(f"{one} and {other} must have one size, but the collective allows them to differ")


class _Numbers:
    """Numbers for all slots of all buffers on all ranks, and back."""

    def __init__(self, program: Program) -> None:
        self._program = program
        sizes = [slots for buffer in program.buffers for slots in buffer.slots]
        self.start = np.array(list(accumulate(sizes, initial=0)), np.int64)
        self.total = int(self.start[-1])
        self._row = {buffer.name: row for row, buffer in enumerate(program.buffers)}

    def by_slot(self, values: Ints) -> Sizes:
        """Return one value for each numbered slot as values by buffer, rank and slot."""
        ranks = range(self._program.num_ranks)
        return {name: tuple(values[self.of(name, rank)] for rank in ranks) for name in self._row}

    def of(self, buffer: str, rank: int) -> slice:
        at = self._row[buffer] * self._program.num_ranks + rank
        return slice(int(self.start[at]), int(self.start[at + 1]))

    def slots(self, rank: int, region: Region) -> Ints:
        first: int = self.of(region.buffer, rank).start
        return first + region.slots()

    def name(self, number: int) -> str:
        at = int(np.searchsorted(self.start, number, "right")) - 1
        row, rank = divmod(at, self._program.num_ranks)
        return f"{self._program.buffers[row].name}[{number - self.start[at]}] of rank {rank}"


def _labels(program: Program) -> Ints:
    numbers, kind = _Numbers(program), program.columns["kind"]
    regions = _Regions(program, numbers)
    edges = [regions.both(np.flatnonzero(np.isin(kind, _READS_LIKE_WRITES)))]
    sends, receives = matches(program)
    edges.append(regions.ends(sends, receives))
    for call, met in calls_of(program).items():
        edges += [regions.meeting(program.collectives[call].kind, members) for members in met]
    return _connected(numbers.total, edges)


def _connected(total: int, edges: list[tuple[Ints, Ints]]) -> Ints:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    one, other = (np.concatenate([np.zeros(0, np.int64), *(edge[i] for edge in edges)]) for i in (0, 1))
    graph = coo_array((np.ones(len(one), np.int8), (one, other)), shape=(total, total))
    label: Ints = connected_components(graph, directed=False)[1].astype(np.int64)
    return label


class _Regions:
    """The slots of ops' regions, by number. All ops but computes and collectives have at most one region a side."""

    def __init__(self, program: Program, numbers: _Numbers) -> None:
        self._program, self._numbers, self._col = program, numbers, program.columns
        self._rank = {side: owners(program, side) for side in ("read", "write")}

    def both(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the slots that ops read and those that they write, as pairs."""
        return self._paired(rows, self._expand("read", rows), rows, self._expand("write", rows))

    def ends(self, sends: Ints, receives: Ints) -> tuple[Ints, Ints]:
        """Return the slots that messages are sent from and those that they are received into, as pairs."""
        return self._paired(sends, self._moved(sends), receives, self._moved(receives))

    def meeting(self, kind: str, members: Ints) -> tuple[Ints, Ints]:
        """Return the slots that the members of one call of a collective give and those that receive them, as pairs."""
        (brought, cut), (got, _) = (self._expand(side, members) for side in ("read", "write"))
        traits = COLLECTIVES[kind]
        if traits.exchanges:
            parts = [self._parts(row, len(members)) for row in members.tolist()]
            brought = np.concatenate([part[j] for j in range(len(members)) for part in parts])
        elif traits.joined:
            brought = np.tile(brought, len(members))
        elif traits.cut:
            got = np.tile(got, len(members))
        else:
            first, brought = brought[: cut[0]], np.concatenate([brought[cut[0] :], got])
            got = np.tile(first, len(brought) // max(len(first), 1))
        if len(brought) != len(got):
            raise ProgramError(f"the members of a {kind}, ops {members.tolist()}, disagree", hint="see dovetail verify")
        return brought, got

    def _parts(self, row: int, num_members: int) -> list[Ints]:
        slots, _ = self._expand("read", np.array([row]))
        sizes = part_slots(self._program.op(row).reads, num_members)
        return np.split(slots, np.cumsum(sizes)[:-1])

    def _paired(self, a: Ints, one: tuple[Ints, Ints], b: Ints, other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        differ = np.flatnonzero(one[1] != other[1])
        if len(differ):
            at = differ[0]
            raise ProgramError(
                f"op {a[at]} moves {one[1][at]} slots, and op {b[at]} takes {other[1][at]}", hint="see dovetail verify"
            )
        return one[0], other[0]

    def _moved(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the slots of each op's message, one op after the other, and how many each op has."""
        reads = np.isin(self._col["kind"][rows], _MOVES_READS)
        parts = [self._expand("read", rows[reads]), self._expand("write", rows[~reads])]
        places = np.concatenate([np.flatnonzero(reads), np.flatnonzero(~reads)])
        slots, lengths = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        order = np.argsort(np.repeat(places, lengths), kind="stable")
        return slots[order], lengths[np.argsort(places)]

    def _expand(self, side: str, rows: Ints) -> tuple[Ints, Ints]:
        """Return the numbers of the slots of ops' regions, one op after the other, and how many each op has."""
        col, start = self._col, self._col[f"{side}_start"]
        held = start[rows + 1] - start[rows]
        op = np.repeat(np.arange(len(rows)), held)
        region = np.arange(len(op)) - np.repeat(np.cumsum(held) - held - start[rows], held)
        offset, count, stride = (col[f"{side}_{part}"][region] for part in ("offset", "count", "stride"))
        lengths = count * col[f"{side}_blocks"][region]
        place = col[f"{side}_buffer"][region].astype(np.int64) * self._program.num_ranks + self._rank[side][rows][op]
        first = self._numbers.start[place] + offset
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        block, index = np.divmod(within, np.repeat(np.maximum(count, 1), lengths))
        slots = np.repeat(first, lengths) + block * np.repeat(stride, lengths) + index
        return slots, np.bincount(op, lengths, len(rows)).astype(np.int64)


def matches(program: Program) -> tuple[Ints, Ints]:
    """Return the rows of the ops that send each message, and of those that receive it.

    The k-th send on a channel meets the k-th receive. Where several lanes share an end of a channel, the program's
    greedy run gives their order. Raises ProgramError if a channel has more sends than receives, or fewer.
    """
    col = program.columns
    rows = [np.flatnonzero(np.isin(col["kind"], [*kinds])) for kinds in (SENDS, RECVS)]
    channels = [col[name][part] for name, part in zip(("chan_out", "chan_in"), rows, strict=True)]
    if _shared(program, rows, channels):
        run = Greedy(OpLists(program))()
        pairs = [(out, into) for into, out in run.matched.items() if col["kind"][into] != Kind.wait]
        both = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]
    orders = [np.argsort(channel, kind="stable") for channel in channels]
    rows, channels = ([part[order] for part, order in zip(parts, orders, strict=True)] for parts in (rows, channels))
    places = [np.arange(len(channel)) - np.searchsorted(channel, channel) for channel in channels]
    if not (np.array_equal(channels[0], channels[1]) and np.array_equal(places[0], places[1])):
        sent, received = (np.bincount(channel, minlength=len(program.channels)) for channel in channels)
        at = int(np.flatnonzero(sent != received)[0])
        c = program.channels[at]
        raise ProgramError(
            f"channel {c.src}->{c.dst} {c.id} carries {sent[at]} messages, and {received[at]} are received"
        )
    return rows[0], rows[1]


def _shared(program: Program, rows: list[Ints], channels: list[Any]) -> bool:
    """Whether several lanes send on one channel, or receive from one."""
    for part, channel in zip(rows, channels, strict=True):
        ends = np.unique(np.stack([channel, program.columns["lane"][part]]), axis=1)
        if len(np.unique(ends[0])) < ends.shape[1]:
            return True
    return False


def _checked(program: Program, name: str, rank: int, part: Any) -> Ints:
    slots, sizes = program.slots_of(name, rank), np.asarray(part, np.int64)
    if not np.array_equal(sizes, part):
        raise OperatorError(f"elements of slots of buffer '{name}' of rank {rank} are no whole numbers")
    if sizes.shape != (slots,):
        raise OperatorError(f"buffer '{name}' of rank {rank} has {slots} slots", found=f"{sizes.size} sizes")
    if sizes.min(initial=0) < 0:
        raise OperatorError(f"a slot of buffer '{name}' of rank {rank} has {sizes.min()} elements")
    return sizes
