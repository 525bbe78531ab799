"""certify: the verdict on an MSCCL++ plan, in the certificate's five checks."""

from __future__ import annotations

from dataclasses import replace

from dovetail.collective.mscclpp import columns
from dovetail.collective.mscclpp.columns import Launched
from dovetail.collective.mscclpp.explain import ONLY_PACKETS, clash, explain
from dovetail.collective.mscclpp.groups import joined
from dovetail.collective.mscclpp.launch import launch, sweeps_of
from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.pieces import Pieces
from dovetail.collective.mscclpp.plan import MscclppPlan
from dovetail.collective.mscclpp.seen import Unseen, unseen
from dovetail.core.collector import paused
from dovetail.ir import Certificate, Check, Program, verify
from dovetail.ir.certificate import CHECKS
from dovetail.ir.verify import verify_order


@paused()
def certify(plan: MscclppPlan, target: str | None = None) -> Certificate:
    """Prove a plan, launched once, and launched several times in a row: gpus start and end their kernels at different
    times, and the next run must not disturb the last. Limits are those of MSCCL++'s executor, and of `target`.

    The ops that checks name are rows of `launched(plan)`; those of races, with `loose`.
    """
    once = columns.launched(plan.rows)
    verdict = explain(verify(once.program, target), plan.rows, once)
    for name, remark in plan.rows.faults.items():
        if verdict.checks[name].ok:
            verdict = _replaced(verdict, name, Check(False, remark.what, where=remark.where))
    if verdict.checks["bounds"].ok and verdict.checks["deadlock"].ok:
        verdict = _replaced(verdict, "races", _races(plan))
    return replace(_with_limits(verdict, plan), min_fifo_depth=None)  # its channels hold no messages


def launched(plan: MscclppPlan, *, loose: bool = False) -> Program:
    """The plan between the starts and ends of its kernels: `plan.program`, and for each gpu copies of its input and
    output in place, which stand for what comes before and after. With `loose` threads run each at its own pace, and the
    plan several times in a row.
    """
    return (_loose(plan)[1] if loose else columns.launched(plan.rows)).program


def _races(plan: MscclppPlan) -> Check:
    if (whole := taken_whole(plan)) is not None:
        return whole
    lowering, several = _loose(plan)
    verdict = verify_order(several.program)
    if not verdict.checks["races"].ok:
        return explain(verdict, lowering, several).checks["races"]
    lost = unseen(several)
    if lost.read:
        verdict = _replaced(verdict, "races", Check(False, ONLY_PACKETS, lost.read))
        return explain(verdict, lowering, several).checks["races"]
    return _remarked(verdict.checks["races"], lowering, several, lost)


def taken_whole(plan: MscclppPlan) -> Check | None:
    """That there are no races, where ops that threadblocks share show it without a look at each part; None: unknown."""
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
    """No race. Where only packets order two writes, as upstream's own plans have it, that is said."""
    if lost.overwritten is None:
        return check
    what = clash(lowering, several, *lost.overwritten)
    return replace(check, message=f"{check.message}, if writes come in the order of packets: {what}")


def _loose(plan: MscclppPlan) -> tuple[Lowering, Launched]:
    lowering = launch(plan.document, plan.rows.memory.how, Pieces(plan.rows.sweeps))
    return lowering, _several(lowering)


def _several(lowering: Lowering) -> Launched:
    """As many runs as it takes to come back to the same scratch. All of a run but its races follows from a run before
    it: signals, waits and semaphores come out even.
    """
    return columns.launched(lowering, 3 if lowering.document.double_scratch else 2)


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
