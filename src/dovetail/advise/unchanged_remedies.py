"""unchanged_remedies: remedies for collectives and messages that carry the same data again: once is enough."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from dovetail.advise.remedy import Remedy, Site, by_site, calls_each, dropped, places
from dovetail.trace.analysis.replay_model import FROM_ROOT, CollectiveCall, ReplayModel, Step

MANY = 4  # fewer repetitions are no loop
MANY_SENT = 16  # as MANY, of messages: their checksums are shorter
MOSTLY = 0.5  # share of the calls at a place that must repeat earlier data
SAMPLES = 128  # words of each buffer of which the recorder makes the checksum (native/trace/mpi/mpi_payload.h)


class _Given(NamedTuple):
    """What all ranks gave to one collective: its name, ranks, root and bytes, and the ranks' checksums."""

    name: str
    group: tuple[int, ...]
    root: int
    num_bytes: int
    checksums: tuple[tuple[int, int], ...]  # rank and checksum


def unchanged(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that leave out collectives to which all ranks give what they gave before.

    Data count as equal if the checksums of a sample are: a change between the sampled words is not seen.
    """
    if not model.checksums:
        return
    for place, found in by_site(model, site, "join").items():
        again = _again(model, found)
        numbers = {model.collectives[s.number].collective for _, s in found}
        if len(again) < MANY or len(again) < MOSTLY * len(numbers):
            continue
        dropped_calls = {s.number for _, s in found if model.collectives[s.number].collective in again}
        kinds = ("join", "joined")
        gone = [
            {i for i, s in enumerate(steps) if s.kind in kinds and s.number in dropped_calls} for steps in model.steps
        ]
        changed = model.with_steps([dropped(s, g) for s, g in zip(model.steps, gone, strict=True)])
        its = [model.collectives[s.number] for _, s in found]
        evidence = f"{calls_each(found, its[0].name)} at {place}, of up to {max(it.num_bytes for it in its)} bytes: in "
        evidence += f"{len(again)} of {len(numbers)} the ranks give what they gave before (by {SAMPLES} sampled words)"
        action = "call it when the data have changed only: once, before the loop, if they never do"
        yield Remedy("unchanged", tuple(s.row for _, s in found), evidence, action, changed, is_sure=False)


def _again(model: ReplayModel, found: Sequence[tuple[int, Step]]) -> set[int]:
    """Return the collectives to which every rank gives what it gave to an earlier one of these."""
    sums: dict[int, list[tuple[int, int]]] = defaultdict(list)
    about = dict[int, CollectiveCall]()
    for rank, step in found:
        it = model.collectives[step.number]
        about[it.collective] = it
        if step.row in model.checksums:
            sums[it.collective].append((rank, model.checksums[step.row]))
    seen, again = set[_Given](), set[int]()
    for number, it in sorted(about.items()):
        given = _Given(it.name, it.group, it.root, it.num_bytes, tuple(sorted(sums[number])))
        givers = {it.root} if it.way == FROM_ROOT else set(it.group)
        if givers <= {rank for rank, _ in given.checksums}:
            again |= {number} if given in seen else set()
            seen.add(given)
    return again


def sent_again(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that leaves out messages with the data of the one before, between the same ranks with its tag."""
    series: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for n in sorted(model.sent_checksums, key=lambda n: model.messages[n].sent_s):
        it = model.messages[n]
        series[it.src, it.dst, it.key, it.num_bytes].append(n)
    drop, count = set[int](), 0
    for numbers in series.values():
        again = {n for before, n in pairwise(numbers) if model.sent_checksums[before] == model.sent_checksums[n]}
        if len(again) >= max(MANY_SENT, MOSTLY * len(numbers)):
            drop |= again
            count += len(numbers)
    if not drop:
        return
    kinds = ("send", "sent", "recv", "received")
    gone = [{i for i, s in enumerate(steps) if s.kind in kinds and s.number in drop} for steps in model.steps]
    changed = model.with_steps([dropped(s, g) for s, g in zip(model.steps, gone, strict=True)])
    rows = tuple(s.row for steps in model.steps for s in steps if s.kind == "send" and s.number in drop)
    most = max(model.messages[n].num_bytes for n in drop)
    evidence = f"{len(drop)} of {count} messages of up to {most} bytes at {places(rows, site)} carry the data of the "
    evidence += f"message before (by {SAMPLES} sampled words)"
    action = "send them when they have changed only: once, before the loop, if they never do"
    yield Remedy("unchanged", rows, evidence, action, changed, is_sure=False)
