"""block_remedies: fewer and larger messages: those that a rank sends to another in a row become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, call_s, dropped, gap_s, kept, places
from dovetail.trace.analysis.call_classes import PICKLE
from dovetail.trace.analysis.replay_model import ReplayModel, Step

MOSTLY = 0.8  # share of a run's time in which messages travel, if what lies between them is no work
LOOP_S = 4 * GRAIN_S  # time that a loop in Python takes between two calls, with the recorder's part of it


def block(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that merges consecutive messages from one rank to another.

    The sender sends where it sent the last, after the work between them, but where it sent the first if it receives
    others between them, which may wait for that one. The receiver receives where it did the first.
    """
    messages, gone = list(model.messages), [set[int]() for _ in model.steps]
    first_of: dict[int, int] = {}  # last message of a run -> first
    where = model.places
    rows: list[int] = []
    runs, is_sure = 0, True
    for rank, steps in enumerate(model.steps):
        for run, _, has_receipts in send_runs(model, rank, site):
            is_sure &= not has_receipts
            sizes = [model.messages[n].num_bytes for n in run]
            first = model.messages[run[0]]
            total = sum(sizes)
            is_held = first.rendezvous and bool(model.delays.limits.is_rendezvous(total, first.src, first.dst))
            messages[run[0]] = replace(first, num_bytes=total, delay_s=_merged_s(model, run), rendezvous=is_held)
            runs += 1
            if not has_receipts:
                first_of[run[-1]] = run[0]
            for before, n in pairwise(run):
                mine = ((kind, n if has_receipts else before) for kind in ("send", "sent"))
                gone[rank] |= {where[rank][key] for key in mine if key in where[rank]}
                taken = where[first.dst]
                gone[first.dst] |= {taken[key] for key in (("recv", n), ("received", n)) if key in taken}
            rows += [steps[where[rank]["send", n]].row for n in run]
    if not runs:
        return
    changed = [list(dropped(_without_loop(model, s, g, first_of), g)) for s, g in zip(model.steps, gone, strict=True)]
    each = len(rows) / runs
    evidence = f"{len(rows)} messages at {places(rows, site)} are sent in a row, {each:.3g} at a time on average, "
    evidence += "with no work between them"
    action = "pack them into one message"
    merged = model.with_steps(changed, messages=tuple(messages))
    yield Remedy("block", tuple(rows), evidence, action, merged, is_sure)


def _renumbered(steps: Sequence[Step], first_of: Mapping[int, int]) -> list[Step]:
    """Return a rank's steps with its sends of last messages as those of the first of their run."""
    kinds = ("send", "sent")
    return [s._replace(number=first_of[s.number]) if s.kind in kinds and s.number in first_of else s for s in steps]


def _without_loop(model: ReplayModel, steps: Sequence[Step], gone: set[int], first_of: Mapping[int, int]) -> list[Step]:
    """Return the renumbered steps, without what one more call costs its loop before each later call of a run.

    That is at most the lower quartile of these times; the rest, as for packing, stays. A loop in Python costs some us,
    and pickles each object by a call of its own: of that goes what the quickest of these calls takes.
    """
    found = _renumbered(steps, first_of)
    receives = [i for i, s in enumerate(steps) if i in gone and s.kind == "recv"]
    sends = [i for i, s in enumerate(steps) if s.kind == "send" and (i in gone or s.number in first_of)]
    later = [*receives, *(i for before, i in pairwise(sends) if before in gone)]
    dumps = [i - 1 for i in later if i and steps[i].kind == "send" and _pickles(model, steps[i - 1])]
    loads = [k for k in (_after(steps, i) for i in receives) if k < len(steps) and _pickles(model, steps[k])]
    for those in (later, dumps, loads):
        each_s = float(np.percentile([gap_s(steps[i]) for i in those], 25)) if those else 0.0
        for i in those:
            found[i] = found[i]._replace(seconds=found[i].seconds - min(gap_s(found[i]), each_s))
    for those in (dumps, loads):
        quick_s = min((call_s(steps[i]) for i in those), default=0.0)
        for i in those:
            found[i] = found[i]._replace(seconds=found[i].seconds - quick_s, within_s=found[i].within_s - quick_s)
    return found


def _pickles(model: ReplayModel, step: Step) -> bool:
    return step.kind == "own" and model.calls.get(step.row, ("", 0))[0].startswith(PICKLE)


def _after(steps: Sequence[Step], i: int) -> int:
    """Return the index of the step after the call that begins with this one."""
    row = steps[i].row
    while i < len(steps) and steps[i].row == row:
        i += 1
    return i


def _merged_s(model: ReplayModel, run: Sequence[int]) -> float:
    """Return the seconds of one message with all bytes: of the fastest message, plus slope times the other bytes."""
    usual_s = float(model.delays(model.messages[run[0]].num_bytes))
    least = min(usual_s, *(model.messages[n].delay_s or 0.0 for n in run))
    return least + sum(model.messages[n].num_bytes for n in run[1:]) * model.delays.slope


def send_runs(model: ReplayModel, rank: int, site: Site) -> list[Run]:
    """Return runs of messages to one rank that are consecutive on both the sender and the receiver.

    Receives from that rank may lie between them, if that rank sent before it received (then they are no answers), and
    if, in all such runs that begin at one call site, there is hardly any work between them: what was received is not
    used for what is sent next.
    """
    return kept(_send_runs, model, rank, site)


def _send_runs(model: ReplayModel, rank: int, site: Site) -> list[Run]:
    runs = list(_runs(model, rank, LOOP_S if _is_python(model, site) else GRAIN_S))
    work_s, calls_s = Counter[str](), Counter[str]()
    place = [site(model.steps[rank][model.places[rank]["send", it.numbers[0]]].row) for it in runs]
    for at, it in zip(place, runs, strict=True):
        work_s[at] += it.work_s  # type: ignore[assignment]
        calls_s[at] += sum(_delay_s(model, n) for n in it.numbers)  # type: ignore[assignment]
    fits = [
        not it.has_receipts or calls_s[at] >= MOSTLY * (calls_s[at] + work_s[at])
        for at, it in zip(place, runs, strict=True)
    ]
    return [it for it, fit in zip(runs, fits, strict=True) if fit]


def _is_python(model: ReplayModel, site: Site) -> bool:
    """Return whether the program's first call is at a line of Python."""
    return ".py:" in next((site(step.row) for steps in model.steps for step in steps if step.row >= 0), "")


class Run(NamedTuple):
    """Messages sent in a row; the sender's work between them; whether it received others between them."""

    numbers: list[int]
    work_s: float
    has_receipts: bool


@dataclass
class _Open:
    """A run that goes on. `row`: of its last send. `is_pending`: something was received since its last message."""

    numbers: list[int]
    row: int
    work_s: float = 0.0
    has_receipts: bool = False
    is_pending: bool = False
    known: set[int] = field(default_factory=set)

    def runs(self) -> Iterator[Run]:
        if len(self.numbers) > 1:
            yield Run(self.numbers, self.work_s, self.has_receipts)


def _runs(model: ReplayModel, rank: int, most_s: float) -> Iterator[Run]:
    """Yield the runs of a rank's messages; those to several ranks may come by turns.

    `most_s`: work between two messages of a run.
    """
    runs: dict[int, _Open] = {}  # by destination
    since_s = 0.0  # the rank's work since its last message
    for step in model.steps[rank]:
        since_s += gap_s(step)
        sends = step.kind == "send"
        to = model.messages[step.number].dst if sends else -1
        if step.kind in ("recv", "own") or (step.kind == "sent" and _is_in(model, runs, step.number)):
            continue
        if runs and since_s <= most_s:
            beside = runs.get(model.messages[step.number].src) if step.kind == "received" else None
            if beside is not None and _is_beside(model, beside.numbers[-1], step):
                beside.is_pending = True
                continue
            follows = sends and to in runs and runs[to].row != step.row  # a collective among neighbours is one call
            if follows and _next(model, runs[to].numbers[-1], step, most_s):
                run = runs[to]
                run.numbers.append(step.number)
                run.known.add(step.number)
                run.row = step.row
                run.has_receipts |= run.is_pending
                run.work_s, run.is_pending, since_s = run.work_s + since_s, False, 0.0
                continue
        ends = [to] if sends and since_s <= most_s else [*runs]
        for other in ends:
            if (ended := runs.pop(other, None)) is not None:
                yield from ended.runs()
        since_s = 0.0
        if sends:
            runs[to] = _Open([step.number], step.row, known={step.number})
    for run in runs.values():
        yield from run.runs()


def _is_in(model: ReplayModel, runs: Mapping[int, _Open], number: int) -> bool:
    """Return whether a message belongs to one of these runs."""
    run = runs.get(model.messages[number].dst)
    return run is not None and number in run.known


def _delay_s(model: ReplayModel, number: int) -> float:
    message = model.messages[number]
    return float(model.delays(message.num_bytes)) if message.delay_s is None else message.delay_s


def _is_beside(model: ReplayModel, sent: int, step: Step) -> bool:
    """Return whether a message was sent before its sender received the message `sent`: it is no answer to that."""
    other = model.messages[sent].dst
    if model.messages[step.number].src != other:
        return False
    if step.number in model.combined:
        return True
    places = model.places[other]
    return places.get(("send", step.number), -1) < places.get(("received", sent), -1)


def _next(model: ReplayModel, before: int, step: Step, most_s: float) -> bool:
    """Return whether the receiver of message `before` takes the message of a step next, without work between them.

    It may take messages of others between them, and send to the same rank.
    """
    a, b = model.messages[before], model.messages[step.number]
    if a.dst != b.dst:
        return False
    places = model.places[a.dst]
    at, posted = places.get(("received", before)), places.get(("recv", step.number))
    if at is None or posted is None:
        return False
    work_s, steps = 0.0, model.steps[a.dst]
    for i in range(at + 1, posted + 1):
        between = steps[i]
        work_s += gap_s(between)
        if work_s > most_s or between.kind in ("join", "joined"):
            return False
        if between.kind in ("send", "sent") and model.messages[between.number].dst != a.src:
            return False
        if between.kind == "received":
            work_s = 0.0
    return True
