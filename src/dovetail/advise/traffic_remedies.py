"""traffic_remedies: fewer and larger collectives and messages; one exchange of ghost zones for several steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log2

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, dropped, duration, gap_s, places
from dovetail.trace.analysis.story import Does, Step, Story

SHORT = 1.5  # a message is mostly latency if twice the bytes take less than this multiple of its time
LITTLE = 0.05  # no more steps are merged once exchanges take this share of the makespan
MOST_STEPS = 8  # with more steps, the redundant work, which the model does not count, is too much


def merge(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield remedies that merge consecutive collectives of one kind, per call site."""
    groups: dict[tuple[str, str], list[dict[int, list[int]]]] = defaultdict(list)
    for run in _collective_runs(story):
        rank, at = next(iter(run.items()))
        first = story.steps[rank][at[0]]
        groups[story.gatherings[first.number].name, site(first.row)].append(run)
    for (name, place), runs in groups.items():
        yield _merged(story, name, place, runs)


def _merged(story: Story, name: str, place: str, runs: Sequence[dict[int, list[int]]]) -> Remedy:
    steps, gatherings = [list(s) for s in story.steps], list(story.gatherings)
    rows: list[int] = []
    gone: list[set[int]] = [set() for _ in steps]
    calls: Counter[int] = Counter()
    for run in runs:
        for rank, at in run.items():  # at: indices of the rank's steps that begin these collectives
            those = [story.gatherings[steps[rank][i].number] for i in at]
            more = sum(it.num_bytes for it in those[1:]) * story.delays.slope * max(log2(len(those[0].group)), 1)
            kept = steps[rank][at[0]].number
            gatherings[kept] = replace(those[0], seconds=_usual(story, those[0].name) + more)
            gone[rank] |= {i for k in at[1:] for i in (k, k + 1)}
            rows += [steps[rank][i].row for i in at]
            calls[rank] += len(at)
    changed = [list(dropped(s, g)) for s, g in zip(steps, gone, strict=True)]
    rank, most = calls.most_common(1)[0]
    each = sum(calls.values()) / sum(len(run) for run in runs)
    evidence = f"{most} calls of {name} on rank {rank}, {each:.3g} in a row from {place} on, with no work between them"
    action = f"one {name} of all elements; or dovetail.all_reduce and similar, which choose the algorithm by size"
    return Remedy("merge", tuple(rows), evidence, action, story.with_steps(changed, gatherings=tuple(gatherings)))


def _usual(story: Story, name: str) -> float:
    seconds = sorted(it.seconds for it in story.gatherings if it.name == name)
    return seconds[len(seconds) // 2]


def _collective_runs(story: Story) -> list[dict[int, list[int]]]:
    """Return runs of equal, consecutive blocking collectives, as indices of steps by rank of the group."""
    place = [
        {story.gatherings[s.number].meeting: i for i, s in enumerate(steps) if s.does == "join"}
        for steps in story.steps
    ]
    runs: list[dict[int, list[int]]] = []
    for rank, steps in enumerate(story.steps):
        run: list[int] = []
        for i, step in enumerate(steps):
            if step.does != "join" or min(story.gatherings[step.number].group, default=-1) != rank:
                continue
            if run and not _follows(story, place, rank, run[-1], i):
                runs += _whole(story, place, rank, run)
                run = []
            run.append(i)
        runs += _whole(story, place, rank, run)
    return runs


def _follows(story: Story, place: Sequence[dict[int, int]], rank: int, before: int, at: int) -> bool:
    """Return whether one collective directly follows another of the same kind on every rank of the group."""
    a, b = (story.gatherings[story.steps[rank][i].number] for i in (before, at))
    alike = (a.name, a.group, a.root, a.way) == (b.name, b.group, b.root, b.way) and a.blocking and b.blocking
    if not alike or a.name == "MPI_Barrier":
        return False
    for other in a.group:
        i, j = place[other].get(a.meeting, -1), place[other].get(b.meeting, -1)
        if i < 0 or j != i + 2 or gap_s(story.steps[other][j]) > GRAIN_S:
            return False
    return True


def _whole(story: Story, place: Sequence[dict[int, int]], rank: int, run: list[int]) -> Iterator[dict[int, list[int]]]:
    """Yield the run as indices of steps by rank, if it has several collectives."""
    if len(run) > 1:
        met = [story.gatherings[story.steps[rank][i].number] for i in run]
        yield {other: [place[other][it.meeting] for it in met] for other in met[0].group}


def block(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that merges consecutive messages from one rank to another."""
    messages, gone = list(story.messages), [set[int]() for _ in story.steps]
    where: list[dict[tuple[Does, int], int]]
    where = [{(s.does, s.number): i for i, s in enumerate(steps)} for steps in story.steps]
    rows: list[int] = []
    runs = 0
    for rank, steps in enumerate(story.steps):
        for run in _send_runs(story, rank, where):
            sizes = [story.messages[n].num_bytes for n in run]
            first = story.messages[run[0]]
            total = sum(sizes)
            is_held = bool(story.delays.is_rendezvous(total)) and first.rendezvous
            messages[run[0]] = replace(first, num_bytes=total, delay_s=_joint_s(story, run), rendezvous=is_held)
            runs += 1
            for n in run[1:]:
                gone[rank] |= {where[rank][key] for key in (("send", n), ("sent", n)) if key in where[rank]}
                taken = where[first.dst]
                gone[first.dst] |= {taken[key] for key in (("recv", n), ("taken", n)) if key in taken}
            rows += [steps[where[rank]["send", n]].row for n in run]
    if not runs:
        return
    changed = [list(dropped(s, g)) for s, g in zip(story.steps, gone, strict=True)]
    each = len(rows) / runs
    evidence = f"{len(rows)} messages at {places(rows, site)} are sent in a row, {each:.3g} at a time on average, "
    evidence += "with no work between them"
    action = "pack them into one message"
    yield Remedy("block", tuple(rows), evidence, action, story.with_steps(changed, messages=tuple(messages)))


def _joint_s(story: Story, run: Sequence[int]) -> float:
    """Return the seconds of one message with all bytes: of the fastest message, plus slope times the other bytes."""
    usual_s = float(story.delays(story.messages[run[0]].num_bytes))
    least = min(usual_s, *(story.messages[n].delay_s or 0.0 for n in run))
    return least + sum(story.messages[n].num_bytes for n in run[1:]) * story.delays.slope


def _send_runs(story: Story, rank: int, where: Sequence[Mapping[tuple[Does, int], int]]) -> Iterator[list[int]]:
    """Yield runs of messages to one rank that are consecutive on both the sender and the receiver."""
    run: list[int] = []
    since_s = 0.0  # the sender's work since the last message of the run
    for step in story.steps[rank]:
        since_s += gap_s(step)
        if step.does == "recv" or (step.does == "sent" and step.number in run):
            continue
        if step.does == "send" and run and since_s <= GRAIN_S and _next(story, where, run[-1], step):
            run.append(step.number)
            since_s = 0.0
            continue
        if len(run) > 1:
            yield run
        run, since_s = ([step.number], 0.0) if step.does == "send" else ([], 0.0)
    if len(run) > 1:
        yield run


def _next(story: Story, where: Sequence[Mapping[tuple[Does, int], int]], before: int, step: Step) -> bool:
    a, b = story.messages[before], story.messages[step.number]
    if (a.dst, a.key) != (b.dst, b.key):
        return False
    at, posted = where[a.dst].get(("taken", before)), where[a.dst].get(("recv", step.number))
    if at is None or posted is None or posted <= at:
        return posted is not None and at is not None
    between = story.steps[a.dst][at + 1 : posted + 1]
    return all(gap_s(s) <= GRAIN_S for s in between) and len(between) <= 2


def temporal_block(story: Story, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that exchanges halos every 2nd, 4th or 8th step, in larger messages, instead of every step."""
    series: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for steps in story.steps:
        for step in steps:
            if step.does == "send":
                m = story.messages[step.number]
                series[m.src, m.dst, m.key].append(step.number)
    lengths: dict[tuple[int, int], set[int]] = defaultdict(set)
    for (src, dst, _), numbers in series.items():
        lengths[src, dst].add(len(numbers))
    halo = {
        (src, dst, key): numbers
        for (src, dst, key), numbers in series.items()
        if len(numbers) in lengths[dst, src] and _is_halo(story, numbers)
    }
    if not halo:
        return
    every = _steps_folded(story, list(halo.values()))
    messages, drop = list(story.messages), set[int]()
    for numbers in halo.values():
        for at in range(0, len(numbers), every):
            first, *others = numbers[at : at + every]
            m, more = messages[first], sum(messages[n].num_bytes for n in others)
            delay_s = (m.delay_s or 0.0) + story.delays.slope * more
            messages[first] = replace(m, num_bytes=m.num_bytes + more, delay_s=delay_s)
            drop.update(others)
    does = ("send", "sent", "recv", "taken")
    gone = [{i for i, s in enumerate(steps) if s.does in does and s.number in drop} for steps in story.steps]
    changed = [list(dropped(s, g)) for s, g in zip(story.steps, gone, strict=True)]
    sent = {n for numbers in halo.values() for n in numbers}
    rows = [s.row for steps in story.steps for s in steps if s.does == "send" and s.number in sent]
    each = sorted(story.messages[n].delay_s or 0.0 for n in sent)[len(sent) // 2]
    size = max(story.messages[n].num_bytes for n in sent)
    evidence = f"{len(sent)} messages of up to {size} bytes at {places(rows, site)} cross borders, "
    evidence += f"{duration(each)} each; " + _twice(story, size)
    action = (
        f"exchange a halo {every} times as wide every {every} steps, and compute its points on both ranks "
        "(dovetail.loops: ghost zones)"
    )
    yield Remedy("temporal_block", tuple(rows), evidence, action, story.with_steps(changed, messages=tuple(messages)))


def _twice(story: Story, size: int) -> str:
    """Return a sentence on how the time of a message grows with its bytes."""
    if len(story.delays.num_bytes) < 2:
        return "assumed to be mostly latency: the trace has no other size to show it (`--machine` gives a curve)"
    more = float(story.delays(2 * size)) / float(story.delays(size)) - 1 if float(story.delays(size)) else 0.0
    return f"twice the bytes would take {100 * more:.0f} % longer"


def _steps_folded(story: Story, halo: Sequence[Sequence[int]]) -> int:
    """Return how many steps should share one exchange: 2, 4 or 8.

    Stops at little exchange time (LITTLE), or at messages that are no longer mostly latency (SHORT).
    """
    spent_s = max(sum(story.messages[n].delay_s or 0.0 for n in numbers) for numbers in halo)
    size = max(story.messages[numbers[0]].num_bytes for numbers in halo)
    steps = 2
    while steps < MOST_STEPS and spent_s / steps > LITTLE * story.makespan_s:
        if float(story.delays(2 * steps * size)) > SHORT * float(story.delays(size)):
            break
        steps *= 2
    return steps


def _is_halo(story: Story, numbers: Sequence[int]) -> bool:
    """Return whether these are 8 or more messages of one size, mostly latency, most of which are sent eagerly."""
    sizes = {story.messages[n].num_bytes for n in numbers}
    if len(numbers) < 8 or len(sizes) != 1:
        return False
    size = sizes.pop()
    is_short = float(story.delays(2 * size)) < SHORT * float(story.delays(size))
    return is_short and 2 * sum(story.messages[n].rendezvous for n in numbers) < len(numbers)
