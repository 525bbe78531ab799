"""grain_remedies: a remedy for a stream of messages that are too small for the work between them: larger blocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from dovetail.advise.remedy import Remedy, Site, crosses, dropped, places
from dovetail.advise.replay import changed_s, makespan_s
from dovetail.advise.traffic_remedies import merged_s, renumbered, send_runs
from dovetail.trace.analysis.delays import LATENCY_BYTES
from dovetail.trace.analysis.replay_model import ReplayModel

MANY = 64  # fewer messages between two ranks are no stream
MOST_TOGETHER = 64
LEAST_SHARE = 0.02  # of the makespan, that a rank spends in calls for these messages
LEAST_GAIN = 0.01  # larger blocks that save less than this share of the makespan are not tried


def coarser(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that sends 2, 4, … 64 messages of a stream, with work between them, as one.

    The sender sends where it sent the last of them, the receiver waits where it received the first: so the receiver
    begins later, but both make fewer calls. The number is that with the shortest replay. If an answer to one of the
    messages is waited for before the next, none can be sent together: the replay then does not end.
    """
    streams = _streams(model)
    if not streams or _most_in_calls_s(model, streams) < LEAST_SHARE * model.makespan_s:
        return
    best, least_s, together, count = None, makespan_s(model), 0, 2
    while count <= MOST_TOGETHER:
        changed = _together(model, streams, count)
        replayed_s = changed_s(changed)
        if replayed_s > least_s - LEAST_GAIN * model.makespan_s:
            break
        best, least_s, together, count = changed, replayed_s, count, 2 * count
    if best is None:
        return
    numbers = {n for stream in streams for n in stream}
    rows = tuple(s.row for steps in model.steps for s in steps if s.kind == "send" and s.number in numbers)
    size = max(model.messages[n].num_bytes for n in numbers)
    evidence = (
        f"{len(numbers)} messages of up to {size} bytes at {places(rows, site)} have a little work between them, "
    )
    evidence += "which takes hardly longer than the calls"
    action = f"hand on larger blocks: {together} of these messages as one"
    yield Remedy("block", rows, evidence, action, best, is_sure=False)


def _streams(model: ReplayModel) -> list[list[int]]:
    """Return the short messages from one rank to another with one tag, in order, that belong to no exchange or run."""
    found: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for steps in model.steps:
        for step in steps:
            if step.kind == "send":
                it = model.messages[step.number]
                found[it.src, it.dst, it.key].append(step.number)
    many = [numbers for numbers in found.values() if len(numbers) >= MANY]
    if not many:
        return []
    runs = (run for rank in range(len(model.steps)) for run in send_runs(model, rank, lambda row: ""))
    in_runs = {n for run in runs for n in run.numbers}
    return [
        numbers
        for numbers in many
        if max(model.messages[n].num_bytes for n in numbers) <= LATENCY_BYTES
        and not any(crosses(model, n) for n in numbers)
        and not in_runs.intersection(numbers)
    ]


def _most_in_calls_s(model: ReplayModel, streams: list[list[int]]) -> float:
    """Return the seconds within the calls for these messages of the rank that spends most there."""
    numbers, spent = {n for stream in streams for n in stream}, Counter[int]()
    for rank, steps in enumerate(model.steps):
        for before, step in pairwise(steps):
            if before.kind in ("send", "received") and before.number in numbers:
                spent[rank] += step.after_s  # type: ignore[assignment]
    return max(spent.values(), default=0.0)


def _together(model: ReplayModel, streams: list[list[int]], count: int) -> ReplayModel:
    messages, gone = list(model.messages), [set[int]() for _ in model.steps]
    first_of: dict[int, int] = {}
    for stream in streams:
        for at in range(0, len(stream), count):
            block = stream[at : at + count]
            first = model.messages[block[0]]
            total = sum(model.messages[n].num_bytes for n in block)
            messages[block[0]] = replace(first, num_bytes=total, delay_s=merged_s(model, block))
            first_of[block[-1]] = block[0]
            _leave_out(model, gone[first.src], first.src, ("send", "sent"), block[:-1])
            _leave_out(model, gone[first.dst], first.dst, ("recv", "received"), block[1:])
    changed = [dropped(renumbered(s, first_of), g) for s, g in zip(model.steps, gone, strict=True)]
    return model.with_steps(changed, messages=tuple(messages))


def _leave_out(model: ReplayModel, gone: set[int], rank: int, kinds: tuple[str, str], numbers: list[int]) -> None:
    places_of = model.places[rank]
    gone |= {places_of[key] for n in numbers for kind in kinds if (key := (kind, n)) in places_of}  # type: ignore[index]
