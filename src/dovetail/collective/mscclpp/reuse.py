"""reuse: may a plan's caller overwrite its buffers once the kernels have ended?

A port channel's proxy reads the source of a put later than the threadblock requests it, and only a flush waits for the
read. A plan without a flush may be right, and yet end its kernels while a source is still being read; MSCCL++'s own
plans do. Then only the caller can overwrite the source too early. That is no race of the plan's ops: this check covers
it.
"""

from __future__ import annotations

from dovetail.collective.mscclpp.columns import Launched
from dovetail.collective.mscclpp.explain import explain
from dovetail.collective.mscclpp.hints import needs_flush
from dovetail.collective.mscclpp.launch import KERNEL
from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.names import Names
from dovetail.collective.mscclpp.parts import Document, steps_of
from dovetail.ir import Check
from dovetail.ir.proof.verify import verify_order


def is_lending(document: Document) -> bool:
    """Return whether port channels read the caller's buffers."""
    puts = (step for step in steps_of(document.gpus) if step.by == "port" and step.name in ("put", "pws", "pwsf"))
    return any(place.buffer != "s" and place.size for step in puts for place in step.reads)


def reuse(lowering: Lowering, several: Launched) -> Check:
    """Return the check `reuse` of a plan whose ops are free of races."""
    verdict = verify_order(several.program)
    if verdict.checks["races"].ok:
        return Check(True, "port channels have read the caller's buffers when the kernels end")
    check = explain(verdict, lowering, several).checks["races"]
    put = next(index for index in check.ops if several.row(index).lane != KERNEL)
    row, names = several.row(put), Names(lowering, several)
    source = row.reads[0]
    chunk = names.chunk(source.buffer, source.offset, row.rank)
    message = f"{names.op(row)} may still read {chunk} once the kernel has ended: its caller must not overwrite it yet"
    hint = f"add a flush: {needs_flush(lowering, row)}; or overwrite it once the gpu it goes to has ended"
    return Check(False, message, check.ops, row.line, None, hint, check.schedule)
