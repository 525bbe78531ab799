"""in_turn: Programs on the same lanes and channels become one, in which each begins where the one before left off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from dovetail.ir import Program


def in_turn(parts: Sequence[Program]) -> Program:
    """All ops of the parts, one part's after the other's, in the queues that they have there; the tables are those of
    the first. Post-conditions are left out.

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
    >>> print(to_text(in_turn([one, one])), end="")
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
    first, joined = parts[0], {}
    rows = accumulate((part.num_ops for part in parts), initial=0)
    shifts = np.repeat(np.fromiter(rows, np.int64)[:-1], [len(part.dep) for part in parts])
    for name in first.columns:
        columns = [part.columns[name] for part in parts]
        if name.endswith("_start"):
            joined[name] = np.append(0, np.cumsum(np.concatenate([np.diff(column) for column in columns])))
        else:
            joined[name] = np.concatenate(columns)
    return replace(first, posts=()).with_columns(joined | {"dep": joined["dep"] + shifts})
