"""signal_remedies: remedies for messages that only order the ranks: turns by a token, empty messages, tiny tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dovetail.advise.chain_remedies import signals, work_pieces
from dovetail.advise.lockstep_remedies import acknowledgements
from dovetail.advise.remedy import GRAIN_S, Remedy, Site, crosses, dropped, duration, gap_s, places
from dovetail.trace.analysis.replay_model import ReplayModel, Step

MANY = 16  # fewer messages are no loop
TASKS = 8  # tasks that one message brings in a replay
LARGE = 4.0  # tasks that take longer than so many times what their messages take are large enough
_KINDS = ("send", "sent", "recv", "received")


def _without(model: ReplayModel, numbers: set[int]) -> ReplayModel:
    gone = [{i for i, s in enumerate(steps) if s.kind in _KINDS and s.number in numbers} for steps in model.steps]
    return model.with_steps([list(dropped(s, g)) for s, g in zip(model.steps, gone, strict=True)])


def _received_rows(model: ReplayModel, numbers: set[int]) -> tuple[int, ...]:
    return tuple(s.row for steps in model.steps for s in steps if s.kind == "received" and s.number in numbers)


def turns(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy for ranks that work one after another, each when a tiny message comes: all at once.

    The trace does not show whether the message is a mere signal, or brings a number that the work needs. Answers to
    data are left to `run_ahead`.
    """
    numbers = signals(model, work_pieces(model)) - acknowledgements(model)
    if len(numbers) < MANY:
        return
    rows = _received_rows(model, numbers)
    most = max(model.messages[n].num_bytes for n in numbers)
    evidence = (
        f"ranks work one after another: {len(numbers)} messages of up to {most} bytes at {places(rows, site)} end "
    )
    evidence += "one rank's work, and begin another's"
    action = (
        "let the ranks work at once, without this order, if the message is a mere signal (a token, a lock, `ready`); "
    )
    action += "wait only for what must not overlap; if it brings a number, send that as soon as it is known"
    yield Remedy("turns", rows, evidence, action, _without(model, numbers), is_sure=False)


def empty(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that leaves out messages without data, for which ranks wait. Answers are left to `run_ahead`."""
    numbers = {n for n, it in enumerate(model.messages) if it.num_bytes == 0} - acknowledgements(model)
    rows = _received_rows(model, numbers)
    if len(rows) < MANY:
        return
    evidence = f"{len(rows)} messages without data at {places(rows, site)} make ranks wait for their senders"
    action = "leave them out: wait for those ranks only from which data come"
    if any("eighbor" in name for name in model.names):
        action += " (make the graph of the neighbours without these edges)"
    yield Remedy("needless", rows, evidence, action, _without(model, numbers))


def tiny_tasks(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy for work that takes hardly longer than the messages that bring it: more of it for each message.

    A task: a rank sends, receives from the same rank, and works until it sends to it again. In the replay one message
    brings TASKS tasks.
    """
    drop, rows, work_s, wait_s = set[int](), list[int](), 0.0, 0.0
    trips_of = [list(_trips(model, steps)) for steps in model.steps]
    spent: dict[tuple[int, int], float] = defaultdict(float)
    for rank, trips in enumerate(trips_of):
        for trip in trips:
            spent[rank, model.messages[trip[0]].dst] += _task_s(model.steps[rank], trip)
    for rank, steps in enumerate(model.steps):
        tasks = [
            trip
            for trip in trips_of[rank]
            if _task_s(steps, trip) < LARGE * _trip_s(model, trip)
            and spent[rank, (other := model.messages[trip[0]].dst)] > spent[other, rank]  # not the rank that answers
        ]
        if len(tasks) < TASKS * MANY:
            continue
        for k, trip in enumerate(tasks):
            work_s += _task_s(steps, trip)
            wait_s += _trip_s(model, trip)
            rows.append(steps[trip[2]].row)
            drop |= {trip[0], trip[1]} if k % TASKS else set()
    if not drop:
        return
    evidence = (
        f"{len(rows)} times a rank asks another, waits for the answer, and works {duration(work_s / len(rows))}; both "
    )
    evidence += f"messages take {duration(wait_s / len(rows))}, at {places(rows, site)}"
    action = (
        f"send {TASKS} tasks, or more, by one message (in the replay {TASKS}), or ask for the next task before the work"
    )
    yield Remedy("tasks", tuple(rows), evidence, action, _without(model, drop), is_sure=False)


def _trips(model: ReplayModel, steps: Sequence[Step]) -> Iterator[tuple[int, int, int]]:
    """Yield the messages of a rank to another and, at once, back, with the index of the step that receives the second.

    Ranks that exchange borders of a grid send both before they receive: these are no tasks.
    """
    asked = -1
    for i, step in enumerate(steps):
        if step.kind == "send":
            asked = step.number
        elif step.kind == "received" and asked >= 0:
            is_answer = model.messages[asked].dst == model.messages[step.number].src and gap_s(step) <= GRAIN_S
            if is_answer and not crosses(model, asked):
                yield asked, step.number, i
            asked = -1


def _task_s(steps: Sequence[Step], trip: tuple[int, int, int]) -> float:
    """Return the seconds of work that follow the second message."""
    return gap_s(steps[min(trip[2] + 1, len(steps) - 1)])


def _trip_s(model: ReplayModel, trip: tuple[int, int, int]) -> float:
    """Return the seconds that both messages of a task take."""
    sizes = [model.messages[n] for n in trip[:2]]
    return sum(it.delay_s if it.delay_s is not None else float(model.delays(it.num_bytes)) for it in sizes)
