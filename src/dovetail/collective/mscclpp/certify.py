"""certify: the verdict on an MSCCL++ plan, in the certificate's five checks."""

from __future__ import annotations

from dataclasses import replace

from dovetail.collective.mscclpp.launch import launch, program_of
from dovetail.collective.mscclpp.memory import cut
from dovetail.collective.mscclpp.parts import MscclppPlan
from dovetail.ir import Certificate, Check, verify
from dovetail.ir.certificate import CHECKS


def certify(plan: MscclppPlan, target: str | None = None) -> Certificate:
    """Prove a plan, launched once, and launched several times in a row: gpus start and end their kernels at different
    times, and the next run must not disturb the last. Limits are those of MSCCL++'s executor, and of `target`.
    """
    document, how = plan.document, cut(plan.document)
    verdict = verify(program_of(document, launch(document, how, 1)), target)
    for name, remark in plan.faults.items():
        if verdict.checks[name].ok:
            verdict = _replaced(verdict, name, Check(False, remark.what, where=remark.where))
    if verdict.ok:
        again = verify(program_of(document, launch(document, how, 3 if document.double_scratch else 2)))
        for name, check in again.checks.items():
            if not check.ok:
                verdict = _replaced(verdict, name, replace(check, message=f"when it is called again: {check.message}"))
    return _with_limits(verdict, plan)


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
