"""certify: the verdict on an MSCCL++ plan, in the certificate's five checks, and `reuse`."""

from __future__ import annotations

from dataclasses import replace

from dovetail.collective.mscclpp import columns
from dovetail.collective.mscclpp.columns import Launched
from dovetail.collective.mscclpp.explain import ONLY_PACKETS, clash, explain
from dovetail.collective.mscclpp.groups import joined
from dovetail.collective.mscclpp.launch import launch, sweeps_of
from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.memory import check_scratch
from dovetail.collective.mscclpp.pieces import Pieces
from dovetail.collective.mscclpp.plan import MscclppPlan
from dovetail.collective.mscclpp.reuse import is_lending, reuse
from dovetail.collective.mscclpp.seen import Unseen, unseen
from dovetail.core.collector import paused
from dovetail.ir import Certificate, Check, Program, verify
from dovetail.ir.proof.certificate import CHECKS, REUSE
from dovetail.ir.proof.verify import verify_order

Found = tuple[Check, Lowering, Launched]  # a check, and the rows to which its ops refer


@paused()
def certify(plan: MscclppPlan, target: str | None = None) -> Certificate:
    """Prove a plan for one launch and for several in a row: gpus start and end their kernels at different
    times, and a run must not disturb the previous one. Limits are those of MSCCL++'s executor, and of `target`.

    The check `reuse` tells whether a caller may overwrite its buffers once the kernels have ended. It does not affect
    `ok`. Ops in checks are rows of `launched(plan)`; in `races` and `reuse`, of `launched(plan, loose=True)`.

    Raises ProgramError if the proof cannot decide whether packets and plain chunks disturb one another in scratch.
    """
    rows, once = _once(plan)
    verdict = explain(verify(once.program, target), rows, once)
    for name, remark in plan.rows.faults.items():
        if verdict.checks[name].ok:
            verdict = _replaced(verdict, name, Check(False, remark.what, where=remark.where))
    if verdict.checks["bounds"].ok and verdict.checks["deadlock"].ok:
        verdict = _replaced(verdict, "races", taken_whole(plan) or _races(plan)[0])
    verdict = _with_limits(verdict, plan)
    if verdict.ok:  # a failure with separate packets and chunks is also one with shared scratch
        check_scratch(plan.document)
    return replace(verdict, checks=_with_reuse(verdict, plan), min_fifo_depth=None)  # channels hold no messages


def launched(plan: MscclppPlan, *, loose: bool = False) -> Program:
    """Return `plan.program` with the starts and ends of its kernels: for each gpu, copies of its input and
    output onto themselves, which represent accesses before and after. With `loose`, threads run unsynchronised, and the
    plan runs several times in a row.
    """
    if not loose:
        return _once(plan)[1].program
    return (_races(plan) if is_lending(plan.document) else _loose(plan))[-1].program


def _once(plan: MscclppPlan) -> tuple[Lowering, Launched]:
    """One run with threads in lockstep. Port channels read the caller's buffers before the kernels' ends."""
    rows = launch(plan.document, plan.rows.memory.how, is_lent=True) if is_lending(plan.document) else plan.rows
    return rows, columns.launched(rows)


def _races(plan: MscclppPlan) -> Found:
    """Races of the plan's ops with one another, and with a caller that waits for the reads of port channels."""
    lowering, several = _loose(plan)
    found = _ordered(lowering, several)
    if found[0].ok or not is_lending(plan.document):
        return found
    among = _ordered(lowering, _several(lowering, has_caller=False))
    if not among[0].ok:
        return among
    return _ordered(*_loose(plan, is_lent=True))


def _ordered(lowering: Lowering, several: Launched) -> Found:
    verdict = verify_order(several.program)
    if not verdict.checks["races"].ok:
        return explain(verdict, lowering, several).checks["races"], lowering, several
    lost = unseen(several)
    if lost.read:
        verdict = _replaced(verdict, "races", Check(False, ONLY_PACKETS, lost.read))
        return explain(verdict, lowering, several).checks["races"], lowering, several
    return _remarked(verdict.checks["races"], lowering, several, lost), lowering, several


def taken_whole(plan: MscclppPlan) -> Check | None:
    """Return a passed check of races if they pass with each op that threadblocks share as one op; else None."""
    document, how = joined(plan.document), plan.rows.memory.how
    if document is None:
        return None
    lowering = launch(document, how, Pieces(sweeps_of(document, how)))
    several = _several(lowering)
    checks = verify_order(several.program).checks
    if not all(checks[name].ok for name in ("bounds", "deadlock", "races")) or (lost := unseen(several)).read:
        return None
    return _remarked(checks["races"], lowering, several, lost)


def _remarked(check: Check, lowering: Lowering, several: Launched, lost: Unseen) -> Check:
    """A passed check of races, with a remark if only packets order two writes, as in plans that MSCCL++ ships."""
    if lost.overwritten is None:
        return check
    what = clash(lowering, several, *lost.overwritten)
    return replace(check, message=f"{check.message}, if writes come in the order of packets: {what}")


def _loose(plan: MscclppPlan, *, is_lent: bool = False) -> tuple[Lowering, Launched]:
    lowering = launch(plan.document, plan.rows.memory.how, Pieces(plan.rows.sweeps), is_lent=is_lent)
    return lowering, _several(lowering)


def _several(lowering: Lowering, *, has_caller: bool = True) -> Launched:
    """As many runs as it takes to use the same scratch again. A further run can only add races: every run leaves
    signals, waits and semaphores as it found them.
    """
    return columns.launched(lowering, 3 if lowering.document.double_scratch else 2, has_caller=has_caller)


def _with_reuse(verdict: Certificate, plan: MscclppPlan) -> dict[str, Check]:
    """The checks, and `reuse` after them. For a plan that is not valid, `reuse` is not examined."""
    if not verdict.ok:
        return {**verdict.checks, REUSE: Check(False, f"not reached: the {verdict.failed} check failed")}
    if not is_lending(plan.document):
        return {**verdict.checks, REUSE: Check(True, "no port channel reads the caller's buffers")}
    return {**verdict.checks, REUSE: reuse(*_loose(plan))}


def _with_limits(verdict: Certificate, plan: MscclppPlan) -> Certificate:
    limits = verdict.checks["limits"]
    if plan.limits and limits.ok:
        where, what = plan.limits[0]
        more = tuple(f"{remark.where}: {remark.what}" for remark in plan.limits[1:9])
        return _replaced(verdict, "limits", Check(False, f"mscclpp 0.9: {what}", where=where, schedule=more))
    if limits.ok and verdict.target is None:
        message = "; ".join(["within the limits of mscclpp 0.9", *plan.notes])
        return _replaced(verdict, "limits", replace(limits, message=message))
    return verdict


def _replaced(verdict: Certificate, name: str, check: Check) -> Certificate:
    return replace(verdict, checks={each: check if each == name else verdict.checks[each] for each in CHECKS})
