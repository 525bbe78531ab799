"""Limits of named target runtimes, as their sources set them (references/collectives.md, section 1.4)."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from dovetail.core import ProgramError
from dovetail.ir.certificate import Fault
from dovetail.ir.parts import RECVS, SENDS, Kind
from dovetail.ir.plain import name_op
from dovetail.ir.program import Program


class Target(NamedTuple):
    """What a runtime accepts: lanes are its threadblocks, ops its steps, channel ids its channels."""

    threadblocks: int
    threadblocks_per_channel: int
    steps: int
    channels: int
    slots: int


TARGETS = {
    "msccl": Target(threadblocks=216, threadblocks_per_channel=32, steps=256, channels=32, slots=71),
    "msccl_executor": Target(threadblocks=1024, threadblocks_per_channel=32, steps=64, channels=32, slots=71),
    "rccl": Target(threadblocks=64, threadblocks_per_channel=32, steps=64, channels=32, slots=71),
}
_FOREIGN = frozenset({Kind.put, Kind.signal, Kind.wait, Kind.compute, Kind.collective})


def check_target(name: str | None) -> None:
    """ProgramError where there is no target of this name."""
    if name is not None and name not in TARGETS:
        raise ProgramError(f"unknown target '{name}'", hint=f"one of {', '.join(TARGETS)}")


def limits_fault(program: Program, name: str) -> Fault | None:
    """The first limit of target `name` that the program exceeds."""
    return _ops_fault(program, name) or _lanes_fault(program, name)


def _ops_fault(program: Program, name: str) -> Fault | None:
    """Ops that the interpreter has no step for."""
    most = TARGETS[name].slots
    for op in program.ops():
        if op.kind in _FOREIGN:
            return Fault(f"{name_op(program, op.index)}: {name} has no such step", (op.index,))
        for region in (*op.reads, *op.writes):
            if region.blocks != 1 or region.count > most:
                what = f"{name_op(program, op.index)}: a step of {name} takes one run of at most {most} slots"
                return Fault(what, (op.index,), found=str(region), hint="cut it into several ops")
    return None


def _lanes_fault(program: Program, name: str) -> Fault | None:
    """Steps of each threadblock, its one peer each way and one channel, and threadblocks of each rank."""
    target = TARGETS[name]
    lanes_of: Counter[int] = Counter()
    per_channel: Counter[tuple[int, int]] = Counter()
    for (rank, lane), rows in program.queues().items():
        ops = [program.op(int(row)) for row in rows]
        where = f"lane {program.lanes[lane].name} of rank {rank}"
        ends: dict[str, set[int]] = defaultdict(set)
        for op in ops:
            ends["sends to"] |= {program.channels[op.chan_out].dst} if op.kind in SENDS else set()
            ends["receives from"] |= {program.channels[op.chan_in].src} if op.kind in RECVS else set()
            ends["uses channel"] |= {program.channels[c].id for c in (op.chan_in, op.chan_out) if c >= 0}
        for verb, found in ends.items():
            if len(found) > 1:
                what = f"{where} {verb} {' and '.join(map(str, sorted(found)))}; a threadblock has one"
                return Fault(what, (ops[0].index,))
        for channel in ends["uses channel"]:
            per_channel[rank, channel] += 1
            if channel >= target.channels or per_channel[rank, channel] > target.threadblocks_per_channel:
                return Fault(
                    f"{where}: {name} has {target.channels} channels, with 32 threadblocks each", (ops[0].index,)
                )
        lanes_of[rank] += 1
        steps = sum(max(1, len(op.after)) for op in ops)
        if steps > target.steps:
            return Fault(f"{where} has {steps} steps; {name} takes {target.steps}", (ops[-1].index,))
        if lanes_of[rank] > target.threadblocks:
            return Fault(f"rank {rank} has more lanes than the {target.threadblocks} threadblocks of {name}")
    return None
