"""root_remedies: a remedy for data that a root collects, rearranges and gives back: exchange it directly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from dovetail.advise.remedy import Remedy, Site, dropped, duration, gap_s
from dovetail.trace.analysis.replay_model import FROM_ROOT, SYNCHRONOUS, TO_ROOT, CollectiveCall, ReplayModel, Step

MANY = 16  # fewer round trips are no loop

Trip = tuple[Step, Step]  # the root's steps that join the call that collects, and the one that gives back


def through_root(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by pair of calls, that let each rank send to those that need its data.

    Each rank then sends and receives one share of the data, and does its share of the root's work. At most, that work
    is needless: no rank rearranges what it sends to those that need it.
    """
    found: dict[tuple[str, str], list[Trip]] = defaultdict(list)
    for rank, steps in enumerate(model.steps):
        for before, after in pairwise([step for step in steps if step.kind == "join"]):
            a, b = model.collectives[before.number], model.collectives[after.number]
            if a.root == rank and _goes_back(a, b):
                found[site(before.row), site(after.row)].append((before, after))
    for pair, trips in found.items():
        if len(trips) >= MANY:
            yield _direct(model, pair, trips)


def _goes_back(a: CollectiveCall, b: CollectiveCall) -> bool:
    """Return whether a root collects parts by one call, and gives parts, or all, back by the next."""
    is_pair = a.way == TO_ROOT and b.way == FROM_ROOT and a.blocking and b.blocking
    is_parts = a.name.startswith("MPI_Gather") and b.name.startswith(("MPI_Scatter", "MPI_Bcast"))
    return is_pair and is_parts and (a.root, a.group) == (b.root, b.group)


def _direct(model: ReplayModel, pair: tuple[str, str], trips: Sequence[Trip]) -> Remedy:
    calls = model.collectives
    root, group = calls[trips[0][0].number].root, calls[trips[0][0].number].group
    both = {calls[a.number].collective: (calls[a.number], calls[b.number]) for a, b in trips}
    one = {number: (a.seconds + b.seconds) / len(group) for number, (a, b) in both.items()}  # each rank moves its share
    second = {calls[b.number].collective for _, b in trips}
    direct = tuple(
        replace(it, way=SYNCHRONOUS, root=-1, seconds=one[it.collective]) if it.collective in one else it
        for it in calls
    )
    meet = ("join", "joined")
    gone = [
        {i for i, s in enumerate(steps) if s.kind in meet and calls[s.number].collective in second}
        for steps in model.steps
    ]
    ends = {b.row for _, b in trips}
    shared, least = (
        model.with_steps(
            [dropped(_with_work(steps, ends, share), at) for steps, at in zip(model.steps, gone, strict=True)],
            collectives=direct,
        )
        for share in (1 / len(group), 0.0)
    )
    joins = (s for steps in model.steps for s in steps if s.kind == "join")
    rows = tuple(s.row for s in joins if calls[s.number].collective in {*both, *second})
    spent = duration(sum(gap_s(b) for _, b in trips) / len(trips))
    evidence = f"{len(trips)} times rank {root} collects data at {pair[0]}, works {spent}, and gives up to "
    most = max(it.num_bytes for calls_of in both.values() for it in calls_of)
    evidence += f"{most} bytes back at {pair[1]}, while the others wait"
    action = "let each rank send to those that need its data, without a root (neighbours: MPI_Sendrecv; all: "
    action += "MPI_Alltoallv)"
    return Remedy("volume", rows, evidence, action, shared, False, least)


def _with_work(steps: Sequence[Step], ends: set[int], share: float) -> list[Step]:
    """Return a rank's steps with this share of its work before the calls at these rows."""
    found = []
    for step in steps:
        less_s = (1.0 - share) * gap_s(step) if step.kind == "join" and step.row in ends else 0.0
        found.append(step._replace(seconds=step.seconds - less_s))
    return found
