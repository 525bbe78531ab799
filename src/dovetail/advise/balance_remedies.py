"""balance_remedies: remedies for imbalance: uneven work, a slow rank, a slow link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, duration, gap_s, own_s
from dovetail.trace.analysis.replay_model import ReplayModel, Step

UNEVEN = 1.15  # slowest rank / mean of all ranks: work counts as uneven
APART = 1.3  # slowest rank / median of the others: the rank counts as slow; a link, from twice this
MOSTLY = 0.8  # share of the excess that makes one rank the slow one
ALIKE = 0.1  # ranks count as equal if slowest / fastest is at most 1 + 2 * ALIKE


def balance(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies that level the ranks' work: one slow rank to the others' median, or each step to its mean."""
    own = [own_s(steps) for steps in model.steps]
    usual, mean = median(own), sum(own) / len(own)
    slowest = max(range(len(own)), key=own.__getitem__)
    rest = [value for rank, value in enumerate(own) if rank != slowest]
    if len(own) < 2 or usual <= 0:
        return
    is_alone = len(own) > 2 and max(rest) <= (1 + 2 * ALIKE) * min(rest) and own[slowest] > APART * median(rest)
    if is_alone and own[slowest] >= UNEVEN * mean and _is_slow_everywhere(model, slowest, site):
        goal = [median(rest) if rank == slowest else value for rank, value in enumerate(own)]
        evidence = (
            f"rank {slowest} computes {own[slowest] / median(rest):.2f} times as long as the other ranks, "
            "which take equally long"
        )
        action = f"check the host of rank {slowest} (clock, memory, other programs), or give the rank less work"
        yield Remedy("slow_rank", _rows(model, slowest), evidence, action, _levelled(model, own, goal))
        return
    yield from _by_step(model, site)


def _is_slow_everywhere(model: ReplayModel, rank: int, site: Site) -> bool:
    """Return whether a rank takes longer than the others for all of its work, not for some of it only."""
    spent: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(model.steps))
    for other, steps in enumerate(model.steps):
        before = ""
        for step in steps:
            after = site(step.row) if step.row >= 0 else ""
            if gap_s(step) > GRAIN_S:
                spent[before, after][other] += gap_s(step)
            before = after
    usual = {place: median(v for r, v in enumerate(each) if r != rank) for place, each in spent.items()}
    some = [(spent[place][rank], value) for place, value in usual.items() if value > ALIKE * sum(usual.values())]
    alone = sum(spent[place][rank] for place, value in usual.items() if value <= ALIKE * spent[place][rank])
    whole = sum(each[rank] for each in spent.values())
    return alone <= ALIKE * whole and all(mine >= (1 + ALIKE) * others for mine, others in some)


def _by_step(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that levels the work of each step: between two collectives of all ranks.

    Ranks may have equal work in total but at different times, for example if each in turn computes while others wait.
    """
    steps_of = [_steps(model, steps) for steps in model.steps]
    count = 1 + max(int(each[-1]) for each in steps_of)
    spent = np.stack(
        [np.bincount(n, [gap_s(s) for s in steps], count) for n, steps in zip(steps_of, model.steps, strict=True)]
    )
    mean, most = spent.mean(axis=0), spent.max(axis=0)
    if float((most - mean).sum()) < (UNEVEN - 1) * float(mean.sum()):
        return
    changed = [_step_levelled(s, steps_of[r], spent[r], mean) for r, s in enumerate(model.steps)]
    places, rows = _ends(model, steps_of, count, site)
    late: dict[tuple[str, str], float] = defaultdict(float)
    for place, wait in zip(places, (most - mean).tolist(), strict=True):
        late[place] += wait
    worst = max(late, key=late.__getitem__)
    at = np.array([place == worst for place in places])
    evidence, action = _who(spent[:, at], mean[at], worst)
    slowest = int(np.argmax(spent[:, at].sum(axis=1)))
    shown = tuple(row for row, chosen in zip(rows[slowest], at, strict=True) if chosen and row >= 0)[:3]
    yield Remedy("imbalance", shown, evidence, action, model.with_steps(changed))


def _who(spent: NDArray[Any], mean: NDArray[Any], place: tuple[str, str]) -> tuple[str, str]:
    """Return in words which ranks take longer in steps between two places, and what to do.

    `spent`: seconds by rank and step; `mean`: their mean over ranks.
    """
    excess = np.maximum(spent - mean, 0.0)
    by_rank, rank = excess.sum(axis=1), int(np.argmax(excess.sum(axis=1)))
    where = f"between {place[0]} and {place[1]}"
    each, usual = duration(float(spent.max(axis=0).mean())), duration(float(mean.mean()))
    others = float(np.delete(spent, rank, axis=0).max())
    if others <= ALIKE * float(spent[rank].mean()):
        words = f"rank {rank} alone computes {each} {where}, {spent.shape[1]} times, while all others wait"
        return (
            words,
            "share this work among the ranks, or do it beside their other work; if it is I/O, let each do its part",
        )
    if by_rank[rank] < MOSTLY * by_rank.sum() and spent.shape[1] > 1:
        words = (
            f"in each of {spent.shape[1]} steps {where} another rank may be the slowest: {each}, the mean is {usual}"
        )
        return words, "share the work of each step among the ranks; sums over the run are more even than its steps"
    total, mean_s = duration(float(spent[rank].sum())), duration(float(mean.sum()))
    words = f"rank {rank} computes {total} {where}, the mean of all ranks is {mean_s}; ranks that end earlier wait"
    return words, "share this work among the ranks"


def _steps(model: ReplayModel, steps: Sequence[Step]) -> NDArray[np.int64]:
    """Return for each of a rank's steps how many collectives of all ranks the rank has joined before it."""
    is_last = [s.kind == "join" and len(model.collectives[s.number].group) == len(model.steps) for s in steps]
    joined = np.cumsum([0, *is_last])
    found: NDArray[np.int64] = joined[:-1].astype("i8")
    return found


def _ends(
    model: ReplayModel, steps_of: Sequence[NDArray[np.int64]], count: int, site: Site
) -> tuple[list[tuple[str, str]], list[list[int]]]:
    """Return the call sites that each step lies between, and for each rank the row of the call that ends each step."""
    rows = [[-1] * count for _ in model.steps]
    for rank, steps in enumerate(model.steps):
        for n, step in zip(steps_of[rank].tolist(), steps, strict=True):
            rows[rank][n] = step.row if step.kind == "join" or rows[rank][n] < 0 else rows[rank][n]
    last = [site(row) if row >= 0 else "the end" for row in rows[0]]
    return list(pairwise(["the beginning", *last])), rows


def _step_levelled(
    steps: Sequence[Step], step_of: NDArray[np.int64], spent: NDArray[Any], mean: NDArray[Any]
) -> list[Step]:
    """Return a rank's steps with the work between two collectives scaled to the mean.

    If the rank has hardly any such work, the missing work is inserted before the collective that ends it.
    """
    found = []
    for i, (step, n) in enumerate(zip(steps, step_of.tolist(), strict=True)):
        now, then = float(spent[n]), float(mean[n])
        seconds = gap_s(step) * (then / now if now > then / 10 else 1.0) + step.within_s
        is_last = i + 1 == len(steps) or step_of[i + 1] != n
        found.append(step._replace(seconds=seconds + (then - now if is_last and now <= then / 10 else 0.0)))
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
