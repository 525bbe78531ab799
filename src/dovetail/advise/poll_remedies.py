"""poll_remedies: remedies for ranks that test or probe for a message and pause between: wait for it instead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.remedy import Remedy, Site, call_s, duration, gap_s
from dovetail.trace.analysis.polls import PROBES
from dovetail.trace.analysis.replay_model import ReplayModel, Step

NEGATIVE = -0.5  # correlation of two times of which the one is the longer the shorter the other is
Floats = NDArray[Any]


class _Poll(NamedTuple):
    """Polls that end with success in the call at `row`; `after_s`: the rank's own time that follows that call."""

    row: int
    polled_s: float
    after_s: float
    asleep: float  # share of `polled_s` off CPU; NaN: unknown


def poll(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that wait for a message instead of testing, or probing, for it between pauses.

    Between polls, a rank is on its CPU if it works, off it if it pauses. If the trace does not show which, time that is
    work would be done later: then what follows the polls is the shorter the longer they take.
    """
    at: dict[str, list[_Poll]] = defaultdict(list)
    for steps in model.steps:
        for it in _polls(model, steps):
            at[site(it.row)].append(it)
    probed = _after_probes(model)
    for place, found in at.items():
        asleep = np.array([it.asleep for it in found])
        polled, after = np.array([it.polled_s for it in found]), np.array([it.after_s for it in found])
        is_seen = not np.isnan(asleep).any()
        if not is_seen and _are_work(polled, after):
            continue
        keeps = {it.row: 1.0 - it.asleep if is_seen else 0.0 for it in found}
        changed = model.with_steps([_waiting(model, steps, keeps) for steps in model.steps])
        each = duration(float(polled.mean()))
        share = float((polled * asleep).sum() / polled.sum()) if is_seen and polled.sum() else 0.0
        evidence = f"{len(found)} messages are polled for at {place} for {each} each, "
        evidence += f"off the CPU for {share:.0%} of this" if is_seen else "with time outside MPI between polls"
        action = "MPI_Wait, MPI_Recv or MPI_Probe instead of pauses between polls"
        action += "" if is_seen else ", if what lies between the polls is no work"
        is_sure = is_seen or not any(it.row in probed for it in found)
        yield Remedy("poll", tuple(keeps), evidence, action, changed, is_sure)


def _after_probes(model: ReplayModel) -> set[int]:
    """Return the rows of calls that follow probes without success."""
    found = set()
    for steps in model.steps:
        for before, step in zip(steps, islice(steps, 1, None), strict=False):
            if step.row in model.polled_s and _is_probe(model, before):
                found.add(step.row)
    return found


def _is_probe(model: ReplayModel, step: Step) -> bool:
    return step.kind == "own" and step.row in model.calls and model.calls[step.row][0] in PROBES


def _polls(model: ReplayModel, steps: Sequence[Step]) -> Iterator[_Poll]:
    for i, step in enumerate(steps):
        if step.row in model.polled_s and (i == 0 or steps[i - 1].row != step.row):
            later = next((s for s in islice(steps, i, None) if s.row != step.row), step)
            after_s = gap_s(later) if later is not step else 0.0
            yield _Poll(step.row, model.polled_s[step.row], after_s, model.asleep.get(step.row, float("nan")))


def _are_work(polled: Floats, after: Floats) -> bool:
    """Return whether the polls' time and the time that follows make up for each other: both are one piece of work."""
    if len(polled) < 4 or not (np.ptp(polled) > 0 and np.ptp(after) > 0):
        return bool(after.mean() > polled.mean())
    return bool(np.corrcoef(polled, after)[0, 1] < NEGATIVE) or bool(after.mean() > 4 * polled.mean())


def _waiting(model: ReplayModel, steps: Sequence[Step], keeps: dict[int, float]) -> list[Step]:
    """Return the steps with this share only of the time of unsuccessful polls before the calls at these rows."""
    found: list[Step] = []
    before = -1
    for step in steps:
        if step.row in keeps and step.row != before:
            probes = list(takewhile(lambda it: _is_probe(model, it), reversed(found)))[::-1]
            del found[len(found) - len(probes) :]
            step, before = _after(step, probes, model.polled_s[step.row], keeps[step.row]), step.row
        found.append(step)
    return found


def _after(step: Step, probes: Sequence[Step], polled_s: float, keep: float) -> Step:
    """Return a step that follows polls with `keep` of their seconds; `probes`: those that are steps of their own."""
    if not probes:
        own_s = max(step.seconds - (1.0 - keep) * polled_s, 0.0)
        return step._replace(seconds=own_s, within_s=min(step.within_s, own_s))
    first_s = probes[0].seconds - call_s(probes[0])
    rest_s = call_s(probes[0]) + sum(it.seconds for it in probes[1:]) + step.seconds
    return step._replace(seconds=first_s + keep * rest_s, within_s=probes[0].after_s, after_s=probes[0].after_s)
