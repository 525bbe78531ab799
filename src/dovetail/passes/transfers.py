"""Transfers: which receive takes which send's message in a trace, and how far ops lie from the start and the end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.core import ProgramError
from dovetail.ir import Kind, Program
from dovetail.passes.rows import Array


class Messages(NamedTuple):
    """Rows of the sends, in row order, and of the receive that takes each one's message."""

    send: Array
    receive: Array


def messages(program: Program) -> Messages:
    """The k-th send of a channel meets its k-th receive, in a later row. ProgramError where that is not so."""
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
    """For each op of a trace with dependencies: how many ops must run before it and after it, one after the other."""
    send, receive = messages(program)
    sender = np.full(program.num_ops, -1)
    sender[receive] = send
    deps: list[int] = program.columns["dep"].tolist()
    start: list[int] = program.columns["dep_start"].tolist()
    spans = list(zip(sender.tolist(), start[:-1], start[1:], strict=True))
    depth, height = [0] * program.num_ops, [0] * program.num_ops
    for row, (send_row, first, last) in enumerate(spans):
        if first < last:
            depth[row] = 1 + max([depth[dep] for dep in deps[first:last]])
        if send_row >= 0 and depth[send_row] >= depth[row]:
            depth[row] = depth[send_row] + 1
    for row in range(program.num_ops - 1, -1, -1):
        send_row, first, last = spans[row]
        above = height[row] + 1
        for dep in deps[first:last]:
            if height[dep] < above:
                height[dep] = above
        if send_row >= 0 and height[send_row] < above:
            height[send_row] = above
    return np.array(depth), np.array(height)
