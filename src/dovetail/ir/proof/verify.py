"""verify: prove a Program correct, or find a counterexample; in C++, and as a Python reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dovetail.core import ProgramError
from dovetail.ir.op_lists import OpLists, name_op
from dovetail.ir.posts import Posts
from dovetail.ir.program import Program, check_columns
from dovetail.ir.proof.against import check_comparable, unasked_slots
from dovetail.ir.proof.blame import wrong_fault
from dovetail.ir.proof.bounds import bounds_fault, collective_fault, message_fault, op_fault, posts_fault
from dovetail.ir.proof.certificate import CHECKS, Certificate, Check, Fault
from dovetail.ir.proof.deadlock import deadlock_fault, too_shallow, unmatched_fault
from dovetail.ir.proof.greedy import Greedy, Run
from dovetail.ir.proof.limits import check_target, limits_fault
from dovetail.ir.proof.native import holding, judge
from dovetail.ir.proof.races import races_fault, self_fault, slots_fault, turns_fault
from dovetail.ir.proof.retrace import retraced
from dovetail.ir.proof.symbolic import Asked, Execution, first_difference, first_wrong, held
from dovetail.ir.proof.symbols import Symbols
from dovetail.ir.standard import questions
from dovetail.ir.text.write import op_text
from dovetail.ir.types import Kind

Verdict = dict[str, Any]
_SHOWN = 12  # most ops of a counterexample in a text
_PROVED = {
    "bounds": "every access, peer and call is valid",
    "deadlock": "it completes in every timing",
    "races": "conflicting accesses are ordered in every timing",
    "result": "every post-condition holds",
    "limits": "no target named",
}


class Findings(NamedTuple):
    """The Fault that each check found, or None, by the check's name. Checks that are absent were not reached."""

    faults: dict[str, Fault | None]
    min_fifo_depth: int | None = None
    collective_found: str | None = None


def verify(program: Program, target: str | None = None, *, against: Program | None = None) -> Certificate:
    """Prove that a program is correct, or find a counterexample. C++ checks millions of ops a second.

    Parameters
    ----------
    program : Program
        The program to prove.
    target : str, optional
        A runtime whose limits the program must keep, one of `TARGETS`.
    against : Program, optional
        A correct program with the same inputs and outputs. `program` must leave in every output slot that `against`
        writes what `against` leaves there; if they have no outputs, in every input slot that `against` writes.

    Returns
    -------
    Certificate
        The verdict on bounds, deadlock, races, result and limits. An invalid program does not raise: the certificate
        names the fault.

    Raises
    ------
    ProgramError
        If the target is unknown, or `against` is itself wrong or has other inputs and outputs.

    Notes
    -----
    Results are compared by keyed 128-bit hashes: a wrong one passes with a probability below 2^-90. If `program` and
    `against` both repeat the same ops many times, C++ executes a few repetitions and proves the others by induction.
    """
    check_target(target)
    if against is not None:
        check_comparable(program, against, certify(against, _native(against, ask=False), None))
    return certify(program, _native(program, against=against), target, against)


def judge_limits(certificate: Certificate, program: Program, target: str) -> Certificate:
    """Return a program's certificate with its check of limits redone for `target`."""
    check_target(target)
    if not certificate.checks["bounds"].ok:
        return replace(certificate, target=target)
    fault = limits_fault(program, target)
    limits = failed_check(program, fault) if fault else Check(True, f"within the limits of {target}")
    return replace(certificate, checks={**certificate.checks, "limits": limits}, target=target)


def verify_order(program: Program) -> Certificate:
    """Return the certificate of `verify` without the check of results: bounds, deadlock and races only."""
    findings = _native(replace(program, posts=()), ask=False)
    faults = {name: fault for name, fault in findings.faults.items() if name != "result"}
    return certify(program, findings._replace(faults=faults), None)


def least_depth(program: Program) -> int | None:
    """Return the `min_fifo_depth` of a program that has passed the bounds check. Checks nothing else."""
    verdict = judge(program, [])
    return int(verdict["depth"]) if verdict["complete"] else None


def verify_reference(program: Program, target: str | None = None, *, against: Program | None = None) -> Certificate:
    """Return the certificate of `verify`, computed in Python with exact values: tens of thousands of ops a second."""
    check_target(target)
    if against is not None:
        check_comparable(program, against, certify(against, _reference(against), None))
    return certify(program, _reference(program, against), target, against)


def _reference(program: Program, against: Program | None = None) -> Findings:
    bounds = _tables_fault(program) or bounds_fault(program)
    if bounds:
        return Findings({"bounds": bounds})
    lists = OpLists(program)
    run = Greedy(lists)()
    bounds = _matches_fault(lists, run)
    faults = {"bounds": bounds, "deadlock": _deadlock(lists, run)}
    if not run.complete:
        return Findings(faults)
    if bounds:
        return Findings(faults, run.depth)
    execution = Execution(program, run, Symbols())
    execution.execute(lists.ops, run.order)
    faults |= {"races": races_fault(lists, run), "result": _result_fault(execution, lists, against)}
    found = next((name for name, posts in questions(program) if not first_wrong(execution, posts)), None)
    return Findings(faults, run.depth, found)


def _result_fault(execution: Execution, lists: OpLists, against: Program | None) -> Fault | None:
    """Return the fault of the first slot that violates a post-condition, else of the first unlike `against`."""
    program, run, exact = execution.program, execution.run, Symbols()
    wrong = first_wrong(execution, program.posts)
    if wrong:
        wanted = Asked(program, exact).values(program.posts[wrong.post], [wrong.place])[0]
        return wrong_fault(program, run, lists.ops, run.order, wrong, exact, wanted, None)
    if against is None:
        return None
    wrong = first_difference(execution, _executed(against, execution.symbols))
    if wrong is None:
        return None
    wanted = held(_executed(against, exact), wrong)
    return wrong_fault(program, run, lists.ops, run.order, wrong, exact, wanted, against.name)


def _executed(reference: Program, symbols: Symbols) -> Execution:
    lists = OpLists(reference)
    execution = Execution(reference, Greedy(lists)(), symbols, is_reference=True)
    execution.execute(lists.ops, execution.run.order)
    return execution


def _native(program: Program, ask: bool = True, against: Program | None = None) -> Findings:
    """Return what C++ finds. Without `ask`, C++ does not search for the collective that the outputs hold."""
    bounds = _tables_fault(program)
    if bounds:
        return Findings({"bounds": bounds})
    posts = posts_fault(program)
    asks = ask and not posts
    is_asked = asks and len(program.posts) > 0
    own = next((name for name, each in questions(program) if each == program.posts), None) if is_asked else None
    asked = list(questions(program)) if asks and not own else []
    sets = [Posts.of(() if posts else program.posts), *(each for _, each in asked)]
    verdict = judge(program, sets, None if posts else against)
    if verdict["unfit"] >= 0:
        return Findings({"bounds": op_fault(program, program.op(verdict["unfit"]))})
    if posts:
        return Findings({"bounds": posts})
    bounds = _mismatch(program, verdict)
    faults: dict[str, Fault | None] = {"bounds": bounds, "deadlock": _native_deadlock(program, verdict)}
    depth = verdict["depth"] if verdict["complete"] else None
    if not verdict["has_result"]:
        return Findings(faults, depth)
    is_wrong = verdict["wrong"][0] or verdict["differs"]
    faults |= {
        "races": _native_races(program, verdict),
        "result": retraced(program, verdict, against) if is_wrong else None,
    }
    if own and not verdict["wrong"][0]:
        return Findings(faults, depth, own)
    if own:
        asked = list(questions(program))
    holds = holding(program, [each for _, each in asked]) if own else [w is None for w in verdict["wrong"][1:]]
    return Findings(faults, depth, next((name for (name, _), good in zip(asked, holds, strict=True) if good), None))


def _tables_fault(program: Program) -> Fault | None:
    try:
        check_columns(program)
    except ProgramError as error:
        return Fault(error.what)
    return None


def _mismatch(program: Program, verdict: Verdict) -> Fault | None:
    ops = [program.op(row) for row in verdict["mismatch_ops"]]
    if not ops:
        return None
    return collective_fault(program, ops) if ops[0].kind == Kind.collective else message_fault(program, *ops)


def _native_deadlock(program: Program, verdict: Verdict) -> Fault | None:
    if not verdict["complete"]:
        return deadlock_fault(program, verdict["done"], None)
    unmatched = verdict["unmatched"] if verdict["unmatched"] >= 0 else None
    if not verdict["deep_enough"]:
        return too_shallow(program, verdict["done"], verdict["depth"], unmatched)
    return None if unmatched is None else unmatched_fault(program, unmatched)


def _native_races(program: Program, verdict: Verdict) -> Fault | None:
    if verdict["self"] >= 0:
        return self_fault(program, verdict["self"])
    if verdict["turns"]:
        return turns_fault(program, *verdict["turns"])
    return slots_fault(program, *verdict["slots"]) if verdict["slots"] else None


def _matches_fault(lists: OpLists, run: Run) -> Fault | None:
    """Return the fault of the first message, or call of a collective, whose ends disagree on sizes."""
    for row in run.order:
        fault = None
        members = run.groups.get(row, ())
        if row in run.matched and lists.ops[row].kind != Kind.wait:
            fault = message_fault(lists.program, lists.ops[run.matched[row]], lists.ops[row])
        elif members and row == members[0]:
            fault = collective_fault(lists.program, [lists.ops[member] for member in members])
        if fault:
            return fault
    return None


def _deadlock(lists: OpLists, run: Run) -> Fault | None:
    if not run.complete:
        return deadlock_fault(lists.program, run.done, None)
    declared = [channel.depth for channel in lists.program.channels]
    unmatched = run.unmatched[0] if run.unmatched else None
    if min(declared, default=run.depth) < run.depth:
        shallow = Greedy(lists, declared)()
        if not shallow.complete:
            return too_shallow(lists.program, shallow.done, run.depth, unmatched)
    return None if unmatched is None else unmatched_fault(lists.program, unmatched)


def certify(program: Program, findings: Findings, target: str | None, against: Program | None = None) -> Certificate:
    """Return findings as a Certificate, with texts for the user."""
    faults = dict(findings.faults)
    if target is not None and faults.get("bounds") is None:
        faults["limits"] = limits_fault(program, target)
    failed = next((name for name in CHECKS if faults.get(name)), None)
    checks = {}
    for name in CHECKS:
        fault = faults.get(name)
        if fault:
            checks[name] = failed_check(program, fault)
        elif name in faults or (name == "limits" and target is None):
            checks[name] = Check(True, _proved(program, name, target, findings, against))
        else:
            checks[name] = Check(False, f"not reached: the {failed} check failed")
    return Certificate(program.name, checks, findings.min_fifo_depth, findings.collective_found, target)


def failed_check(program: Program, fault: Fault) -> Check:
    """Return a fault as a failed check, with its ops as text."""
    blamed = fault.blamed or fault.ops[:1]
    where = program.op(blamed[0]).line if blamed else None
    return Check(False, fault.what, fault.ops, where, fault.found, fault.hint, _shown(program, fault.ops, blamed))


def _shown(program: Program, ops: Sequence[int], blamed: Sequence[int]) -> tuple[str, ...]:
    """Return the ops as lines of text. If there are many: those blamed, then first and last ones, up to _SHOWN."""
    kept = set(ops)
    if len(kept) > _SHOWN:
        ends = (op for pair in zip(ops, reversed(ops), strict=True) for op in pair)
        kept = set(list(dict.fromkeys([*blamed[:_SHOWN], *ends]))[:_SHOWN])
    lines, left_out = list[str](), 0
    for op in ops:
        if op in kept:
            lines += [_left_out_text(left_out)] if left_out else []
            lines.append(schedule_line(program, op))
            left_out = 0
        else:
            left_out += 1
    return tuple(lines + ([_left_out_text(left_out)] if left_out else []))


def _left_out_text(count: int) -> str:
    return f"... {count} {'op' if count == 1 else 'ops'} left out"


def schedule_line(program: Program, row: int) -> str:
    """Return an op of a counterexample as text: its name, its line of the program's text, its source line."""
    try:
        text = op_text(program, row)
    except (ProgramError, IndexError):  # too malformed to be written as text
        text = "malformed"
    line = program.op(row).line
    return f"{name_op(program, row)}: {text}" + (f"  ({line})" if line else "")


def _proved(program: Program, name: str, target: str | None, findings: Findings, against: Program | None) -> str:
    if name == "deadlock" and findings.faults.get("races"):
        return "it completes in the one order tried; because of the races, it may not in others"
    if name == "deadlock" and program.channels:
        return f"{_PROVED[name]}, with channels {findings.min_fifo_depth} deep or deeper"
    if name == "limits" and target is not None:
        return f"within the limits of {target}"
    if name != "result":
        return _PROVED[name]
    parts = [_PROVED[name]] if program.posts else []
    parts += [f"every output that '{against.name}' writes is the same"] if against is not None else []
    if not parts:
        return "the program has no post-condition: nothing was checked"
    unasked = unasked_slots(program, against)
    return "; ".join(parts + ([f"{unasked} output slots were not checked"] if unasked else []))
