"""waiting_remedies: remedies for waits: wait later, begin earlier, let the library make progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, by_site, duration, gap_s, later, latest
from dovetail.trace.analysis.story import SYNCHRONOUS, Does, Step, Story

LEAST_WORK_S = 20e-6  # shorter work is not worth moving before a wait
MOST_MOVED = 64  # a receive is moved ahead of at most this many waits
SMALL_BYTES = 1 << 16  # largest message for which raising the library's eager limit is suggested


def overlap(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that wait for receives after the work that follows them."""
    for place, found in by_site(story, site, ("taken",)).items():
        rows = {step.row for _, step in found}
        if not _work_follows(story, rows):
            continue
        changed = _waiting_later(story, rows, "taken", "sent", "joined")
        follows = duration(_follows_s(story, rows))
        evidence = f"{len(rows)} calls at {place} wait for messages just before work of {follows}"
        begun = "" if _are_posted_before(story, rows) else "begin with MPI_Irecv, "
        action = f"{begun}do the work that needs no message first, then MPI_Wait"
        yield Remedy("overlap", tuple(rows), evidence, f"{action} (dovetail.loops does so for stencils)", changed)


def _are_posted_before(story: Story, rows: set[int]) -> bool:
    """Return whether other calls posted all receives that these calls wait for."""
    taken = {s.number for steps in story.steps for s in steps if s.does == "taken" and s.row in rows}
    return not any(s.does == "recv" and s.number in taken and s.row in rows for steps in story.steps for s in steps)


def _waiting_later(story: Story, rows: set[int], *does: Does) -> Story:
    """Return the story with waits of the calls at these rows after the work that follows them."""
    return story.with_steps([later(steps, lambda s: s.row in rows and s.does in does) for steps in story.steps])


def nonblocking(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield remedies that make a blocking collective non-blocking, and wait for it after the work that follows."""
    joined = by_site(story, site, ("joined",))
    both = [(place, name) for place, found in joined.items() for name in _names_of(story, found)]
    for place, name in both:
        found = [it for it in joined[place] if story.gatherings[it[1].number].name == name]
        of = [story.gatherings[step.number] for _, step in found]
        rows = {step.row for _, step in found}
        if not all(it.blocking and it.way == SYNCHRONOUS for it in of) or not _work_follows(story, rows):
            continue
        if name == "MPI_Barrier":
            continue
        changed = _waiting_later(story, rows, "joined")
        evidence = f"{len(rows)} calls of {name} at {place}, each before work of {duration(_follows_s(story, rows))}"
        action = f"MPI_I{name.removeprefix('MPI_').lower()}, then the work that needs no result, then MPI_Wait"
        yield Remedy("nonblocking", tuple(rows), evidence, action, changed)


def _names_of(story: Story, found: Sequence[tuple[int, Step]]) -> list[str]:
    return list(dict.fromkeys(story.gatherings[step.number].name for _, step in found))


def sends(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield remedies for blocking sends that wait for their receive: send non-blocking, or raise the eager limit.

    Raising the limit helps only small messages whose size exceeds it. A smaller message waits because buffers are full.
    """
    for place, found in by_site(story, site, ("send",)).items():
        numbers = {s.number for _, s in found if story.messages[s.number].rendezvous}
        blocked = {s.number for steps in story.steps for s in steps if s.does == "sent" and s.number in numbers}
        blocked = {n for n in blocked if not story.messages[n].stalls}
        rows = {s.row for _, s in found if s.number in blocked}
        if not rows or not _are_blocking(story, rows):
            continue
        most = max(story.messages[n].num_bytes for n in blocked)
        evidence = f"{len(rows)} sends at {place}, of up to {most} bytes, wait for their receive"
        is_full = most <= (story.delays.eager_bytes or 0)
        evidence += ", although others of their size do not: buffers were full" if is_full else ""
        if most <= SMALL_BYTES and not is_full and not any(story.messages[n].synchronous for n in blocked):
            free = [replace(m, rendezvous=False) if n in blocked else m for n, m in enumerate(story.messages)]
            action = f"raise the library's eager limit above {most} bytes (docs/trace.md names the variables)"
            yield Remedy("eager", tuple(rows), evidence, action, replace(story, messages=tuple(free)))
        changed = story.with_steps([latest(steps, rows) for steps in story.steps])
        action = "MPI_Isend from a separate buffer, and MPI_Wait before the rank next receives or calls a collective"
        yield Remedy("rendezvous", tuple(rows), evidence, action, changed)


def _are_blocking(story: Story, rows: set[int]) -> bool:
    """Return whether the calls that send also wait for the send's end."""
    return any(step.row in rows and step.does == "sent" for steps in story.steps for step in steps)


def post_earlier(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield remedies that post receives before the waits ahead of them."""
    for place, found in by_site(story, site, ("recv",)).items():
        late = {
            s.number for _, s in found if story.messages[s.number].rendezvous and not story.messages[s.number].stalls
        }
        moved = [list(_earlier(story, steps, late)) for steps in story.steps]
        if not late or all(list(a) == list(b) for a, b in zip(moved, story.steps, strict=True)):
            continue
        rows = {s.row for _, s in found if s.number in late}
        evidence = f"{len(rows)} receives at {place} are posted after their senders have begun to wait"
        action = "MPI_Irecv before the rank waits for anything else, MPI_Wait where the message is needed"
        yield Remedy("post_earlier", tuple(rows), evidence, action, story.with_steps(moved))


def _earlier(story: Story, steps: Sequence[Step], late: set[int]) -> Iterator[Step]:
    """Yield the steps with each `late` receive moved ahead of the waits directly before it."""
    moved: list[Step] = []
    for step in steps:
        at = len(moved)
        if step.does == "recv" and step.number in late and gap_s(step) <= GRAIN_S:
            at = _first_of_waits(story, moved, step.number)
        if at == len(moved):
            moved.append(step)
            continue
        moved.insert(at, step._replace(seconds=moved[at].seconds, within_s=moved[at].within_s))
        moved[at + 1] = moved[at + 1]._replace(seconds=0.0, within_s=0.0)
    yield from moved


def _first_of_waits(story: Story, steps: Sequence[Step], number: int) -> int:
    """Return the index in `steps` to which the receive of message `number`, which follows them, can be moved.

    Moves it ahead of receives and waits, but not ahead of work, nor of a receive from the same sender with equal tag.
    """
    at, it = len(steps), story.messages[number]
    while at and len(steps) - at < MOST_MOVED and steps[at - 1].does in ("taken", "recv"):
        other = story.messages[steps[at - 1].number]
        if steps[at - 1].does == "recv" and (other.src, other.key) == (it.src, it.key):
            break
        if at < len(steps) and gap_s(steps[at]) > GRAIN_S:
            break
        at -= 1
    return at


def progress(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield remedies for messages that progressed only in the wait for them, although begun long before."""
    for place, found in by_site(story, site, ("taken",)).items():
        stalled = {s.number for _, s in found if story.messages[s.number].stalls}
        if not stalled:
            continue
        free = [replace(m, stalls=False) if n in stalled else m for n, m in enumerate(story.messages)]
        spent = sum(story.messages[n].delay_s or 0.0 for n in stalled)
        each = spent / len(stalled)
        evidence = f"{len(stalled)} messages took {duration(spent)} in the wait at {place}, although begun before work"
        action = f"call MPI_Test about every {duration(max(each / 8, 1e-4))} during the work, or run a progress thread"
        yield Remedy("progress", tuple(s.row for _, s in found), evidence, action, replace(story, messages=tuple(free)))


def collective_progress(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield remedies for collectives that progressed only when all ranks waited, although begun long before.

    With progress, each rank's CPU share of the collective's time is added to its work.
    """
    for place, found in by_site(story, site, ("joined",)).items():
        quiet = {s.row: story.gatherings[s.number] for _, s in found if story.gatherings[s.number].stalls}
        if not quiet:
            continue
        freed = {it.meeting for it in quiet.values()}
        own_s = {row: it.own_s for row, it in quiet.items()}
        steps = [[_busier(step, own_s) for step in each] for each in story.steps]
        moved = tuple(
            replace(it, stalls=False, seconds=it.seconds - it.own_s) if it.meeting in freed else it
            for it in story.gatherings
        )
        spent = max(it.seconds for it in quiet.values())
        names = ", ".join(sorted({it.name for it in quiet.values()}))
        evidence = (
            f"{names}: {len(quiet)} waits at {place} took up to {duration(spent)}, although all ranks had begun the "
            "collective long before"
        )
        action = f"call MPI_Test about every {duration(max(spent / 8, 1e-4))} during the work, or run a progress thread"
        yield Remedy("progress", tuple(quiet), evidence, action, story.with_steps(steps, gatherings=moved))


def _busier(step: Step, own_s: dict[int, float]) -> Step:
    if step.does != "joined" or step.row not in own_s:
        return step
    more = own_s[step.row]
    return step._replace(seconds=step.seconds + more, within_s=step.within_s + more)


def sender_progress(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield remedies for messages that left late: their sender called the library again only after the receive."""
    for place, found in by_site(story, site, ("send",)).items():
        held = {s.number for _, s in found if story.messages[s.number].held}
        if not held:
            continue
        free = [replace(m, held=False) if n in held else m for n, m in enumerate(story.messages)]
        each = sum(story.messages[n].delay_s or 0.0 for n in held) / len(held)
        evidence = f"{len(held)} messages sent at {place} left only when their sender called MPI again, after work"
        action = f"call MPI_Test about every {duration(max(each / 8, 1e-4))} during the work, or run a progress thread"
        rows = tuple(s.row for _, s in found if s.number in held)
        yield Remedy("progress", rows, evidence, action, replace(story, messages=tuple(free)))


def _work_follows(story: Story, rows: set[int]) -> bool:
    return _follows_s(story, rows) > LEAST_WORK_S


def _follows_s(story: Story, rows: set[int]) -> float:
    """Return the mean seconds of work directly after the calls at these rows."""
    spent, count = 0.0, 0
    for steps in story.steps:
        for step, after in pairwise(steps):
            if step.row in rows and after.row != step.row:
                spent, count = spent + gap_s(after), count + 1
    return spent / max(count, 1)
