"""certify: the verdict on an MSCCL file in every use that its header claims, for a named runtime or for none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.collective.msccl.lower import by_chunk
from dovetail.collective.msccl.parts import DIALECTS, MscclFile, Use
from dovetail.ir import Certificate, Check, Program, verify
from dovetail.ir.certificate import CHECKS, Fault
from dovetail.ir.plain import name_op
from dovetail.ir.verify import failed_check, least_depth

_MOST_CHUNKS = 1 << 19  # that steps read and write, for which the depth of single chunks is found
_TITLES = {False: "out of place", True: "in place"}


def certify(file: MscclFile, target: str | None = None, fifo_depth: int | None = None) -> Certificate:
    """Prove a file: its Program in each use, and what only the file tells (see MscclFile.faults and refusals).

    Channels hold what the protocol gives between GPUs of one node, or `fifo_depth` messages. Without a `target` the
    schedule is judged; a header that no runtime takes is then a remark.
    """
    if file.header.kind == "custom":
        return _of_custom(file, target, fifo_depth)
    verdicts = [_of_use(file, use, target, fifo_depth) for use in file.uses]
    verdict = next((one for one in verdicts if not one.ok), verdicts[0])
    depths = [one.min_fifo_depth for one in verdicts]
    if len(verdicts) > 1 and not verdict.ok:
        verdict = _titled(verdict, _TITLES[file.uses[verdicts.index(verdict)].in_place])
    return replace(verdict, min_fifo_depth=None if None in depths else max(d for d in depths if d is not None))


def _of_custom(file: MscclFile, target: str | None, fifo_depth: int | None) -> Certificate:
    """What `custom` means by in place only its author knows: it is judged with i and o apart, for msccl as it runs."""
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
    deadlock = verdict.checks["deadlock"]
    need = _depth_of_chunks(program) if deadlock.ok else 0
    if any(channel.depth < need for channel in program.channels):
        said = f"{deadlock.message}; but {need} where a chunk fills a place, and a step sends cnt of them"
        verdict = _replaced(verdict, "deadlock", replace(deadlock, message=said))
    return _header(verdict, file, target)


def _depth_of_chunks(program: Program) -> int:
    """The least depth where every chunk is a message of its own, as for large buffers; 0 where it always is one, and
    where there are too many to try."""
    col = program.columns
    counts = [col[f"{side}_count"] for side in ("read", "write")]
    if max(count.max(initial=0) for count in counts) < 2 or not program.channels:
        return 0
    if sum(int(count.sum()) for count in counts) > _MOST_CHUNKS:
        return 0
    return least_depth(by_chunk(program)) or 0


def _writes_input(program: Program) -> bool:
    inputs = [row for row, buffer in enumerate(program.buffers) if buffer.role == "input"]
    return bool(np.isin(program.columns["write_buffer"], inputs).any())


def _failed(verdict: Certificate, program: Program, name: str, fault: Fault) -> Certificate:
    """The verdict, with a fault that only the file shows; it stands before one that was found later."""
    if not verdict.checks[name].ok and not verdict.checks[name].message.startswith("not reached"):
        return verdict
    named = f"{name_op(program, fault.ops[0])}: " if fault.what.startswith("it ") else ""
    verdict = _replaced(verdict, name, failed_check(program, fault._replace(what=named + fault.what)))
    return replace(verdict, min_fifo_depth=None) if name == "deadlock" else verdict


def _header(verdict: Certificate, file: MscclFile, target: str | None) -> Certificate:
    """The limits check, with what the runtimes say to the header."""
    limits = verdict.checks["limits"]
    if target is None and file.dialects:
        return verdict
    if target is not None:
        why = file.refusals[target]
        if why is None or not limits.ok:
            return verdict
        return _replaced(verdict, "limits", Check(False, f"{target} does not take this file: {why}", where=file.place))
    said = "; ".join(f"{name}: {file.refusals[name]}" for name in DIALECTS)
    return _replaced(
        verdict, "limits", replace(limits, message=f"{limits.message}; no runtime takes the header ({said})")
    )


def _titled(verdict: Certificate, title: str) -> Certificate:
    """The verdict of one of several uses: its failures say which."""
    for name, check in verdict.checks.items():
        if not check.ok and not check.message.startswith("not reached"):
            verdict = _replaced(verdict, name, replace(check, message=f"{title}: {check.message}"))
    return verdict


def _replaced(verdict: Certificate, name: str, check: Check) -> Certificate:
    checks = {each: check if each == name else verdict.checks[each] for each in CHECKS}
    return replace(verdict, checks=checks)
