"""traffic_remedies: fewer and larger collectives and messages; one exchange of ghost zones for several steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log2

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, dropped, duration, gap_s, places
from dovetail.trace.analysis.replay_model import ReplayModel, Step, StepKind

SHORT = 1.5  # a message is mostly latency if twice the bytes take less than this multiple of its time
LITTLE = 0.05  # no more steps are merged once exchanges take this share of the makespan
MOST_STEPS = 8  # with more steps, the redundant work, which the model does not count, is too much


def merge(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies that merge consecutive collectives of one kind, per call site."""
    groups: dict[tuple[str, str], list[dict[int, list[int]]]] = defaultdict(list)
    for run in _collective_runs(model):
        rank, at = next(iter(run.items()))
        first = model.steps[rank][at[0]]
        groups[model.collectives[first.number].name, site(first.row)].append(run)
    for (name, place), runs in groups.items():
        yield _merged(model, name, place, runs)


def _merged(model: ReplayModel, name: str, place: str, runs: Sequence[dict[int, list[int]]]) -> Remedy:
    steps, collectives = [list(s) for s in model.steps], list(model.collectives)
    rows: list[int] = []
    gone: list[set[int]] = [set() for _ in steps]
    calls: Counter[int] = Counter()
    for run in runs:
        for rank, at in run.items():  # at: indices of the rank's steps that begin these collectives
            those = [model.collectives[steps[rank][i].number] for i in at]
            more = sum(it.num_bytes for it in those[1:]) * model.delays.slope * max(log2(len(those[0].group)), 1)
            kept = steps[rank][at[0]].number
            collectives[kept] = replace(those[0], seconds=_median_s(model, those[0].name) + more)
            gone[rank] |= {i for k in at[1:] for i in (k, k + 1)}
            rows += [steps[rank][i].row for i in at]
            calls[rank] += len(at)
    changed = [list(dropped(s, g)) for s, g in zip(steps, gone, strict=True)]
    rank, most = calls.most_common(1)[0]
    each = sum(calls.values()) / sum(len(run) for run in runs)
    evidence = f"{most} calls of {name} on rank {rank}, {each:.3g} in a row from {place} on, with no work between them"
    action = f"one {name} of all elements; or dovetail.all_reduce and similar, which choose the algorithm by size"
    return Remedy("merge", tuple(rows), evidence, action, model.with_steps(changed, collectives=tuple(collectives)))


def _median_s(model: ReplayModel, name: str) -> float:
    seconds = sorted(it.seconds for it in model.collectives if it.name == name)
    return seconds[len(seconds) // 2]


def _collective_runs(model: ReplayModel) -> list[dict[int, list[int]]]:
    """Return runs of equal, consecutive blocking collectives, as indices of steps by rank of the group."""
    place = [
        {model.collectives[s.number].collective: i for i, s in enumerate(steps) if s.kind == "join"}
        for steps in model.steps
    ]
    runs: list[dict[int, list[int]]] = []
    for rank, steps in enumerate(model.steps):
        run: list[int] = []
        for i, step in enumerate(steps):
            if step.kind != "join" or min(model.collectives[step.number].group, default=-1) != rank:
                continue
            if run and not _follows(model, place, rank, run[-1], i):
                runs += _whole(model, place, rank, run)
                run = []
            run.append(i)
        runs += _whole(model, place, rank, run)
    return runs


def _follows(model: ReplayModel, place: Sequence[dict[int, int]], rank: int, before: int, at: int) -> bool:
    """Return whether one collective directly follows another of the same kind on every rank of the group."""
    a, b = (model.collectives[model.steps[rank][i].number] for i in (before, at))
    alike = (a.name, a.group, a.root, a.way) == (b.name, b.group, b.root, b.way) and a.blocking and b.blocking
    if not alike or a.name == "MPI_Barrier":
        return False
    for other in a.group:
        i, j = place[other].get(a.collective, -1), place[other].get(b.collective, -1)
        if i < 0 or j != i + 2 or gap_s(model.steps[other][j]) > GRAIN_S:
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
    """Yield a remedy that merges consecutive messages from one rank to another."""
    messages, gone = list(model.messages), [set[int]() for _ in model.steps]
    where: list[dict[tuple[StepKind, int], int]]
    where = [{(s.kind, s.number): i for i, s in enumerate(steps)} for steps in model.steps]
    rows: list[int] = []
    runs = 0
    for rank, steps in enumerate(model.steps):
        for run in _send_runs(model, rank, where):
            sizes = [model.messages[n].num_bytes for n in run]
            first = model.messages[run[0]]
            total = sum(sizes)
            is_held = bool(model.delays.is_rendezvous(total)) and first.rendezvous
            messages[run[0]] = replace(first, num_bytes=total, delay_s=_merged_s(model, run), rendezvous=is_held)
            runs += 1
            for n in run[1:]:
                gone[rank] |= {where[rank][key] for key in (("send", n), ("sent", n)) if key in where[rank]}
                taken = where[first.dst]
                gone[first.dst] |= {taken[key] for key in (("recv", n), ("received", n)) if key in taken}
            rows += [steps[where[rank]["send", n]].row for n in run]
    if not runs:
        return
    changed = [list(dropped(s, g)) for s, g in zip(model.steps, gone, strict=True)]
    each = len(rows) / runs
    evidence = f"{len(rows)} messages at {places(rows, site)} are sent in a row, {each:.3g} at a time on average, "
    evidence += "with no work between them"
    action = "pack them into one message"
    yield Remedy("block", tuple(rows), evidence, action, model.with_steps(changed, messages=tuple(messages)))


def _merged_s(model: ReplayModel, run: Sequence[int]) -> float:
    """Return the seconds of one message with all bytes: of the fastest message, plus slope times the other bytes."""
    usual_s = float(model.delays(model.messages[run[0]].num_bytes))
    least = min(usual_s, *(model.messages[n].delay_s or 0.0 for n in run))
    return least + sum(model.messages[n].num_bytes for n in run[1:]) * model.delays.slope


def _send_runs(
    model: ReplayModel, rank: int, where: Sequence[Mapping[tuple[StepKind, int], int]]
) -> Iterator[list[int]]:
    """Yield runs of messages to one rank that are consecutive on both the sender and the receiver."""
    run: list[int] = []
    since_s = 0.0  # the sender's work since the last message of the run
    for step in model.steps[rank]:
        since_s += gap_s(step)
        if step.kind == "recv" or (step.kind == "sent" and step.number in run):
            continue
        if step.kind == "send" and run and since_s <= GRAIN_S and _next(model, where, run[-1], step):
            run.append(step.number)
            since_s = 0.0
            continue
        if len(run) > 1:
            yield run
        run, since_s = ([step.number], 0.0) if step.kind == "send" else ([], 0.0)
    if len(run) > 1:
        yield run


def _next(model: ReplayModel, where: Sequence[Mapping[tuple[StepKind, int], int]], before: int, step: Step) -> bool:
    a, b = model.messages[before], model.messages[step.number]
    if a.dst != b.dst:
        return False
    at, posted = where[a.dst].get(("received", before)), where[a.dst].get(("recv", step.number))
    if at is None or posted is None or posted <= at:
        return posted is not None and at is not None
    between = model.steps[a.dst][at + 1 : posted + 1]
    return all(gap_s(s) <= GRAIN_S for s in between) and len(between) <= 2


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
    evidence = f"{len(sent)} messages of up to {size} bytes at {places(rows, site)} cross borders, "
    evidence += f"{duration(each)} each; " + _growth(model, size)
    action = (
        f"exchange a halo {every} times as wide every {every} steps, and compute its points on both ranks "
        "(dovetail.loops: ghost zones)"
    )
    yield Remedy("temporal_block", tuple(rows), evidence, action, model.with_steps(changed, messages=tuple(messages)))


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


def _is_halo(model: ReplayModel, numbers: Sequence[int]) -> bool:
    """Return whether these are 8 or more messages of one size, mostly latency, most of which are sent eagerly."""
    sizes = {model.messages[n].num_bytes for n in numbers}
    if len(numbers) < 8 or len(sizes) != 1:
        return False
    size = sizes.pop()
    is_short = float(model.delays(2 * size)) < SHORT * float(model.delays(size))
    return is_short and 2 * sum(model.messages[n].rendezvous for n in numbers) < len(numbers)
