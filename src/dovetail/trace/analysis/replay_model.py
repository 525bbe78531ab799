"""replay_model: a model of a trace, which a replay can time and a remedy can change.

Each rank is a list of steps. A step is some seconds of the rank's own work, then the begin of, or the wait for, a
message or collective. The time of a message is known if its receiver waited for it; a curve through these times
estimates the others. Time within calls that did not wait counts as the rank's own work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from dovetail.trace.analysis.delays import Delays
from dovetail.trace.analysis.kept import Kept

StepKind = Literal["send", "recv", "sent", "received", "join", "joined", "own", "end"]
SYNCHRONOUS, FROM_ROOT, TO_ROOT = "all", "from_root", "to_root"


class Step(NamedTuple):
    """Own work of a rank, then one action in the call at row `row` of the trace.

    Attributes
    ----------
    seconds : float
        Own work before the action.
    kind : str
        "send", "recv": begin message `number`. "sent", "received": wait for its send, or its receive. "join": begin the
        rank's part of collective `number`; "joined": wait for it. "own": no action; with a row, the time within that
        call, which waits for nobody, is the last part of `within_s`. "end": no action.
    number : int
        Index of a message or collective; -1: none.
    row : int
        Row of the trace; -1: none.
    within_s : float
        Part of `seconds` within calls that precede the action's call.
    after_s : float
        Part of `within_s` within the call of the previous step.
    """

    seconds: float
    kind: StepKind
    number: int
    row: int
    within_s: float = 0.0
    after_s: float = 0.0


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes
    ----------
    src, dst, num_bytes : int
        Source and destination rank, and bytes.
    key : int
        A number per communicator and tag. Messages of equal `src`, `dst` and `key` keep their order.
    delay_s : float or None
        Measured delay; None: use the fitted curve.
    rendezvous : bool
        The send is complete only after the receive was posted.
    stalls : bool
        For lack of progress, it moves only while its receiver waits for it.
    synchronous : bool
        The sender waits for the message whatever its size, as in MPI_Ssend, or until it has passed a slow link.
    came_back : bool
        The message arrived only when its sender had called MPI again.
    held : bool
        For lack of progress, it leaves only at its sender's next call.
    gap_s : float
        Time until the next message may leave.
    crossed : bool
        Another message travels in the opposite direction at the same time.
    sent_s : float
        When its send began in the trace.
    """

    src: int
    dst: int
    key: int
    num_bytes: int
    delay_s: float | None
    rendezvous: bool
    stalls: bool = False
    synchronous: bool = False
    came_back: bool = False
    held: bool = False
    gap_s: float = 0.0
    crossed: bool = False
    sent_s: float = 0.0


class Ready(NamedTuple):
    """When the data of a message were there: `after_s` seconds of work before the call of its sender at row `row`."""

    row: int
    after_s: float


@dataclass(frozen=True)
class CollectiveCall:
    """One rank's call of a collective. The collective is complete `seconds` after the last rank's call.

    Attributes
    ----------
    collective : int
        Number of the collective, equal for the calls of all its ranks.
    name : str
        Name of the call, "MPI_Bcast".
    group : tuple of int
        The ranks.
    way : str
        SYNCHRONOUS: all wait for all. FROM_ROOT: the others wait for the root. TO_ROOT: the root waits for the others.
    root, num_bytes : int
        Root (-1: none), and bytes of the largest buffer.
    seconds : float
        From the last call that a rank waits for until the rank may continue.
    blocking : bool
        Whether the call waits for the collective.
    stalls : bool
        For lack of progress, it moves only when the last rank waits for it, although begun long before.
    own_s : float
        Part of `seconds` that the ranks' own CPUs spend on copies (all of it if all ranks share a host).
    """

    collective: int
    name: str
    group: tuple[int, ...]
    way: str
    root: int
    num_bytes: int
    seconds: float
    blocking: bool = True
    stalls: bool = False
    own_s: float = 0.0


@dataclass(frozen=True)
class ReplayModel:
    """A traced program, simplified for the replay.

    `steps[r]`: steps of rank r. `delays`: curve of message times. `makespan_s`: traced seconds from the first step to
    the last. `names`: names of calls. `polled_s`: by row of a successful test, or of a receive after probes, the
    seconds of the rank's own time since the first of the unsuccessful ones before it. `asleep`: by such a row, the
    share of these seconds in which the rank was off its CPU, as far as the trace shows it. `strict`: messages sent by
    MPI_Ssend or its kin. `calls`: by row of a call that neither moves data nor waits for a rank (datatypes,
    communicators, files, probes), its name and bytes. `counts`: by such a row that stands for several calls, their
    number. `combined`: messages sent by MPI_Sendrecv or its kin, or in a collective among neighbours.
    `locked_s`: see `dovetail.trace.analysis.locks`. `checksums`: by row of a collective call, the checksum of a sample
    of what its rank gives, if it is known; `sent_checksums`: by message, one of 7 bits, so that 1 in 127 is equal by
    chance. `ready`: by message, when its data were there, if that was before its sender's last work. `served_s`: see
    `dovetail.trace.analysis.served`. `core_waits`: by row of a call, the seconds for which its rank waited for a core
    during the work before it; None: unknown. `named`: messages of whose receive, or blocking probe, the program names
    the source. `spent_s`: by row of a call, its seconds in the trace. `columns`: those of messages and collectives, for
    models that differ by steps only.
    """

    steps: tuple[tuple[Step, ...], ...]
    messages: tuple[Message, ...]
    collectives: tuple[CollectiveCall, ...]
    delays: Delays
    makespan_s: float
    names: tuple[str, ...] = field(repr=False)
    polled_s: Mapping[int, float] = field(default_factory=dict, repr=False)
    asleep: Mapping[int, float] = field(default_factory=dict, repr=False)
    strict: frozenset[int] = field(default=frozenset(), repr=False)
    calls: Mapping[int, tuple[str, int]] = field(default_factory=dict, repr=False)
    counts: Mapping[int, int] = field(default_factory=dict, repr=False)
    combined: frozenset[int] = field(default=frozenset(), repr=False)
    locked_s: Mapping[int, float] = field(default_factory=dict, repr=False)
    checksums: Mapping[int, int] = field(default_factory=dict, repr=False)
    sent_checksums: Mapping[int, int] = field(default_factory=dict, repr=False)
    ready: Mapping[int, Ready] = field(default_factory=dict, repr=False)
    served_s: Mapping[int, float] = field(default_factory=dict, repr=False)
    core_waits: Mapping[int, float] | None = field(default=None, repr=False)
    named: frozenset[int] = field(default=frozenset(), repr=False)
    spent_s: Mapping[int, float] = field(default_factory=dict, repr=False)
    columns: Kept = field(default_factory=Kept, repr=False, compare=False)

    @cached_property
    def places(self) -> list[dict[tuple[StepKind, int], int]]:
        """Return for each rank the index of each of its steps by kind and number."""
        return [{(s.kind, s.number): i for i, s in enumerate(steps)} for steps in self.steps]

    @cached_property
    def of_kind(self) -> dict[StepKind, list[tuple[int, Step]]]:
        """Return the steps of each kind, as (rank, step), by rank and in order."""
        found: dict[StepKind, list[tuple[int, Step]]] = defaultdict(list)
        for rank, steps in enumerate(self.steps):
            for step in steps:
                found[step.kind].append((rank, step))
        return dict(found)

    @cached_property
    def kept(self) -> dict[tuple[object, ...], Any]:
        """Return what functions have found in this model, by function and arguments, for those that ask again."""
        return {}

    @cached_property
    def sent_to(self) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
        """Return by source and destination the indices of the steps that send, and the messages, in order."""
        found: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for rank, steps in enumerate(self.steps):
            for at, step in enumerate(steps):
                if step.kind == "send":
                    both = found[rank, self.messages[step.number].dst]
                    both[0].append(at)
                    both[1].append(step.number)
        return dict(found)

    def with_steps(self, steps: Any, **changes: Any) -> ReplayModel:
        """Return the model with other steps and, by `changes`, other messages or collectives."""
        return replace(self, steps=tuple(map(tuple, steps)), **changes)
