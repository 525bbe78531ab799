"""kept: the schedule that was measured to be the fastest for an operator on these ranks, to be looked up at run
time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from dovetail.core import CACHED, DovetailError, cache_dir, check_schema, is_cached, load_json, save_json
from dovetail.ir import Operator, Schedule

SCHEMA = "dovetail.kept/1"


def kept_path(operator: Operator, library: str, hosts: Sequence[str]) -> Path:
    """Where the schedule for an operator is kept: by the MPI library's name and version, and the host of every rank."""
    text = "\n".join([library, *hosts, json.dumps(operator.to_json(), sort_keys=True)])
    return cache_dir("schedules") / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def keep_schedule(operator: Operator, schedule: Schedule, library: str, hosts: Sequence[str]) -> Path:
    """Put a schedule into the cache; returns the file."""
    document = {"schema": SCHEMA, "operator": operator.to_json(), "schedule": schedule.to_json()}
    return save_json(kept_path(operator, library, hosts), document, CACHED)


def kept_schedule(operator: Operator, library: str, hosts: Sequence[str]) -> Schedule | None:
    """What was kept for an operator on these ranks, None where nothing was. DovetailError for a file that is broken."""
    path = kept_path(operator, library, hosts)
    if not is_cached(path):
        return None
    document = load_json(path, "kept schedule")
    check_schema(document, SCHEMA)
    try:
        return Schedule.from_json(document["schedule"])
    except (KeyError, TypeError, AttributeError) as error:
        raise DovetailError(f"malformed kept schedule {path}", found=f"{type(error).__name__}: {error}") from error
