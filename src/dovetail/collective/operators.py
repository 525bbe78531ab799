"""operators: a collective of one size as an operator. Families: its algorithms. Serial: the MPI library's own call."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, log, prod
from typing import Any, ClassVar, TypeVar

from dovetail.collective.algorithms import algorithms_for, build
from dovetail.collective.library import LIBRARY, library_call
from dovetail.collective.spec import Spec, spec_of
from dovetail.core import OperatorError, PlanError, check_schema, parse_bytes, parse_count
from dovetail.ir import SERIAL, Option, Program, Schedule, Slot, Workload, dtype_bytes, uneven
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.collectives import COLLECTIVES, Traits
from dovetail.ir.op_lists import sent_slots
from dovetail.ir.operator import Costs, LibraryCall, Operator
from dovetail.ir.slots import DTYPE_BYTES
from dovetail.machine import even_nodes
from dovetail.passes import slice_messages, split_slots

PARALLEL = ((1, 1), (2, 1), (1, 2), (4, 1))  # pairs of (channels, instances) to try
SLICES = (8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20)  # bytes of slices to try
CUT = 6  # how many of the best predicted schedules are also tried with sliced messages
MANY_OPS = 8_000  # most ops of a prediction with sliced messages
MOST_SLICES = 8  # slices of one message in a prediction; more do not change the prediction
MOST_SIZES = 1000  # of one plan
LEAST, MOST, FACTOR = "1K", "16M", 4.0  # default sizes: smallest, largest, ratio of each size to the one before
Self = TypeVar("Self", bound="CollectiveOperator")


@dataclass(frozen=True)
class CollectiveOperator(Operator):
    """A collective of about `num_bytes` bytes.

    Parameters
    ----------
    num_bytes : int
        Bytes of the larger of a rank's input and output, as nccl-tests counts.
    dtype : str
        Type of the elements.
    nodes : int
        Number of nodes that share the ranks evenly, node by node. Default: the machine's.
    made : dict
        Programs made so far; operators of other sizes share them.

    Notes
    -----
    A schedule has the parameter `algorithm` and, if they differ from the defaults, `channels`, `instances`,
    `protocol` and `transport`. The executor cuts messages into slices of `slice_bytes`.

    >>> operator = AllGather(1000)
    >>> operator.by("ring_all_gather", channels=2), operator.resolve({}, 4)[0].num_bytes
    (Schedule(family='ring_all_gather', parameters=(('algorithm', 'ring_all_gather'), ('channels', 2)), \
progress='poll', block_rows=0, slice_bytes=0, blocking=False, steps={}, notes=()), 992)
    """

    name: ClassVar[str] = "collective"
    families: ClassVar[tuple[str, ...]] = (SERIAL,)
    by_size: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("min", str, "Smallest size, in bytes of the larger of a rank's input and output.", LEAST),
        Option("max", str, "Largest size.", MOST),
        Option("factor", float, "Ratio of each size to the one before.", FACTOR),
        Option("dtype", str, "Element type.", "float32", choices=tuple(DTYPE_BYTES)),
        Option("nodes", int, "Nodes that the ranks share evenly. Default: as found.", least=1),
    )

    num_bytes: int
    dtype: str = "float32"
    nodes: int | None = None
    made: dict[Any, Program] = field(default_factory=dict, compare=False, repr=False)

    def __init_subclass__(cls, kind: str = "") -> None:
        cls.name = kind or cls.name
        cls.families = (SERIAL, *algorithms_for(cls.name))

    def __post_init__(self) -> None:
        parse_count(self.num_bytes, "num_bytes")
        dtype_bytes(self.dtype)
        if self.nodes is not None:
            parse_count(self.nodes, "nodes", least=1)

    @classmethod
    def points(cls: type[Self], **asked: Any) -> tuple[Self, ...]:
        """Return one operator per size, from `min` to `max` bytes, each size `factor` times the one before."""
        given = {name: value for name, value in asked.items() if value is not None}
        span = given.pop("min", LEAST), given.pop("max", MOST)
        sizes = sizes_between(*span, given.pop("factor", FACTOR))
        first = cls(sizes[0], **given)
        return tuple(replace(first, num_bytes=size) for size in sizes)

    @property
    def title(self) -> str:
        return f"{self.name} of {self.num_bytes} bytes, {self.dtype}"

    @property
    def traits(self) -> Traits:
        """Return the row of this collective in `ir.collectives.COLLECTIVES`."""
        return COLLECTIVES[self.name]

    @property
    def reduces(self) -> bool:
        """Return whether the collective reduces, so that its time depends on the dtype, too."""
        return self.traits.reduces

    def to_json(self) -> dict[str, Any]:
        about = {"num_bytes": self.num_bytes, "dtype": self.dtype, "nodes": self.nodes}
        return {"schema": f"dovetail.operator.{self.name}/1", **about}

    @classmethod
    def from_json(cls: type[Self], document: Mapping[str, Any]) -> Self:
        check_schema(document, f"dovetail.operator.{cls.name}/1")
        try:
            return cls(document["num_bytes"], document["dtype"], document["nodes"])
        except KeyError as error:
            raise OperatorError(f"malformed operator document: {error} is missing") from None

    def resolve(self: Self, facts: Mapping[str, Any], ranks: int) -> tuple[Self, tuple[str, ...]]:
        """Return the operator with the machine's number of nodes and `num_bytes` of whole elements; and notes.

        `facts`: the machine's facts, of which `nodes` lists each rank's node.
        """
        found = even_nodes(facts.get("nodes", (0,) * ranks))
        operator = replace(self, nodes=self.nodes or found)
        operator.check_ranks(ranks)
        differs = self.nodes is not None and self.nodes != found and "nodes" in facts
        notes = (f"Chosen for {self.nodes} nodes; the ranks were found on {found}.",) if differs else ()
        return replace(operator, num_bytes=self.count(ranks) * self.parts(ranks) * dtype_bytes(self.dtype)), notes

    def check_ranks(self, ranks: int) -> None:
        """Raise OperatorError if the collective cannot run on `ranks` ranks."""
        parse_count(ranks, "ranks", least=2)
        if ranks % (self.nodes or 1):
            raise OperatorError(f"{ranks} ranks cannot be shared evenly among {self.nodes} nodes")

    def parts(self, ranks: int) -> int:
        """Return the number of units (see `Spec`) in the larger of a rank's buffers."""
        return max(self.traits.parts(ranks))

    def count(self, ranks: int) -> int:
        """Return the number of elements of a unit."""
        return max(self.num_bytes // dtype_bytes(self.dtype) // self.parts(ranks), 1)

    def by(
        self,
        algorithm: str,
        channels: int = 1,
        instances: int = 1,
        protocol: str = "Simple",
        slice_bytes: int = 0,
        transport: str = "mpi",
    ) -> Schedule:
        """Return the schedule by an algorithm's name, or by "library". Raise OperatorError for other names."""
        if algorithm == LIBRARY:
            return replace(Schedule.of(SERIAL, algorithm=LIBRARY), blocking=True)
        known = self.families[1:]
        if algorithm not in known:
            near = difflib.get_close_matches(algorithm, known, 1, cutoff=0.4)
            hint = f"did you mean '{near[0]}'?" if near else f"{LIBRARY}, {', '.join(known)}"
            raise OperatorError(f"no algorithm '{algorithm}' for {self.name}", hint=hint)
        schedule = Schedule.of(
            algorithm,
            algorithm=algorithm,
            channels=None if channels == 1 else channels,
            instances=None if instances == 1 else instances,
            protocol=None if protocol == "Simple" else protocol,
            transport=None if transport == "mpi" else transport,
        )
        return replace(schedule, slice_bytes=slice_bytes)

    def serial(self, ranks: int) -> Schedule:
        return self.by(LIBRARY)

    def usual(self, ranks: int) -> Schedule:
        """Return the schedule to use if none was tuned: the library's own call."""
        return self.serial(ranks)

    def program(self, schedule: Schedule, ranks: int) -> Program:
        """Return the algorithm's Program, proved and cached. The executor, not the Program, slices messages."""
        schedule = schedule.with_parameters(transport=None)  # the Program does not depend on it
        key = self.nodes, ranks, schedule.parameters
        if key not in self.made:
            self.check_ranks(ranks)
            self.made[key] = self._make(schedule, ranks)
        return self.made[key]

    def _make(self, schedule: Schedule, ranks: int) -> Program:
        given = {"channels": 1, "instances": 1, "protocol": "Simple", **dict(schedule.parameters)}
        name = given.pop("algorithm", None)
        if name == LIBRARY:
            return library_call(self.name, ranks)
        if name not in self.families:
            raise PlanError(f"no schedule of {self.name}", found=str(schedule))
        return build(str(name), ranks, nodes=self.nodes or 1, **given)  # type: ignore[arg-type]

    def workload(self, program: Program, schedule: Schedule) -> Workload:
        spec, count = self.spec(program), self.count(program.num_ranks)
        if count % spec.chunks == 0:
            return self._even(program, count)
        return uneven(program, spec.sizes(count), self.dtype)

    def spec(self, program: Program) -> Spec:
        """Return the Spec that matches a program's buffers; its `chunks` follow from the number of input slots."""
        slots, ranks = program.slots_of("input", 0), program.num_ranks
        in_place = program.in_place
        whole = self.traits.cut or (self.traits.joined and in_place)
        return spec_of(self.name, ranks, chunks=max(slots // ranks if whole else slots, 1), in_place=in_place)

    def _even(self, program: Program, count: int) -> Workload:
        """Return a workload with slots of one size, rounded up; accurate enough for a prediction."""
        elements = max(ceil(count / self.spec(program).chunks), 1)
        slots = (Slot((elements,), self.dtype),) * program.num_ranks
        return Workload({buffer.name: slots for buffer in program.buffers}, {})

    def prediction_model(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, float]:
        """Return (program, workload, repeats) to simulate, with slots of equal size.

        Of a message with more than MOST_SLICES slices, only MOST_SLICES are simulated; each op stands for `repeats`.
        """
        program, each = self.program(schedule, ranks), 1.0
        if schedule.slice_bytes:
            slices = ceil(self.longest_message(program) / schedule.slice_bytes)
            simulated = max(min(slices, MOST_SLICES, MANY_OPS // program.num_ops), 1)
            simulated = 1 << (simulated.bit_length() - 1)
            program, each = self._cut(schedule, ranks, simulated), slices / simulated
        part = replace(self, num_bytes=int(self.num_bytes / each))
        return program, self._even(program, part.count(ranks)), each

    def _cut(self, schedule: Schedule, ranks: int, pieces: int) -> Program:
        """Return the Program with its longest messages cut into `pieces`; without post-conditions, for prediction."""
        key = self.nodes, ranks, schedule.parameters, pieces
        if key not in self.made:
            program = self.program(schedule, ranks)
            whole = replace(program, posts=())
            self.made[key] = slice_messages(split_slots(whole, pieces), int(max(sent_slots(program), default=1)))
        return self.made[key]

    def longest_message(self, program: Program) -> int:
        """Return the bytes of the longest message, with slots of equal size."""
        slot = self._even(program, self.count(program.num_ranks)).slots["input"][0]
        return max(sent_slots(program), default=0) * slot.num_bytes

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        """Yield the library's call if its cost is known, and every algorithm with each of PARALLEL.

        Of schedules with equal Programs only the first.
        """
        knows = costs.knows_messages()
        if not knows or not self.traits.is_op or costs.knows_collective(self.name):
            yield self.serial(costs.ranks)
        seen = set()
        for name, (channels, instances) in ((n, p) for n in self.families[1:] for p in PARALLEL if knows):
            schedule = self.by(name, channels, instances)
            try:
                key = self.program(schedule, costs.ranks).fingerprint()
            except OperatorError:
                continue  # the algorithm does not support these ranks or channels
            if key not in seen:
                seen.add(key)
                yield schedule

    def refine(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        """Yield the best schedules with sliced messages: forwarding starts earlier, and slices may be sent eagerly."""
        ours = [schedule for schedule in ranked if not schedule.is_serial]
        for schedule in ours[: CUT if turn == 0 else 0]:
            longest = self.longest_message(self.program(schedule, costs.ranks))
            yield from (replace(schedule, slice_bytes=size) for size in SLICES if 2 * size <= longest)

    def describe(self, schedule: Schedule, ranks: int) -> str:
        return "by the library's own call" if schedule["algorithm"] == LIBRARY else f"by {schedule}"

    def library_calls(self, ranks: int) -> Sequence[LibraryCall]:
        return (LibraryCall(self.name, self.num_bytes),) if self.traits.is_op else ()

    def inputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the spec of a rank's array: any shape with the right number of elements."""
        return (self._array("input", schedule, ranks),)

    def outputs(self, schedule: Schedule, ranks: int) -> Sequence[ArraySpec]:
        """Return the spec of the result, a flat array; the input itself if the algorithm works in place."""
        in_place = self.program(schedule, ranks).in_place
        return (self._array("input" if in_place else "output", schedule, ranks),)

    def _array(self, buffer: str, schedule: Schedule, ranks: int) -> ArraySpec:
        program = self.program(schedule, ranks)
        workload = self.workload(program, schedule)
        slots = tuple(
            (workload.length(buffer, rank, program.slots_of(buffer, rank)), *workload.slots[buffer][rank].shape)
            for rank in range(ranks)
        )
        return ArraySpec(buffer, self.dtype, tuple((prod(shape),) for shape in slots), slots=slots, any_shape=True)


class AllReduce(CollectiveOperator, kind="all_reduce"):
    """Every rank gets the sum of all ranks' arrays."""


class AllGather(CollectiveOperator, kind="all_gather"):
    """Every rank gets all ranks' arrays, one after the other."""


class ReduceScatter(CollectiveOperator, kind="reduce_scatter"):
    """Rank i gets part i of the sum of all ranks' arrays."""


class AllToAll(CollectiveOperator, kind="all_to_all"):
    """Rank i gets part i of every rank's array."""


class AllToNext(CollectiveOperator, kind="all_to_next"):
    """Rank i's array goes to rank i + 1; the last rank sends nothing."""


class Broadcast(CollectiveOperator, kind="broadcast"):
    """Every rank gets rank 0's array."""


def sizes_between(least: str, most: str, factor: float) -> list[int]:
    """Return sizes in bytes from `least` to `most`, each `factor` times the one before.

    >>> sizes_between("1K", "64K", 4)
    [1024, 4096, 16384, 65536]
    """
    low, high = parse_bytes(least), parse_bytes(most)
    if not 0 < low <= high or not 1 < factor < inf:
        found = f"from {low} to {high}, each {factor:g} times the one before"
        raise OperatorError("sizes must begin above 0 and grow", found=found, hint="--min 1K --max 64M --factor 4")
    if log(high / low) > MOST_SIZES * log(factor):
        found = f"from {low} to {high}, each {factor:g} times the one before"
        raise OperatorError(f"more than {MOST_SIZES} sizes", found=found, hint="a larger --factor")
    sizes, size = [], float(low)
    while round(size) <= high:
        sizes.append(round(size))
        size *= factor
    return list(dict.fromkeys(sizes))
