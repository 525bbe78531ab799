"""traffic_remedies: fewer and larger collectives and messages; one exchange of ghost zones for several steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from math import log2
from typing import NamedTuple

import numpy as np

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, crosses, dropped, duration, gap_s, places
from dovetail.trace.analysis.collective_calls import WINDOW_CALLS
from dovetail.trace.analysis.replay_model import SYNCHRONOUS, ReplayModel, Step

SHORT = 1.5  # a message is mostly latency if twice the bytes take less than this multiple of its time
_BY_ALL = {  # calls in a row, each with another rank as root: the one call that does the same
    "MPI_Bcast": "MPI_Allgatherv",
    "MPI_Reduce": "MPI_Reduce_scatter",
    "MPI_Gather": "MPI_Alltoall",
    "MPI_Gatherv": "MPI_Alltoallv",
    "MPI_Scatter": "MPI_Alltoall",
    "MPI_Scatterv": "MPI_Alltoallv",
}
MOSTLY = 0.8  # share of a run's time in which messages travel, if what lies between them is no work
LITTLE = 0.05  # no more steps are merged once exchanges take this share of the makespan
MOST_STEPS = 8  # with more steps, the redundant work, which the model does not count, is too much


def merge(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies that merge consecutive collectives of one kind, per call site."""
    groups: dict[tuple[str, str], list[dict[int, list[int]]]] = defaultdict(list)
    for run in _collective_runs(model, site):
        rank, at = next(iter(run.items()))
        first = model.steps[rank][at[0]]
        groups[model.collectives[first.number].name, site(first.row)].append(run)
    for (name, _), runs in groups.items():
        yield _merged(model, name, runs, site)


def _merged(model: ReplayModel, name: str, runs: Sequence[dict[int, list[int]]], site: Site) -> Remedy:
    steps, collectives = [list(s) for s in model.steps], list(model.collectives)
    rows: list[int] = []
    gone: list[set[int]] = [set() for _ in steps]
    calls: Counter[int] = Counter()
    usual_s, roots = _median_s(model, name), set[int]()
    for run in runs:
        for rank, at in run.items():  # at: indices of the rank's steps that begin these collectives
            those = [model.collectives[steps[rank][i].number] for i in at]
            more = sum(it.num_bytes for it in those[1:]) * model.delays.slope * max(log2(len(those[0].group)), 1)
            kept = steps[rank][at[0]].number
            one = replace(those[0], seconds=usual_s + more)
            roots |= {it.root for it in those}
            collectives[kept] = replace(one, way=SYNCHRONOUS, root=-1) if len({it.root for it in those}) > 1 else one
            gone[rank] |= {i for k in at[1:] for i in (k, k + 1)}
            rows += [steps[rank][i].row for i in at]
            calls[rank] += len(at)
    changed = [list(dropped(s, g)) for s, g in zip(steps, gone, strict=True)]
    rank = calls.most_common(1)[0][0]
    each = sum(calls.values()) / sum(len(run) for run in runs)
    counts = Counter(site(steps[rank][i].row) for run in runs for i in run.get(rank, ()))
    shown = ", ".join(f"{count} at {place or name}" for place, count in counts.most_common(3))
    evidence = (
        f"{counts.total()} calls of {name} on rank {rank} ({shown}), {each:.3g} in a row, with no work between them"
    )
    one_call = _BY_ALL.get(name.removesuffix("_c"), name) if len(roots) > 1 else name
    action = f"one {one_call} of all elements; or dovetail.all_reduce and similar, which choose the algorithm by size"
    return Remedy("merge", tuple(rows), evidence, action, model.with_steps(changed, collectives=tuple(collectives)))


def _median_s(model: ReplayModel, name: str) -> float:
    seconds = sorted(it.seconds for it in model.collectives if it.name == name)
    return seconds[len(seconds) // 2]


def _collective_runs(model: ReplayModel, site: Site) -> list[dict[int, list[int]]]:
    """Return runs of equal, consecutive blocking collectives, as indices of steps by rank of the group."""
    place = [
        {model.collectives[s.number].collective: i for i, s in enumerate(steps) if s.kind == "join"}
        for steps in model.steps
    ]
    usual_s = {name: _median_s(model, name) for name in {it.name for it in model.collectives}}
    runs: list[dict[int, list[int]]] = []
    for rank, steps in enumerate(model.steps):
        run: list[int] = []
        for i, step in enumerate(steps):
            if step.kind != "join" or min(model.collectives[step.number].group, default=-1) != rank:
                continue
            usual = {model.collectives[step.number].name: GRAIN_S} if ".py:" in site(step.row) else usual_s
            if run and not _follows(model, place, rank, run[-1], i, usual):
                runs += _whole(model, place, rank, run)
                run = []
            run.append(i)
        runs += _whole(model, place, rank, run)
    return runs


def _follows(
    model: ReplayModel, place: Sequence[dict[int, int]], rank: int, before: int, at: int, usual_s: Mapping[str, float]
) -> bool:
    """Return whether one collective directly follows another of the same kind on every rank of the group.

    Work between them that takes longer than such a collective may make the next one's data from the result of the last.
    In Python the loop itself takes some us.
    """
    a, b = (model.collectives[model.steps[rank][i].number] for i in (before, at))
    alike = (a.name, a.group, a.way) == (b.name, b.group, b.way) and a.blocking and b.blocking
    alike &= a.root == b.root or a.name.removesuffix("_c") in _BY_ALL
    if not alike or a.name == "MPI_Barrier" or a.name in WINDOW_CALLS:
        return False
    most_s = min(GRAIN_S, usual_s.get(a.name, 0.0))
    for other in a.group:
        i, j = place[other].get(a.collective, -1), place[other].get(b.collective, -1)
        if i < 0 or j != i + 2 or gap_s(model.steps[other][j]) > most_s:
            return False
    return True


def _whole(
    model: ReplayModel, place: Sequence[dict[int, int]], rank: int, run: list[int]
) -> Iterator[dict[int, list[int]]]:
    """Yield the run as indices of steps by rank, if it has several collectives."""
    if len(run) > 1:
        met = [model.collectives[model.steps[rank][i].number] for i in run]
        yield {other: [place[other][it.collective] for it in met] for other in met[0].group}


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
    changed = [list(dropped(_without_loop(s, g, first_of), g)) for s, g in zip(model.steps, gone, strict=True)]
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


def _without_loop(steps: Sequence[Step], gone: set[int], first_of: Mapping[int, int]) -> list[Step]:
    """Return the renumbered steps, without what one more call costs its loop before each later call of a run.

    That is at most the lower quartile of these times; the rest, as for packing, stays. A loop in Python costs some us.
    """
    found = _renumbered(steps, first_of)
    later = [i for i, s in enumerate(steps) if i in gone and s.kind == "recv"]
    sends = [i for i, s in enumerate(steps) if s.kind == "send" and (i in gone or s.number in first_of)]
    later += [i for before, i in pairwise(sends) if before in gone]
    each_s = float(np.percentile([gap_s(steps[i]) for i in later], 25)) if later else 0.0
    for i in later:
        found[i] = found[i]._replace(seconds=found[i].seconds - min(gap_s(found[i]), each_s))
    return found


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
    runs = list(_runs(model, rank))
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


class Run(NamedTuple):
    """Messages sent in a row; the sender's work between them; whether it received others between them."""

    numbers: list[int]
    work_s: float
    has_receipts: bool


def _runs(model: ReplayModel, rank: int) -> Iterator[Run]:
    run: list[int] = []
    since_s, work_s, receipts = 0.0, 0.0, [False, False]  # the sender's work since the last message of the run; …
    for step in model.steps[rank]:
        since_s += gap_s(step)
        if step.kind in ("recv", "own") or (step.kind == "sent" and step.number in run):
            continue
        if run and since_s <= GRAIN_S:
            if step.kind == "send" and _next(model, run[-1], step):
                run.append(step.number)
                since_s, work_s, receipts = 0.0, work_s + since_s, [any(receipts), False]
                continue
            if step.kind == "received" and _is_beside(model, run[-1], step):
                receipts[1] = True
                continue
        if len(run) > 1:
            yield Run(run, work_s, receipts[0])
        run, since_s = ([step.number], 0.0) if step.kind == "send" else ([], 0.0)
        work_s, receipts = 0.0, [False, False]
    if len(run) > 1:
        yield Run(run, work_s, receipts[0])


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


def _next(model: ReplayModel, before: int, step: Step) -> bool:
    """Return whether the receiver of message `before` takes the message of a step next, without work between them."""
    a, b = model.messages[before], model.messages[step.number]
    if a.dst != b.dst:
        return False
    places = model.places[a.dst]
    at, posted = places.get(("received", before)), places.get(("recv", step.number))
    if at is None or posted is None:
        return False
    work_s = 0.0
    for step in islice(model.steps[a.dst], at + 1, posted + 1):
        work_s += gap_s(step)
        if work_s > GRAIN_S or step.kind in ("join", "joined"):
            return False
        if step.kind != "own" and a.src not in (model.messages[step.number].src, model.messages[step.number].dst):
            return False
    return True


def temporal_block(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that exchanges halos every 2nd, 4th or 8th step, in larger messages, instead of every step."""
    series: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for steps in model.steps:
        for step in steps:
            if step.kind == "send":
                m = model.messages[step.number]
                series[m.src, m.dst, m.key].append(step.number)
    lengths: dict[tuple[int, int], set[int]] = defaultdict(set)
    for (src, dst, _), numbers in series.items():
        lengths[src, dst].add(len(numbers))
    halo = {
        (src, dst, key): numbers
        for (src, dst, key), numbers in series.items()
        if len(numbers) in lengths[dst, src] and _is_halo(model, numbers)
    }
    halo = {key: numbers for key, numbers in halo.items() if _is_each_step(model, numbers)}
    if not halo:
        return
    every = _steps_folded(model, list(halo.values()))
    messages, drop = list(model.messages), set[int]()
    for numbers in halo.values():
        for at in range(0, len(numbers), every):
            first, *others = numbers[at : at + every]
            m, more = messages[first], sum(messages[n].num_bytes for n in others)
            delay_s = (m.delay_s or 0.0) + model.delays.slope * more
            messages[first] = replace(m, num_bytes=m.num_bytes + more, delay_s=delay_s)
            drop.update(others)
    kinds = ("send", "sent", "recv", "received")
    gone = [{i for i, s in enumerate(steps) if s.kind in kinds and s.number in drop} for steps in model.steps]
    changed = [list(dropped(s, g)) for s, g in zip(model.steps, gone, strict=True)]
    sent = {n for numbers in halo.values() for n in numbers}
    rows = [s.row for steps in model.steps for s in steps if s.kind == "send" and s.number in sent]
    each = sorted(model.messages[n].delay_s or 0.0 for n in sent)[len(sent) // 2]
    size = max(model.messages[n].num_bytes for n in sent)
    evidence = f"{len(sent)} messages of up to {size} bytes at {places(rows, site)} go both ways at every step, "
    evidence += f"{duration(each)} each; " + _growth(model, size)
    action = (
        f"exchange a halo {every} times as wide every {every} steps, and compute its points on both ranks "
        "(if these are the borders of a grid)"
    )
    folded = model.with_steps(changed, messages=tuple(messages))
    yield Remedy("temporal_block", tuple(rows), evidence, action, folded, is_sure=False)


def _growth(model: ReplayModel, size: int) -> str:
    """Return a sentence on how the time of a message grows with its bytes."""
    if len(model.delays.num_bytes) < 2:
        return "assumed to be mostly latency: the trace has no other size to show it (`--machine` gives a curve)"
    more = float(model.delays(2 * size)) / float(model.delays(size)) - 1 if float(model.delays(size)) else 0.0
    return f"twice the bytes would take {100 * more:.0f} % longer"


def _steps_folded(model: ReplayModel, halo: Sequence[Sequence[int]]) -> int:
    """Return how many steps should share one exchange: 2, 4 or 8.

    Stops at little exchange time (LITTLE), or at messages that are no longer mostly latency (SHORT).
    """
    spent_s = max(sum(model.messages[n].delay_s or 0.0 for n in numbers) for numbers in halo)
    size = max(model.messages[numbers[0]].num_bytes for numbers in halo)
    steps = 2
    while steps < MOST_STEPS and spent_s / steps > LITTLE * model.makespan_s:
        if float(model.delays(2 * steps * size)) > SHORT * float(model.delays(size)):
            break
        steps *= 2
    return steps


def _is_each_step(model: ReplayModel, numbers: Sequence[int]) -> bool:
    """Return whether most of these messages belong to an exchange, and come after new work of their sender."""
    src, few = model.messages[numbers[0]].src, len(numbers) // 2
    done_s = np.cumsum([gap_s(step) for step in model.steps[src]])
    sent_s = done_s[[model.places[src]["send", n] for n in numbers]]
    least_s = min(GRAIN_S, float(model.delays(model.messages[numbers[0]].num_bytes)))
    works = int(np.count_nonzero(np.diff(sent_s) > least_s))
    return works > few - 1 and sum(crosses(model, n) for n in numbers) > few


def _is_halo(model: ReplayModel, numbers: Sequence[int]) -> bool:
    """Return whether these are 8 or more messages of one size, mostly latency, most of which are sent eagerly."""
    sizes = {model.messages[n].num_bytes for n in numbers}
    if len(numbers) < 8 or len(sizes) != 1:
        return False
    size = sizes.pop()
    is_short = float(model.delays(2 * size)) < SHORT * float(model.delays(size))
    return is_short and 2 * sum(model.messages[n].rendezvous for n in numbers) < len(numbers)
