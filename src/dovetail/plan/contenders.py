"""Contenders: the ways to carry out one collective, what each is predicted to take, and which are worth measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from math import ceil
from typing import NamedTuple

import numpy as np

from dovetail.collective import Spec, algorithms_for, build, spec_of
from dovetail.core import WishError, parse_count
from dovetail.cost import price
from dovetail.ir import Builder, Kind, Program, Region, Slot, Workload, dtype_bytes, uneven
from dovetail.ir.collectives import collectives_that
from dovetail.machine import Machine
from dovetail.passes import slice_messages
from dovetail.plan.selection import Choice
from dovetail.sim import simulate

COLLECTIVES = collectives_that("chosen")
IN_PLACE = ("all_reduce", "broadcast")  # as their library calls are made; the others write an output of their own
PARALLEL = ((1, 1), (2, 1), (1, 2), (4, 1))  # channels and instances worth trying
SLICES = (8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20)  # bytes
CUT = 6  # of the best predicted are tried with their messages cut
MANY_OPS = 8_000  # of a prediction with its messages cut
LONG_S = 5e-3  # where bandwidth decides, predictions are good, and measuring is dear
HOPELESS, HOPELESS_LONG = 4.0, 1.7  # times the best prediction
HANDLING = 0.25  # of a message's latency, which each of its ends spends on it; a guess, that decides what is measured
LONGEST_TRAIN = 8  # slices of one message in a prediction; beyond that nothing changes
Make = Callable[[Choice], Program]  # raises WishError where the algorithm does not fit


@dataclass(frozen=True)
class Aim:
    """A collective to choose for: its ranks, of how many nodes (consecutive, equally many on each), and its elements.

    `makers`: algorithms by name; those of `dovetail.collective` unless given.
    """

    collective: str
    ranks: int
    nodes: int = 1
    dtype: str = "float32"
    makers: Mapping[str, Make] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise WishError(f"no collective '{self.collective}' to choose for", hint=f"one of {', '.join(COLLECTIVES)}")
        parse_count(self.ranks, "ranks", least=2)
        if self.nodes < 1 or self.ranks % self.nodes:
            raise WishError(f"{self.ranks} ranks cannot be shared evenly among {self.nodes} nodes")
        if not self.makers:
            object.__setattr__(self, "makers", shipped(self))
        dtype_bytes(self.dtype)

    @property
    def in_place(self) -> bool:
        return self.collective in IN_PLACE

    @property
    def reduces(self) -> bool:
        """Whether the time depends on the dtype, not on bytes alone."""
        return "reduce" in self.collective

    @property
    def parts(self) -> int:
        """Units in the larger of a rank's buffers."""
        return self.ranks if self.collective in ("all_gather", "reduce_scatter", "all_to_all") else 1

    def count(self, num_bytes: int) -> int:
        """Elements of a unit (see `Spec`) where the larger of a rank's buffers holds about `num_bytes` bytes.

        >>> [Aim(name, 4, makers={"none": None}).count(4096) for name in ("all_gather", "all_reduce")]
        [256, 1024]
        """
        return max(num_bytes // dtype_bytes(self.dtype) // self.parts, 1)

    def bytes_of(self, num_bytes: int) -> int:
        """The bytes that this comes to."""
        return self.count(num_bytes) * self.parts * dtype_bytes(self.dtype)

    def program(self, choice: Choice) -> Program:
        """The Program of a choice; its slices are the executor's business."""
        key = choice._replace(slice_bytes=0)
        if key not in self._programs:
            self._programs[key] = library_program(self) if choice.is_library else self.makers[choice.algorithm](key)
        return self._programs[key]

    def cut(self, choice: Choice, pieces: int) -> Program:
        """The Program of a choice with its longest messages in so many pieces, for prediction."""
        key = choice._replace(slice_bytes=0), pieces
        if key not in self._cut:
            program = self.program(choice)
            self._cut[key] = slice_messages(finer(program, pieces), int(max(sent_slots(program), default=1)))
        return self._cut[key]

    @cached_property
    def _cut(self) -> dict[tuple[Choice, int], Program]:
        return {}

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(choices(self))

    @cached_property
    def _programs(self) -> dict[Choice, Program]:
        return {}


class Contender(NamedTuple):
    """A way to carry out a collective of one size, and the seconds that it is predicted to take."""

    choice: Choice
    predicted_s: float


def shipped(aim: Aim) -> dict[str, Make]:
    """The built-in algorithms that compute the aim's collective, in place where the library's call is."""
    return dict.fromkeys(algorithms_for(aim.collective), partial(built, aim))


def built(aim: Aim, choice: Choice, *, strided: bool = True) -> Program:
    """The built-in algorithm of a choice; `strided`: see Algorithm.compile."""
    return build(
        choice.algorithm,
        aim.ranks,
        nodes=aim.nodes,
        channels=choice.channels,
        instances=choice.instances,
        protocol=choice.protocol,  # type: ignore[arg-type]
        strided=strided,
    )


def library_program(aim: Aim) -> Program:
    """The library's own call, as one op a rank; all_to_next, which no library has, as plain messages."""
    spec = spec_of(aim.collective, aim.ranks, in_place=aim.in_place)
    b, everyone = Builder(f"library {aim.collective}", aim.ranks), range(aim.ranks)
    for buffer in spec.buffers:
        b.buffer(*buffer)
    for post in spec.posts:
        b.post(*post)
    source, result = spec.buffers[0], spec.buffers[-1]
    for rank in everyone:
        reads, writes = ([Region(buffer.name, 0, buffer.slots[rank])] for buffer in (source, result))
        if aim.collective == "all_to_next":
            if rank + 1 < aim.ranks:
                b.add(Kind.send, rank, b.lane("send", "net"), reads=reads, chan_out=b.channel(rank, rank + 1))
            if rank:
                b.add(Kind.recv, rank, b.lane("recv", "net"), writes=writes, chan_in=b.channel(rank - 1, rank))
        else:
            call = b.collective(aim.collective, everyone)
            b.add(Kind.collective, rank, b.lane("net", "net"), reads=reads, writes=writes, call=call)
    return b.build()


def choices(aim: Aim) -> Iterator[Choice]:
    """Every algorithm with every number of channels and instances; of those that make equal Programs the first."""
    seen = set()
    for name in aim.makers:
        for channels, instances in PARALLEL:
            choice = Choice(name, channels, instances)
            try:
                key = fingerprint(aim.program(choice))
            except WishError:
                continue  # the algorithm is not for these ranks, or has no such channels
            if key not in seen:
                seen.add(key)
                yield choice


def sliced(aim: Aim, choice: Choice, num_bytes: int) -> Iterator[Choice]:
    """The same with its messages cut: what is forwarded starts early, and short messages may travel by a faster way."""
    program = aim.program(choice)
    longest = longest_message(program, even_workload(aim, program, num_bytes))
    yield from (choice._replace(slice_bytes=size) for size in SLICES if 2 * size <= longest)


def shortlist(aim: Aim, num_bytes: int, machine: Machine, most: int = 8) -> list[Contender]:
    """The choices to measure at one size, best predicted first: the best of each algorithm that is not hopeless before
    the second best of any, since predictions err more between algorithms than within one."""

    def scored(found: Iterable[Choice]) -> list[Contender]:
        return [Contender(choice, predict(aim, choice, num_bytes, machine)) for choice in found]

    whole = sorted(scored(aim.choices), key=_order)
    cut = [each for best in whole[:CUT] for each in scored(sliced(aim, best.choice, num_bytes))]
    found: dict[tuple[float, int], Contender] = {}
    leaders: dict[str, Contender] = {}
    for each in sorted([*whole, *cut], key=_order):
        if found.setdefault(_alike(aim, each), each) is each:
            leaders.setdefault(each.choice.algorithm, each)
    best_s = next(iter(found.values())).predicted_s if found else 0.0
    limit_s = best_s * (HOPELESS if best_s < LONG_S else HOPELESS_LONG)
    first = [each for each in leaders.values() if each.predicted_s <= limit_s][:most]
    rest = [each for each in found.values() if each.predicted_s <= limit_s and each not in first][: most - len(first)]
    return sorted([*first, *rest], key=_order)


def _alike(aim: Aim, contender: Contender) -> tuple[float, int]:
    """Equal for programs of as many ops that are predicted to take as long: one of them will do."""
    return float(f"{contender.predicted_s:.6e}"), aim.program(contender.choice).num_ops


def _order(contender: Contender) -> tuple[float, Choice]:
    return contender.predicted_s, contender.choice


def predict(aim: Aim, choice: Choice, num_bytes: int, machine: Machine) -> float:
    """Seconds of the choice as simulated on the machine's curves.

    Slots are taken as even, and receives as posted ahead, as executors do within their window. A rank's CPU serves its
    lanes by turns, which `sim` does not know: each message's end adds HANDLING of a latency to the busiest rank. Many
    slices are simulated as LONGEST_TRAIN, each as long as those it stands for. Raises CostError where the machine has
    no cost of messages.
    """
    program, each = aim.program(choice), 1.0
    if choice.slice_bytes:
        slices = ceil(longest_message(program, even_workload(aim, program, num_bytes)) / choice.slice_bytes)
        train = max(min(slices, LONGEST_TRAIN, MANY_OPS // program.num_ops), 1)
        train = 1 << (train.bit_length() - 1)
        program, each = aim.cut(choice, train), slices / train
    prices = price(program, machine, even_workload(aim, program, num_bytes / each), extrapolate=True)
    prices = prices.with_columns(work_s=each * prices.work_s, wire_s=each * prices.wire_s)
    ahead = prices.with_columns(rendezvous=np.zeros(program.num_ops, np.bool_))
    ends = np.bincount(program.rank, (program.chan_in >= 0).astype(float) + (program.chan_out >= 0), program.num_ranks)
    handling_s = HANDLING * float(prices.latency_s.max(initial=0.0) * ends.max(initial=0.0))
    return simulate(program, ahead, machine.name).makespan_s + handling_s


def spec_for(aim: Aim, program: Program) -> Spec:
    """The Spec whose buffers the program has: as many chunks to a unit as it counts."""
    slots = program.slots_of("input", 0)
    in_place = all(buffer.role != "output" for buffer in program.buffers)
    whole = aim.collective in ("reduce_scatter", "all_to_all") or (aim.collective == "all_gather" and in_place)
    return spec_of(aim.collective, aim.ranks, chunks=max(slots // aim.ranks if whole else slots, 1), in_place=in_place)


def workload(aim: Aim, program: Program, num_bytes: int) -> Workload:
    """What every slot of the program holds when the collective is of that many bytes."""
    spec, count = spec_for(aim, program), aim.count(num_bytes)
    if count % spec.chunks == 0:
        return even_workload(aim, program, num_bytes)
    return uneven(program, spec.sizes(count), aim.dtype)


def even_workload(aim: Aim, program: Program, num_bytes: float) -> Workload:
    """Every slot of one size, rounded up: near enough for a prediction."""
    elements = max(ceil(aim.count(int(num_bytes)) / spec_for(aim, program).chunks), 1)
    slots = (Slot((elements,), aim.dtype),) * aim.ranks
    return Workload({buffer.name: slots for buffer in program.buffers}, {})


def sent_slots(program: Program) -> list[int]:
    """Slots of each message that leaves a rank."""
    rows = np.flatnonzero(program.chan_out >= 0).tolist()
    return [sum(r.num_slots for r in (op.reads or op.writes)[:1]) for op in map(program.op, rows)]


def longest_message(program: Program, workload: Workload) -> int:
    """Bytes of the longest message, slots being even."""
    slot = next(iter(workload.slots.values()))[0]
    return max(sent_slots(program), default=0) * slot.num_bytes


def finer(program: Program, pieces: int) -> Program:
    """The same program with every slot as `pieces` slots, without its post-conditions; for prediction.

    >>> from dovetail.ir.shapes import ring_all_reduce
    >>> finer(ring_all_reduce(2, 1), 3).buffers[0].slots, finer(ring_all_reduce(2, 1), 3).op(0).reads[0].count
    ((6, 6), 3)
    """
    columns = dict(program.columns)
    for side in ("read", "write"):
        for part in ("offset", "count", "stride"):
            columns[f"{side}_{part}"] = columns[f"{side}_{part}"] * pieces
    buffers = tuple(b._replace(slots=tuple(n * pieces for n in b.slots)) for b in program.buffers)
    return replace(program, buffers=buffers, posts=()).with_columns(columns)


def fingerprint(program: Program) -> str:
    """Equal for programs that do the same."""
    about = repr((program.buffers, program.lanes, program.channels, program.collectives)).encode()
    columns = (column.tobytes() for name, column in program.columns.items() if name != "line")
    return sha256(b"".join([about, *columns])).hexdigest()
