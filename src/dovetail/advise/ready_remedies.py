"""ready_remedies: remedies for sends whose data were there before: send first, then work, or write files."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, call_s, duration, gap_s
from dovetail.trace.analysis.delays import LATENCY_BYTES
from dovetail.trace.analysis.replay_model import ReplayModel, Step

MANY = 8  # fewer sends are no loop
MOSTLY = 0.5  # the data of so many of a rank's sends at a call site were there before
_WRITES = r"libc (p?writev?|pwrite64|fsync|fdatasync|fwrite)|MPI_File_(write.*|sync)"


class _Moved(NamedTuple):
    """A send that comes earlier: `at`, `to`: indices of its step, and of the one before which it comes.

    `after_s`: seconds of the work directly before that step that then come after the send. `work_s`: all such work.
    """

    at: int
    to: int
    after_s: float
    work_s: float


def send_ready(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that send when the data are there, as the trace saw them, not after more work.

    If that is known of most messages of a rank at a call site, all others there are sent before the work directly
    before them.
    """
    moved: dict[str, list[tuple[int, _Moved]]] = defaultdict(list)
    for rank, steps in enumerate(model.steps):
        first = {step.row: i for i, step in reversed(list(enumerate(steps)))}
        for n in (s.number for s in steps if s.kind == "send" and s.number in model.ready):
            it = _moved(model, rank, n, first)
            if it.work_s > GRAIN_S:
                moved[site(steps[it.at].row)].append((rank, it))
    for place, found in moved.items():
        rows = {s.row for steps in model.steps for s in steps if s.kind == "send" and site(s.row) == place}
        sends = Counter(
            rank for rank, steps in enumerate(model.steps) for s in steps if s.kind == "send" and s.row in rows
        )
        if not any(count >= max(MANY, MOSTLY * sends[rank]) for rank, count in Counter(r for r, _ in found).items()):
            continue
        known = {(rank, it.at) for rank, it in found}
        for rank, steps in enumerate(model.steps):
            others = [i for i, s in enumerate(steps) if s.kind == "send" and s.row in rows and (rank, i) not in known]
            found += [
                (rank, _Moved(i, i, gap_s(steps[i]), gap_s(steps[i]))) for i in others if gap_s(steps[i]) > GRAIN_S
            ]
        each_s = duration(sum(it.work_s for _, it in found) / len(found))
        evidence = (
            f"rank {_ranks(found)} has the data of {len(found)} sends at {place} ready, but works {each_s} before it "
        )
        evidence += "sends them (by sampled words); others wait for them"
        yield _earlier(model, found, evidence, "send when the data are ready (MPI_Isend), then do the work")


def _moved(model: ReplayModel, rank: int, number: int, rows: Mapping[int, int]) -> _Moved:
    """Return where the send of a message can come; messages of one channel keep their order."""
    steps, at, it = model.steps[rank], model.places[rank]["send", number], model.messages[number]
    to, after_s = rows.get(model.ready[number].row, at), model.ready[number].after_s
    places, numbers = model.sent_to[rank, it.dst]
    for i in range(bisect_left(places, at) - 1, -1, -1):
        if places[i] < to:
            break
        if model.messages[numbers[i]].key == it.key:
            to, after_s = places[i] + 1, 0.0
            break
    if to > at:
        return _Moved(at, at, 0.0, 0.0)
    after_s = min(after_s, gap_s(steps[to]))
    return _Moved(at, to, after_s, after_s + sum(gap_s(steps[i]) for i in range(to + 1, at + 1)))


def _sent_when_ready(steps: Sequence[Step], moved: Sequence[_Moved]) -> Iterator[Step]:
    """Yield a rank's steps with these sends where they can come; the work before a removed send stays."""
    into: dict[int, list[_Moved]] = defaultdict(list)
    for it in moved:
        into[it.to].append(it)
    gone, own_s, within_s = {it.at for it in moved}, 0.0, 0.0
    for i, step in enumerate(steps):
        step = step._replace(seconds=step.seconds + own_s, within_s=step.within_s + within_s)
        own_s = within_s = 0.0
        call = call_s(step) if step.kind == "own" and step.row >= 0 else 0.0  # of the call at this step
        for it in sorted(into.get(i, ()), key=lambda it: -it.after_s):
            later_s = min(it.after_s + call, step.seconds)
            before_s = max(step.within_s - call, 0.0)
            yield steps[it.at]._replace(seconds=step.seconds - later_s, within_s=before_s, after_s=step.after_s)
            step = step._replace(seconds=later_s, within_s=call, after_s=0.0)
        if i in gone:
            own_s, within_s = step.seconds, step.within_s
            continue
        yield step


def send_before_writing(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that send before the files are written that are now written directly before.

    What is written is no part of making the message. Many small writes are left to `file_calls`.
    """
    moved: dict[str, list[tuple[int, _Moved]]] = defaultdict(list)
    for rank, steps in enumerate(model.steps):
        for i, step in enumerate(steps):
            to = i
            while step.kind == "send" and to and gap_s(steps[to]) <= GRAIN_S and _writes(model, steps[to - 1]):
                to -= 1
            spent_s = sum(call_s(s) for s in steps[to:i])
            if spent_s > GRAIN_S:
                moved[site(step.row)].append((rank, _Moved(i, to, 0.0, spent_s)))
    for place, found in moved.items():
        if len(found) < MANY:
            continue
        each_s = duration(sum(it.work_s for _, it in found) / len(found))
        evidence = (
            f"rank {_ranks(found)} writes files for {each_s} directly before each of {len(found)} sends at {place}; "
        )
        evidence += "others wait for them"
        yield _earlier(model, found, evidence, "send first, then write the files")


def _writes(model: ReplayModel, step: Step) -> bool:
    """Return whether a step is a call that writes a file, of more than few bytes."""
    name, num_bytes = model.calls.get(step.row, ("", 0))
    is_long = num_bytes > LATENCY_BYTES or call_s(step) > GRAIN_S
    return step.kind == "own" and is_long and re.fullmatch(_WRITES, name.removesuffix("_c")) is not None


def send_each(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, for messages to several ranks after work: send each after its part of the work.

    The parts are taken for equal. At most, all messages are sent before the work.
    """
    bursts: dict[str, list[tuple[int, list[int]]]] = defaultdict(list)
    for rank, steps in enumerate(model.steps):
        for at in to_several(model, steps):
            if gap_s(steps[at[0]]) > GRAIN_S:
                bursts[site(steps[at[0]].row)].append((rank, at))
    for place, found in bursts.items():
        if len(found) < MANY:
            continue
        shared, first = (
            [
                (rank, _Moved(i, at[0], gap_s(model.steps[rank][at[0]]) * (1 - k * share / len(at)), 0.0))
                for rank, at in found
                for k, i in enumerate(at, 1)
            ]
            for share in (1, 0)
        )
        each_s = duration(sum(gap_s(model.steps[rank][at[0]]) for rank, at in found) / len(found))
        evidence = (
            f"rank {_ranks(found)} works {each_s}, then sends to {len(found[0][1])} ranks at {place}, {len(found)} "
        )
        evidence += "times; all wait until the work for the last is done"
        action = "send each rank its message as soon as its part of the work is done (if these are parts)"
        yield _earlier(model, shared, evidence, action, first)


def to_several(model: ReplayModel, steps: Sequence[Step]) -> Iterator[list[int]]:
    """Yield runs of sends to different ranks, without work between them, as indices of steps."""
    run: list[int] = []
    for i, step in enumerate(steps):
        to = {model.messages[steps[k].number].dst for k in run}
        fits = step.kind == "send" and model.messages[step.number].dst not in to
        if run and (gap_s(step) > GRAIN_S or (step.kind != "sent" and not fits)):
            if len(run) > 1:
                yield run
            run = []
        if step.kind == "send":
            run.append(i)
    if len(run) > 1:
        yield run


def _ranks(found: Sequence[tuple[int, object]]) -> str:
    return ", ".join(map(str, sorted({rank for rank, _ in found})[:4]))


def _earlier(
    model: ReplayModel,
    found: Sequence[tuple[int, _Moved]],
    evidence: str,
    action: str,
    most: Sequence[tuple[int, _Moved]] = (),
) -> Remedy:
    """Return the remedy in which these sends come earlier; `most`: the most that it can do."""
    both = [
        model.with_steps(
            [
                list(_sent_when_ready(steps, [m for r, m in those if r == rank]))
                for rank, steps in enumerate(model.steps)
            ]
        )
        for those in (found, most)
    ]
    taken = {model.steps[rank][it.at].number for rank, it in found}
    rows = tuple(s.row for steps in model.steps for s in steps if s.kind == "received" and s.number in taken)
    return Remedy("send_earlier", rows, evidence, action, both[0], not most, both[1] if most else None)
