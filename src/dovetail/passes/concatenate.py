"""concatenate: run Programs one after the other on the same lanes and channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Channel, Program
from dovetail.passes.op_rows import rows_of, taken


def concatenate(parts: Sequence[Program]) -> Program:
    """Return one program in which each queue has the ops of all parts, one part after the other.

    Channels are those of all parts, with the largest depth; other tables are those of the first. No post-conditions.

    >>> from dovetail.ir import parse, to_text
    >>> one = parse('''
    ... program copies ranks 1
    ... buffer x input 2
    ... buffer y output 2
    ... lane compute compute
    ... lane copy copy
    ... rank 0 lane compute
    ...   copy x[0:1] -> y[0:1]
    ... rank 0 lane copy
    ...   copy x[1:2] -> y[1:2] after compute.0
    ... ''')
    >>> print(to_text(concatenate([one, one])), end="")
    program copies ranks 1
    buffer x input 2
    buffer y output 2
    lane compute compute
    lane copy copy
    rank 0 lane compute
      copy x[0:1] -> y[0:1]
      copy x[0:1] -> y[0:1]
    rank 0 lane copy
      copy x[1:2] -> y[1:2] after compute.0
      copy x[1:2] -> y[1:2] after compute.1
    """
    rows = accumulate((part.num_ops for part in parts), initial=0)
    shifts = np.repeat(np.fromiter(rows, np.int64)[:-1], [len(part.dep) for part in parts])
    channels = _channels(parts)
    numbers = {channel[:3]: number for number, channel in enumerate(channels)}
    distinct = {key: _renumbered(part, numbers) for key, part in {id(part): part for part in parts}.items()}
    each = [distinct[id(part)] for part in parts]
    joined = {name: np.concatenate([columns[name] for columns in each]) for name in parts[0].columns}
    joined |= {name: np.append(0, np.cumsum(joined[name])) for name in joined if name.endswith("_start")}
    joined["dep"] += shifts
    return replace(parts[0], channels=channels, posts=()).with_columns(_by_rank(joined))


def _renumbered(part: Program, numbers: Mapping[tuple[int, int, int], int]) -> dict[str, NDArray[Any]]:
    """A part's columns with new channel numbers, and with counts of rows instead of their starts."""
    rows = np.array([*(numbers[channel[:3]] for channel in part.channels), -1])
    found = {name: np.diff(column) if name.endswith("_start") else column for name, column in part.columns.items()}
    return found | {name: rows[part.columns[name]] for name in ("chan_in", "chan_out")}


def _by_rank(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The columns sorted by rank, because `sim` starts ops that begin at the same time in the order of rows."""
    order = np.argsort(columns["rank"], kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    rows, owner = rows_of(columns["dep_start"], order)
    starts = np.append(0, np.cumsum(np.bincount(owner, minlength=len(order))))
    return taken(columns, order)[0] | {"dep": place[columns["dep"][rows]], "dep_start": starts}


def _channels(parts: Sequence[Program]) -> tuple[Channel, ...]:
    """Every channel of the parts once, with the largest depth."""
    found: dict[tuple[int, int, int], Channel] = {}
    for part in {id(part): part for part in parts}.values():
        for channel in part.channels:
            known = found.setdefault(channel[:3], channel)
            if channel.depth > known.depth:
                found[channel[:3]] = channel
    return tuple(found.values())
