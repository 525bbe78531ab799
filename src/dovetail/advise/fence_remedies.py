"""fence_remedies: a remedy for fences of windows that end hardly any transfers: one fence ends many."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dovetail.advise.remedy import Remedy, Site, by_site, calls_each, dropped
from dovetail.trace.analysis.replay_model import ReplayModel, Step

TRANSFERS = frozenset(f"MPI_{name}" for name in ("Put", "Get", "Accumulate", "Get_accumulate", "Fetch_and_op"))
MANY = 16  # fewer calls are no loop: a program may make a few of them at its begin and end


def fence(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, for fences that end one transfer, or none, each; the last of a run stays."""
    for place, found in _needless(model, site):
        numbers = {s.number for _, s in found}
        last = {max(s.number for s in steps if s.number in numbers and s.kind == "join") for steps in model.steps}
        gone = [
            {i for i, s in enumerate(steps) if s.kind in ("join", "joined") and s.number in numbers - last}
            for steps in model.steps
        ]
        changed = model.with_steps([dropped(s, g) for s, g in zip(model.steps, gone, strict=True)])
        evidence = f"{calls_each(found, 'MPI_Win_fence')} at {place}, each after at most one transfer of a rank"
        action = "one fence after several transfers, if none needs what an earlier one brought"
        yield Remedy("barrier", tuple(s.row for _, s in found), evidence, action, changed, is_sure=False)


def needless_rows(model: ReplayModel, site: Site) -> set[int]:
    """Return the rows of the fences for which `fence` has a remedy."""
    return {s.row for _, found in _needless(model, site) for _, s in found}


def _needless(model: ReplayModel, site: Site) -> Iterator[tuple[str, list[tuple[int, Step]]]]:
    """Yield call sites of fences, with their steps, that every rank makes and that end at most a transfer each."""
    for place, found in by_site(model, site, "join").items():
        is_fence = all(model.collectives[s.number].name == "MPI_Win_fence" for _, s in found)
        ranks = {rank for rank, _ in found}
        is_loop = len(ranks) == len(model.steps) and len(found) >= MANY * len(ranks)
        if is_fence and is_loop and _transfers(model, {s.number for _, s in found}) <= len(found):
            yield place, found


def _transfers(model: ReplayModel, numbers: set[int]) -> int:
    """Return how many transfers from, or to, windows these fences end."""
    count = 0
    for steps in model.steps:
        since = 0
        for before, step in pairwise([None, *steps]):
            if step is None:
                continue
            if step.kind == "own" and (before is None or before.row != step.row):
                since += model.calls.get(step.row, ("", 0))[0].removesuffix("_c") in TRANSFERS
            if step.kind == "join":
                count += since if step.number in numbers else 0
                since = 0
    return count
