"""hand_remedies: remedies for messages, or pairs of collectives, that do what one collective does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, dropped, gap_s, places
from dovetail.advise.volume_remedies import least_s
from dovetail.trace.analysis.replay_model import SYNCHRONOUS, CollectiveCall, ReplayModel, Step

MANY = 16  # fewer rounds are no loop
SMALL_BYTES = 256  # of two ranks, larger messages are taken for borders of a grid
_IN_TWO = {
    ("MPI_Reduce", "MPI_Bcast"): "MPI_Allreduce",
    ("MPI_Gather", "MPI_Bcast"): "MPI_Allgather",
    ("MPI_Reduce", "MPI_Scatter"): "MPI_Reduce_scatter_block",
}  # to a root, and from it: what does both
CLOCK_S = 2e-8  # shorter times between calls are those of a loop


class _Segment(NamedTuple):
    """Consecutive steps of a rank with messages of one size, and no work between them."""

    rank: int
    at: list[int]
    num_bytes: int


def by_hand(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy for messages by which all ranks learn of all: a collective written by hand.

    Found by what reaches whom, whatever the pattern (star, ring, tree): in a round messages of one size, some of them
    sent after the receipt of others, join all ranks without work between them. Two ranks may exchange the borders of a
    grid so: then only messages of at most SMALL_BYTES count, and the finding is not sure.
    """
    rounds = list(_rounds(model))
    if len(rounds) < MANY:
        return
    group, steps = tuple(range(len(model.steps))), [list(s) for s in model.steps]
    collectives, first = list(model.collectives), max((it.collective for it in model.collectives), default=-1) + 1
    quick_s = {size: least_s(model, group, size) for size in {found[0].num_bytes for found in rounds}}
    begins: list[dict[tuple[int, str], int]] = [{} for _ in steps]
    rows = []
    for i, found in enumerate(rounds):
        call = CollectiveCall(
            first + i, "MPI_Allreduce", group, SYNCHRONOUS, -1, found[0].num_bytes, quick_s[found[0].num_bytes]
        )
        for rank, at, _ in found:
            begins[rank][steps[rank][at[0]].number, steps[rank][at[0]].kind] = len(collectives)
            rows.append(steps[rank][at[0]].row)
        collectives.append(call)
    numbers = {model.steps[it.rank][at].number for found in rounds for it in found for at in it.at}
    changed = [list(_joined(s, numbers, b)) for s, b in zip(steps, begins, strict=True)]
    count = sum(model.steps[it.rank][at].kind == "send" for found in rounds for it in found for at in it.at)
    size = max(found[0].num_bytes for found in rounds)
    evidence = f"{count} messages of up to {size} bytes at {places(rows, site)}, in "
    evidence += f"{len(rounds)} rounds by which each rank learns of all others, without work between them"
    action = "MPI_Allreduce (or MPI_Allgather, MPI_Barrier: what the round does); for small data dovetail.all_reduce"
    replaced = model.with_steps(changed, collectives=tuple(collectives))
    free = [replace(it, seconds=0.0) if i >= len(model.collectives) else it for i, it in enumerate(collectives)]
    bound = replace(replaced, collectives=tuple(free))
    yield Remedy("collective", tuple(rows), evidence, action, replaced, len(group) > 2, bound)


def _joined(steps: Sequence[Step], numbers: set[int], begins: Mapping[tuple[int, str], int]) -> Iterator[Step]:
    """Yield the steps without these messages; those in `begins` become collectives."""
    kinds = ("send", "sent", "recv", "received")
    gone = {
        i for i, s in enumerate(steps) if s.kind in kinds and s.number in numbers and (s.number, s.kind) not in begins
    }
    for step in dropped(steps, gone):
        if step.kind in kinds and (step.number, step.kind) in begins:
            joins = begins[step.number, step.kind]
            yield step._replace(kind="join", number=joins)
            yield Step(0.0, "joined", joins, step.row)
        else:
            yield step


def _rounds(model: ReplayModel) -> Iterator[list[_Segment]]:
    """Yield rounds: for each rank a segment, joined by messages to those of all others, and to no other."""
    segments = [segment for rank in range(len(model.steps)) for segment in _segments(model, rank)]
    of_send: dict[int, int] = {}
    of_receipt: dict[int, int] = {}
    for i, it in enumerate(segments):
        for step in (model.steps[it.rank][at] for at in it.at):
            (of_send if step.kind == "send" else of_receipt)[step.number] = i
    parent = list(range(len(segments)))
    whole = of_send.keys() & of_receipt.keys()
    for n in whole:
        a, b = _top(parent, of_send[n]), _top(parent, of_receipt[n])
        parent[max(a, b)] = min(a, b)
    members: dict[int, list[_Segment]] = defaultdict(list)
    for i, it in enumerate(segments):
        members[_top(parent, i)].append(it)
    for those in members.values():
        numbers = {model.steps[it.rank][at].number for it in those for at in it.at}
        if [it.rank for it in those] == list(range(len(model.steps))) and numbers <= whole and _all_learn(model, those):
            yield those


def _top(parent: list[int], i: int) -> int:
    while parent[i] != i:
        parent[i] = i = parent[parent[i]]
    return i


def _segments(model: ReplayModel, rank: int) -> Iterator[_Segment]:
    """Yield a rank's sends and receipts in segments, which work, a collective or another size ends."""
    steps, most_s = model.steps[rank], _most_s(model.steps[rank])
    at: list[int] = []
    since_s, size = 0.0, -1
    for i, step in enumerate(steps):
        since_s += gap_s(step)
        if step.kind in ("own", "recv", "sent"):
            continue
        num_bytes = model.messages[step.number].num_bytes if step.kind in ("send", "received") else -1
        if at and (since_s > most_s or num_bytes != size):
            yield _Segment(rank, at, size)
            at = []
        if num_bytes >= 0:
            at.append(i)
        since_s, size = 0.0, num_bytes
    if at:
        yield _Segment(rank, at, size)


def _most_s(steps: Sequence[Step]) -> float:
    """Return the seconds between two calls that separate loops of calls from work: where the times are farthest apart.

    Compares logarithms of the times, of which at least MANY are shorter, and MANY longer.
    """
    spent, since_s = [], 0.0
    for step in steps:
        since_s += gap_s(step)
        if step.kind not in ("own", "recv", "sent"):
            spent.append(since_s)
            since_s = 0.0
    logs = np.log(np.maximum(np.sort(spent), CLOCK_S))
    apart = np.diff(logs)[MANY - 1 : len(logs) - MANY]
    if not len(apart):
        return 0.0
    i = int(np.argmax(apart)) + MANY - 1
    return float(np.exp((logs[i] + logs[i + 1]) / 2))


def _all_learn(model: ReplayModel, segments: Sequence[_Segment]) -> bool:
    """Return whether what each rank knows reaches every other, some of it by a rank that has received it before.

    Messages of MPI_Sendrecv are no answers: at the border of a grid a rank only receives, and then only sends.
    """
    if len(segments) == 2 and segments[0].num_bytes > SMALL_BYTES:
        return False
    known, carried = [{it.rank} for it in segments], dict[int, frozenset[int]]()
    left = [[model.steps[it.rank][at] for at in it.at][::-1] for it in segments]
    relays = False
    while any(left):
        moved = False
        for rank, steps in enumerate(left):
            while steps and (steps[-1].kind == "send" or steps[-1].number in carried):
                step, moved = steps.pop(), True
                if step.kind == "send":
                    carried[step.number] = frozenset(known[rank])
                    relays |= len(known[rank]) > 1 and step.number not in model.combined
                else:
                    known[rank] |= carried[step.number]
        if not moved:
            return False
    return relays and all(len(it) == len(segments) for it in known)


def in_two(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by pair of calls, for data that goes to a root and, at once, from it to all: one call does so."""
    place = [
        {model.collectives[s.number].collective: i for i, s in enumerate(steps) if s.kind == "join"}
        for steps in model.steps
    ]
    found: dict[str, list[tuple[CollectiveCall, CollectiveCall]]] = defaultdict(list)
    for rank, steps in enumerate(model.steps):
        for before, after in pairwise([s for s in steps if s.kind == "join"]):
            a, b = model.collectives[before.number], model.collectives[after.number]
            if min(a.group, default=-1) == rank and _is_pair(model, place, a, b):
                found[_IN_TWO[_plain(a.name), _plain(b.name)]].append((a, b))
    for name, pairs in found.items():
        yield _as_one(model, name, pairs, site)


def _plain(name: str) -> str:
    return name.removesuffix("_c").replace("Gatherv", "Gather").replace("Scatterv", "Scatter")


def _is_pair(model: ReplayModel, place: Sequence[Mapping[int, int]], a: CollectiveCall, b: CollectiveCall) -> bool:
    """Return whether two collectives follow one another on all ranks, without work between them."""
    if (_plain(a.name), _plain(b.name)) not in _IN_TWO or (a.root, a.group) != (b.root, b.group):
        return False
    if not (a.blocking and b.blocking):
        return False
    at = ((rank, place[rank].get(a.collective, -1), place[rank].get(b.collective, -1)) for rank in a.group)
    return all(i >= 0 and j == i + 2 and gap_s(model.steps[rank][j]) <= GRAIN_S for rank, i, j in at)


def _as_one(
    model: ReplayModel, name: str, pairs: Sequence[tuple[CollectiveCall, CollectiveCall]], site: Site
) -> Remedy:
    """Return the remedy that makes one collective, which takes as long as the longer of the two, of each pair."""
    one = {
        a.collective: replace(a, name=name, way=SYNCHRONOUS, root=-1, seconds=max(a.seconds, b.seconds))
        for a, b in pairs
    }
    both = {it.collective for pair in pairs for it in pair}
    second = {b.collective for _, b in pairs}
    calls = tuple(one.get(it.collective, it) for it in model.collectives)
    gone, rows = [], []
    for steps in model.steps:
        of_pairs = [(i, s) for i, s in enumerate(steps) if s.kind in ("join", "joined")]
        gone.append({i for i, s in of_pairs if model.collectives[s.number].collective in second})
        rows += [s.row for _, s in of_pairs if model.collectives[s.number].collective in both]
    evidence = f"{len(pairs)} times data goes to a root, and at once from it to all ranks, at {places(rows, site)}"
    action = f"one {name}, if the root does not change the result before it gives it to all"
    changed = [list(dropped(s, g)) for s, g in zip(model.steps, gone, strict=True)]
    rows = list(dict.fromkeys(rows))
    return Remedy("collective", tuple(rows), evidence, action, model.with_steps(changed, collectives=calls))
