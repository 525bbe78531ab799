"""certify: the verdict on an MSCCL file in every use that its header claims, for a named runtime or for none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dovetail.collective.msccl.parts import DIALECTS, MscclFile, Use
from dovetail.collective.msccl.sizes import Split, largest, smallest_messages, too_large
from dovetail.ir import Certificate, Check, Program, verify
from dovetail.ir.op_lists import name_op
from dovetail.ir.proof.certificate import CHECKS, Fault
from dovetail.ir.proof.verify import failed_check

_TITLES = {False: "out of place", True: "in place"}


def certify(file: MscclFile, target: str | None = None, fifo_depth: int | None = None) -> Certificate:
    """Prove a file: its Program in each use, and what no Program can express (see MscclFile.faults and refusals).

    Channels hold `fifo_depth` messages; default: the protocol's depth between GPUs of one node. `min_fifo_depth` is the
    largest that any use needs. Without a `target`, only the schedule is judged: a header that no runtime accepts is a
    remark. Large buffers may need more messages in flight than channels hold: the verdict holds for buffers up to
    `safe_up_to_bytes`.
    """
    if file.header.kind == "custom":
        return _of_custom(file, target, fifo_depth)
    verdicts = [_of_use(file, use, target, fifo_depth) for use in file.uses]
    smallest = min(verdicts, key=lambda one: math.inf if one.safe_up_to_bytes is None else one.safe_up_to_bytes)
    verdict = next((one for one in verdicts if not one.ok), smallest)
    depths = [one.min_fifo_depth for one in verdicts]
    if len(verdicts) > 1 and not verdict.ok:
        verdict = _titled(verdict, _TITLES[file.uses[verdicts.index(verdict)].in_place])
    return replace(verdict, min_fifo_depth=None if None in depths else max(d for d in depths if d is not None))


def safe_up_to_bytes(file: MscclFile, target: str | None = None) -> int | None:
    """Return the bytes of the largest buffer for which a valid file completes; None: no limit within its sizes."""
    uses = file.uses if file.header.kind != "custom" else file.uses[:1]
    sized = (_size(file, use.program, target) for use in uses)
    return min((size.limit for size in sized if size), default=None)


def _of_custom(file: MscclFile, target: str | None, fifo_depth: int | None) -> Certificate:
    """Only its author knows what `custom` means in place: judge it with i and o separate; for msccl, as that runs."""
    verdict = _of_use(file, file.uses[0], target, fifo_depth)
    if not verdict.ok or len(file.uses) == 1:
        return verdict
    together = _of_use(file, file.uses[1], target, fifo_depth)
    if together.ok:
        return verdict
    if target == "msccl":
        return _titled(together, "in place, as msccl runs inplace=1, i and o being one")
    name, check = next((name, check) for name, check in together.checks.items() if not check.ok)
    note = f"; msccl would run it in place, i and o being one, where the {name} check fails: {check.message}"
    return _replaced(
        verdict, "limits", replace(verdict.checks["limits"], message=verdict.checks["limits"].message + note)
    )


def _of_use(file: MscclFile, use: Use, target: str | None, fifo_depth: int | None) -> Certificate:
    program = use.program if fifo_depth is None else use.program.with_depth(fifo_depth)
    verdict = verify(program, target)
    for name, fault in file.faults.items():
        verdict = _failed(verdict, program, name, fault)
    if not use.in_place and file.header.kind != "custom" and _writes_input(program) and verdict.checks["result"].ok:
        said = f"{verdict.checks['result'].message}; on the way it overwrites the caller's input, out of place"
        verdict = _replaced(verdict, "result", replace(verdict.checks["result"], message=said))
    verdict = _header(_unasked(verdict, file), file, target)
    return _by_size(verdict, file, program, target) if verdict.ok else verdict


class _Size(NamedTuple):
    """The largest buffer (bytes) for which a file completes, the runtime that limits it, and the reason."""

    limit: int
    runtime: str
    split: Split
    depth: int


def _size(file: MscclFile, program: Program, target: str | None) -> _Size | None:
    """The size limit of a use (see the module `sizes`); None if there is none."""
    if not program.channels:
        return None
    depth = min(channel.depth for channel in program.channels)
    split = smallest_messages(program, depth)
    found = largest(file.header, split.chunks, target, file.dialects)
    least = dict(too_large(file.header, found)) if split.chunks > 1 else {}
    return min((_Size(limit, name, split, depth) for name, limit in least.items()), default=None, key=lambda s: s.limit)


def _by_size(verdict: Certificate, file: MscclFile, program: Program, target: str | None) -> Certificate:
    """The verdict, with the largest buffer for which it holds."""
    size = _size(file, program, target)
    if size is None:
        return verdict
    deadlock, why = verdict.checks["deadlock"], _why_by_size(file, size.split, size.depth)
    if size.limit >= max(file.header.min_bytes or 0, 1):
        said = replace(deadlock, message=f"{deadlock.message}; safe up to {size.limit} bytes: {why}")
        return replace(_replaced(verdict, "deadlock", said), safe_up_to_bytes=size.limit)
    what = f"it completes at no size from minBytes={file.header.min_bytes} on: {why}"
    hint = "send fewer chunks per step, or spread them over channels"
    found = f"safe up to {size.limit} bytes ({size.runtime})"
    failed = Check(False, what, where=f"{file.place}:{file.line}", found=found, hint=hint)
    return replace(_replaced(verdict, "deadlock", failed), min_fifo_depth=size.split.depth)


def _why_by_size(file: MscclFile, split: Split, depth: int) -> str:
    what = f"in larger buffers a message holds fewer than {split.chunks} chunks, and longer steps become several"
    if split.depth is None:
        return f"{what}, which are too many to try here"
    return f"{what}, which need up to {split.depth} places in a channel; {file.header.proto} has {depth}"


def _unasked(verdict: Certificate, file: MscclFile) -> Certificate:
    """The verdict on a collective without a known post-condition: a remark, not a fault of the file."""
    result = verdict.checks["result"]
    if file.header.kind != "custom" or not result.ok:
        return verdict
    said = f"not judged: the result of coll={file.header.coll} is not specified here, so the file may be right or wrong"
    return _replaced(verdict, "result", replace(result, message=said))


def _writes_input(program: Program) -> bool:
    inputs = [row for row, buffer in enumerate(program.buffers) if buffer.role == "input"]
    return bool(np.isin(program.columns["write_buffer"], inputs).any())


def _failed(verdict: Certificate, program: Program, name: str, fault: Fault) -> Certificate:
    """The verdict with a fault of the file that no Program can express. It replaces faults of later checks."""
    has_failed = not verdict.checks[name].ok and not verdict.checks[name].message.startswith("not reached")
    if has_failed and name != "deadlock":  # the Program has the same endless wait, described less well
        return verdict
    named = f"{name_op(program, fault.ops[0])}: " if fault.what.startswith("it ") else ""
    return _replaced(verdict, name, failed_check(program, fault._replace(what=named + fault.what)))


def _header(verdict: Certificate, file: MscclFile, target: str | None) -> Certificate:
    """The verdict, whose limits check also has the runtimes' reasons to refuse the header."""
    limits = verdict.checks["limits"]
    if target is None and file.dialects:
        return verdict
    if target is not None:
        no = file.refusals[target]
        if no is None or not limits.ok:
            return verdict
        place = f"{file.place}:{no.line}"
        return _replaced(verdict, "limits", Check(False, f"{target} does not accept this file: {no.why}", where=place))
    refused = [(name, no) for name in DIALECTS if (no := file.refusals[name]) is not None]
    said = "; ".join(f"{name}: {no.why} (line {no.line})" for name, no in refused)
    return _replaced(
        verdict, "limits", replace(limits, message=f"{limits.message}; no runtime accepts the file ({said})")
    )


def _titled(verdict: Certificate, title: str) -> Certificate:
    """The verdict of one of several uses; its failures name the use."""
    for name, check in verdict.checks.items():
        if not check.ok and not check.message.startswith("not reached"):
            verdict = _replaced(verdict, name, replace(check, message=f"{title}: {check.message}"))
    return verdict


def _replaced(verdict: Certificate, name: str, check: Check) -> Certificate:
    checks = {each: check if each == name else verdict.checks[each] for each in CHECKS}
    return replace(verdict, checks=checks)
