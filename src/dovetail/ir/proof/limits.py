"""limits: what named target runtimes accept, according to their source code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir.op_lists import name_op
from dovetail.ir.program import Program
from dovetail.ir.proof.certificate import Fault
from dovetail.ir.types import RECVS, SENDS, Kind

Ints = NDArray[np.int64]


class Target(NamedTuple):
    """Limits of a runtime. Lanes are its threadblocks, ops its steps, channel ids its channels.

    On each rank `threadblocks_per_channel` threadblocks may send on one channel, and as many may receive on it. Only
    the first `named` threadblocks can be waited for, as their ids have 8 bits. `slots`: the most in one step.
    """

    threadblocks: int
    threadblocks_per_channel: int
    steps: int
    channels: int
    slots: int
    named: int = 128


TARGETS = {
    "msccl": Target(threadblocks=216, threadblocks_per_channel=32, steps=256, channels=32, slots=71),
    "azure": Target(threadblocks=1024, threadblocks_per_channel=32, steps=64, channels=32, slots=71),
    "rccl": Target(threadblocks=64, threadblocks_per_channel=32, steps=64, channels=128, slots=71),
}
_FOREIGN = (Kind.put, Kind.get, Kind.signal, Kind.wait, Kind.compute, Kind.collective)


def check_target(name: str | None) -> None:
    """Raise ProgramError if there is no target of this name."""
    if name is not None and name not in TARGETS:
        raise ProgramError(f"unknown target '{name}'", hint=f"one of {', '.join(TARGETS)}")


def limits_fault(program: Program, name: str) -> Fault | None:
    """Return the fault of the first limit of target `name` that the program exceeds; None if it exceeds none."""
    if not program.num_ops:
        return None
    return _ops_fault(program, name) or _lanes_fault(program, name) or _ranks_fault(program, name)


def _ops_fault(program: Program, name: str) -> Fault | None:
    """Find an op that the target's interpreter has no step for, or that is too large for one step."""
    col, most = program.columns, TARGETS[name].slots
    bad = np.isin(col["kind"], _FOREIGN)
    foreign = bad.copy()
    for side in ("read", "write"):
        long = np.flatnonzero((col[f"{side}_blocks"] != 1) | (col[f"{side}_count"] > most))
        rows = np.searchsorted(col[f"{side}_start"], long, side="right") - 1
        bad[rows] = True
    if not bad.any():
        return None
    op = program.op(int(np.argmax(bad)))
    if foreign[op.index]:
        known = "send, recv, copy, reduce and the fused forms of these"
        what = f"{name_op(program, op.index)}: {name} has no step for a {op.kind.name}"
        return Fault(what, (op.index,), hint=f"its steps are {known}")
    region = next(r for r in (*op.reads, *op.writes) if r.blocks != 1 or r.count > most)
    found = f"{region}: {region.blocks} runs" if region.blocks != 1 else f"{region}: {region.count} slots"
    what = f"{name_op(program, op.index)} has {found}; a step of {name} is one run of at most {most} slots"
    return Fault(what, (op.index,), hint="split the op into several")


def _lanes_fault(program: Program, name: str) -> Fault | None:
    """Find a lane with several peers or channels, or with more steps than a threadblock has."""
    col, target = program.columns, TARGETS[name]
    key = _queue_keys(program)
    chans = np.array([c[:3] for c in program.channels], dtype=np.int64).reshape(-1, 3)
    uses = (
        ("sends to", np.flatnonzero(np.isin(col["kind"], tuple(SENDS))), "chan_out", 1),
        ("receives from", np.flatnonzero(np.isin(col["kind"], tuple(RECVS))), "chan_in", 0),
    )
    both = [(rows, chans[col[column][rows], 2]) for _, rows, column, _ in uses]
    checks = [(verb, rows, chans[col[column][rows], part]) for verb, rows, column, part in uses]
    checks.append(("uses channel", np.concatenate([r for r, _ in both]), np.concatenate([v for _, v in both])))
    for verb, rows, values in checks:
        several = _several(key[rows], values)
        if several is not None:
            first, found = int(rows[several[0]]), several[1]
            own = rows[key[rows] == key[first]]
            second = int(own[np.argmax(values[key[rows] == key[first]] != values[several[0]])])
            what = f"{_lane_text(program, first)} {verb} {' and '.join(map(str, found))}"
            one = "channel" if verb == "uses channel" else "peer each way"
            hint = "spread these ops over several lanes"
            return Fault(f"{what}; a threadblock of {name} has one {one}", (first, second), hint=hint)
    steps = np.bincount(key, weights=np.maximum(np.diff(col["dep_start"]), 1)).astype(np.int64)
    if steps.max() > target.steps:
        last = int(np.flatnonzero(key == steps.argmax())[-1])
        what = f"{_lane_text(program, last)} has {steps.max()} steps; {name} allows {target.steps} in a threadblock"
        return Fault(what, (last,), hint="spread them over more threadblocks, or use fewer and larger chunks")
    return None


def _ranks_fault(program: Program, name: str) -> Fault | None:
    """Find a rank with too many threadblocks, in all or on one channel, or a wait for one that cannot be waited for."""
    col, target = program.columns, TARGETS[name]
    key = _queue_keys(program)
    queues, first = np.unique(key, return_index=True)
    rank = col["rank"][first]
    if np.bincount(rank).max() > target.threadblocks:
        most = int(np.bincount(rank).argmax())
        what = f"rank {most} has {np.bincount(rank).max()} threadblocks; {name} allows {target.threadblocks} on a rank"
        hint = "use fewer instances or channels, or let several ops share a lane"
        return Fault(what, (int(first[rank == most][target.threadblocks]),), hint=hint)
    fault = _channels_fault(program, name, key)
    if fault:
        return fault
    number = np.arange(len(queues)) - np.searchsorted(rank, rank)  # of each queue: its place on its rank
    places = number[np.searchsorted(queues, key[col["dep"]])]
    named = np.flatnonzero(places >= target.named)
    if not len(named):
        return None
    row = int(col["dep"][named[0]])
    waits = int(np.searchsorted(col["dep_start"], named[0], side="right")) - 1
    what = f"{_lane_text(program, row)}, its threadblock number {places[named[0]]}, is waited for; "
    hint = "let lanes that are waited for come first, or use fewer"
    return Fault(f"{what}{name} can wait for threadblocks 0 to {target.named - 1}", (row, waits), hint=hint)


def _channels_fault(program: Program, name: str, key: Ints) -> Fault | None:
    """Find a channel id that does not exist, or a channel on which too many threadblocks of a rank send or receive."""
    col, target = program.columns, TARGETS[name]
    for column, verb in (("chan_out", "send"), ("chan_in", "receive")):
        rows = np.flatnonzero(col[column] >= 0)
        ids = np.array([c.id for c in program.channels], dtype=np.int64)[col[column][rows]]
        over = np.flatnonzero(ids >= target.channels)
        if len(over):
            row = int(rows[over[0]])
            what = f"{_lane_text(program, row)} uses channel {ids[over[0]]}; {name} has {target.channels} channels, "
            return Fault(f"{what}0 to {target.channels - 1}", (row,), hint="use fewer channels or instances")
        queues, at = np.unique(key[rows], return_index=True)  # each has one channel
        ends = np.stack([queues // max(len(program.lanes), 1), ids[at]])
        (owner, channel), first, count = np.unique(ends, axis=1, return_index=True, return_counts=True)
        most = int(count.argmax()) if len(count) else 0
        if len(count) and count[most] > target.threadblocks_per_channel:
            what = f"{count[most]} threadblocks of rank {owner[most]} {verb} on channel {channel[most]}"
            hint = "spread them over more channels"
            row = int(rows[at[first[most]]])
            return Fault(f"{what}; {name} allows {target.threadblocks_per_channel} on a channel", (row,), hint=hint)
    return None


def _queue_keys(program: Program) -> Ints:
    """Return a number for each op's queue, in the order of ranks and lanes."""
    keys: Ints = program.columns["rank"].astype(np.int64) * len(program.lanes) + program.columns["lane"]
    return keys


def _several(key: Ints, values: Ints) -> tuple[int, list[Any]] | None:
    """Return the index of the first key with several values, and these values; None if every key has one."""
    if not len(key):
        return None
    some = np.zeros(int(key.max()) + 1, dtype=np.int64)
    some[key] = values
    other = np.flatnonzero(values != some[key])
    if not len(other):
        return None
    lane = key[other].min()
    return int(np.argmax(key == lane)), np.unique(values[key == lane]).tolist()


def _lane_text(program: Program, row: int) -> str:
    col = program.columns
    return f"lane {program.lanes[int(col['lane'][row])].name} of rank {int(col['rank'][row])}"
