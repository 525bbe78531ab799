"""Remedies for what is uneven: work that is shared badly, a rank or a link that is slower than its like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from dovetail.plan.remedy import Remedy, Site, own_s
from dovetail.trace.story import Story

UNEVEN, APART, ALIKE = 1.15, 1.3, 0.1  # ratios at which ranks and links are called so


def balance(story: Story, site: Site) -> Iterator[Remedy]:
    """All ranks' own work brought to the mean; of one that is slow among equals, to theirs."""
    own = [own_s(steps) for steps in story.steps]
    usual, mean = median(own), sum(own) / len(own)
    slowest = max(range(len(own)), key=own.__getitem__)
    rest = [value for rank, value in enumerate(own) if rank != slowest]
    if len(own) < 2 or usual <= 0 or own[slowest] < UNEVEN * mean:
        return
    is_alone = len(own) > 2 and max(rest) <= (1 + 2 * ALIKE) * min(rest) and own[slowest] > APART * median(rest)
    if is_alone:
        goal = [median(rest) if rank == slowest else value for rank, value in enumerate(own)]
        evidence = (
            f"rank {slowest} computes {own[slowest] / median(rest):.2f} times as long as the others, which are alike"
        )
        action = f"look at the host of rank {slowest} (clock, memory, other programs), or give it less"
        yield Remedy("slow_rank", _rows(story, slowest), evidence, action, _levelled(story, own, goal))
        return
    evidence = f"rank {slowest} computes {own[slowest] / mean:.2f} times as long as the ranks' mean"
    action = "share the work evenly among the ranks"
    yield Remedy("imbalance", _rows(story, slowest), evidence, action, _levelled(story, own, [mean] * len(own)))


def _rows(story: Story, rank: int) -> tuple[int, ...]:
    """The calls that follow the most work of a rank."""
    steps = sorted((step for step in story.steps[rank] if step.row >= 0), key=lambda step: -step.seconds)
    return tuple(step.row for step in steps[:3])


def _levelled(story: Story, own: list[float], goal: list[float]) -> Story:
    """Every rank's own work, outside calls, made longer or shorter by one factor."""
    told = []
    for steps, now, then in zip(story.steps, own, goal, strict=True):
        factor = then / now if now > 0 else 1.0
        told.append([s._replace(seconds=(s.seconds - s.within_s) * factor + s.within_s) for s in steps])
    return story.with_steps(told)


def slow_link(story: Story, site: Site) -> Iterator[Remedy]:
    """A pair of ranks whose messages take longer than others of the same size."""
    by_size: dict[int, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for message in story.messages:
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
        for m in story.messages
    ]
    rows = tuple(s.row for s in story.steps[src] if s.does == "send" and story.messages[s.number].dst == dst)
    evidence = f"messages from rank {src} to rank {dst} take {ratio:.1f} times as long as others of their sizes"
    action = f"look at the way from rank {src}'s host to rank {dst}'s, or place the ranks otherwise"
    yield Remedy("slow_link", rows, evidence, action, replace(story, messages=tuple(fixed)))
