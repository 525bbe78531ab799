"""retrace: why a slot is wrong, by the reference, which is run on only those ops and slots that reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.ir.blame import too_much, wrong_fault
from dovetail.ir.certificate import Fault
from dovetail.ir.greedy import Run
from dovetail.ir.program import Program
from dovetail.ir.symbolic import Wrong
from dovetail.ir.symbols import Symbols, TooManyError
from dovetail.ir.types import Kind, Op, Region

_SHOWN = 12  # ops that are pointed at where it takes too long to retrace
_MOST_OPS = 10_000  # that are retraced, and slots that these touch, and atoms that are added in all
_MOST_SLOTS = 200_000
_MOST_ATOMS = 1_000_000


def retraced(program: Program, verdict: Mapping[str, Any]) -> Fault:
    """The fault of the first wrong slot that native/ir found; what takes long to retrace is only pointed at."""
    wrong, order = Wrong(*verdict["wrong"][0]), verdict["slice"]
    if len(order) <= _MOST_OPS:
        ops = _narrowed(program, verdict)
        touched = sum(region.num_slots for op in ops.values() for region in (*op.reads, *op.writes))
        try:
            if touched <= _MOST_SLOTS:
                run = _run(program, verdict, ops)
                return wrong_fault(program, run, ops, run.order, wrong, Symbols(_MOST_ATOMS))
        except TooManyError:
            pass
    return too_much(program, wrong, tuple(order[-_SHOWN:]), f"too much to retrace: {len(order)} ops reach it")


def _run(program: Program, verdict: Mapping[str, Any], ops: Mapping[int, Op]) -> Run:
    """The part of the run in which these ops ran."""
    run = Run(order=verdict["slice"])
    pairs = zip(run.order, verdict["slice_matched"], strict=True)
    run.matched = {row: sender for row, sender in pairs if sender >= 0}
    calls = [row for row in run.order if ops[row].kind == Kind.collective]
    while calls:
        size = len(program.collectives[ops[calls[0]].call].group)
        run.groups |= dict.fromkeys(calls[:size], tuple(calls[:size]))
        calls = calls[size:]
    return run


def _narrowed(program: Program, verdict: Mapping[str, Any]) -> dict[int, Op]:
    """The ops with those slots of their regions that matter: of a message, all that its sender sends of it."""
    order: Sequence[int] = verdict["slice"]
    ops = {row: program.op(row) for row in order}
    if any(region.blocks != 1 for op in ops.values() for region in (*op.reads, *op.writes)):
        return ops
    places: dict[int, tuple[int, int]] = {}
    for row, sender, *ends in zip(*(verdict[f"slice{x}"] for x in ("", "_matched", "_first", "_last")), strict=True):
        places[row] = places[sender] if sender >= 0 else (ends[0], ends[1])
    return {row: op if places[row][1] < 0 else _cut(op, *places[row]) for row, op in ops.items()}


def _cut(op: Op, first: int, last: int) -> Op:
    def cut(region: Region) -> Region:
        return region._replace(offset=region.offset + first, count=last - first)

    return op._replace(reads=tuple(map(cut, op.reads)), writes=tuple(map(cut, op.writes)))
