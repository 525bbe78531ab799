"""verify: proves a Program, or finds the counterexample. The plain Python reference, and the door to the fast one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dovetail.core import ProgramError
from dovetail.ir.bounds import bounds_fault, collective_fault, message_fault
from dovetail.ir.certificate import CHECKS, Certificate, Check, Fault
from dovetail.ir.deadlock import deadlock_fault, unmatched_fault
from dovetail.ir.greedy import Greedy, Run
from dovetail.ir.limits import limits_fault
from dovetail.ir.parts import Kind
from dovetail.ir.plain import Plain, name_op
from dovetail.ir.program import Program, check_columns
from dovetail.ir.races import races_fault
from dovetail.ir.symbolic import Execution, first_wrong, trail, wrong_fault
from dovetail.ir.symbols import Symbols
from dovetail.ir.text import op_text

_SHOWN = 12  # ops of a counterexample that are put in words
_PROVED = {
    "bounds": "every access, peer and call fits",
    "deadlock": "it completes in every timing",
    "races": "conflicting accesses are ordered in every timing",
    "result": "every post-condition holds",
    "limits": "no target asked",
}


class Findings(NamedTuple):
    """What the checks found, by name: a Fault, or None. Checks that are absent were not reached."""

    faults: dict[str, Fault | None]
    min_fifo_depth: int | None = None


def verify(program: Program, target: str | None = None) -> Certificate:
    """Prove `program`: bounds, deadlock, races, result, and the limits of `target` (DESIGN section 4).

    Never raises for a bad program: the Certificate tells. ProgramError for an unknown target.
    """
    return verify_reference(program, target)


def verify_reference(program: Program, target: str | None = None) -> Certificate:
    """`verify` in plain Python: exact values, vector clocks for every op, tens of thousands of ops a second."""
    return certify(program, _reference(program), target)


def _reference(program: Program) -> Findings:
    try:
        check_columns(program)
    except ProgramError as error:
        return Findings({"bounds": Fault(error.what)})
    bounds = bounds_fault(program)
    if bounds:
        return Findings({"bounds": bounds})
    plain = Plain(program)
    run = Greedy(plain)()
    bounds = _matches_fault(plain, run)
    faults = {"bounds": bounds, "deadlock": _deadlock(plain, run)}
    if run.complete and not bounds:
        faults |= {"races": races_fault(plain, run), "result": _result(plain, run)}
    return Findings(faults, run.depth if run.complete else None)


def _matches_fault(plain: Plain, run: Run) -> Fault | None:
    """The first message, or call of a collective, whose ends disagree on sizes."""
    for row in run.order:
        fault = None
        members = run.groups.get(row, ())
        if row in run.matched and plain.ops[row].kind != Kind.wait:
            fault = message_fault(plain.program, plain.ops[run.matched[row]], plain.ops[row])
        elif members and row == members[0]:
            fault = collective_fault(plain.program, [plain.ops[member] for member in members])
        if fault:
            return fault
    return None


def _deadlock(plain: Plain, run: Run) -> Fault | None:
    if not run.complete:
        return deadlock_fault(plain.program, run.done, None)
    declared = [channel.depth for channel in plain.program.channels]
    if min(declared, default=run.depth) < run.depth:
        shallow = Greedy(plain, declared)()
        if not shallow.complete:
            return too_shallow(plain.program, shallow.done, declared, run.depth)
    return unmatched_fault(plain.program, run.unmatched[0]) if run.unmatched else None


def too_shallow(program: Program, done: Sequence[int], declared: Sequence[int], least: int) -> Fault:
    """The deadlock at the declared depths, with the depth that would do."""
    fault = deadlock_fault(program, done, declared)
    return fault._replace(hint=f"declare depth {least}, the least that completes on every channel")


def _result(plain: Plain, run: Run) -> Fault | None:
    execution = Execution(plain.program, run, Symbols())
    execution.execute(plain.ops, run.order)
    wrong = first_wrong(plain.program, execution)
    if wrong is None:
        return None
    return wrong_fault(plain.program, execution, wrong, trail(plain.program, run, plain.ops, run.order, wrong))


def certify(program: Program, findings: Findings, target: str | None) -> Certificate:
    """Findings as a Certificate, in words."""
    faults = dict(findings.faults)
    if target is not None and faults.get("bounds") is None:
        faults["limits"] = limits_fault(program, target)
    failed = next((name for name in CHECKS if faults.get(name)), None)
    checks = {}
    for name in CHECKS:
        fault = faults.get(name)
        if fault:
            checks[name] = _failed(program, fault)
        elif name in faults or (name == "limits" and target is None):
            checks[name] = Check(True, _proved(program, name, target, findings))
        else:
            checks[name] = Check(False, f"not reached: the {failed} check failed")
    return Certificate(program.name, checks, findings.min_fifo_depth, None, target)


def _failed(program: Program, fault: Fault) -> Check:
    shown = [schedule_line(program, row) for row in fault.ops[:_SHOWN]]
    if len(fault.ops) > _SHOWN:
        shown.append(f"... and {len(fault.ops) - _SHOWN} more")
    where = program.op(fault.ops[0]).line if fault.ops else None
    return Check(False, fault.what, fault.ops, where, fault.found, fault.hint, tuple(shown))


def schedule_line(program: Program, row: int) -> str:
    """An op of a counterexample: its name, its text, its source line."""
    try:
        text = op_text(program, row)
    except (ProgramError, IndexError):  # so malformed that it has no text
        text = "malformed"
    line = program.op(row).line
    return f"{name_op(program, row)}: {text}" + (f"  ({line})" if line else "")


def _proved(program: Program, name: str, target: str | None, findings: Findings) -> str:
    if name == "deadlock":
        return f"{_PROVED[name]}, with channels {findings.min_fifo_depth} deep or deeper"
    if name == "limits" and target is not None:
        return f"within the limits of {target}"
    if name != "result":
        return _PROVED[name]
    unasked = unasked_slots(program)
    text = _PROVED[name] if program.posts else "the program has no post-condition: nothing was asked"
    return f"{text}; {unasked} output slots are asked for by none" if unasked and program.posts else text


def unasked_slots(program: Program) -> int:
    """Output slots, over all ranks, that no post-condition speaks of."""
    asked = {b.name: [np.zeros(n, dtype=bool) for n in b.slots] for b in program.buffers if b.role == "output"}
    for post in program.posts:
        for rank in post.ranks if post.region.buffer in asked else ():
            asked[post.region.buffer][rank][post.region.slots()] = True
    return sum(int(np.count_nonzero(~part)) for parts in asked.values() for part in parts)
