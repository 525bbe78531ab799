"""replay: simulate a traced program, with message times of the trace or of a machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, inf, isnan, log2
from typing import Any

import numpy as np

from dovetail.core import MachineError
from dovetail.cost import CostModel
from dovetail.ir.collectives import kind_of_mpi, traits_of
from dovetail.machine import Machine
from dovetail.sim import simulate
from dovetail.trace import Trace
from dovetail.trace.analysis.delays import from_curve
from dovetail.trace.analysis.model_of_trace import model_of
from dovetail.trace.analysis.replay_model import SYNCHRONOUS, CollectiveCall, Message, ReplayModel
from dovetail.trace.replay_columns import replayed_s
from dovetail.trace.to_program import to_program

SCHEMA = "dovetail.replay/1"
LEAST_GAIN = 0.01  # share of the makespan that one more step of a change must save
MOST_BYTES = 1 << 26  # end of the curve by which remedies are priced


@dataclass(frozen=True)
class Replay:
    """The traced and the simulated makespan of a program.

    `machine`: name of the machine whose costs messages and collectives had; None: they had their traced times.
    """

    traced_s: float
    replayed_s: float
    machine: str | None = None

    @property
    def off(self) -> float:
        """Return `replayed_s / traced_s - 1`."""
        return self.replayed_s / self.traced_s - 1 if self.traced_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; times in seconds."""
        times = {"traced_s": self.traced_s, "replayed_s": self.replayed_s, "off": self.off}
        return {"schema": SCHEMA, **times, "machine": self.machine}


def replay(trace: Trace, machine: Machine | None = None) -> Replay:
    """Replay an unmodified trace in the simulator.

    Each rank computes as long, and calls MPI in the same order, as in the trace.

    Parameters
    ----------
    trace : Trace
        The run to replay.
    machine : Machine, optional
        Its curves give the times of all messages and collectives. Default: their times in the trace.

    Returns
    -------
    Replay
        Both makespans in seconds, and their relative difference `off`.
    """
    model = model_of(trace)
    replayed = model if machine is None else on_machine(model, machine)
    return Replay(model.makespan_s, makespan_s(replayed), None if machine is None else machine.name)


def makespan_s(model: ReplayModel) -> float:
    """Return the simulated makespan of a model, in seconds."""
    found = replayed_s(model)
    return simulate(*to_program(model)).makespan_s if isnan(found) else found  # the simulation names the ops that wait


def changed_s(model: ReplayModel) -> float:
    """Return the simulated makespan of a changed model, in seconds; infinity if its ranks wait for one another."""
    found = replayed_s(model)
    return inf if isnan(found) else found


def while_it_helps(model: ReplayModel, tries: Iterable[tuple[int, ReplayModel]]) -> tuple[int, ReplayModel | None]:
    """Return the last (number, changed model) up to which each saves LEAST_GAIN more; (0, None) if none does."""
    found: tuple[int, ReplayModel | None] = 0, None
    least_s = makespan_s(model)
    for number, changed in tries:
        replayed_s = changed_s(changed)
        if replayed_s > least_s - LEAST_GAIN * model.makespan_s:
            break
        found, least_s = (number, changed), replayed_s
    return found


def on_machine(model: ReplayModel, machine: Machine) -> ReplayModel:
    """Return the model with every message and collective at a machine's costs.

    A message that, in the trace, progressed only while its rank was in the library still does. Raises MachineError if
    the machine has fewer ranks than the trace.
    """
    ranks = len(model.steps)
    if machine.ranks < ranks:
        raise MachineError(
            f"machine '{machine.name}' has fewer ranks than the trace",
            found=f"{machine.ranks} and {ranks}",
            hint=f"dovetail probe --ranks {ranks}",
        )
    prices = _Prices(machine, {(message.src, message.dst) for message in model.messages})
    messages = tuple(map(prices.of, model.messages))
    again = with_same_root(model.collectives)
    collectives = tuple(
        replace(it, seconds=prices.collective_s(it, it.collective in again)) for it in model.collectives
    )
    return replace(model, messages=messages, collectives=collectives, delays=with_curve(model, machine).delays)


def with_same_root(collectives: Iterable[CollectiveCall]) -> set[int]:
    """Return the collectives whose root is that of the previous call with the same name and ranks.

    Such a root need not wait for the others, so that these calls are cheaper.
    """
    last: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
    found = set()
    for it in sorted(collectives, key=lambda it: it.collective):
        number, root = last.get((it.name, it.group), (-1, -1))
        if it.collective != number:
            last[it.name, it.group] = it.collective, it.root
            if it.way != SYNCHRONOUS and it.root == root:
                found.add(it.collective)
    return found


def with_curve(model: ReplayModel, machine: Machine) -> ReplayModel:
    """Return the model with a machine's curve for the times of messages whose traced time is unknown."""
    kind = machine.route(0, machine.ranks - 1)[0]
    curve = CostModel.of(machine).curve(f"p2p:{kind}")
    priced = from_curve(lambda sizes: np.asarray(curve.seconds(sizes, True)), 1, MOST_BYTES, model.delays)
    return replace(model, delays=priced)


class _Prices:
    """Times of messages and collectives by a machine's cost curves."""

    def __init__(self, machine: Machine, ways: set[tuple[int, int]]) -> None:
        self.machine, self.model, self.ways = machine, CostModel.of(machine), ways
        self.known: dict[tuple[str, int], float] = {}

    def of(self, message: Message) -> Message:
        """Return the message at this machine's costs.

        A message that waits for its receive also needs its sender's progress, unless the trace shows that it did not.
        """
        kind = self.machine.route(message.src, message.dst)[0]
        waits = message.synchronous or message.stalls or message.num_bytes > self.model.eager_limit(kind)
        seconds = self._one_way_s(kind, message.num_bytes, message.crossed)
        held, gap_s = waits and message.came_back, self._gap_s(kind, message)
        return replace(message, delay_s=seconds, rendezvous=waits, held=held, gap_s=gap_s)

    def _gap_s(self, kind: str, message: Message) -> float:
        """Return seconds per message of a stream: half those of a stream in both directions if it goes one way only."""
        if f"exchange:{kind}" not in self.model:
            return 0.0
        both = self._seconds(f"exchange:{kind}", message.num_bytes)
        return both if (message.dst, message.src) in self.ways else both / 2

    def collective_s(self, it: CollectiveCall, again: bool = False) -> float:
        """Return seconds of a collective: by the curve of this call, else of the equivalent collective operator.

        `again`: use the curve of calls with an unchanged root. Without a curve: ⌈log2 R⌉ latencies, plus the time of
        moving the other ranks' part of the largest buffer, in both directions if all ranks send and receive.
        """
        count = len(it.group)
        if count < 2:
            return 0.0
        name = it.name.removeprefix("MPI_").removesuffix("_c")
        for key in [f"call:{name}_again:{count}"] * again + [f"call:{name}:{count}"]:
            if key in self.model:
                return self._seconds(key, it.num_bytes)
        call = kind_of_mpi(name.removeprefix("I").capitalize())
        traits = traits_of(call)
        if f"{call}:{count}" in self.model and it.num_bytes >= self.model.curve(f"{call}:{count}").low:
            return self._seconds(f"{call}:{count}", it.num_bytes)
        kind = self.machine.route(it.group[0], it.group[-1])[0]
        least = self._one_way_s(kind, 1)
        moved = it.num_bytes // count * (count - 1) if traits.in_parts else it.num_bytes
        wire = self._one_way_s(kind, moved) - least
        if traits.moves and not traits.rooted and f"exchange:{kind}" in self.model:
            wire = max(wire, self._seconds(f"exchange:{kind}", moved) - self._seconds(f"exchange:{kind}", 1))
        return ceil(log2(count)) * least + wire

    def _one_way_s(self, kind: str, num_bytes: int, crossed: bool = False) -> float:
        """Return seconds of a message one way: of a blocking MPI_Send if measured, else of Dovetail's engine.

        `crossed`: another message travels in the other direction meanwhile.
        """
        for key in [f"call:Sendrecv:{kind}"] * crossed + [f"call:Send:{kind}"]:
            if key in self.model:
                return self._seconds(key, num_bytes)
        return self._seconds(f"p2p:{kind}", num_bytes)

    def _seconds(self, key: str, num_bytes: int) -> float:
        if (key, num_bytes) not in self.known:
            self.known[key, num_bytes] = float(self.model.seconds(key, num_bytes, extrapolate=True))
        return self.known[key, num_bytes]
