"""balance_remedies: remedies for imbalance: uneven work, a slow rank, a slow link."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from dovetail.advise.remedy import Remedy, Site, duration, gap_s, own_s
from dovetail.trace.analysis.replay_model import ReplayModel, Step

UNEVEN = 1.15  # slowest rank / mean of all ranks: work counts as uneven
APART = 1.3  # slowest rank / median of the others: the rank counts as slow; a link, from twice this
ALIKE = 0.1  # ranks count as equal if slowest / fastest is at most 1 + 2 * ALIKE


def balance(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies that level the ranks' work: one slow rank to the others' median, or each phase to its mean."""
    own = [own_s(steps) for steps in model.steps]
    usual, mean = median(own), sum(own) / len(own)
    slowest = max(range(len(own)), key=own.__getitem__)
    rest = [value for rank, value in enumerate(own) if rank != slowest]
    if len(own) < 2 or usual <= 0:
        return
    is_alone = len(own) > 2 and max(rest) <= (1 + 2 * ALIKE) * min(rest) and own[slowest] > APART * median(rest)
    if is_alone and own[slowest] >= UNEVEN * mean:
        goal = [median(rest) if rank == slowest else value for rank, value in enumerate(own)]
        evidence = (
            f"rank {slowest} computes {own[slowest] / median(rest):.2f} times as long as the other ranks, "
            "which take equally long"
        )
        action = f"check the host of rank {slowest} (clock, memory, other programs), or give the rank less work"
        yield Remedy("slow_rank", _rows(model, slowest), evidence, action, _levelled(model, own, goal))
        return
    yield from _by_phase(model, site)


def _by_phase(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that levels the work of each phase: between two collectives of all ranks, by their call sites.

    Ranks may have equal work in total but at different times, for example if each in turn computes while others wait.
    """
    phases = [list(_phases(model, steps, site)) for steps in model.steps]
    spent: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(model.steps))
    for rank, steps in enumerate(model.steps):
        for phase, step in zip(phases[rank], steps, strict=True):
            spent[phase][rank] += gap_s(step)
    mean = {phase: sum(each) / len(each) for phase, each in spent.items()}
    waited = {phase: max(each) - mean[phase] for phase, each in spent.items()}
    if sum(waited.values()) < (UNEVEN - 1) * sum(mean.values()):
        return
    changed = [_phases_levelled(steps, phases[r], spent, mean, r) for r, steps in enumerate(model.steps)]
    worst = max(waited, key=waited.__getitem__)
    rank = max(range(len(model.steps)), key=spent[worst].__getitem__)
    evidence = (
        f"rank {rank} computes {duration(spent[worst][rank])} between {worst[0]} and {worst[1]}, the mean of all ranks "
        f"is {duration(mean[worst])}; ranks that end earlier wait"
    )
    rows = [s.row for s, phase in zip(model.steps[rank], phases[rank], strict=True) if phase == worst and s.row >= 0]
    yield Remedy("imbalance", tuple(rows[:3]), evidence, "share this work among the ranks", model.with_steps(changed))


def _phases(model: ReplayModel, steps: Sequence[Step], site: Site) -> Iterator[tuple[str, str]]:
    """Yield each step's phase: the call sites of the collectives of all ranks before and after its work."""
    meets = [
        site(step.row) if step.kind == "join" and len(model.collectives[step.number].group) == len(model.steps) else ""
        for step in steps
    ]
    after, last = ["the end"] * len(steps), "the end"
    for i in range(len(steps) - 1, -1, -1):
        after[i] = last = meets[i] or last
    before = "the beginning"
    for place, then in zip(meets, after, strict=True):
        yield before, then
        before = place or before


def _phases_levelled(
    steps: Sequence[Step],
    phases: Sequence[tuple[str, str]],
    spent: Mapping[tuple[str, str], list[float]],
    mean: Mapping[tuple[str, str], float],
    rank: int,
) -> list[Step]:
    """Return a rank's steps with the work of each phase scaled to the mean.

    If the rank has hardly any work in a phase, the missing work is inserted before the collective that ends the phase.
    """
    ends = Counter(phase for step, phase in zip(steps, phases, strict=True) if step.kind in ("join", "end"))
    found = []
    for step, phase in zip(steps, phases, strict=True):
        now, then = spent[phase][rank], mean[phase]
        seconds = gap_s(step) * (then / now if now > then / 10 else 1.0) + step.within_s
        if now <= then / 10 and step.kind in ("join", "end"):
            seconds += (then - now) / max(ends[phase], 1)
        found.append(step._replace(seconds=seconds))
    return found


def _rows(model: ReplayModel, rank: int) -> tuple[int, ...]:
    """Return the rows of the three calls that follow a rank's longest work."""
    steps = sorted((step for step in model.steps[rank] if step.row >= 0), key=lambda step: -step.seconds)
    return tuple(step.row for step in steps[:3])


def _levelled(model: ReplayModel, own: list[float], goal: list[float]) -> ReplayModel:
    """Return the model with each rank's work outside calls scaled from `own` to `goal` seconds."""
    changed = []
    for steps, now, then in zip(model.steps, own, goal, strict=True):
        factor = then / now if now > 0 else 1.0
        changed.append([s._replace(seconds=(s.seconds - s.within_s) * factor + s.within_s) for s in steps])
    return model.with_steps(changed)


def slow_link(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy for pairs of ranks whose messages take much longer than other ranks' messages of the same size."""
    by_size: dict[int, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for message in model.messages:
        if message.delay_s is not None:
            by_size[message.num_bytes][message.src, message.dst].append(message.delay_s)
    ratios: dict[tuple[int, int], list[float]] = defaultdict(list)
    for pairs in by_size.values():
        usual = {pair: median(found) for pair, found in pairs.items()}
        for pair, value in usual.items():
            others = [other for key, other in usual.items() if key != pair]
            if len(others) > 1 and median(others) > 0:
                ratios[pair].append(value / median(others))
    slow = {pair: median(found) for pair, found in ratios.items() if median(found) > 2 * APART}
    if not slow or len(slow) > max(len(ratios) // 3, 1):
        return
    (src, dst), ratio = max(slow.items(), key=lambda item: item[1])
    fixed = [
        replace(m, delay_s=m.delay_s / slow[m.src, m.dst]) if m.delay_s is not None and (m.src, m.dst) in slow else m
        for m in model.messages
    ]
    rows = tuple(s.row for s in model.steps[src] if s.kind == "send" and model.messages[s.number].dst == dst)
    evidence = f"messages from rank {src} to rank {dst} take {ratio:.1f} times as long as others of equal size"
    action = f"check the link from rank {src}'s host to rank {dst}'s, or place the ranks differently"
    yield Remedy("slow_link", rows, evidence, action, replace(model, messages=tuple(fixed)))
