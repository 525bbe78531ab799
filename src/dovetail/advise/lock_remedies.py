"""lock_remedies: remedies for ranks that wait for the lock of a window while its holder works."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advise.remedy import Remedy, Site, call_s, duration, places
from dovetail.trace.analysis.replay_model import ReplayModel, Step


def lock(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that holds the locks of windows for the transfer only, not during work."""
    waits = [step for steps in model.steps for step in steps if _locked_s(model, step) > 0]
    if not waits:
        return
    rows = tuple(step.row for step in sorted(waits, key=lambda step: -_locked_s(model, step)))
    total = duration(sum(_locked_s(model, step) for step in waits))
    evidence = f"{len(rows)} calls at {places(rows, site)} wait {total} in all for a lock of a window, while the rank "
    evidence += "that holds it works between MPI_Win_lock and MPI_Win_unlock"
    action = "do the work before MPI_Win_lock or after MPI_Win_unlock, and hold the lock for the transfer only "
    action += "(MPI_LOCK_SHARED lets several ranks accumulate at once)"
    changed = model.with_steps([[_freed(model, step) for step in steps] for steps in model.steps])
    yield Remedy("lock", rows, evidence, action, changed, is_sure=False)


def _locked_s(model: ReplayModel, step: Step) -> float:
    """Return the seconds of a step of kind "own", within its call, in which another rank held the lock and worked."""
    return min(model.locked_s.get(step.row, 0.0), call_s(step)) if step.kind == "own" else 0.0


def _freed(model: ReplayModel, step: Step) -> Step:
    less_s = _locked_s(model, step)
    return step._replace(seconds=step.seconds - less_s, within_s=step.within_s - less_s) if less_s > 0 else step
