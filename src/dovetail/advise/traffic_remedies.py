"""traffic_remedies: fewer and larger collectives; one exchange of ghost zones for several steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log2

import numpy as np

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, crosses, dropped, duration, gap_s, places
from dovetail.trace.analysis.collective_calls import WINDOW_CALLS
from dovetail.trace.analysis.replay_model import SYNCHRONOUS, ReplayModel

SHORT = 1.5  # a message is mostly latency if twice the bytes take less than this multiple of its time
_BY_ALL = {  # calls in a row, each with another rank as root: the one call that does the same
    "MPI_Bcast": "MPI_Allgatherv",
    "MPI_Reduce": "MPI_Reduce_scatter",
    "MPI_Gather": "MPI_Alltoall",
    "MPI_Gatherv": "MPI_Alltoallv",
    "MPI_Scatter": "MPI_Alltoall",
    "MPI_Scatterv": "MPI_Alltoallv",
}
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
