"""tuned_schedules: save and find the fastest measured schedule of an operator on given ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.core import check_schema
from dovetail.ir import Operator, Schedule
from dovetail.store.store import SCHEDULES, Item, Recalled, item, recall, save

SCHEMA = "dovetail.tuned_schedule/1"


def schedule_item(operator: Operator, library: str, hosts: Sequence[str]) -> Item:
    """Return the item of an operator's schedule: by the MPI library's name and version, and the host of every rank."""
    return item(SCHEDULES, operator.to_json(), library, list(hosts))


def save_schedule(operator: Operator, schedule: Schedule, library: str, hosts: Sequence[str]) -> Path | None:
    """Save the schedule of an operator on these ranks; return the file, or None with a warning if not writable."""
    document = {"schema": SCHEMA, "operator": operator.to_json(), "schedule": schedule.to_json()}
    about = f"{operator.title} on {len(hosts)} ranks: {schedule}"
    return save(schedule_item(operator, library, hosts), about, document)


def recall_schedule(operator: Operator, library: str, hosts: Sequence[str]) -> Recalled[Schedule]:
    """Return the schedule that was tuned for an operator on these ranks, or None; see `store.recall`."""
    return recall(schedule_item(operator, library, hosts), _read)


def _read(document: dict[str, Any]) -> Schedule:
    check_schema(document, SCHEMA)
    return Schedule.from_json(document["schedule"])
