"""broadcast_rank0: repeat rank 0's ops on every rank, with peers counted relative to the rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Channel, Program

Ints = NDArray[np.int64]


def broadcast_rank0(program: Program) -> Program:
    """Return a program with rank 0's ops on each of n ranks: on rank r, peer q becomes rank (q + r) mod n.

    Regions stay unchanged, so the result is right for timing only, not for data, unless all ranks hold the same. It has
    no post-conditions. If several channels become one, it has the largest of their depths.

    >>> from dovetail.ir import parse, to_text
    >>> print(to_text(broadcast_rank0(parse('''
    ... program pass ranks 2
    ... buffer x input 1
    ... buffer y output 1
    ... lane net net
    ... channel 0->1 0 depth 1
    ... channel 1->0 0 depth 1
    ... rank 0 lane net
    ...   send x[0:1] to 1
    ...   recv from 1 -> y[0:1]
    ... '''))), end="")
    program pass ranks 2
    buffer x input 1
    buffer y output 1
    lane net net
    channel 0->1 0 depth 1
    channel 1->0 0 depth 1
    rank 0 lane net
      send x[0:1] to 1
      recv from 1 -> y[0:1]
    rank 1 lane net
      send x[0:1] to 0
      recv from 0 -> y[0:1]
    """
    ranks, col = program.num_ranks, program.columns
    each = np.tile(np.arange(ranks), program.num_ops)  # rank of every new op: the copies of an op are consecutive
    many = {name: np.repeat(col[name], ranks) for name in ("kind", "lane", "call", "line")} | {"rank": each}
    numbers, depths = dict[tuple[int, int, int], int](), Counter[tuple[int, int, int]]()
    rows = np.full((ranks, len(program.channels) + 1), -1)
    for (r, place), channel in ((at, program.channels[at[1]]) for at in np.ndindex(ranks, len(program.channels))):
        src, dst = (channel.src + r) % ranks, (channel.dst + r) % ranks
        rows[r, place] = numbers.setdefault((src, dst, channel.id), len(numbers))
        depths[src, dst, channel.id] = max(depths[src, dst, channel.id], channel.depth)
    for name in ("chan_in", "chan_out"):
        many[name] = rows[each, np.repeat(col[name], ranks)]
    for side, first in (("read", "read_"), ("write", "write_"), ("dep", "dep")):
        start, taken, turns = _repeated(col[f"{side}_start"], ranks)
        names = [name for name in col if name.startswith(first) and not name.endswith("_start")]
        many |= {f"{side}_start": start} | {name: col[name][taken] for name in names}
        if side == "dep":
            many["dep"] = many["dep"] * ranks + turns
    return replace(program, channels=tuple(Channel(*key, depths[key]) for key in numbers), posts=()).with_columns(many)


def _repeated(start: Ints, times: int) -> tuple[Ints, Ints, Ints]:
    """Repeat every op `times` times in a row. Return the first new row of each op, and for each new row its old row and
    the number of the repetition."""
    lengths = np.repeat(np.diff(start), times)
    new = np.append(0, np.cumsum(lengths))
    taken = np.arange(new[-1]) + np.repeat(np.repeat(start[:-1], times) - new[:-1], lengths)
    return new, taken, np.repeat(np.tile(np.arange(times), len(start) - 1), lengths)
