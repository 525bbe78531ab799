"""waiting_remedies: remedies for waits: wait later, begin earlier, let the library make progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from dovetail.advise.remedy import (
    GRAIN_S,
    Remedy,
    Site,
    by_site,
    call_s,
    calls_each,
    duration,
    gap_s,
    later,
    latest,
    places,
)
from dovetail.trace.analysis.collective_calls import WINDOW_CALLS
from dovetail.trace.analysis.replay_model import SYNCHRONOUS, CollectiveCall, ReplayModel, Step, StepKind

LEAST_WORK_S = 20e-6  # shorter work is not worth moving before a wait
MOST_MOVED = 64  # a receive is moved ahead of at most this many waits
SMALL_BYTES = 1 << 16  # largest message whose eager limit is to be raised: each sender gets a buffer of that size


def overlap(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that wait for receives after the work that follows them."""
    for place, found in by_site(model, site, "received").items():
        rows = {step.row for _, step in found}
        if not _work_follows(model, rows):
            continue
        changed = _waiting_later(model, rows, "received", "sent", "joined")
        follows = duration(_follows_s(model, rows))
        evidence = f"{len(rows)} calls at {place} wait for messages just before work of {follows}"
        begun = "" if _are_posted_before(model, rows) else "begin with MPI_Irecv, "
        action = f"{begun}do the work that needs no message first, then MPI_Wait"
        action = f"{action} (dovetail.loops does so for stencils)"
        yield Remedy("overlap", tuple(rows), evidence, action, changed, is_sure=False)


def _are_posted_before(model: ReplayModel, rows: set[int]) -> bool:
    """Return whether other calls posted all receives that these calls wait for."""
    steps = [step for steps in model.steps for step in steps if step.row in rows]
    received = {step.number for step in steps if step.kind == "received"}
    return not any(step.kind == "recv" and step.number in received for step in steps)


def _waiting_later(model: ReplayModel, rows: set[int], *kinds: StepKind) -> ReplayModel:
    """Return the model with waits of the calls at these rows after the work that follows them."""
    return model.with_steps([later(steps, lambda s: s.row in rows and s.kind in kinds) for steps in model.steps])


def nonblocking(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies that make a blocking collective non-blocking, and wait for it after the work that follows.

    A rank waits before its next collective at the latest: collectives that it has begun share its links, so that they
    do not hide one another. What its CPU spends on a collective is added to its work. So a call hides no more than the
    work that follows it.
    """
    calls: dict[tuple[str, str], list[tuple[int, Step]]] = {}
    for place, found in by_site(model, site, "joined").items():
        for rank, step in found:
            calls.setdefault((place, model.collectives[step.number].name), []).append((rank, step))
    for (place, name), at in calls.items():
        rows = {step.row for _, step in at}
        which = [model.collectives[step.number] for _, step in at]
        is_fit = name != "MPI_Barrier" and name not in WINDOW_CALLS
        is_fit &= all(it.blocking and it.way == SYNCHRONOUS for it in which)
        if not is_fit or not _work_follows(model, rows):
            continue
        changed = _begun_only(model, rows)
        evidence = f"{calls_each(at, name)} at {place}, each before work of {duration(_follows_s(model, rows))}"
        action = f"MPI_I{name.removeprefix('MPI_').lower()}, then the work that needs no result, then MPI_Wait"
        yield Remedy("nonblocking", tuple(rows), evidence, action, changed, is_sure=False)


def waited_at_once(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, for collectives that are begun, and waited for without work in between."""
    at_once = _without_work(model)
    for place, found in by_site(model, site, "joined").items() if at_once else ():
        at = [(rank, step) for rank, step in found if (rank, step.number) in at_once]
        rows = {step.row for _, step in at}
        if 2 * len(at) <= len(found) or not _work_follows(model, rows):
            continue
        name = model.collectives[at[0][1].number].name
        evidence = f"{calls_each(at, 'MPI_Wait')} at {place} follow {name} at once, before work of "
        evidence += duration(_follows_s(model, rows))
        action = f"{name}, then the work that needs no result, then MPI_Wait"
        changed = _begun_only(model, rows)
        yield Remedy("nonblocking", tuple(rows), evidence, action, changed, is_sure=False, is_meant=True)


def _without_work(model: ReplayModel) -> set[tuple[int, int]]:
    """Return rank and number of the non-blocking collectives that a rank waits for without work since it began them."""
    found, begun, work_s = set[tuple[int, int]](), dict[int, float](), 0.0
    for rank, steps in enumerate(model.steps):
        for step in steps:
            work_s += gap_s(step)
            if step.kind == "join" and not model.collectives[step.number].blocking:
                begun[step.number] = work_s
            elif step.kind == "joined" and step.number in begun and work_s - begun[step.number] <= GRAIN_S:
                found.add((rank, step.number))
    return found


def _begun_only(model: ReplayModel, rows: set[int]) -> ReplayModel:
    """Return the model with the collectives of these rows begun only: their ranks wait after the work that follows."""
    waits = (s for steps in model.steps for s in steps if s.row in rows and s.kind == "joined")
    begun = {s.row: model.collectives[s.number] for s in waits}
    freed, own_s = _in_background(model, begun)
    moved = [later(steps, lambda s: s.row in rows and s.kind == "joined", ("join", "end")) for steps in model.steps]
    return model.with_steps([[_with_work(s, own_s) for s in steps] for steps in moved], collectives=freed)


def sends(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies for blocking sends that wait for their receive: send non-blocking, or raise the eager limit.

    Raising the limit helps only small messages whose size exceeds it. A smaller message waits because buffers are full.
    """
    for place, found in by_site(model, site, "send").items():
        numbers = {s.number for _, s in found if model.messages[s.number].rendezvous}
        blocked = {s.number for steps in model.steps for s in steps if s.kind == "sent" and s.number in numbers}
        blocked = {n for n in blocked if not model.messages[n].stalls}
        rows = {s.row for _, s in found if s.number in blocked}
        if not rows or not _are_blocking(model, rows):
            continue
        most = max(model.messages[n].num_bytes for n in blocked)
        evidence = f"{len(rows)} sends at {place}, of up to {most} bytes, wait for their receive"
        full = {n for n in blocked if _is_eager(model, n)}
        is_full = 2 * len(full) > len(blocked)
        evidence += ", although others of their size between the same ranks do not: buffers were full" * is_full
        if most <= SMALL_BYTES and not is_full and not any(model.messages[n].synchronous for n in blocked):
            free = [replace(m, rendezvous=False) if n in blocked else m for n, m in enumerate(model.messages)]
            action = f"raise the library's eager limit above {most} bytes (docs/trace.md names the variables)"
            yield Remedy("eager", tuple(rows), evidence, action, replace(model, messages=tuple(free)))
        changed = model.with_steps([latest(steps, rows) for steps in model.steps])
        action = "MPI_Isend from a separate buffer, and MPI_Wait before the rank next receives or calls a collective"
        yield Remedy("rendezvous", tuple(rows), evidence, action, changed)


def _is_eager(model: ReplayModel, number: int) -> bool:
    """Return whether messages of this one's size, between its ranks, mostly do not wait for their receive."""
    it = model.messages[number]
    return it.num_bytes <= (model.delays.limits.of(it.src, it.dst).eager_bytes or 0)


def _are_blocking(model: ReplayModel, rows: set[int]) -> bool:
    """Return whether the calls that send also wait for the send's end."""
    return any(step.row in rows and step.kind == "sent" for steps in model.steps for step in steps)


def post_earlier(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies that post receives before the waits ahead of them."""
    for place, found in by_site(model, site, "recv").items():
        late = {
            s.number for _, s in found if model.messages[s.number].rendezvous and not model.messages[s.number].stalls
        }
        moved = [list(_earlier(model, steps, late)) for steps in model.steps]
        if not late or all(list(a) == list(b) for a, b in zip(moved, model.steps, strict=True)):
            continue
        rows = {s.row for _, s in found if s.number in late}
        evidence = f"{len(rows)} receives at {place} are posted after their senders have begun to wait"
        action = "MPI_Irecv before the rank waits for anything else, MPI_Wait where the message is needed"
        yield Remedy("post_earlier", tuple(rows), evidence, action, model.with_steps(moved))


def _earlier(model: ReplayModel, steps: Sequence[Step], late: set[int]) -> Iterator[Step]:
    """Yield the steps with each `late` receive moved ahead of the waits directly before it."""
    moved: list[Step] = []
    for step in steps:
        at = len(moved)
        if step.kind == "recv" and step.number in late and gap_s(step) <= GRAIN_S:
            at = _first_of_waits(model, moved, step.number)
        if at == len(moved):
            moved.append(step)
            continue
        moved.insert(at, step._replace(seconds=moved[at].seconds, within_s=moved[at].within_s))
        moved[at + 1] = moved[at + 1]._replace(seconds=0.0, within_s=0.0)
    yield from moved


def _first_of_waits(model: ReplayModel, steps: Sequence[Step], number: int) -> int:
    """Return the index in `steps` to which the receive of message `number`, which follows them, can be moved.

    Moves it ahead of receives and waits, but not ahead of work, nor of a receive from the same sender with equal tag.
    """
    at, it = len(steps), model.messages[number]
    while at and len(steps) - at < MOST_MOVED and steps[at - 1].kind in ("received", "recv"):
        other = model.messages[steps[at - 1].number]
        if steps[at - 1].kind == "recv" and (other.src, other.key) == (it.src, it.key):
            break
        if at < len(steps) and gap_s(steps[at]) > GRAIN_S:
            break
        at -= 1
    return at


def progress(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies for messages that progressed only in the wait for them, although begun long before."""
    for place, found in by_site(model, site, "received").items():
        stalled = {s.number for _, s in found if model.messages[s.number].stalls}
        if not stalled:
            continue
        free = [replace(m, stalls=False) if n in stalled else m for n, m in enumerate(model.messages)]
        spent = sum(model.messages[n].delay_s or 0.0 for n in stalled)
        each = spent / len(stalled)
        evidence = f"{len(stalled)} messages took {duration(spent)} in the wait at {place}, although begun before work"
        action = f"call MPI_Test about every {duration(max(each / 8, 1e-4))} during the work, or run a progress thread"
        yield Remedy("progress", tuple(s.row for _, s in found), evidence, action, replace(model, messages=tuple(free)))


def collective_progress(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies for collectives that progressed only when all ranks waited, although begun long before.

    With progress, each rank's CPU share of the collective's time is added to its work.
    """
    for place, found in by_site(model, site, "joined").items():
        quiet = {s.row: model.collectives[s.number] for _, s in found if model.collectives[s.number].stalls}
        if not quiet:
            continue
        moved, own_s = _in_background(model, quiet)
        steps = [[_with_work(step, own_s) for step in each] for each in model.steps]
        spent = max(it.seconds for it in quiet.values())
        names = ", ".join(sorted({it.name for it in quiet.values()}))
        evidence = (
            f"{names}: {len(quiet)} waits at {place} took up to {duration(spent)}, although all ranks had begun the "
            "collective long before"
        )
        action = f"call MPI_Test about every {duration(max(spent / 8, 1e-4))} during the work, or run a progress thread"
        yield Remedy("progress", tuple(quiet), evidence, action, model.with_steps(steps, collectives=moved))


def _in_background(
    model: ReplayModel, at: Mapping[int, CollectiveCall]
) -> tuple[tuple[CollectiveCall, ...], dict[int, float]]:
    """Return the collectives, those `at` rows without what CPUs spend on them, and this by row.

    An earlier remedy may have left a collective shorter than what CPUs spent on it.
    """
    freed = {it.collective for it in at.values()}
    found = (
        replace(it, stalls=False, seconds=max(it.seconds - it.own_s, 0.0)) if it.collective in freed else it
        for it in model.collectives
    )
    return tuple(found), {row: it.own_s for row, it in at.items()}


def _with_work(step: Step, own_s: dict[int, float]) -> Step:
    if step.kind != "joined" or step.row not in own_s:
        return step
    more = own_s[step.row]
    return step._replace(seconds=step.seconds + more, within_s=step.within_s + more)


def sender_progress(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies for messages that left late: their sender called the library again only after the receive."""
    for place, found in by_site(model, site, "send").items():
        held = {s.number for _, s in found if model.messages[s.number].held}
        if not held:
            continue
        free = [replace(m, held=False) if n in held else m for n, m in enumerate(model.messages)]
        each = sum(model.messages[n].delay_s or 0.0 for n in held) / len(held)
        evidence = f"{len(held)} messages sent at {place} left only when their sender called MPI again, after work"
        action = f"call MPI_Test about every {duration(max(each / 8, 1e-4))} during the work, or run a progress thread"
        rows = tuple(s.row for _, s in found if s.number in held)
        yield Remedy("progress", rows, evidence, action, replace(model, messages=tuple(free)))


def target_progress(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy for one-sided calls that waited until their target, which worked, called MPI."""
    waits = [step for steps in model.steps for step in steps if _served_s(model, step) > 0]
    if not waits:
        return
    rows = tuple(step.row for step in sorted(waits, key=lambda step: -_served_s(model, step)))
    each_s = sum(_served_s(model, step) for step in waits) / len(waits)
    names = ", ".join(sorted({model.calls[row][0] for row in rows}))
    evidence = (
        f"{len(rows)} calls of {names} at {places(rows, site)} end only when their target calls MPI, after work: "
    )
    evidence += f"{duration(each_s)} each"
    action = f"let the target call MPI (MPI_Test, MPI_Iprobe) about every {duration(max(each_s / 8, 1e-4))} during its "
    action += "work, or run a progress thread (MPICH_ASYNC_PROGRESS); or let it send the data instead"
    changed = model.with_steps([[_served(model, step) for step in steps] for steps in model.steps])
    yield Remedy("progress", rows, evidence, action, changed)


def _served_s(model: ReplayModel, step: Step) -> float:
    """Return the seconds of a step of kind "own", within its call, in which its target was not in MPI."""
    if step.row not in model.served_s or step.kind != "own":
        return 0.0
    return max(min(model.served_s[step.row], call_s(step)) - model.locked_s.get(step.row, 0.0), 0.0)


def _served(model: ReplayModel, step: Step) -> Step:
    less_s = _served_s(model, step)
    return step._replace(seconds=step.seconds - less_s, within_s=step.within_s - less_s) if less_s > 0 else step


def _work_follows(model: ReplayModel, rows: set[int]) -> bool:
    return _follows_s(model, rows) > LEAST_WORK_S


def _follows_s(model: ReplayModel, rows: set[int]) -> float:
    """Return the mean seconds of work directly after the calls at these rows."""
    spent, count = 0.0, 0
    for steps in model.steps:
        for step, after in pairwise(steps):
            if step.row in rows and after.row != step.row:
                spent, count = spent + gap_s(after), count + 1
    return spent / max(count, 1)
