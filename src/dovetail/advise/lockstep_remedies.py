"""lockstep_remedies: remedies for stages that advance only together: let a stage run ahead of the next one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dovetail.advise.chain_remedies import is_signal, signals, work_pieces
from dovetail.advise.order_remedies import SMALL_BYTES, may_be_seldom, without_collectives
from dovetail.advise.remedy import Remedy, Site, by_site, calls_each, dropped, places
from dovetail.advise.replay import while_it_helps
from dovetail.trace.analysis.replay_model import ReplayModel

MANY = 8  # fewer acknowledgements are no loop
MOST_AHEAD = 8  # blocks by which a stage may run ahead
MOSTLY = 0.5  # messages of a chain for each of its ranks' meetings
_KINDS = ("send", "sent", "recv", "received")


def acknowledgements(model: ReplayModel) -> set[int]:
    """Return the tiny messages that let a rank go on which has sent data, after another has worked on these.

    The data may pass other ranks before the last one of them acknowledges it.
    """
    return model.columns.of((acknowledgements, model.steps, model.messages), lambda: _acknowledgements(model))


def _acknowledgements(model: ReplayModel) -> set[int]:
    pieces = work_pieces(model)
    taken_by = {n: piece for piece in pieces for n in piece.taken}
    given_by = {n: piece for piece in pieces for n in piece.given}
    found = set()
    for n in signals(model, pieces):
        sends_data = any(not is_signal(model, m) for m in taken_by[n].given)
        takes_data = any(not is_signal(model, m) for m in given_by[n].taken)
        if sends_data and takes_data:
            found.add(n)
    return found


def run_ahead(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy for ranks that wait for an acknowledgement before they work on the next block.

    In the replay a rank waits for an acknowledgement some blocks later: as many as save more, up to MOST_AHEAD.
    """
    found = acknowledgements(model)
    if len(found) < MANY:
        return
    blocks, best = while_it_helps(model, ((ahead, _later(model, found, ahead)) for ahead in range(1, MOST_AHEAD + 1)))
    if best is None:
        return
    rows = tuple(s.row for steps in model.steps for s in steps if s.kind == "received" and s.number in found)
    ranks = sorted({rank for n in found for rank in (model.messages[n].src, model.messages[n].dst)})
    most = max(model.messages[n].num_bytes for n in found)
    evidence = (
        f"ranks {', '.join(map(str, ranks[:6]))} work in lock-step: {len(found)} times a rank that has sent data "
    )
    evidence += f"waits at {places(rows, site)} until another has worked on them, and answers with {most} bytes"
    action = (
        f"let each stage run ahead by {blocks} block{'s' * (blocks > 1)}: send the next one before waiting for the "
    )
    action += f"answer to the last (MPI_Isend, {blocks + 1} buffers); leave answers out that nothing needs"
    yield Remedy("lockstep", rows, evidence, action, best, is_sure=most == 0)


def _later(model: ReplayModel, found: set[int], ahead: int) -> ReplayModel:
    """Return the model in which each of these messages is waited for where now the one `ahead` later is."""
    series: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for steps in model.steps:
        for step in steps:
            if step.kind == "received" and step.number in found:
                it = model.messages[step.number]
                series[it.src, it.dst, it.key].append(step.number)
    instead = {n: before for those in series.values() for before, n in zip(those, those[ahead:], strict=False)}
    unsent = {n for those in series.values() for n in those[-ahead:]}
    untaken = {n for those in series.values() for n in those[:ahead]}
    changed = []
    for steps in model.steps:
        gone = {
            i
            for i, s in enumerate(steps)
            if (s.kind in ("send", "sent") and s.number in unsent)
            or (s.kind in ("recv", "received") and s.number in untaken)
        }
        moved = [
            s._replace(number=instead[s.number]) if s.kind in ("recv", "received") and s.number in instead else s
            for s in steps
        ]
        changed.append(list(dropped(moved, gone)))
    return model.with_steps(changed)


def in_step(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, for small collectives in which the stages of a chain meet at each block.

    A chain: messages go one way only. Without the collective a stage works as soon as its data are there.
    """
    if not _is_one_way(model):
        return
    for place, found in by_site(model, site, "join").items():
        its = {model.collectives[s.number].collective: model.collectives[s.number] for _, s in found}
        is_each = len(its) >= MANY and len(model.messages) >= MOSTLY * len(its)
        if not is_each or not all(may_be_seldom(it) and it.num_bytes <= SMALL_BYTES for it in its.values()):
            continue
        if any(len(it.group) < len(model.steps) for it in its.values()):
            continue
        name = next(iter(its.values())).name
        evidence = (
            f"the stages of a chain work in lock-step: {calls_each(found, name)} at {place}, though messages go one "
        )
        evidence += "way only: in each block all wait for the slowest"
        action = "let each stage go on as soon as its data are there: without this call, or every k-th time"
        numbers = {s.number for _, s in found}
        changed = without_collectives(model, numbers)
        yield Remedy("pace", tuple(s.row for _, s in found), evidence, action, changed, is_sure=False)


def _is_one_way(model: ReplayModel) -> bool:
    """Return whether ranks send messages, but none to a rank from which its own come, over others or directly."""
    after: dict[int, set[int]] = defaultdict(set)
    for src, dst in model.sent_to:
        after[src].add(dst)
    for rank in [*after]:
        seen, last = set[int](), {rank}
        while last := {dst for src in last for dst in after.get(src, ())} - seen:
            seen |= last
        if rank in seen:
            return False
    return bool(after)
