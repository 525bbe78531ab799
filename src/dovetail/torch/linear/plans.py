"""plans: what is known of each call of a group: its case, its plan, and the times that were seen."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import torch

from dovetail.core import DovetailError, check_schema, warn_once
from dovetail.ir import Schedule
from dovetail.store.store import SCHEDULES, Item, item, recall, save
from dovetail.torch.linear.across import AcrossLanes
from dovetail.torch.linear.agreement import STATE, agree, asked, check_backend, named, words_of
from dovetail.torch.linear.case import Case, is_across, is_exchanged
from dovetail.torch.linear.columns import ColumnLanes
from dovetail.torch.linear.exchanged import ExchangedLanes
from dovetail.torch.linear.kinds import COLUMNS, GATHER, GATHERS, SCATTER
from dovetail.torch.linear.lanes import Lanes
from dovetail.torch.linear.scratch import LEAST
from dovetail.torch.linear.serial import Alone, Serial
from dovetail.torch.linear.wire import Wire

SCHEMA = "dovetail.torch_plan/1"
DIFFER = "ranks knew different plans for their shapes: run the model once inside dovetail.torch.warm_up()"
NO_PLAN = "no plan is known for these shapes: run the model once inside dovetail.torch.warm_up()"
SKIPPED = tuple(
    os.path.dirname(path) + os.sep for path in (torch.__file__, os.path.dirname(os.path.dirname(__file__)))
)  # no users' code


@dataclass
class Plan:
    """The schedule of a call, the same on all ranks, with the figures that it was chosen by.

    `predicted_s`, `measured_s`, `serial_s`: seconds of the schedule, predicted and measured, and of the serial one.
    `why`: why serial was kept. `origin`: "measured" here, "saved" by another run, or "none".
    `slowed`: how many times as long a product and messages take beside each other. `apart_s`: what would be predicted
    for the best overlapped schedule if they did not.
    """

    schedule: Schedule
    origin: str
    predicted_s: float = 0.0
    measured_s: float = 0.0
    serial_s: float = 0.0
    why: str = ""
    slowed: tuple[float, float] = (1.0, 1.0)
    apart_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return {"schema": SCHEMA, **vars(self), "schedule": self.schedule.to_json()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Plan:
        """Return the plan of a document."""
        check_schema(document, SCHEMA)
        about = {name: value for name, value in document.items() if name != "schema"}
        about["slowed"] = tuple(about.get("slowed", cls.slowed))
        return cls(**about | {"schedule": Schedule.from_json(document["schedule"])})


@dataclass
class Call:
    """A call of a group with given shapes: what runs it, and what was seen of it."""

    case: Case
    site: str
    key: tuple[Any, ...] = ()
    number: int = field(init=False)
    plan: Plan | None = None
    lanes: Any = None
    wire: Any = None
    says: Callable[[], str] = str
    calls_in_python: int = 0
    seconds_in_python: float = 0.0
    native: Any = None  # what native code counts of its calls

    def __post_init__(self) -> None:
        self.number = self._number(0)

    def _number(self, state: int) -> int:
        """Return the case's number with 16 bits of what this rank knows; 0: nothing."""
        return self.case.number & ~STATE | state

    @property
    def number_in_warm_up(self) -> int:
        """The number of this call inside `warm_up`; its state says whether the plan is to be measured."""
        state = 0 if self.plan is None else 1 if wants_plan(self) else self.number & STATE
        return self._number(state) ^ (STATE + 1)

    @property
    def is_alone(self) -> bool:
        """Whether no data move: the group has one rank, or there are no rows."""
        return self.case.ranks == 1 or not self.case.rows

    @property
    def calls(self) -> int:
        """How many calls were made by the plan."""
        return self.calls_in_python + (self.native.calls if self.native else 0)

    @property
    def total_s(self) -> float:
        """Seconds of all these calls."""
        return self.seconds_in_python + float(self.native.total_s if self.native else 0.0)

    @property
    def is_native(self) -> bool:
        """Whether native code may make such calls: native/torch/linear.hpp.

        Python makes those with tiles, those whose parts are added up in float32, and those that use scratch memory.
        """
        case = self.case
        needs_scratch = case.kind == SCATTER and case.rows * case.widths[0] >= LEAST
        is_split = self.wire.is_split and case.kind != GATHER
        return isinstance(self.lanes, Serial) and case.kind != COLUMNS and not needs_scratch and not is_split

    @property
    def words(self) -> str:
        """Its plan in words."""
        assert self.plan is not None
        schedule = self.plan.schedule
        if is_serial(schedule):
            return "serial"
        tiles = schedule["tiles"]
        own = ", own rows first" if self.case.kind in GATHERS else ", own rows last" if is_exchanged(schedule) else ""
        lengths = str(tiles[0]) if len(set(tiles)) == 1 else f"{min(tiles)} to {max(tiles)}"
        count = "1 tile" if len(tiles) == 1 else f"{len(tiles)} tiles"
        return f"{count} of {lengths} {'columns' if is_across(schedule) else 'rows'}{own}"

    def use(self, plan: Plan, group: Any) -> None:
        """Run by this plan from now on."""
        self.plan, self.calls_in_python, self.seconds_in_python, self.native = plan, 0, 0.0, None
        self.number = self._number(_state_of(plan.schedule))
        self.lanes, self.wire = bound(self.case, plan.schedule, group)
        if not hasattr(group, "know"):
            return
        if self.is_native:
            self.native = group.know(self.key, self.number, self.case.title)
        elif self.case.kind != COLUMNS:
            group.forget(self.key)


def _state_of(schedule: Schedule) -> int:
    """Return 16 bits that distinguish schedules, above 1."""
    about = repr((schedule.parameters, schedule.blocking)).encode()
    return 2 + int.from_bytes(sha256(about).digest()[:4], "little") % (STATE - 1)


def wants_plan(call: Call) -> bool:
    """Return whether this call is to be measured inside `warm_up`."""
    assert call.plan is not None
    return call.plan.origin == "none" or (_warming[-1] and call.plan.origin == "saved")


def bound(case: Case, schedule: Schedule, group: Any) -> tuple[Serial | Lanes | Alone, Wire]:
    """Return what runs a schedule on this rank of a group. Raises ProgramError if the proof fails."""
    wire = Wire(case.op, getattr(torch, case.dtype), case.ranks, is_async=not is_serial(schedule))
    if case.ranks == 1 or not case.rows:
        return Alone(case.kind, case.ranks), wire
    if is_serial(schedule):
        return Serial(case.kind, case.ranks), wire
    return lanes_of(case, schedule, group.rank()), wire


def lanes_of(case: Case, schedule: Schedule, rank: int) -> Lanes:
    """Return the steps of a rank for a schedule. Raises ProgramError if the proof fails."""
    program = case.program(schedule)
    if case.kind == COLUMNS:
        return ColumnLanes(program, rank)
    if is_exchanged(schedule):
        return ExchangedLanes(program, rank, case.rows, across=is_across(schedule))
    return AcrossLanes(program, rank, case.kind, case.rows) if is_across(schedule) else Lanes(program, rank, case.kind)


def is_serial(schedule: Schedule) -> bool:
    """Return whether nothing overlaps."""
    return schedule.blocking


tables: WeakKeyDictionary[Any, dict[Any, Call]] = WeakKeyDictionary()
_warming: list[bool] = []  # not empty inside `warm_up`; its last item says whether saved plans are measured anew


def is_warming() -> bool:
    """Return whether the program is inside `warm_up`."""
    return bool(_warming)


def ready(group_name: str, key: Any, build: Callable[[Any], Case]) -> tuple[Any, Call, Callable[[], bool]]:
    """Return the group, this call's entry, and what returns once all ranks have agreed that their calls fit.

    Call that before data move. It, or this, raises OperatorError on every rank if some rank's arguments are invalid or
    do not fit.
    """
    group = named(group_name)
    table = tables.get(group)
    if table is None:
        check_backend(group)
        table = tables[group] = {}
    call = table.get(key)
    if call is None:
        try:
            call = Call(build(group), _site(), key)
        except (DovetailError, ValueError, TypeError) as error:
            agree(group, 0, str, fault=str(error))
            raise
        call.says = partial(_said, call)
    elif not _warming:
        return group, call, asked(group, call.number, call.says)
    knows_alike = agree(group, call.number_in_warm_up if _warming else call.number, call.says)
    table[key] = call
    if not knows_alike:
        call.use(differing(call.case), group)
    elif call.plan is None:
        _settle(call, group)
    return group, call, _agreed


def _agreed() -> bool:
    """Return True: all ranks have agreed."""
    return True


def differing(case: Case) -> Plan:
    """Return the plan of a call for which ranks know different plans, or some none: serial, until it is measured."""
    return Plan(next(iter(case.schedules())), "none", why=DIFFER)


def _said(call: Call) -> str:
    return f"{call.case.title}{', inside warm_up' if _warming else ''}"


def _settle(call: Call, group: Any) -> None:
    """Find the plan of a call that is new on all ranks: rank 0 looks into the store, and all use what it has found."""
    schedules = list(call.case.schedules())
    if call.is_alone:
        call.use(Plan(schedules[0], "alone", why="no data move"), group)
        return
    said = words_of(group, _saved(call.case, group) if group.rank() == 0 else "")[0]
    call.use(replace(Plan.from_json(json.loads(said)), origin="saved") if said else _unknown(schedules[0]), group)


def _unknown(serial: Schedule) -> Plan:
    return Plan(serial, "none", why=NO_PLAN)


def _saved(case: Case, group: Any) -> str:
    """Return the plan in the store as text; empty if there is none that can be used."""
    plan = recall(place_of(case, group), Plan.from_json).warned()
    if plan is None:
        return ""
    try:
        bound(case, plan.schedule, group)
    except (DovetailError, LookupError, TypeError, ValueError) as error:
        warn_once(f"the saved plan of {case.title} is not used: {error}")
        return ""
    return json.dumps(plan.to_json())


def keep(call: Call, group: Any) -> None:
    """Save the plan that was measured, for later runs; rank 0 does."""
    assert call.plan is not None
    if group.rank() == 0:
        save(place_of(call.case, group), call.case.title, call.plan.to_json())


def place_of(case: Case, group: Any) -> Item:
    """Return where the store has the plan: by shapes, torch, threads, rank 0's host, and what connects the ranks."""
    where = [torch.__version__, torch.get_num_threads(), platform.node(), len(os.sched_getaffinity(0))]
    return item(SCHEDULES, SCHEMA, list(case), *where, getattr(group._ranks, "where", ""))


def _site() -> str:
    """Return the file and line outside torch and this package that makes the call."""
    frame: Any = sys._getframe(1)
    skipped = (*SKIPPED, os.environ.get("TORCHINDUCTOR_CACHE_DIR", SKIPPED[0]))  # torch sets it: code that it generated
    while frame is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else "backward"
