"""star_remedies: a remedy for a rank that sends to all others, one after the other: a collective passes data on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, log2
from typing import NamedTuple

from dovetail.advise.ready_remedies import to_several
from dovetail.advise.remedy import Remedy, Site, dropped, places
from dovetail.trace.analysis.replay_model import FROM_ROOT, CollectiveCall, ReplayModel, StepKind

MANY = 16  # fewer rounds are no loop
LEAST_RANKS = 3  # of two ranks, one message does it
_AS_MEMBER: dict[StepKind, StepKind] = {"recv": "join", "received": "joined"}


class _Round(NamedTuple):
    """One message from a rank to each other: their numbers, and the indices of the steps that send them."""

    root: int
    at: list[int]
    numbers: list[int]


def to_all(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by rank and call site, for messages of one size to all other ranks in a row: one collective.

    Its tree takes as many messages, one after another, as it has levels.
    """
    found: dict[tuple[int, str], list[_Round]] = defaultdict(list)
    for rank, steps in enumerate(model.steps if len(model.steps) >= LEAST_RANKS else ()):
        for at in to_several(model, steps):
            numbers = [steps[i].number for i in at]
            is_one_size = len({model.messages[n].num_bytes for n in numbers}) == 1
            if len(at) == len(model.steps) - 1 and is_one_size and _are_taken(model, numbers):
                found[rank, site(steps[at[0]].row)].append(_Round(rank, at, numbers))
    for rounds in found.values():
        if len(rounds) >= MANY:
            yield _by_tree(model, rounds, site)


def _are_taken(model: ReplayModel, numbers: Sequence[int]) -> bool:
    """Return whether the receivers' steps show where they take these messages."""
    places_of = [(model.places[model.messages[n].dst], n) for n in numbers]
    return all(("recv", n) in those and ("received", n) in those for those, n in places_of)


def _by_tree(model: ReplayModel, rounds: Sequence[_Round], site: Site) -> Remedy:
    group = tuple(range(len(model.steps)))
    levels = ceil(log2(len(group)))
    calls, steps = list(model.collectives), [list(s) for s in model.steps]
    gone = [set[int]() for _ in steps]
    first = max((it.collective for it in calls), default=-1) + 1
    for nth, it in enumerate(rounds):
        size, number = model.messages[it.numbers[0]].num_bytes, len(calls)
        took_s = levels * float(model.delays(size))
        calls.append(CollectiveCall(first + nth, "MPI_Bcast", group, FROM_ROOT, it.root, size, took_s))
        for k, (i, n) in enumerate(zip(it.at, it.numbers, strict=True)):
            there, root = model.places[model.messages[n].dst], steps[it.root]
            if k == 0:
                root[i] = root[i]._replace(kind="join", number=number)
            elif k < levels:
                root[i] = root[i]._replace(kind="own", number=-1)
            else:
                gone[it.root].add(i)
            gone[it.root] |= {model.places[it.root]["sent", n]} if ("sent", n) in model.places[it.root] else set()
            other = steps[model.messages[n].dst]
            for kind, instead in _AS_MEMBER.items():
                at = there[kind, n]
                other[at] = other[at]._replace(kind=instead, number=number)
    rows = tuple(model.steps[it.root][i].row for it in rounds for i in it.at)
    sums = [{model.sent_checksums.get(n, 0) for n in it.numbers} for it in rounds]
    is_same = all(len(those) == 1 and 0 not in those for those in sums)
    most = max(model.messages[n].num_bytes for it in rounds for n in it.numbers)
    evidence = (
        f"{len(rounds)} times rank {rounds[0].root} sends up to {most} bytes to each of {len(group) - 1} ranks at "
    )
    evidence += f"{places(rows, site)}, one after the other{', the same to all' * is_same}"
    action = "MPI_Bcast" if is_same else "MPI_Bcast if all get the same, else MPI_Scatter (MPI_Scatterv)"
    action += ": then ranks pass the data on, and the root need not send to each"
    changed = model.with_steps([dropped(s, g) for s, g in zip(steps, gone, strict=True)], collectives=tuple(calls))
    least = [replace(it, seconds=it.seconds / levels) if it.collective >= first else it for it in calls]
    return Remedy("collective", rows, evidence, action, changed, is_same, replace(changed, collectives=tuple(least)))
