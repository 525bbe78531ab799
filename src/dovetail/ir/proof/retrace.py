"""retrace: explain why a slot is wrong, by executing in Python only those ops and slots that reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.ir.program import Program
from dovetail.ir.proof.blame import too_much, wrong_fault
from dovetail.ir.proof.certificate import Fault
from dovetail.ir.proof.greedy import Run
from dovetail.ir.proof.symbolic import Asked, Execution, Wrong, held, one_slot
from dovetail.ir.proof.symbols import Symbols, TooManyError
from dovetail.ir.types import Kind, Op, Region

_SHOWN = 12  # ops that are listed if retracing would take too long
_MOST_OPS = 10_000  # most ops that are retraced, slots that these touch, and atoms that are added
_MOST_SLOTS = 200_000
_MOST_ATOMS = 1_000_000


def retraced(program: Program, verdict: Mapping[str, Any], reference: Program | None) -> Fault:
    """Return the fault of the first wrong slot that C++ found; only the last ops if retracing would take too long."""
    slice_, exact = verdict["slice"], Symbols(_MOST_ATOMS)
    wrong, by = _wrong(program, verdict), None if verdict["wrong"][0] or reference is None else reference.name
    order = slice_["ops"]
    try:
        wanted = _wanted(program, wrong, verdict["origin"], exact, reference)
        ops = _narrowed(program, slice_)
        if ops is not None and wanted is not None:
            run = _run(program, slice_, ops)
            return wrong_fault(program, run, ops, run.order, wrong, exact, wanted, by)
    except TooManyError:
        pass
    return too_much(program, wrong, tuple(order[-_SHOWN:]), f"too much to retrace: {len(order)} ops reach it", by)


def _wrong(program: Program, verdict: Mapping[str, Any]) -> Wrong:
    """Return the first slot that violates a post-condition, else the first that differs from the reference."""
    if verdict["wrong"][0]:
        post, rank, place = verdict["wrong"][0]
        return Wrong(post, rank, place, one_slot(program.posts[post].region, place))
    buffer, rank, slot = verdict["differs"]
    return Wrong(-1, rank, 0, Region(program.buffers[buffer].name, slot, 1))


def _wanted(
    program: Program, wrong: Wrong, origin: Mapping[str, Any], exact: Symbols, reference: Program | None
) -> int | None:
    """Return the value that a wrong slot should hold (`origin`: its slice of the reference); None if too large."""
    if wrong.post >= 0:
        return Asked(program, exact).values(program.posts[wrong.post], [wrong.place])[0]
    assert reference is not None
    ops = _narrowed(reference, origin)
    if ops is None:
        return None
    execution = Execution(reference, _run(reference, origin, ops), exact, is_reference=True)
    execution.execute(ops, execution.run.order)
    return held(execution, wrong)


def _run(program: Program, part: Mapping[str, Any], ops: Mapping[int, Op]) -> Run:
    """Return the part of the run that consists of these ops."""
    run = Run(order=part["ops"])
    pairs = zip(run.order, part["matched"], strict=True)
    run.matched = {row: sender for row, sender in pairs if sender >= 0}
    calls = [row for row in run.order if ops[row].kind == Kind.collective]
    while calls:
        size = len(program.collectives[ops[calls[0]].call].group)
        run.groups |= dict.fromkeys(calls[:size], tuple(calls[:size]))
        calls = calls[size:]
    return run


def _narrowed(program: Program, part: Mapping[str, Any]) -> dict[int, Op] | None:
    """Return the ops with only those slots of their regions that reach the wrong slot, of a message all that are sent.

    Returns None if there are too many of these ops or slots.
    """
    order: Sequence[int] = part["ops"]
    if len(order) > _MOST_OPS:
        return None
    ops = {row: program.op(row) for row in order}
    if all(region.blocks == 1 for op in ops.values() for region in (*op.reads, *op.writes)):
        places: dict[int, tuple[int, int]] = {}
        for row, sender, *ends in zip(*(part[x] for x in ("ops", "matched", "first", "last")), strict=True):
            places[row] = places[sender] if sender >= 0 else (ends[0], ends[1])
        ops = {row: op if places[row][1] < 0 else _cut(op, *places[row]) for row, op in ops.items()}
    touched = sum(region.num_slots for op in ops.values() for region in (*op.reads, *op.writes))
    return ops if touched <= _MOST_SLOTS else None


def _cut(op: Op, first: int, last: int) -> Op:
    def cut(region: Region) -> Region:
        return region._replace(offset=region.offset + first, count=last - first)

    return op._replace(reads=tuple(map(cut, op.reads)), writes=tuple(map(cut, op.writes)))
