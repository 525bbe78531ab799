"""against: check that a program can be compared with a reference program, and count slots that nothing checks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir.posts import Posts
from dovetail.ir.program import MAX_SLOTS, Program
from dovetail.ir.proof.certificate import Certificate
from dovetail.ir.proof.symbolic import result_buffers
from dovetail.ir.types import Buffer
from dovetail.ir.workload import owners

Ints = NDArray[np.int64]
_REGION = ("buffer", "offset", "count", "stride", "blocks")


def check_comparable(program: Program, against: Program, proof: Certificate) -> None:
    """Raise ProgramError if `against` is itself wrong (by its `proof`), or differs in inputs, outputs or kernels."""
    names = f"program '{program.name}' cannot be compared with '{against.name}'"
    try:
        proof.raise_if_bad()
    except ProgramError as error:
        what = f"{names}, which is itself wrong: {error.what}"
        raise ProgramError(what, where=error.where, found=error.found, hint=error.hint) from None
    if program.num_ranks != against.num_ranks:
        raise ProgramError(f"{names}: they have different ranks", found=f"{program.num_ranks} and {against.num_ranks}")
    one, other = ({b.name: b for b in each.buffers if b.role != "scratch"} for each in (program, against))
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            found = f"{_buffer_text(one.get(name))} and {_buffer_text(other.get(name))}"
            raise ProgramError(f"{names}: buffer '{name}' differs", found=found)
    modes = {kernel.name: kernel.modes for kernel in program.kernels}
    for kernel in against.kernels:
        if (own := modes.get(kernel.name, kernel.modes)) != kernel.modes:
            found = f"modes {' '.join(own)} and {' '.join(kernel.modes)}"
            raise ProgramError(f"{names}: kernel '{kernel.name}' differs", found=found)
    if not _written(against, result_buffers(against))[1].any():
        raise ProgramError(f"{names}, which writes no output: nothing would be compared")


def _buffer_text(buffer: Buffer | None) -> str:
    if buffer is None:
        return "no such input or output"
    same = len(set(buffer.slots)) == 1
    return f"{buffer.role} of {buffer.slots[0] if same else ','.join(map(str, buffer.slots[:8]))} slots"


def unasked_slots(program: Program, against: Program | None = None) -> int:
    """Return the number of output slots that nothing checks: neither post-conditions nor writes of `against`."""
    outputs = {b.name: b.slots for b in program.buffers if b.role == "output"}
    posts = Posts.of(program.posts)
    post = np.repeat(np.arange(len(posts)), np.diff(posts.columns["post_rank_start"]))
    regions = [posts.columns[f"post_{part}"][post] for part in _REGION]
    runs = [_runs([*outputs], program.num_ranks, posts.buffers, regions, posts.columns["post_rank"])]
    runs += [_written(against, [*outputs])] if against is not None else []
    begin, count = (np.concatenate([part[i] for part in runs]) for i in (0, 1))
    return sum(sum(slots) for slots in outputs.values()) - _union(begin, count)


def _written(program: Program, names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the runs of slots of these buffers that ops write."""
    ranks = np.repeat(owners(program, "write"), np.diff(program.columns["write_start"]))
    regions = [program.columns[f"write_{part}"] for part in _REGION]
    return _runs(names, program.num_ranks, [buffer.name for buffer in program.buffers], regions, ranks)


def _runs(
    names: Sequence[str], num_ranks: int, buffers: Sequence[str], regions: Sequence[Ints], ranks: Ints
) -> tuple[Ints, Ints]:
    """Return regions as runs of contiguous slots: (begin, length) of each run.

    `begin` numbers the slots of all buffers in `names` on all ranks: (position in `names` · num_ranks + rank) ·
    MAX_SLOTS + slot. Regions refer to their buffers by rows of `buffers`; those of buffers not in `names` are left out.
    """
    row = np.array([names.index(name) if name in names else -1 for name in buffers], dtype=np.int64)
    buffer, start, count, stride, blocks = regions
    place = row[buffer] * num_ranks + ranks
    kept = np.flatnonzero((place >= 0) & (count > 0))
    place, start, count, stride, blocks = (part[kept] for part in (place, start, count, stride, blocks))
    block = np.arange(int(blocks.sum())) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    start, count, stride = (np.repeat(part, blocks) for part in (start, count, stride))
    begin: Ints = np.repeat(place, blocks) * MAX_SLOTS + start + block * stride
    return begin, count


def _union(begin: Ints, count: Ints) -> int:
    """Return the number of slots in the union of the runs."""
    order = np.argsort(begin)
    end = (begin + count)[order]
    reached = np.maximum.accumulate(np.append(0, end))
    return int(np.maximum(end - np.maximum(begin[order], reached[:-1]), 0).sum())
