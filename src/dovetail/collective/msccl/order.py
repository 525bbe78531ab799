"""order: turn the waits of a file's steps, through nops and flags, into dependencies between its ops.

A threadblock waits until another one has published a flag of at least the given step. Only steps with hasdep=1
publish, and nops never do. So a wait for a step that does not publish ends with the next step that does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.msccl.steps import Flags, Steps
from dovetail.core import ProgramError

Ints = NDArray[np.int64]
MOST_FUSED = 16  # reductions that the interpreter fuses into one


class Order(NamedTuple):
    """Dependencies of the ops (all steps but nops, in order): op i waits for `dep[start[i]:start[i + 1]]`.

    An op whose wait never ends waits for itself. `hanging`: (op, threadblock, step) of the first such wait,
    and the op from `step` on that would have to publish (-1: there is none); None if no wait is endless.
    """

    start: Ints
    dep: Ints
    hanging: tuple[int, int, int, int] | None


def order(rows: Steps) -> Order:
    """Return the ops' dependencies. Raises ProgramError for waits that the runtimes refuse or cannot represent."""
    ops, waits = np.flatnonzero(~rows.is_nop), np.flatnonzero(rows.depid >= 0)
    waits, owner = _handed_on(rows, waits)
    target, following = _blocks_named(rows, waits), np.searchsorted(ops, owner)
    flag = _flags(rows, ops, following[rows.is_nop[waits]])
    found = _first_from(rows, ops, np.flatnonzero(rows.hasdep[ops] == 1), flag, target, rows.deps[waits])
    hangs, hanging = np.flatnonzero(found < 0), None
    if len(hangs):
        at = hangs[:1]
        named = _first_from(rows, ops, np.arange(len(ops)), flag, target[at], rows.deps[waits[at]])
        row = int(waits[at[0]])
        hanging = (int(following[at[0]]), int(rows.depid[row]), int(rows.deps[row]), int(named[0]))
        found[hangs] = following[hangs]
    start = np.concatenate([[0], np.cumsum(np.bincount(following, minlength=len(ops)))]).astype(np.int64)
    return Order(start, found, hanging)


def _handed_on(rows: Steps, waits: Ints) -> tuple[Ints, Ints]:
    """The effective waits, and the step that each one delays: its own step, or for a nop the next step that begins a
    transfer (a fused reduction begins none). Nops at the end of a threadblock delay nothing."""
    begins = np.flatnonzero(~rows.is_nop & ~_joined(rows))
    following = np.searchsorted(begins, waits)
    owner = np.append(begins, 0)[np.minimum(following, len(begins))]
    held = (following < len(begins)) & (rows.block[owner] == rows.block[waits])
    unfinished = held & (rows.depid[owner] < 0)
    if unfinished.any():
        at = int(np.argmax(unfinished))
        what = f"the wait of this nop passes to the step on line {rows.line[owner[at]]}, which has depid=-1"
        found = "the runtimes refuse a chain of nops that does not end in an op with a wait"
        hint = f"give line {rows.line[owner[at]]} this nop's depid and deps, and drop the nop"
        raise ProgramError(what, where=rows.where(waits[at]), found=found, hint=hint)
    return waits[held], owner[held]


def fused_counts(rows: Steps) -> tuple[Ints, int]:
    """Return the executed `cnt` of each step, and the row of the 17th reduction of a fused chain (-1: none).

    The interpreter fuses adjacent `re` of one destination and one source buffer unless one publishes or waits; all
    then have the count of the last one.
    """
    count, too_long, joined = rows.cnt.copy(), -1, _joined(rows)
    adds = np.flatnonzero(rows.is_reduce)
    chain = 1
    for k, (row, is_joined) in enumerate(zip(adds.tolist(), joined[adds].tolist(), strict=True)):
        chain = chain + 1 if is_joined else 1
        if chain > 1 and count[row] != count[adds[k - 1]]:
            count[adds[k - chain + 1 : k + 1]] = count[row]
        if chain > MOST_FUSED and too_long < 0:
            too_long = row
    return count, too_long


def _joined(rows: Steps) -> Flags:
    """Which steps are reductions that the interpreter fuses with the previous one, also across nops. It ends a chain
    only once, at the 16th reduction of a threadblock."""
    joined = np.zeros(len(rows.type), dtype=bool)
    ops, adds = np.flatnonzero(~rows.is_nop), np.flatnonzero(rows.is_reduce)
    if not len(adds):
        return joined
    place = np.searchsorted(ops, adds)
    before = ops[np.maximum(place - 1, 0)]
    alike = (place > 0) & rows.is_reduce[before] & (rows.block[before] == rows.block[adds]) & (rows.depid[adds] == -1)
    alike &= rows.hasdep[before] == 0
    for column in (rows.src, rows.dst, rows.dstoff):
        alike &= column[before] == column[adds]
    block = rows.block[adds]
    joined[adds] = alike & (np.arange(len(adds)) - np.searchsorted(block, block) != MOST_FUSED)
    return joined


def _blocks_named(rows: Steps, waits: Ints) -> Ints:
    """The threadblock that each wait names, numbered over all gpus."""
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
        raise ProgramError(
            f"it waits for step {rows.deps[at]}",
            where=rows.where(at),
            hint="let deps name a step of depid; no wait is depid=-1",
        )
    target: Ints = rows.first_block[gpu] + rows.depid[waits]
    return target


def _flags(rows: Steps, ops: Ints, nops: Ints) -> Ints:
    """The flag that each op publishes: its index in its threadblock. A nop that waits counts before the op that it
    delays (`nops`: those ops); other nops do not count."""
    counted = 1 + np.bincount(nops, minlength=len(ops))
    total, block = np.cumsum(counted), rows.block[ops]
    first = np.searchsorted(block, block)
    flag: Ints = total - (total - counted)[first] - 1
    return flag


def _first_from(rows: Steps, ops: Ints, some: Ints, flag: Ints, target: Ints, step: Ints) -> Ints:
    """The first among `some` ops of each target threadblock with a flag of at least `step`; -1 if there is none."""
    if not len(some):
        return np.full(len(target), -1)
    block, span = rows.block[ops[some]], int(flag.max()) + 2
    at = np.searchsorted(block * span + flag[some], target * span + np.minimum(step, span - 1))
    chosen = np.minimum(at, len(some) - 1)
    missing = (at == len(some)) | (block[chosen] != target)
    return np.where(missing, -1, some[chosen]).astype(np.int64)
