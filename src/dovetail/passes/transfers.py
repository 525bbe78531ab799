"""transfers: match sends with receives in a trace, and find how far each op is from its start and end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.core import ProgramError
from dovetail.ir import Kind, Program
from dovetail.passes.columns import Array, edges, ints


class Messages(NamedTuple):
    """Rows of the sends, in row order, and for each the row of its receive."""

    send: Array
    receive: Array


def messages(program: Program) -> Messages:
    """Match the k-th send of a channel with its k-th receive. Raises ProgramError unless that is in a later row."""
    col = program.columns
    sends = np.flatnonzero(col["kind"] == Kind.send)
    receives = np.flatnonzero((col["kind"] == Kind.recv) | (col["kind"] == Kind.recv_reduce))
    by_channel = np.argsort(col["chan_out"][sends], kind="stable")
    send, receive = sends[by_channel], receives[np.argsort(col["chan_in"][receives], kind="stable")]
    good = len(send) == len(receives) and np.array_equal(col["chan_out"][send], col["chan_in"][receive])
    if not good or np.any(send > receive):
        raise ProgramError(f"program '{program.name}' is not a trace", hint="list each receive after its send")
    back = np.argsort(send)
    return Messages(send[back], receive[back])


def levels(program: Program) -> tuple[Array, Array]:
    """Return for each op the length of the longest chain of ops before it, and after it."""
    send, receive = messages(program)
    waiting, awaited = edges(program)
    waiting, awaited = np.concatenate([waiting, receive]), np.concatenate([awaited, send])
    order = np.argsort(waiting, kind="stable")
    steps = ints(waiting[order]), ints(awaited[order])
    depth, height = [0] * program.num_ops, [0] * program.num_ops
    for row, before in zip(*steps, strict=True):
        if depth[row] <= depth[before]:
            depth[row] = depth[before] + 1
    for row, before in zip(*map(reversed, steps), strict=True):
        if height[before] <= height[row]:
            height[before] = height[row] + 1
    return np.array(depth), np.array(height)
