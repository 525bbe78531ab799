"""order_remedies: remedies for order that nothing needs: barriers, order of receives, chains of sends, polls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from dovetail.advise.remedy import Remedy, Site, by_site, calls_each, dropped, gap_s, may_need_barriers
from dovetail.ir.collectives import kind_of_mpi, traits_of
from dovetail.trace.analysis.collective_calls import WINDOW_CALLS
from dovetail.trace.analysis.replay_model import CollectiveCall, ReplayModel, Step

SMALL_BYTES = 256  # a collective of at most this many bytes, some 32 numbers, may carry a test of convergence
MANY = 16  # fewer calls are no loop: a program may make a few of them at its begin and end


def barrier(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that remove a barrier; not if files or windows may need it."""
    if may_need_barriers(model):
        return
    for place, found in by_site(model, site, "join").items():
        numbers = {s.number for _, s in found if model.collectives[s.number].name == "MPI_Barrier"}
        if not numbers or (not model.messages and _meet_in_barriers_only(model)):
            continue
        rows = tuple(s.row for _, s in found if s.number in numbers)
        calls = calls_each([it for it in found if it[1].number in numbers], "MPI_Barrier")
        evidence = f"{calls} at {place}; messages keep their order without it"
        action = "remove the barrier, if nothing else relies on it (files, other memory than MPI's, measuring)"
        yield Remedy("barrier", rows, evidence, action, without_collectives(model, numbers), is_sure=False)


def _meet_in_barriers_only(model: ReplayModel) -> bool:
    """Return whether all collectives are barriers: then nothing else orders what the ranks do."""
    joins = (s for steps in model.steps for s in steps if s.kind == "join")
    return all(model.collectives[s.number].name == "MPI_Barrier" for s in joins)


def without_collectives(model: ReplayModel, numbers: set[int]) -> ReplayModel:
    """Return the model without these collectives; the time within their calls goes, too."""
    kinds = ("join", "joined")
    gone = [{i for i, s in enumerate(steps) if s.kind in kinds and s.number in numbers} for steps in model.steps]
    return model.with_steps([dropped(s, g) for s, g in zip(model.steps, gone, strict=True)])


def seldom(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that call a reduction, or a small collective, less often; at most: never.

    The trace does not show how often the result is needed.
    """
    for place, found in by_site(model, site, "join").items():
        its = [model.collectives[s.number] for _, s in found]
        count = len({it.collective for it in its})
        if count < MANY or not all(may_be_seldom(it) for it in its):
            continue
        evidence = f"{calls_each(found, its[0].name)} at {place}, of up to {max(it.num_bytes for it in its)} bytes"
        action = "call it every k-th time, if its result is needed that seldom only (sums add up locally until then): "
        action += "saves about (k - 1)/k of this"
        rows = tuple(s.row for _, s in found)
        yield Remedy(
            "seldom", rows, evidence, action, without_collectives(model, {s.number for _, s in found}), is_sure=False
        )


def may_be_seldom(it: CollectiveCall) -> bool:
    """Return whether a collective is small, or a reduction, so that a program may call it less often."""
    if it.name == "MPI_Barrier" or it.name in WINDOW_CALLS:
        return False
    return it.num_bytes <= SMALL_BYTES or traits_of(kind_of_mpi(it.name.removeprefix("MPI_"))).reduces


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
    """Yield runs of receives of one call site, from different ranks or by tags, with only own work between them."""
    run: list[Step] = []
    ways: set[tuple[int, int]] = set()
    for step in steps:
        if step.kind in ("own", "recv"):
            continue
        it = model.messages[step.number] if step.kind == "received" else None
        way = None if it is None else (it.src, it.key)
        fits = way is not None and way not in ways
        if run and not (fits and site(run[-1].row) == site(step.row)):
            if len({s.row for s in run}) > 1:
                yield run
            run, ways = [], set()
        if way is not None:
            run.append(step)
            ways.add(way)
    if len({s.row for s in run}) > 1:
        yield run


def as_they_come(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, for a wait for several messages before work: work on each when it is there.

    Each message then is followed by an equal part of the work. At most, all of the work needs none of them.
    """
    for place, found in by_site(model, site, "received").items():
        rows = _of_several(found)
        if len(rows) < MANY:
            continue
        parts, before = (
            model.with_steps([list(_worked_on(model, steps, rows, is_first)) for steps in model.steps])
            for is_first in (False, True)
        )
        each = sum(1 for _, s in found if s.row in rows) / len(rows)
        evidence = (
            f"{len(rows)} calls at {place} wait for {each:.3g} messages each, of which some come later than others, "
        )
        evidence += "before any is worked on"
        action = "MPI_Waitany, and work on each message when it is there (if that needs no other)"
        yield Remedy("any_order", tuple(rows), evidence, action, parts, is_sure=False, bound=before)


def _of_several(found: Sequence[tuple[int, Step]]) -> set[int]:
    """Return the rows of the calls that wait for two messages or more."""
    count: dict[int, int] = defaultdict(int)
    for _, step in found:
        count[step.row] += 1
    return {row for row, messages in count.items() if messages > 1}


def _worked_on(model: ReplayModel, steps: Sequence[Step], rows: set[int], is_first: bool) -> Iterator[Step]:
    """Yield the steps with the work that follows the waits at these rows shared out between them.

    `is_first`: all of the work comes before the waits.
    """
    held: list[Step] = []
    for step in steps:
        if step.row in rows and step.kind == "received":
            held.append(step)
            continue
        if not held:
            yield step
            continue
        if step.row == held[-1].row:  # waits for sends in the same call
            yield step
            continue
        work_s = gap_s(step)
        numbers = sorted((s.number for s in held), key=lambda n: model.messages[n].sent_s)
        own_s = sum(s.seconds for s in held)
        yield Step(own_s + work_s * is_first, "own", -1, -1, sum(s.within_s for s in held))
        for number in numbers:
            yield held[0]._replace(seconds=0.0, within_s=0.0, after_s=0.0, number=number)
            if not is_first:
                yield Step(work_s / len(held), "own", -1, -1)
        held, step = [], step._replace(seconds=step.within_s)
        yield step
    yield from held


def _renumbered(step: Step, order: dict[int, int]) -> Step:
    if step.kind in ("recv", "received") and step.number in order:
        return step._replace(number=order[step.number])
    return step


def standard(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that send small messages by MPI_Send instead of MPI_Ssend."""
    for place, found in by_site(model, site, "send").items():
        at = [s for _, s in found if _is_strict(model, s)]
        if not at:
            continue
        numbers = {s.number for s in at}
        those = [model.messages[n] for n in numbers]
        sides = ([getattr(m, name) for m in those] for name in ("num_bytes", "src", "dst"))
        held = model.delays.limits.is_rendezvous(*sides)
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
    for place, found in by_site(model, site, "sent").items():
        rows = {s.row for _, s in found if model.messages[s.number].rendezvous}
        changed = [list(_after_receive(steps, rows)) for steps in model.steps]
        moved = sum(a != list(b) for a, b in zip(changed, model.steps, strict=True))
        if not moved:
            continue
        evidence = f"{len(rows)} sends at {place} wait until their message is taken, before their rank takes its next"
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
