"""columns: the ops of a collective's Program as arrays that passes pick, repeat and rewrite; dependencies as edges."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir import Kind, Program
from dovetail.ir.build import OP, REGION

Array = NDArray[Any]
NONE = np.zeros(0, np.int64)
BUFFER, OFFSET, COUNT, STRIDE, BLOCKS = range(5)


@dataclass
class OpColumns:
    """Columns of ops that have at most one region to read and one to write, as [op, part]; buffer -1: none."""

    op: dict[str, Array]
    read: Array
    write: Array

    @classmethod
    def of(cls, program: Program) -> OpColumns:
        """Return a program's columns. Raises ProgramError for puts, gets, signals, kernels and library calls."""
        col = program.columns
        strange = np.flatnonzero(col["kind"] > Kind.recv_reduce_copy_send)
        if len(strange):
            row = int(strange[0])
            kind = Kind(int(col["kind"][row])).name
            raise ProgramError(f"op {row} '{kind}' cannot be part of an algorithm of copies, reduces and messages")
        op = {name: col[name].copy() for name in OP}
        return cls(op, _dense(col, "read"), _dense(col, "write"))

    def take(self, rows: Array) -> OpColumns:
        """Return the ops `rows` in that order; a row may occur several times."""
        return OpColumns({name: column[rows] for name, column in self.op.items()}, self.read[rows], self.write[rows])

    def into(self, program: Program, waiting: Array, awaited: Array) -> Program:
        """Return `program` with these ops instead of its own; op `waiting[i]` waits for op `awaited[i]`."""
        columns = self.op | dep_columns(len(self.op["kind"]), waiting, awaited)
        for side, dense in (("read", self.read), ("write", self.write)):
            has = dense[:, BUFFER] >= 0
            columns[f"{side}_start"] = np.concatenate([[0], np.cumsum(has)])
            columns |= {f"{side}_{part}": dense[has, i] for i, part in enumerate(REGION)}
        return program.with_columns(columns)


def _dense(col: dict[str, Array], side: str) -> Array:
    start = col[f"{side}_start"]
    has = np.diff(start) > 0
    dense = np.full((len(has), len(REGION)), -1, np.int64)
    for i, part in enumerate(REGION):
        dense[has, i] = col[f"{side}_{part}"][start[:-1][has]]
    return dense


def edges(program: Program) -> tuple[Array, Array]:
    """Return dependencies as (rows that wait, rows that they wait for), sorted by waiting row."""
    col = program.columns
    return np.repeat(np.arange(program.num_ops), np.diff(col["dep_start"])), col["dep"]


def moved(program: Program, place: Array) -> tuple[Array, Array]:
    """Return the dependencies after op i has become op `place[i]`, without those inside one new op."""
    waiting, awaited = (place[rows] for rows in edges(program))
    kept = waiting != awaited
    return waiting[kept], awaited[kept]


def dep_columns(num_ops: int, waiting: Array, awaited: Array) -> dict[str, Array]:
    """Return columns `dep` and `dep_start` of a list of edges, duplicates removed."""
    keys = np.sort(waiting.astype(np.int64) * num_ops + awaited)
    waiting, awaited = np.divmod(keys[first_of_run(keys)], max(num_ops, 1))
    return {"dep": awaited, "dep_start": starts(waiting, num_ops)}


def starts(owner: Array, size: int) -> Array:
    """Return the start of each owner's entries in a list sorted by owner, and the end of the last one's.

    >>> starts(np.array([0, 0, 2]), 3).tolist()
    [0, 2, 2, 3]
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(owner, minlength=size))])


def ints(column: Array) -> array[int]:
    """Return the numbers in a form for Python loops: faster than a NumPy array, smaller than a list."""
    numbers = array("i")
    numbers.frombytes(column.astype(np.int32).tobytes())
    return numbers


def spread(counts: Array) -> Array:
    """Return 0 to count - 1 for each count, concatenated.

    >>> spread(np.array([3, 0, 2])).tolist()
    [0, 1, 2, 0, 1]
    """
    ends = np.cumsum(counts)
    numbers: Array = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return numbers


def first_of_run(ordered: Array) -> Array:
    """Return where a value differs from the one before it.

    >>> first_of_run(np.array([4, 4, 7])).tolist()
    [True, False, True]
    """
    first: Array = np.concatenate([np.ones(min(len(ordered), 1), bool), ordered[1:] != ordered[:-1]])
    return first


def ranked(keys: Array) -> tuple[Array, Array]:
    """Return the sorted distinct values of `keys`, and for each key the index of its value among them.

    >>> [part.tolist() for part in ranked(np.array([7, 3, 7]))]
    [[3, 7], [1, 0, 1]]
    """
    order = np.argsort(keys, kind="stable")
    first = first_of_run(keys[order])
    number = np.empty(len(keys), np.int64)
    number[order] = np.cumsum(first) - 1
    return keys[order][first], number
