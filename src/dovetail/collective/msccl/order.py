"""order: chains of nops and published flags, as the interpreter keeps them, become dependencies of ops.

A threadblock waits until another has published a flag that is at least the step asked for. Only steps with hasdep=1
publish, nops never do, so a wait for a step that does not publish ends with the next one of its threadblock that does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.msccl.rows import Rows
from dovetail.core import ProgramError

Ints = NDArray[np.int64]
MOST_FUSED = 16  # reductions that the interpreter joins into one


class Order(NamedTuple):
    """Dependencies of the ops (steps that are no nops, in order): op i waits for `dep[start[i]:start[i + 1]]`.

    `hanging`: (step that waits, threadblock, step named) for the first wait that nothing ends, or None.
    """

    start: Ints
    dep: Ints
    hanging: tuple[int, int, int] | None


def order(rows: Rows) -> Order:
    """What each op waits for. ProgramError for waits that the runtimes refuse or cannot keep."""
    ops, waits = np.flatnonzero(~rows.is_nop), np.flatnonzero(rows.depid >= 0)
    following = np.searchsorted(ops, waits)  # the op that a wait holds up: its own, or the next one
    owner = np.append(ops, 0)[np.minimum(following, len(ops))]
    held = (following < len(ops)) & (rows.block[owner] == rows.block[waits])  # nops at the end hold up nothing
    unfinished = held & (rows.depid[owner] < 0)
    if unfinished.any():
        at = waits[np.argmax(unfinished)]
        what = "the step after this nop waits for nothing, so the runtimes refuse the chain"
        raise ProgramError(what, where=rows.where(at), hint="let the chain end in an op with a depid of its own")
    waits, following = waits[held], following[held]
    target = _blocks_named(rows, waits)
    found = _publisher(rows, ops, target, rows.deps[waits])
    hangs = np.flatnonzero(found < 0)
    hanging = None
    if len(hangs):
        at = waits[hangs[0]]
        hanging = (int(ops[following[hangs[0]]]), int(rows.depid[at]), int(rows.deps[at]))
        following, found = following[found >= 0], found[found >= 0]
    start = np.concatenate([[0], np.cumsum(np.bincount(following, minlength=len(ops)))]).astype(np.int64)
    return Order(start, found, hanging)


def fused_counts(rows: Rows) -> tuple[Ints, int]:
    """`cnt` of each step as it is executed, and the row of the 17th reduction of one fused chain (-1: none).

    Neighbouring `re` of one destination and one source buffer are joined unless one publishes or waits; all then
    have the count of the last.
    """
    count, too_long = rows.cnt.copy(), -1
    adds = np.flatnonzero(rows.is_reduce)
    if not len(adds):
        return count, too_long
    ops = np.flatnonzero(~rows.is_nop)
    place = np.searchsorted(ops, adds)
    before = ops[np.maximum(place - 1, 0)]
    joined = (place > 0) & rows.is_reduce[before] & (rows.block[before] == rows.block[adds]) & (rows.depid[adds] == -1)
    joined &= rows.hasdep[before] == 0
    for column in (rows.src, rows.dst, rows.dstoff):
        joined &= column[before] == column[adds]
    number = chain = 0
    for k, (row, is_joined) in enumerate(zip(adds.tolist(), joined.tolist(), strict=True)):
        same = k > 0 and rows.block[row] == rows.block[adds[k - 1]]
        number = number + 1 if same else 1
        chain = chain + 1 if is_joined and number != MOST_FUSED + 1 else 1
        if chain > 1 and count[row] != count[adds[k - 1]]:
            count[adds[k - chain + 1 : k + 1]] = count[row]
        if chain > MOST_FUSED and too_long < 0:
            too_long = row
    return count, too_long


def _blocks_named(rows: Rows, waits: Ints) -> Ints:
    """The threadblock (its number among all) that each wait names."""
    gpu = rows.rank[waits]
    wrong = rows.depid[waits] >= rows.blocks_of[gpu]
    if wrong.any():
        at = waits[np.argmax(wrong)]
        what = f"it waits for threadblock {rows.depid[at]}, which gpu {rows.rank[at]} does not have"
        raise ProgramError(
            what, where=rows.where(at), hint=f"its threadblocks are 0 to {rows.blocks_of[rows.rank[at]] - 1}"
        )
    if (rows.deps[waits] < 0).any():
        at = waits[np.argmax(rows.deps[waits] < 0)]
        raise ProgramError(f"it waits for step {rows.deps[at]}", where=rows.where(at), hint="deps is a step of depid")
    target: Ints = rows.first_block[gpu] + rows.depid[waits]
    return target


def _publisher(rows: Rows, ops: Ints, target: Ints, step: Ints) -> Ints:
    """The first op of each target threadblock that publishes a flag of at least `step`; -1 where none does."""
    counted = ~(rows.is_nop & (rows.depid < 0))  # such a nop is not even counted
    flag = np.cumsum(counted) - 1
    first = rows.first_step[rows.block]
    flag -= flag[first] - counted[first] + 1 if len(first) else 0
    publishing = np.flatnonzero(rows.hasdep[ops] == 1)
    span = int(flag.max(initial=0)) + 2
    key = rows.block[ops[publishing]] * span + flag[ops[publishing]]
    at = np.searchsorted(key, target * span + np.minimum(step, span - 1))
    chosen = publishing[np.minimum(at, len(publishing) - 1)] if len(publishing) else np.full(len(at), -1)
    missing = at >= len(publishing)
    missing |= rows.block[ops[chosen]] != target if len(ops) else True
    return np.where(missing, -1, chosen).astype(np.int64)
