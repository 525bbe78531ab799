"""order_remedies: remedies for order that nothing needs: barriers, order of receives, chains of sends, polls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dovetail.advise.remedy import Remedy, Site, by_site, dropped, duration, gap_s
from dovetail.trace.analysis.call_classes import IO, ONE_SIDED, class_of
from dovetail.trace.analysis.replay_model import ReplayModel, Step

SMALL_BYTES = 256  # a collective of at most this many bytes may carry a test of convergence
SELDOM = 8  # a collective that is needed at some steps only: every 8th, say
MANY = 16  # fewer calls are no loop
NEGATIVE = -0.5  # correlation of two times that add up to the same


def barrier(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that remove a barrier; not if files or windows may need it."""
    if any(class_of(name) in (IO, ONE_SIDED) for name in model.names):
        return
    for place, found in by_site(model, site, ("join",)).items():
        numbers = {s.number for _, s in found if model.collectives[s.number].name == "MPI_Barrier"}
        if not numbers or (not model.messages and _is_only_meeting(model, numbers)):
            continue
        rows = tuple(s.row for _, s in found if s.number in numbers)
        count = len({model.collectives[n].collective for n in numbers})
        evidence = f"the ranks meet {count} times in MPI_Barrier at {place}; messages keep their order without it"
        action = "remove the barrier, if nothing else relies on it (files, other memory than MPI's, measuring)"
        yield Remedy("barrier", rows, evidence, action, _without(model, numbers), is_sure=False)


def _is_only_meeting(model: ReplayModel, numbers: set[int]) -> bool:
    """Return whether the ranks meet at these collectives only."""
    return all(s.number in numbers for steps in model.steps for s in steps if s.kind == "join")


def _without(model: ReplayModel, numbers: set[int]) -> ReplayModel:
    kinds = ("join", "joined")
    gone = [{i for i, s in enumerate(steps) if s.kind in kinds and s.number in numbers} for steps in model.steps]
    return model.with_steps([dropped(s, g) for s, g in zip(model.steps, gone, strict=True)])


def seldom(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that call a small collective at every SELDOM-th step only."""
    for place, found in by_site(model, site, ("join",)).items():
        order = sorted({model.collectives[s.number].collective for _, s in found})
        its = [model.collectives[s.number] for _, s in found]
        if len(order) < MANY or any(it.name == "MPI_Barrier" or it.num_bytes > SMALL_BYTES for it in its):
            continue
        kept = set(order[SELDOM - 1 :: SELDOM])
        numbers = {s.number for _, s in found if model.collectives[s.number].collective not in kept}
        evidence = f"{len(order)} calls of {its[0].name} at {place}, of up to {max(it.num_bytes for it in its)} bytes"
        action = f"call it every {SELDOM}th time, if its result is looked at, or may be looked at, that seldom only"
        rows = tuple(s.row for _, s in found)
        every = {s.number for _, s in found}
        yield Remedy(
            "seldom", rows, evidence, action, _without(model, numbers), is_sure=False, bound=_without(model, every)
        )


def any_order(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that take messages of several ranks in the order in which they were sent."""
    changed, moved = [], defaultdict[str, list[int]](list)
    for steps in model.steps:
        order: dict[int, int] = {}
        for group in _taken_in_order(model, steps, site):
            numbers = [s.number for s in group]
            better = sorted(numbers, key=lambda n: model.messages[n].sent_s)
            if better != numbers:
                order |= dict(zip(numbers, better, strict=True))
                moved[site(group[0].row)] += [s.row for s in group]
        changed.append([_renumbered(s, order) for s in steps])
    if not moved:
        return
    rows = tuple(row for those in moved.values() for row in those)
    evidence = f"{len(rows)} receives at {', '.join(moved)} take messages in a fixed order; others had been sent before"
    action = (
        "take them as they come: MPI_ANY_SOURCE, or MPI_Irecv for all and MPI_Waitany; the work after each may differ"
    )
    yield Remedy("any_order", rows, evidence, action, model.with_steps(changed))


def _taken_in_order(model: ReplayModel, steps: Sequence[Step], site: Site) -> Iterator[list[Step]]:
    """Yield runs of receives of one call site from different ranks with nothing but own work between them."""
    run: list[Step] = []
    for step in steps:
        if step.kind in ("own", "recv"):
            continue
        src = model.messages[step.number].src if step.kind == "received" else -1
        fits = src >= 0 and all(model.messages[s.number].src != src for s in run)
        if run and not (fits and site(run[-1].row) == site(step.row)):
            if len({s.row for s in run}) > 1:
                yield run
            run = []
        if src >= 0:
            run.append(step)
    if len({s.row for s in run}) > 1:
        yield run


def _renumbered(step: Step, order: dict[int, int]) -> Step:
    if step.kind in ("recv", "received") and step.number in order:
        return step._replace(number=order[step.number])
    return step


def standard(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that send small messages by MPI_Send instead of MPI_Ssend."""
    for place, found in by_site(model, site, ("send",)).items():
        at = [s for _, s in found if _is_strict(model, s)]
        if not at:
            continue
        numbers = {s.number for s in at}
        held = model.delays.is_rendezvous([model.messages[n].num_bytes for n in numbers])
        free = [
            replace(m, rendezvous=False, synchronous=False) if n in numbers else m for n, m in enumerate(model.messages)
        ]
        if held.any():
            continue
        most = max(model.messages[n].num_bytes for n in numbers)
        evidence = f"{len(at)} synchronous sends at {place}, of up to {most} bytes, wait until their message is taken"
        action = "MPI_Send, or MPI_Isend and MPI_Wait later, if the sender need not know that its message was taken"
        yield Remedy("standard", tuple(s.row for s in at), evidence, action, replace(model, messages=tuple(free)))


def _is_strict(model: ReplayModel, step: Step) -> bool:
    return step.number in model.strict


def send_and_receive(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies for sends that wait before the rank takes the message that it needs next: a chain of ranks."""
    for place, found in by_site(model, site, ("sent",)).items():
        rows = {s.row for _, s in found if model.messages[s.number].rendezvous}
        changed = [list(_after_receive(steps, rows)) for steps in model.steps]
        moved = sum(a != list(b) for a, b in zip(changed, model.steps, strict=True))
        if not moved:
            continue
        evidence = (
            f"{len(rows)} sends at {place} wait until their message is taken, before their rank takes its next one"
        )
        action = "MPI_Sendrecv, or MPI_Irecv before the send: then no rank waits for the next in the chain"
        yield Remedy("rendezvous", tuple(rows), evidence, action, model.with_steps(changed))


def _after_receive(steps: Sequence[Step], rows: set[int]) -> Iterator[Step]:
    """Yield the steps with waits for these rows' sends after the receive that follows directly."""
    held: list[Step] = []
    for step, after in pairwise([*steps, None]):
        assert step is not None
        follows = after is not None and after.kind in ("recv", "received") and after.row != step.row
        if step.row in rows and step.kind == "sent" and (follows or (after is not None and after.row == step.row)):
            if step.seconds > 0:
                yield step._replace(kind="own", number=-1)
            held.append(step._replace(seconds=0.0, within_s=0.0, after_s=0.0))
            continue
        yield step
        if held and (after is None or step.kind not in ("recv",)):
            yield from (one._replace(row=step.row) for one in held)
            held = []


def poll(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that wait for a request instead of testing it between pauses.

    Time between tests that is work, not a pause, would be done later: then what follows the test is the shorter the
    longer the tests take.
    """
    at: dict[str, list[tuple[Step, float]]] = defaultdict(list)
    for steps in model.steps:
        for step, after_s in _tested(model, steps):
            at[site(step.row)].append((step, after_s))
    for place, found in at.items():
        polled = np.array([model.polled_s[step.row] for step, _ in found])
        after = np.array([value for _, value in found])
        if _are_work(polled, after):
            continue
        rows = {step.row for step, _ in found}
        changed = model.with_steps([_waiting(model, steps, rows) for steps in model.steps])
        each = duration(float(polled.mean()))
        evidence = f"{len(rows)} requests are tested at {place} for {each} each, with time outside MPI between tests"
        action = "MPI_Wait instead of pauses between tests, if what lies between the tests is no work"
        yield Remedy("poll", tuple(rows), evidence, action, changed)


def _tested(model: ReplayModel, steps: Sequence[Step]) -> Iterator[tuple[Step, float]]:
    """Yield the first step of each successful test, and the own time that follows its call."""
    for i, step in enumerate(steps):
        if step.row in model.polled_s and (i == 0 or steps[i - 1].row != step.row):
            later = next((s for s in steps[i:] if s.row != step.row), step)
            yield step, gap_s(later) if later is not step else 0.0


def _are_work(polled: np.ndarray, after: np.ndarray) -> bool:
    """Return whether the tests' time and the time that follows make up for each other: both are one piece of work."""
    if len(polled) < 4 or not (np.ptp(polled) > 0 and np.ptp(after) > 0):
        return bool(after.mean() > polled.mean())
    return bool(np.corrcoef(polled, after)[0, 1] < NEGATIVE) or bool(after.mean() > 4 * polled.mean())


def _waiting(model: ReplayModel, steps: Sequence[Step], rows: set[int]) -> list[Step]:
    """Return the steps without the time of unsuccessful tests before the calls at these rows."""
    found, before = [], -1
    for step in steps:
        if step.row in rows and step.row != before:
            own_s = max(step.seconds - model.polled_s[step.row], 0.0)
            step, before = step._replace(seconds=own_s, within_s=min(step.within_s, own_s)), step.row
        found.append(step)
    return found
