"""volume_remedies: remedies for ranks that send, or gather, more than may be needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, log2

from dovetail.advise.block_remedies import send_runs
from dovetail.advise.remedy import Remedy, Site, by_site, calls_each, dropped, duration, places
from dovetail.ir.collectives import kind_of_mpi, traits_of
from dovetail.trace.analysis.delays import LATENCY_BYTES
from dovetail.trace.analysis.replay_model import TO_ROOT, CollectiveCall, ReplayModel

MANY = 16  # fewer calls, or runs, are no loop: what is sent once, or at the begin and the end, is not sent too often


def gathered(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, for collectives that give all data to all ranks: to neighbours only, at the least.

    The trace does not show what a rank uses of what it receives. The bound is the time of a collective without data.
    """
    for place, found in by_site(model, site, "join").items():
        its = [model.collectives[s.number] for _, s in found]
        if len({it.collective for it in its}) < MANY or not all(_gives_all(it) for it in its):
            continue
        least = {group: least_s(model, group) for group in {it.group for it in its}}
        shorter = {it.collective: min(it.seconds, least[it.group]) for it in its}
        calls = tuple(replace(it, seconds=shorter.get(it.collective, it.seconds)) for it in model.collectives)
        most = max(its, key=lambda it: it.num_bytes)
        evidence = f"{calls_each(found, most.name)} at {place} give all of up to {most.num_bytes} bytes to each of "
        evidence += (
            f"{len(most.group)} ranks, in {duration(sum(it.seconds for it in its) / len(its))} each; their bytes "
        )
        evidence += "grow with the number of ranks"
        action = "if each rank uses a part only (as neighbouring rows), send that part to the ranks that use it"
        yield Remedy(
            "volume", tuple(s.row for _, s in found), evidence, action, replace(model, collectives=calls), is_sure=False
        )


def _gives_all(it: CollectiveCall) -> bool:
    traits = traits_of(kind_of_mpi(it.name.removeprefix("MPI_").removesuffix("_c")))
    return traits.joined and not traits.cut and not traits.rooted and it.num_bytes > LATENCY_BYTES


def least_s(model: ReplayModel, group: Sequence[int], num_bytes: int = 8) -> float:
    """Return the seconds of a quick collective: one of the trace, else one message per level of a tree."""
    like = [it.seconds for it in model.collectives if it.group == group and 0 < it.num_bytes <= num_bytes]
    known = [seconds for seconds in like if seconds > 0]
    return min(known) if known else float(model.delays(num_bytes)) * ceil(log2(max(len(group), 2)))


def collected(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that collect long data at one rank less often: at the least, never.

    The trace does not show whether the root uses what it gets each time. The ranks still meet there if others wait for
    the call now: what is left out is the time of the data, with the roots' own time in these calls.
    """
    for place, found in by_site(model, site, "join").items():
        its = [model.collectives[s.number] for _, s in found]
        if len({it.collective for it in its}) < MANY or not all(_collects(it) for it in its):
            continue
        numbers = {s.number for _, s in found}
        gone = [
            {i for i, s in enumerate(steps) if s.kind in ("join", "joined") and s.number in numbers}
            for steps in model.steps
        ]
        changed = model.with_steps([list(dropped(s, g)) for s, g in zip(model.steps, gone, strict=True)])
        most = max(its, key=lambda it: it.num_bytes)
        evidence = f"{calls_each(found, most.name)} at {place} give up to {most.num_bytes} bytes to one rank"
        action = (
            "collect only what this rank needs, and only when it needs it (every k-th time saves (k - 1)/k of this)"
        )
        yield Remedy("volume", tuple(s.row for _, s in found), evidence, action, changed, is_sure=False)


def _collects(it: CollectiveCall) -> bool:
    return it.way == TO_ROOT and it.name.startswith(("MPI_Gather", "MPI_Igather")) and it.num_bytes > LATENCY_BYTES


def repeated(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy for long messages of one size that one call site sends in a row to one rank: fewer, at most one.

    The trace does not show whether their data has changed since it was sent last.
    """
    drop, rows, runs = set[int](), list[int](), 0
    for rank, steps in enumerate(model.steps):
        at = model.places[rank]
        for run, *_ in send_runs(model, rank, site):
            alike = _alike(model, run, {n: site(steps[at["send", n]].row) for n in run})
            runs += len(alike) > 1
            drop.update(alike[1:])
            rows += [steps[at["send", n]].row for n in alike] if len(alike) > 1 else []
    if runs < MANY:
        return
    kinds = ("send", "sent", "recv", "received")
    gone = [{i for i, s in enumerate(steps) if s.kind in kinds and s.number in drop} for steps in model.steps]
    changed = model.with_steps([list(dropped(s, g)) for s, g in zip(model.steps, gone, strict=True)])
    size = max(model.messages[n].num_bytes for n in drop)
    evidence = (
        f"{len(rows)} messages of up to {size} bytes at {places(rows, site)}, {len(rows) / runs:.3g} of one size in "
    )
    evidence += "a row to one rank, each time"
    action = "send only what has changed since it was sent last (if these are several fields, and some stay the same)"
    yield Remedy("volume", tuple(rows), evidence, action, changed, is_sure=False)


def _alike(model: ReplayModel, run: Sequence[int], place: dict[int, str]) -> list[int]:
    """Return the longest part of a run whose messages are long, of one size and from one call site."""
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for n in run:
        if model.messages[n].num_bytes > LATENCY_BYTES:
            groups[model.messages[n].num_bytes, place[n]].append(n)
    return max(groups.values(), key=len, default=[])
