"""balance_remedies: remedies for imbalance: uneven work, a slow rank, a slow link."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.advise.fence_remedies import needless_rows
from dovetail.advise.remedy import GRAIN_S, Remedy, Site, duration, gap_s, may_need_barriers, own_s
from dovetail.advise.replay import changed_s
from dovetail.advise.spread import variance
from dovetail.trace.analysis.replay_model import FROM_ROOT, ReplayModel, Step

# Six repaired programs, 2 ranks on 2 cores, had up to 1.08 slowest / mean and 1.16 slowest / fastest, and steps whose
# slowest rank took up to 0.13 more than their mean, by chance (bench/results/traces.md): the limits lie just above.
UNEVEN = 1.15  # slowest rank / mean of all ranks, step by step: work counts as uneven, even if it differs by chance
APART = 1.3  # slowest rank / median of the others: the rank counts as slow; a link, from twice this
MOSTLY = 0.8  # share of the excess by which a finding names one rank; of two ranks by chance, each has half
MANY = 16  # fewer steps show no order of the ranks
BUSY = 0.1  # a rank with less than this share of the most work of a rank hands out work, or waits for others
ALIKE = 0.1  # ranks count as equal if slowest / fastest is at most 1 + 2 * ALIKE, as those of repaired programs are


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
        yield Remedy("slow_rank", _rows(model, slowest), evidence, action, levelled(model, own, goal))
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
    places, rows = _ends(model, steps_of, count, site)
    excess_s = float((most - mean).sum())
    is_uneven = excess_s >= (UNEVEN - 1) * float(mean.sum())
    if not is_uneven and excess_s < 2 * _by_chance_s(spent, places):
        return
    before = _before(model, steps_of, site)
    free, ranks = _without_root_waits(model, site).steps, range(len(model.steps))
    scaled = model.with_steps([_step_levelled(free[r], steps_of[r], spent[r], mean, before, site) for r in ranks])
    same = _with_same_calls(model.steps, steps_of, before, site)
    zero = [np.where(same, 0.0, row) for row in spent]
    alike = model.with_steps([_step_levelled(free[r], steps_of[r], zero[r], mean, before, site) for r in ranks])
    late: dict[tuple[str, str], float] = defaultdict(float)
    for place, wait in zip(places, (most - mean).tolist(), strict=True):
        late[place] += wait
    worst = max(late, key=late.__getitem__)
    at = np.array([place == worst for place in places])
    evidence, action = _who(spent[:, at], mean[at], worst)
    quickest = np.argmin(spent, axis=0).tolist()  # the rank that waits, so that the wait's root is the late one
    shown = tuple(rows[quickest[n]][n] for n in np.flatnonzero(at) if rows[quickest[n]][n] >= 0)
    if late[worst] > 0.5 * excess_s and moves(spent[:, at] - mean[at]) and {*shown} <= needless_rows(model, site):
        return  # the fences make these steps: without them their work evens out
    kind = "imbalance"
    if _end_in_barriers(model, shown) and _take_turns(spent[:, at] - mean[at]):
        kind = "imbalance" if may_need_barriers(model) else "barrier"
        each = duration(float((most - mean)[at].mean()))
        evidence = f"the ranks take turns between {worst[0]} and {worst[1]}: in each of {int(at.sum())} steps "
        evidence += f"one of them works longer, by {each}, and the others wait at the barrier"
        action = "let all do this work at once, without barriers between their turns, if nothing needs this order"
    tried = [scaled]  # sums that differ by little explain no more than that
    if is_uneven:
        tried += [alike, *_among_busy(model, own=[own_s(steps) for steps in model.steps])]
    evidence += _further(late, worst)
    yield Remedy(kind, shown, evidence, action, min(tried, key=changed_s), is_sure=False)


def _further(late: Mapping[tuple[str, str], float], worst: tuple[str, str]) -> str:
    """Return in words how much longer than the mean the slowest ranks take at other places, whose work is shared, too.

    `late`: by place, the seconds of the slowest rank beyond the mean. Empty if others have less than ALIKE of it.

    >>> _further({("a", "a"): 0.066, ("b", "a"): 0.043, ("c", "d"): 0.001}, ("a", "a"))
    '; between b and a the slowest rank computes 43.00 ms longer than the mean, elsewhere 1.00 ms'
    """
    others = {place: seconds for place, seconds in late.items() if place != worst}
    whole_s = sum(others.values())
    if whole_s <= ALIKE * sum(late.values()):
        return ""
    second = max(others, key=others.__getitem__)
    at = f"between {second[0]} and {second[1]}"
    rest_s = whole_s - others[second]
    rest = f", elsewhere {duration(rest_s)}" if rest_s > 0.01 * whole_s else ""
    return f"; {at} the slowest rank computes {duration(others[second])} longer than the mean{rest}"


def _among_busy(model: ReplayModel, own: list[float]) -> Iterator[ReplayModel]:
    """Yield the model with the whole work shared among the ranks that work, if others do not: they hand out tasks."""
    busy = [seconds > BUSY * max(own) for seconds in own]
    if 1 < sum(busy) < len(own):
        mean_s = sum(seconds for seconds, is_busy in zip(own, busy, strict=True) if is_busy) / sum(busy)
        yield levelled(model, own, [mean_s if is_busy else spent for spent, is_busy in zip(own, busy, strict=True)])


def _end_in_barriers(model: ReplayModel, rows: Sequence[int]) -> bool:
    """Return whether all collectives in the calls at these rows are barriers."""
    chosen = set(rows)
    joins = (s for steps in model.steps for s in steps if s.kind == "join" and s.row in chosen)
    return {model.collectives[s.number].name for s in joins} == {"MPI_Barrier"}


def _take_turns(excess: NDArray[Any]) -> bool:
    """Return whether the slowest ranks of successive steps follow one another in the order of the ranks, in a circle.

    `excess`: seconds by rank and step. If the slowest were chosen by chance, each would follow its neighbour in one of
    R steps: chance makes MOSTLY of MANY such successions of two ranks in fewer than 2 % of cases.

    >>> _take_turns(np.eye(3)[:, [0, 1, 2] * 8]), _take_turns(np.eye(3)[:, [0] * 24])
    (True, False)
    """
    leaders = np.argmax(excess, axis=0)
    if len(leaders) <= MANY:
        return False
    follows = (leaders[1:] - leaders[:-1]) % len(excess) == 1
    return bool(np.mean(follows) >= MOSTLY)


def _by_chance_s(spent: NDArray[Any], places: Sequence[tuple[str, str]]) -> float:
    """Return how much longer the slowest ranks would take than the mean, over all steps, if ranks differed by chance.

    Of R normal deviates the largest is at the quantile (R - 3/8) / (R + 1/4) (Blom 1958). The deviation is that of the
    steps between the same two places on one rank, trends and periods left out.
    """
    largest = NormalDist().inv_cdf((len(spent) - 0.375) / (len(spent) + 0.25))
    at: dict[tuple[str, str], list[int]] = defaultdict(list)
    for n in np.flatnonzero(spent.any(axis=0)).tolist():
        at[places[n]].append(n)
    deviations = (len(n) * float(np.mean([variance(row[n]) for row in spent])) ** 0.5 for n in at.values())
    return float(largest * sum(deviations))


def _who(spent: NDArray[Any], mean: NDArray[Any], place: tuple[str, str]) -> tuple[str, str]:
    """Return in words which ranks take longer in steps between two places, and what to do.

    `spent`: seconds by rank and step; `mean`: their mean over ranks.
    """
    excess = np.maximum(spent - mean, 0.0)
    rank = int(np.argmax(excess.sum(axis=1)))
    where = f"between {place[0]} and {place[1]}"
    each, usual = duration(float(spent.max(axis=0).mean())), duration(float(mean.mean()))
    others = float(np.delete(spent, rank, axis=0).max())
    if others <= ALIKE * float(spent[rank].mean()):
        words = f"rank {rank} alone computes {each} {where}, {spent.shape[1]} times, while all others wait"
        return (
            words,
            "share this work among the ranks, or do it beside their other work; if it is I/O, let each do its part",
        )
    if moves(spent - mean):
        words = (
            f"in each of {spent.shape[1]} steps {where} another rank may be the slowest: {each}, the mean is {usual}"
        )
        return words, "share the work of each step among the ranks; sums over the run are more even than its steps"
    total, mean_s = duration(float(spent[rank].sum())), duration(float(mean.sum()))
    words = f"rank {rank} computes {total} {where}, the mean of all ranks is {mean_s}; ranks that end earlier wait"
    return words, "share this work among the ranks"


def moves(excess: NDArray[Any]) -> bool:
    """Return whether no rank has most of the excess over the mean, by rank and step: another is the slowest each time.

    >>> moves(np.eye(2)[:, [0, 1, 0, 1]] - 0.5), moves(np.eye(2)[:, [0, 0, 0, 0]] - 0.5)
    (True, False)
    """
    by_rank = np.maximum(excess, 0.0).sum(axis=1)
    return bool(excess.shape[1] > 1 and by_rank.max() < MOSTLY * by_rank.sum())


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


def _before(model: ReplayModel, steps_of: Sequence[NDArray[np.int64]], site: Site) -> dict[int, dict[str, float]]:
    """Return for each step by call site the share of all ranks' work that directly precedes calls there."""
    found: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for steps, step_of in zip(model.steps, steps_of, strict=True):
        for step, n in zip(steps, step_of.tolist(), strict=True):
            found[n][_place(step, site)] += gap_s(step)
    whole = {n: sum(those.values()) or 1.0 for n, those in found.items()}
    return {n: {place: spent / whole[n] for place, spent in those.items()} for n, those in found.items()}


def _step_levelled(
    steps: Sequence[Step],
    step_of: NDArray[np.int64],
    spent: NDArray[Any],
    mean: NDArray[Any],
    before: Mapping[int, Mapping[str, float]],
    site: Site,
) -> list[Step]:
    """Return a rank's steps with the work between two collectives scaled to the mean.

    If the rank has hardly any such work (`spent`), all is inserted before the calls before which the ranks work, evenly
    if it makes several calls there; at places where the rank makes no call, before its first call since the last
    collective.
    """
    begins = [i == 0 or step.row < 0 or steps[i - 1].row != step.row for i, step in enumerate(steps)]
    numbers = step_of.tolist()
    calls = Counter((n, _place(step, site)) for step, n, is_new in zip(steps, numbers, begins, strict=True) if is_new)
    found = []
    seen: set[int] = set()  # steps whose work of other places has been inserted
    for step, n, is_new in zip(steps, numbers, begins, strict=True):
        now, then = float(spent[n]), float(mean[n])
        is_idle = now <= then / 10
        seconds = gap_s(step) * (0.0 if is_idle else then / now) + step.within_s
        if is_idle and is_new:
            place = _place(step, site)
            share = before[n].get(place, 0.0) / calls[n, place]
            if n not in seen:
                share += sum(value for other, value in before[n].items() if (n, other) not in calls)
                seen.add(n)
            seconds += then * share
        found.append(step._replace(seconds=seconds))
    return found


def _with_same_calls(
    steps_of_ranks: Sequence[Sequence[Step]],
    steps_of: Sequence[NDArray[np.int64]],
    before: Mapping[int, Mapping[str, float]],
    site: Site,
) -> NDArray[np.bool_]:
    """Return for each step whether every rank makes calls at all places before which ranks work."""
    found = np.ones(1 + max(int(each[-1]) for each in steps_of), bool)
    for steps, step_of in zip(steps_of_ranks, steps_of, strict=True):
        calls: dict[int, set[str]] = defaultdict(set)
        for step, n in zip(steps, step_of.tolist(), strict=True):
            calls[n].add(_place(step, site))
        for n, shares in before.items():
            found[n] &= {place for place, share in shares.items() if share > 0} <= calls[n]
    return found


def _place(step: Step, site: Site) -> str:
    return site(step.row) if step.row >= 0 else ""


def _without_root_waits(model: ReplayModel, site: Site) -> ReplayModel:
    """Return the model without the time for which roots of collectives wait until the others have taken earlier data.

    A root needs no other rank: what its call takes longer than the shortest there, and than its bytes take, it waits,
    for lack of buffers.
    """
    at: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    for rank, steps in enumerate(model.steps):
        for i, (step, after) in enumerate(pairwise(steps)):
            it = model.collectives[step.number] if step.kind == "joined" else None
            if it is not None and it.way == FROM_ROOT and it.root == rank and after.row != step.row:
                moved_s = model.delays.slope * it.num_bytes
                at[rank, site(step.row)].append((i + 1, max(after.after_s - moved_s, 0.0)))
    changed = [list(steps) for steps in model.steps]
    for (rank, _), those in at.items():
        least_s = min(more_s for _, more_s in those)
        for i, more_s in those:
            step, less_s = changed[rank][i], more_s - least_s
            spent = step.seconds - less_s, step.within_s - less_s, step.after_s - less_s
            changed[rank][i] = step._replace(seconds=spent[0], within_s=spent[1], after_s=spent[2])
    return model.with_steps(changed)


def _rows(model: ReplayModel, rank: int) -> tuple[int, ...]:
    """Return the rows of the three calls that follow a rank's longest work."""
    steps = sorted((step for step in model.steps[rank] if step.row >= 0), key=lambda step: -step.seconds)
    return tuple(step.row for step in steps[:3])


def levelled(model: ReplayModel, own: list[float], goal: list[float]) -> ReplayModel:
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
