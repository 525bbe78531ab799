"""late_remedies: a remedy for ranks that work before a send for which another rank waits: send first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.advise.lockstep_remedies import acknowledgements
from dovetail.advise.remedy import GRAIN_S, Remedy, Site, crosses, duration, gap_s, own_s
from dovetail.trace.analysis.replay_model import ReplayModel, Step

_BEGINS = ("send", "recv", "own")  # steps that wait for nobody
UNKNOWN = 0.5  # share of the work before a send that can be done later, if the trace does not show it
MANY = 8  # fewer answers are no service
WORKS = 0.25  # a rank with more than this share of another's work is no mere dispatcher of that
MOSTLY = 0.5  # more than this share of the work before a late send is more than another rank does before its own


class _Burst(NamedTuple):
    """Sends without work between them. `first`, `last`: indices of the first step and of the last send.

    `work_s`: the work directly before them. `since_s`: the last work before them, perhaps with receives between.
    """

    rank: int
    first: int
    last: int
    work_s: float
    since_s: float
    numbers: list[int]


def send_earlier(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that send before the work that now precedes the sends.

    Sends to ranks from which nothing comes back are left to `pipeline`. If ranks exchange messages, and both work as
    long before they send, none of them is late by its order of work. The trace does not show how much of the work the
    message needs: at most all of it is done later, half of it if each share is as likely. In an exchange it is all: the
    other rank sends before such work.
    """
    at: dict[str, list[_Burst]] = defaultdict(list)
    bursts = [it for rank, steps in enumerate(model.steps) for it in _bursts(rank, steps)]
    reached = {rank: _reached(model, rank) for rank in {dst for _, dst in model.sent_to}}
    for it in _late(model, bursts):
        if it.work_s > GRAIN_S and not _passes_on(model, it, reached):
            at[site(model.steps[it.rank][it.last].row)].append(it)
    for place, late in at.items():
        of_rank: dict[int, dict[int, _Burst]] = defaultdict(dict)
        for it in late:
            of_rank[it.rank][it.first] = it
        is_known = all(any(crosses(model, n) for n in it.numbers) for it in late)
        share = 1.0 if is_known else UNKNOWN
        ranks = [(steps, of_rank.get(rank, {})) for rank, steps in enumerate(model.steps)]
        likely, most = (model.with_steps([_sent_first(*each, moved) for each in ranks]) for moved in (share, 1.0))
        each_s = duration(sum(it.work_s for it in late) / len(late))
        late_ranks = ", ".join(map(str, sorted(of_rank)[:4])) + (" and others" if len(of_rank) > 4 else "")
        evidence = f"rank {late_ranks} works {each_s} before each of {len(late)} sends at {place}; others wait for them"
        action = "send first what others wait for (MPI_Isend), then do the work that the message does not need"
        if not is_known:
            action += " (in the replay half of it: the trace does not show how much that is)"
        taken = {n for it in late for n in it.numbers}
        rows = tuple(s.row for steps in model.steps for s in steps if s.kind == "received" and s.number in taken)
        yield Remedy("send_earlier", rows, evidence, action, likely, is_sure=False, bound=most)


def answer_first(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, for a rank that works between a message and its answer, for which others wait.

    At most, all of the work comes after the answer: the trace does not show how much of it the answer needs. A rank
    that works for one other, which hardly works itself, is its worker: its answer is its work.
    """
    own, at = [own_s(steps) for steps in model.steps], dict[str, list[_Burst]]()
    mere = acknowledgements(model)  # left to `run_ahead`
    for rank, steps in enumerate(model.steps):
        bursts = [it for it in _bursts(rank, steps) if it.work_s > GRAIN_S and _is_answer(model, it)]
        bursts = [it for it in bursts if not mere.issuperset(it.numbers)]
        asked_by = {model.messages[n].dst for it in bursts for n in it.numbers}
        if len(asked_by) > 1 or any(own[other] > WORKS * own[rank] for other in asked_by):
            for it in bursts:
                at.setdefault(site(steps[it.last].row), []).append(it)
    for place, late in at.items():
        if len(late) < MANY:
            continue
        moved = [{it.first: it for it in late if it.rank == rank} for rank in range(len(model.steps))]
        most = model.with_steps([_sent_first(*each, 1.0) for each in zip(model.steps, moved, strict=True)])
        each_s = duration(sum(it.work_s for it in late) / len(late))
        evidence = (
            f"rank {late[0].rank} works {each_s} between a message and its answer at {place}, {len(late)} times, "
        )
        evidence += "while others wait for the answer"
        action = "answer first, then do what the answer does not need, as output, statistics, own work"
        taken = {n for it in late for n in it.numbers}
        rows = tuple(s.row for steps in model.steps for s in steps if s.kind == "received" and s.number in taken)
        yield Remedy("answer_first", rows, evidence, action, most, is_sure=False, root=("work", late[0].rank))


def _is_answer(model: ReplayModel, it: _Burst) -> bool:
    """Return whether sends follow a message of the same rank, which was the first to send."""
    before = _step_before(model.steps[it.rank], it.first)
    if before is None or before.kind != "received":
        return False
    asker = model.messages[before.number].src
    is_pair = {model.messages[n].dst for n in it.numbers} == {asker} and not crosses(model, it.numbers[0])
    return is_pair and _first_s(model, asker, it.rank) < _first_s(model, it.rank, asker)


def _step_before(steps: Sequence[Step], first: int) -> Step | None:
    """Return the last step before this index, but for the rank's own calls, and waits for its sends."""
    return next((steps[i] for i in range(first - 1, -1, -1) if steps[i].kind not in ("own", "sent")), None)


def _bursts(rank: int, steps: Sequence[Step]) -> Iterator[_Burst]:
    """Yield the sends of a rank, with the work before them."""
    first, last, since_s, numbers = 0, 0, 0.0, list[int]()
    for i, step in enumerate((*steps, None)):
        before_s = 0.0 if step is None else gap_s(step)
        if step is None or before_s > GRAIN_S or step.kind not in _BEGINS:
            if numbers:
                yield _Burst(rank, first, last, gap_s(steps[first]), since_s, numbers)
            numbers = []
        if step is None:
            return
        if before_s > GRAIN_S:
            since_s = before_s
        if not numbers and (before_s > GRAIN_S or step.kind not in _BEGINS):
            first = i + (step.kind not in _BEGINS)
        if step.kind == "send":
            last = i
            numbers.append(step.number)


def _late(model: ReplayModel, found: Sequence[_Burst]) -> list[_Burst]:
    """Return the sends for which a rank works longer than their receivers do before theirs to that rank.

    This holds for sends that no rank answers, too. In an exchange the work before the receivers' own sends counts: if
    it is not mostly shorter, no rank is late by its order of work.
    """
    spent_s: dict[tuple[int, int], list[float]] = defaultdict(list)
    for it in found:
        for n in it.numbers:
            spent_s[it.rank, model.messages[n].dst].append(it.since_s)
    mean_s = {pair: sum(those) / len(those) for pair, those in spent_s.items()}
    late = []
    for it in found:
        crossed = [model.messages[n].dst for n in it.numbers if crosses(model, n)]
        if all(mean_s.get((to, it.rank), 0.0) < (1 - MOSTLY) * mean_s[it.rank, to] for to in crossed):
            late.append(it)
    return late


def _passes_on(model: ReplayModel, it: _Burst, reached: Mapping[int, set[int]]) -> bool:
    """Return whether the work before these sends begins with a message that it may need.

    Also whether nothing comes back from a receiver, over other ranks or directly: then it is the next in a chain.
    """
    receivers = {model.messages[n].dst for n in it.numbers}
    if any(it.rank not in reached[rank] for rank in receivers):
        return True
    before = _step_before(model.steps[it.rank], it.first)
    if before is None or before.kind != "received":
        return False
    sender = model.messages[before.number].src
    if sender not in receivers:
        return True
    if sender == it.rank or (it.rank, sender) not in model.sent_to:
        return True
    return not crosses(model, it.numbers[0]) and _first_s(model, sender, it.rank) < _first_s(model, it.rank, sender)


def _reached(model: ReplayModel, rank: int) -> set[int]:
    """Return the ranks to which messages of a rank come, over other ranks or directly."""
    found, last = set[int](), {rank}
    while last := {dst for src, dst in model.sent_to if src in last} - found:
        found |= last
    return found


def _first_s(model: ReplayModel, src: int, dst: int) -> float:
    """Return when the first message from one rank to another was sent."""
    _, numbers = model.sent_to[src, dst]
    return model.messages[numbers[0]].sent_s


def _sent_first(steps: Sequence[Step], bursts: Mapping[int, _Burst], share: float) -> Iterator[Step]:
    """Yield a rank's steps with this share of the work before these bursts after them."""
    moved_s, last = 0.0, -1
    for i, step in enumerate(steps):
        if i in bursts:
            moved_s, last = share * bursts[i].work_s, bursts[i].last
            step = step._replace(seconds=step.seconds - moved_s)
        elif moved_s > 0 and i > last:
            step, moved_s = step._replace(seconds=step.seconds + moved_s), 0.0
        yield step
