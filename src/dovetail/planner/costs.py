"""costs: predicted seconds of an operator's schedules on a machine. Each is built, priced and simulated once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError, OperatorError, PlanError, did_you_mean, parse_count
from dovetail.cost import CostModel, Prices, price
from dovetail.ir import Kind, Operator, Program, Schedule, Work, Workload
from dovetail.ir.operator import Times
from dovetail.machine import Machine
from dovetail.passes.pieces import expand_repeats
from dovetail.sim import simulate
from dovetail.timeline import Timeline

Floats = NDArray[np.float64]
HANDLING = 0.25  # share of a message's latency that each end's CPU spends on it; an estimate, which measuring corrects
LOOK_OPS = 400  # effort of building and pricing a Program of any size, in simulated ops


@dataclass(frozen=True)
class Scored:
    """A schedule with its prediction: program (of the prediction model), prices, timeline.

    `handling_s`: seconds that the busiest rank's CPU spends on messages beyond the timeline. `times`: number of
    identical messages or computations that each op stands for.
    """

    schedule: Schedule
    program: Program
    workload: Workload
    prices: Prices
    timeline: Timeline
    handling_s: float = 0.0
    times: Times = 1.0

    @property
    def num_ops(self) -> int:
        """Ops of the program in full, every piece of a message counted."""
        return int(np.sum(self.times)) if np.ndim(self.times) else self.program.num_ops

    @property
    def family(self) -> str:
        return self.schedule.family

    @property
    def predicted_s(self) -> float:
        """Predicted seconds: makespan of the timeline, plus `handling_s`."""
        return self.timeline.makespan_s + self.handling_s


@dataclass(frozen=True)
class Costs:
    """Costs of `operator` on `ranks` ranks of `machine`: implements the protocol `ir.operator.Costs`.

    Attributes
    ----------
    asked : mapping
        Options of the operator's schedules.
    contention : float or None
        One factor on the times of communication, instead of the measured slow-downs.
    extrapolate : bool
        Predict sizes beyond the measured range.
    exact : bool
        Treat published rates like measured ones, so that the search is equally fine.
    family : str
        Family that the user restricts the search to, or "auto".
    """

    operator: Operator
    machine: Machine
    ranks: int
    asked: Mapping[str, Any] = field(default_factory=dict)
    contention: float | None = None
    extrapolate: bool = False
    exact: bool = False
    family: str = "auto"

    @staticmethod
    def of(
        operator: Operator,
        machine: Machine,
        ranks: int | None,
        asked: Mapping[str, Any] | None = None,
        contention: float | None = None,
        extrapolate: bool = False,
    ) -> tuple[Costs, tuple[str, ...]]:
        """Return the costs, and notes for the user. The machine's facts complete the operator (`Operator.resolve`).

        Raises OperatorError for too many ranks or an option out of range, PlanError for an unknown option.
        """
        count = machine.ranks if ranks is None else parse_count(ranks, "ranks", least=1)
        if count > machine.ranks:
            found = f"machine '{machine.name}' has {machine.ranks}"
            raise OperatorError(f"the operator is for {count} ranks", found=found, hint="plan for fewer ranks")
        options = check_options(operator, asked or {})
        resolved, notes = operator.resolve({**machine.facts, "nodes": machine.nodes[:count]}, count)
        return Costs(resolved, machine, count, options, contention, extrapolate), notes

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the operator's schedules, with defaults filled in."""
        return self.asked

    @property
    def model(self) -> CostModel:
        return CostModel.of(self.machine)

    @property
    def calm(self) -> Costs:
        """These costs without contention."""
        return replace(self, contention=1.0)

    def in_turn(self, schedule: Schedule) -> Schedule:
        """Slice own messages, with a progress thread, if the machine interleaves long ones (`machine.slice_bytes`)."""
        if not self.machine.slice_bytes or schedule.is_by_library:
            return schedule
        return replace(schedule, slice_bytes=self.machine.slice_bytes, progress="thread")

    def score(self, found: Iterable[Schedule]) -> list[Scored]:
        """Build, price and simulate each schedule; drop those that the machine has no cost for.

        Serial is never dropped: raises CostError, naming the missing probe, if it has no cost.
        """
        scored = []
        for schedule in found:
            try:
                scored.append(self.scored(schedule))
            except CostError:
                if schedule.is_serial:
                    raise
        return scored

    def scored(self, schedule: Schedule) -> Scored:
        """Build, price and simulate one schedule; the result is cached."""
        key = schedule.parameters, schedule.slice_bytes
        same = self._known.get(key)
        if same is None:
            program, workload, prices, times = self._modelled(schedule)
            timeline = simulate(program, prices, self.machine.name)
            same = self._known[key] = Scored(
                schedule, program, workload, prices, timeline, _handling_s(program, prices), times
            )
        return replace(same, schedule=schedule)

    def knows_collective(self, kind: str) -> bool:
        """Return whether the library's collective `kind` has a cost on these ranks."""
        return self.ranks == 1 or f"{kind}:{self.ranks}" in self.model

    def knows_messages(self) -> bool:
        """Return whether messages have a cost on all kinds of links between the ranks."""
        return all(f"p2p:{name}" in self.model or f"exchange:{name}" in self.model for name in self.link_kinds())

    def unknown(self, kind: str) -> CostError:
        """Return the error for a collective `kind` without a cost; its hint names the missing probe."""
        probe = {f"{kind}:{self.ranks}", *(f"p2p:{name}" for name in self.link_kinds())}
        return CostError(
            f"machine '{self.machine.name}' has no cost of {kind} over {self.ranks} ranks",
            found=f"costs {', '.join(sorted(self.machine.costs)) or 'none'}",
            hint=f"probe {' or '.join(sorted(probe))}, or choose another machine",
        )

    def has_one_way_out(self) -> bool:
        """Return whether all messages that rank 0 sends leave by one link, such as the link to a switch."""
        ways = [set(self.machine.route(0, other)[1]) for other in range(1, self.ranks)]
        return bool(ways and set.intersection(*ways))

    def link_kinds(self) -> set[str]:
        """Return the kinds of the links between the ranks."""
        pairs = ((a, b) for a in range(self.ranks) for b in range(self.ranks) if a != b)
        return {self.machine.route(a, b)[0] for a, b in pairs}

    def collective_s(self, kind: str, num_bytes: NDArray[Any]) -> Floats:
        """Return seconds of the library's collective `kind` for `num_bytes`, with contention; extrapolates."""
        key = f"{kind}:{self.ranks}" if self.ranks > 1 else "copy"
        seconds: Floats = (self.contention or 1.0) * self.model.seconds(key, np.asarray(num_bytes), extrapolate=True)
        return seconds

    def work_s(self, work: Sequence[Work], amount: NDArray[Any]) -> Floats:
        """Return the seconds of the slowest of these works, at `amount` times its units. Extrapolates."""
        kinds, more = dict.fromkeys(work), np.asarray(amount)
        each = [
            self.model.kernel_seconds(
                w.key, more * w.units, more * w.flops, more * w.num_bytes + w.shared_bytes, extrapolate=True
            )
            for w in kinds
        ]
        slowest: Floats = np.maximum.reduce(each)
        return slowest

    def least_amount(self, work: Sequence[Work]) -> float:
        """Return the smallest amount at which all curves of these works were measured; 0 if none was."""
        names = {self.model.kernel_curve(w.key) for w in work}
        curves = [self.model.curve(name) for name in names if name.startswith("kernel:")]
        return max((min(curve.x, default=curve.low) for curve in curves), default=0.0)

    def is_measured(self, work: Sequence[Work]) -> bool:
        """Return whether each of these works has a curve of its own (or `exact` is set)."""
        return self.exact or all(self.model.kernel_curve(w.key).startswith("kernel:") for w in work)

    def for_operator(self, operator: Operator) -> Costs:
        """Return the costs of another operator on the same ranks, with extrapolation."""
        return replace(self, operator=operator, extrapolate=True)

    def messages_s(self, operator: Operator, schedule: Schedule) -> float:
        """Return the predicted seconds of the schedule's communication, as if its computation took no time."""
        program, _, prices, _ = self.for_operator(operator)._modelled(schedule)
        free = np.where(program.kind == Kind.compute, 0.0, prices.work_s)
        return simulate(program, prices.with_columns(work_s=free)).makespan_s

    def predicted_s(self, schedule: Schedule) -> float:
        """Return the predicted seconds of the schedule; infinity if a cost is missing."""
        found = self.score([schedule])
        return found[0].predicted_s if found else float("inf")

    def busy_s(self, schedule: Schedule) -> float:
        """Return a lower bound: the seconds of the busiest lane or link; infinity if a cost is missing."""
        found = self.score([schedule])
        return _busy_s(found[0]) if found else float("inf")

    def effort(self, schedule: Schedule) -> int:
        """Return the effort of predicting the schedule, in simulated ops."""
        return LOOK_OPS + sum(each.program.num_ops for each in self.score([schedule]))

    def exactly(self, found: Scored, program: Program) -> Scored:
        """Return the prediction of the program that will run, if `found` is that of a smaller one."""
        if found.program is program or not (np.ndim(found.times) or found.times == 1.0):
            return found
        workload = self.operator.workload(program, found.schedule)
        prices = _served(program, self._price(program, workload), 1.0)
        timeline, handling_s = simulate(program, prices, self.machine.name), _handling_s(program, prices)
        return Scored(found.schedule, program, workload, prices, timeline, handling_s)

    def stretch(self, schedule: Schedule) -> tuple[float, float]:
        """Return the median slow-down factors (of computations beside traffic, of traffic beside computations)."""
        found = self.scored(schedule)
        computes = found.program.kind == Kind.compute
        return _typical(found.prices.slow_by_net[computes]), _typical(found.prices.slow_by_compute[~computes])

    def _modelled(self, schedule: Schedule) -> tuple[Program, Workload, Prices, Times]:
        """Return program, workload, prices and repeats of the prediction model; prices include the repeats."""
        program, workload, times = self.operator.prediction_model(schedule, self.ranks)
        pieces = times if isinstance(times, np.ndarray) else None
        prices = self._price(program, workload, pieces)
        if pieces is not None and not flow_freely(program, prices, pieces):
            program, times = expand_repeats(program, pieces), 1.0
            prices = self._price(program, workload)
        return program, workload, _served(program, prices, times), times

    def _price(self, program: Program, workload: Workload, times: NDArray[np.int64] | None = None) -> Prices:
        return price(program, self.machine, workload, self.contention, extrapolate=self.extrapolate, times=times)

    @cached_property
    def _known(self) -> dict[Any, Scored]:
        return {}


def check_options(
    operator: Operator, asked: Mapping[str, Any], keywords: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return each schedule option of the operator with its value or default.

    Parameters
    ----------
    operator : Operator
        Its `options` with `of == "schedules"` are the valid ones.
    asked : mapping
        Values by name; None stands for the default.
    keywords : iterable of str, optional
        Other keywords of the calling function: an unknown option may be a misspelling of one.

    Raises
    ------
    PlanError
        For an unknown option or choice; names the nearest.
    OperatorError
        For a value out of range.
    """
    known = {option.name: option for option in operator.options if option.of == "schedules"}
    for name, value in asked.items():
        if name not in known:
            own = f"options of its schedules: {', '.join(known) or 'none'}"
            near = did_you_mean(name, (*known, *(keywords or ())))
            raise PlanError(f"{operator.name} has no option '{name}'", found=own, hint=near or "leave it out")
        option = known[name]
        if value is None:
            continue
        if option.choices and value not in option.choices:
            what = f"{operator.name} has no {name.replace('_', ' ')} '{value}'"
            raise PlanError(what, hint=f"one of {', '.join(option.choices)}")
        if option.type is int:
            parse_count(value, name, least=int(option.least or 0))
        elif option.least is not None and not value >= option.least:
            raise OperatorError(f"{name.replace('_', ' ')} must be at least {option.least:g}", found=repr(value))
    return {name: option.default if asked.get(name) is None else asked[name] for name, option in known.items()}


def flow_freely(program: Program, prices: Prices, times: NDArray[np.int64]) -> bool:
    """Return whether the pieces of a message can be simulated as one message, `times` as long.

    They can if no piece waits for its receive, none takes local work, and no two channels share a link.
    """
    many = times > 1
    if prices.rendezvous[many].any() or prices.work_s[many].any():
        return False
    used = np.bincount(program.chan_out[program.chan_out >= 0], minlength=len(program.channels)) > 0
    links = np.bincount(prices.route[np.repeat(used, np.diff(prices.route_start))])
    return not many.any() or bool(links.max(initial=0) <= 1)


def _served(program: Program, prices: Prices, times: Times) -> Prices:
    """Return prices multiplied by the repeats, as executors run the program."""
    each = np.ndim(times) > 0 or times != 1.0
    scaled = prices.with_columns(work_s=times * prices.work_s, wire_s=times * prices.wire_s) if each else prices
    return scaled.as_run(program)


def _handling_s(program: Program, prices: Prices) -> float:
    """Return the seconds that the busiest rank's CPU spends on its messages, which `sim` does not model.

    0 if the program computes: messages then progress during computation.
    """
    if (program.kind == Kind.compute).any():
        return 0.0
    ends = np.bincount(program.rank, (program.chan_in >= 0).astype(float) + (program.chan_out >= 0), program.num_ranks)
    return HANDLING * float(prices.latency_s.max(initial=0.0) * ends.max(initial=0.0))


def _busy_s(found: Scored) -> float:
    """Return the seconds of the busiest lane (working or sending) or link (occupied)."""
    program, prices, ranks = found.program, found.prices, found.program.num_ranks
    lanes = np.bincount(program.lane.astype(np.int64) * ranks + program.rank, prices.work_s + prices.wire_s)
    sends = program.chan_out >= 0
    sent = np.bincount(program.chan_out[sends], prices.wire_s[sends], len(program.channels))
    links = np.bincount(prices.route, np.repeat(sent, np.diff(prices.route_start)), prices.num_links)
    return max(float(lanes.max(initial=0.0)), float(links.max(initial=0.0)))


def _typical(factors: Floats) -> float:
    return float(np.median(factors)) if len(factors) else 1.0
