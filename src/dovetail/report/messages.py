"""Messages: which op's message which op takes, by channel and order, for the arrows of timelines and traces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import RECVS, SENDS, Kind, Program


def messages(program: Program) -> NDArray[np.int64]:
    """Rows (sending op, taking op), shape (num_messages, 2).

    Channels are FIFO: the k-th send of a channel meets its k-th receive, the k-th signal its k-th wait. What is never
    taken is left out.
    """
    sends = np.isin(program.columns["kind"], sorted(SENDS))
    recvs = np.isin(program.columns["kind"], sorted(RECVS))
    signals, waits = program.columns["kind"] == Kind.signal, program.columns["kind"] == Kind.wait
    return np.concatenate([_pairs(program, sends, recvs), _pairs(program, signals, waits)])


def _pairs(program: Program, out: NDArray[np.bool_], into: NDArray[np.bool_]) -> NDArray[np.int64]:
    num_channels = len(program.channels)
    left, left_start = _by_channel(program.columns["chan_out"], out, num_channels)
    right, right_start = _by_channel(program.columns["chan_in"], into, num_channels)
    count = np.minimum(np.diff(left_start), np.diff(right_start))
    k = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.column_stack(
        [left[np.repeat(left_start[:-1], count) + k], right[np.repeat(right_start[:-1], count) + k]]
    ).astype(np.int64)


def _by_channel(
    channel: NDArray[np.int32], chosen: NDArray[np.bool_], num_channels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Chosen ops in order of (channel, row), and where each channel's begin (num_channels + 1 values)."""
    rows = np.flatnonzero(chosen & (channel >= 0))
    rows = rows[np.argsort(channel[rows], kind="stable")]
    return rows, np.searchsorted(channel[rows], np.arange(num_channels + 1))
