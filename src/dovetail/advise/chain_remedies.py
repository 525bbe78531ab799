"""chain_remedies: remedies for ranks that work one after another: blocks in pieces, requests to all before answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, crosses, gap_s, places
from dovetail.advise.replay import while_it_helps
from dovetail.trace.analysis.replay_model import Message, ReplayModel, Step, StepKind

ELEMENT_BYTES = 8  # a message may be split into pieces of at least one number
MOST_PIECES = 64
MOST_PARTS = 20_000  # pieces of all blocks in a replay
MANY = 4  # fewer handed-on blocks, or answers, are no pattern: two begin and end a run, one repeats by chance


@dataclass
class Piece:
    """One rank's work between two bursts of calls: `at`: index of the step that follows the work."""

    rank: int
    at: int
    taken: list[int] = field(default_factory=list)  # messages received directly before
    given: list[int] = field(default_factory=list)  # messages sent directly after


def pipeline(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield a remedy that hands blocks on in pieces: then the next rank works on the first while this makes the rest.

    The number of pieces is that with the shortest replay; each further piece costs its ranks the calls' own time.
    """
    pieces = work_pieces(model)
    chosen = _handed_on(model, pieces)
    if len(chosen) < MANY:
        return
    most = min(
        min(model.messages[n].num_bytes for n in chosen) // ELEMENT_BYTES, MOST_PIECES, MOST_PARTS // len(chosen)
    )
    tries = ((2**k, _in_pieces(model, pieces, chosen, 2**k)) for k in range(1, most.bit_length()))
    count, best = while_it_helps(model, tries)
    if best is None:
        return
    rows = [s.row for steps in model.steps for s in steps if s.kind == "received" and s.number in chosen]
    rows += [s.row for steps in model.steps for s in steps if s.kind == "send" and s.number in chosen]
    evidence = (
        f"at {places(rows, site)} a rank begins its work when all of the other rank's work is done, {len(chosen)}"
    )
    evidence += f" times, although each hands on up to {max(model.messages[n].num_bytes for n in chosen)} bytes"
    action = f"hand each block on in pieces ({count} in the replay), each as soon as it is ready, and work on piece k "
    action += "while the other rank makes piece k + 1 (if a piece needs no later one; dovetail.pipelines does so)"
    yield Remedy("pipeline", tuple(rows), evidence, action, best, is_sure=False)


def _pieces(model: ReplayModel, rank: int) -> Iterator[Piece]:
    """Yield a rank's pieces of work, with the messages received before and sent after them without other work."""
    current: Piece | None = None
    before: list[int] = []
    is_open = True
    for at, step in enumerate(model.steps[rank]):
        if gap_s(step) > GRAIN_S:
            if current is not None:
                yield current
            current, before, is_open = Piece(rank, at, before), [], True
        if step.kind == "received":
            before.append(step.number)
        elif step.kind in ("join", "joined"):
            before, is_open = [], False
        elif step.kind == "send" and current is not None and is_open and not before:
            current.given.append(step.number)
    if current is not None:
        yield current


def _handed_on(model: ReplayModel, pieces: Sequence[Piece]) -> set[int]:
    """Return the messages that one piece of work ends with and another begins with, and that answer no request."""
    takes = {n for piece in pieces for n in piece.taken}
    found = set()
    for piece in pieces:
        is_asked = any(model.messages[n].num_bytes < 2 * ELEMENT_BYTES for n in piece.taken)
        for n in piece.given:
            is_long = model.messages[n].num_bytes >= 2 * ELEMENT_BYTES
            if n in takes and is_long and not is_asked and not crosses(model, n):
                found.add(n)
    return found


def work_pieces(model: ReplayModel) -> list[Piece]:
    """Return the pieces of work of all ranks."""
    return [piece for rank in range(len(model.steps)) for piece in _pieces(model, rank)]


def signals(model: ReplayModel, pieces: Sequence[Piece]) -> set[int]:
    """Return the tiny messages that one rank's piece of work ends with and another rank's piece begins with."""
    takes = {n for piece in pieces for n in piece.taken}
    given = {n for piece in pieces for n in piece.given}
    return {n for n in takes & given if is_signal(model, n) and not crosses(model, n)}


def is_signal(model: ReplayModel, number: int) -> bool:
    """Return whether a message is hardly larger than one number."""
    return model.messages[number].num_bytes <= 2 * ELEMENT_BYTES


def _in_pieces(model: ReplayModel, pieces: Sequence[Piece], chosen: set[int], count: int) -> ReplayModel:
    messages, parts = list(model.messages), dict[int, list[int]]()
    for n in sorted(chosen):
        parts[n] = [n, *range(len(messages), len(messages) + count - 1)]
        part = _part(model, model.messages[n], count)
        messages[n] = part
        messages += [part] * (count - 1)
    changed = []
    for rank, steps in enumerate(model.steps):
        at = {piece.at: piece for piece in pieces if piece.rank == rank and chosen & {*piece.taken, *piece.given}}
        changed.append(list(_split(steps, at, parts, count)))
    return model.with_steps(changed, messages=tuple(messages))


def _part(model: ReplayModel, message: Message, count: int) -> Message:
    size = max(message.num_bytes // count, 1)
    usual_s = float(model.delays(size))
    delay_s = min(message.delay_s, usual_s) if message.delay_s is not None else usual_s
    waits = bool(model.delays.limits.is_rendezvous(size, message.src, message.dst))
    held = message.rendezvous and (message.synchronous or waits)
    return replace(message, num_bytes=size, delay_s=delay_s, rendezvous=held)


def _split(steps: Sequence[Step], at: dict[int, Piece], parts: dict[int, list[int]], count: int) -> Iterator[Step]:
    """Yield a rank's steps with these pieces of work, and the messages around them, in `count` parts."""
    rows = {(s.kind, s.number): s.row for s in steps if s.number in parts}
    spent = [after.after_s for step, after in pairwise(steps) if step.number in parts]
    more_s = sum(spent) / max(len(spent), 1)
    own_s = within_s = 0.0
    for i, step in enumerate(steps):
        if i in at:
            yield step._replace(seconds=own_s + step.within_s, within_s=within_s + step.within_s, kind="own", number=-1)
            yield from _loop(at[i], gap_s(step), parts, count, rows, more_s)
            step = step._replace(seconds=0.0, within_s=0.0)
            own_s = within_s = 0.0
        if step.number in parts and step.kind in ("send", "recv"):
            own_s, within_s = own_s + step.seconds, within_s + step.within_s
            continue
        step = step._replace(seconds=own_s + step.seconds, within_s=within_s + step.within_s)
        own_s = within_s = 0.0
        yield step
        if step.kind == "sent" and step.number in parts:
            yield from (step._replace(seconds=0.0, within_s=0.0, number=n) for n in parts[step.number][1:])


def _loop(
    piece: Piece,
    work_s: float,
    parts: dict[int, list[int]],
    count: int,
    rows: dict[tuple[StepKind, int], int],
    more_s: float,
) -> Iterator[Step]:
    """Yield the work in parts: before each but the first the next part is received, after each its part is sent."""
    taken, given = ([n for n in those if n in parts] for those in (piece.taken, piece.given))
    for k in range(count):
        for n in taken if k else ():
            yield Step(more_s, "received", parts[n][k], rows["received", n])
        yield Step(work_s / count, "own", -1, -1)
        for n in given:
            yield Step(more_s if k else 0.0, "send", parts[n][k], rows["send", n])


def dispatch(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, for a rank that waits for one rank's answer before it asks the next rank."""
    changed, late = [], defaultdict[str, list[int]](list)
    for steps in model.steps:
        moved: list[int] = []
        changed.append(list(_answers_later(model, steps, moved)))
        for row in moved:
            late[site(row)].append(row)
    rows = [row for those in late.values() for row in those]
    if len(rows) < MANY:
        return
    of_these = set(rows)
    asked = {
        model.messages[s.number].src
        for steps in model.steps
        for s in steps
        if s.kind == "received" and s.row in of_these
    }
    evidence = (
        f"{len(rows)} answers at {', '.join(late)} are waited for before another of {len(asked)} ranks is asked: "
    )
    evidence += "these ranks work one after another"
    action = (
        "send to every rank that is free before waiting for an answer; take answers by MPI_ANY_SOURCE or MPI_Waitany"
    )
    yield Remedy("dispatch", tuple(rows), evidence, action, model.with_steps(changed), is_sure=False)


def _answers_later(model: ReplayModel, steps: Sequence[Step], moved: list[int]) -> Iterator[Step]:
    """Yield the steps with each answer, and the work on it, put off until its rank is asked again, or a collective.

    An answer is a message from the rank that was sent to last; appends the rows of those put off to `moved`.
    """
    held: list[list[Step]] = []  # an answer and the work on it
    asked, open_answer = -1, False
    for step in steps:
        if open_answer and held and step.seconds > 0:
            held[-1].append(step._replace(kind="own", number=-1))
            step = step._replace(seconds=0.0, within_s=0.0)
        if step.kind == "send":
            asked = model.messages[step.number].dst
            if open_answer and model.messages[held[-1][0].number].src != asked:
                moved.append(held[-1][0].row)
            yield from _released(model, held, asked)
            open_answer = False
        elif step.kind in ("join", "joined", "end"):
            yield from (each for unit in held for each in unit)
            held, open_answer = [], False
        elif step.kind in ("recv", "received") and _answers(model, step.number, asked):
            if step.kind == "received":
                held.append([step])
                open_answer = True
                continue
        elif step.kind == "received":
            yield from (each for unit in held for each in unit)
            held, open_answer = [], False
        yield step
    yield from (each for unit in held for each in unit)


def _answers(model: ReplayModel, number: int, asked: int) -> bool:
    """Return whether a message comes from this rank, which sent it after it had received a message."""
    return model.messages[number].src == asked and not crosses(model, number)


def _released(model: ReplayModel, held: list[list[Step]], rank: int) -> Iterator[Step]:
    """Yield the answers of a rank, and drop them from `held`; those of other ranks stay."""
    mine = [unit for unit in held if model.messages[unit[0].number].src == rank]
    held[:] = [unit for unit in held if model.messages[unit[0].number].src != rank]
    yield from (each for unit in mine for each in unit)
