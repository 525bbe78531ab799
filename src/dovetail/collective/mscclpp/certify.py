"""certify: the verdict on an MSCCL++ plan, in the certificate's five checks."""

from __future__ import annotations

from dataclasses import replace

from dovetail.collective.mscclpp.launch import launch, program_of
from dovetail.collective.mscclpp.memory import cut
from dovetail.collective.mscclpp.parts import MscclppPlan
from dovetail.ir import Certificate, Check, Program, verify
from dovetail.ir.certificate import CHECKS


def certify(plan: MscclppPlan, target: str | None = None) -> Certificate:
    """Prove a plan, launched once, and launched several times in a row: gpus start and end their kernels at different
    times, and the next run must not disturb the last. Limits are those of MSCCL++'s executor, and of `target`.

    The ops that checks name are rows of `launched(plan)`; those of races, with `loose`.
    """
    verdict = _judged(plan, 1, target)
    for name, remark in plan.faults.items():
        if verdict.checks[name].ok:
            verdict = _replaced(verdict, name, Check(False, remark.what, where=remark.where))
    if verdict.ok:
        for name, check in _judged(plan, 3 if plan.document.double_scratch else 2).checks.items():
            if not check.ok:
                check = replace(check, message=f"when it is called again: {check.message}", ops=())
                verdict = _replaced(verdict, name, check)
    return replace(_with_limits(verdict, plan), min_fifo_depth=None)  # its channels hold no messages


def launched(plan: MscclppPlan, *, loose: bool = False) -> Program:
    """The plan between the starts and ends of its kernels: `plan.program`, and for each gpu copies of its input and
    output in place, which stand for what comes before and after. With `loose` threads run each at its own pace.
    """
    return program_of(plan.document, launch(plan.document, cut(plan.document), 1, loose))


def _judged(plan: MscclppPlan, runs: int, target: str | None = None) -> Certificate:
    """Races as threads run each at its own pace, everything else as they run in step."""
    document, how = plan.document, cut(plan.document)
    verdict = verify(program_of(document, launch(document, how, runs)), target)
    if not verdict.checks["deadlock"].ok or not verdict.checks["bounds"].ok:
        return verdict
    loose = verify(program_of(document, launch(document, how, runs, loose=True)))
    return _replaced(verdict, "races", loose.checks["races"])


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
