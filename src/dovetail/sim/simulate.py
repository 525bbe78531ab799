"""simulate: predict the Timeline of a Program from its Prices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail import _native
from dovetail.cost.prices import Prices
from dovetail.ir import Program
from dovetail.sim.reference import Result
from dovetail.sim.stuck import stuck
from dovetail.sim.tables import State, Tables
from dovetail.timeline import Timeline


def simulate(program: Program, prices: Prices, machine_name: str = "") -> Timeline:
    """Simulate `program`; return a Timeline labelled "predicted" whose row i is op i, times in seconds.

    A span lasts from the time at which its op can start (the ops before it on its lane, and its dependencies, have
    ended) to its end. It includes waiting for partners, FIFO places and links:

    - send: waits for a free place in the channel's FIFO (for rendezvous also for the posted receive), then for every
      link of the route, first come first served; occupies them for wire_s, and ends. The message arrives latency_s
      later. Where a switch stores messages, this holds of the links as far as the switch: the message waits there for
      the links beyond, which it occupies for wire_s from the time at which it has all of them, and the send has ended.
    - recv: waits for the oldest message, whose place is then free, then does its local work. A fused op has one span
      for its receive and its send.
    - put: as a send without a FIFO, but ends on arrival.
    - signal: takes no time, arrives after latency_s. wait: waits for a signal.
    - collective: begins when the k-th call of every member can start, ends for all members at the same time.
    - contention: compute work advances at rate 1 / slow_by_net while messages, collectives or copies keep its rank
      busy; these advance at rate 1 / slow_by_compute while one of their ranks computes.

    Results are deterministic. Raises ProgramError, which names ops and what they wait for, if the program cannot
    finish, and CostError for prices of another program.

    >>> from dovetail.ir import Builder, Kind
    >>> b = Builder("ping", 2)
    >>> net, channel = b.lane("net", "net"), b.channel(0, 1)
    >>> rows = b.add(Kind.send, 0, net, chan_out=channel), b.add(Kind.recv, 1, net, chan_in=channel)
    >>> ping = b.build()
    >>> simulate(ping, Prices.plain(ping, wire_s=3.0, latency_s=1.0)).columns["end_s"].tolist()
    [3.0, 4.0]
    """
    tables = Tables.unchecked(program, prices)
    result = _run(tables) if tables.is_plain else None
    if result is None:
        result = run(Tables.of(program, prices))  # if a column is at fault, `of` names the op
    if np.any(result.state != State.ended):
        raise stuck(program, tables, result.state)
    return _timeline(program, prices, result.start_s, result.end_s, machine_name)


def run(tables: Tables) -> Result:
    """Return what `reference.run` returns, computed in C++ with the GIL released."""
    result = _run(tables)
    assert result is not None, "tables that were checked fit together"
    return result


def _run(tables: Tables) -> Result | None:
    """Return the result; None if the columns of ops do not fit the other tables."""
    n = len(tables.task)
    result = Result(np.empty(n), np.empty(n), np.empty(n, np.uint8))
    return result if _native.simulate(tables, *result) else None


def _timeline(
    program: Program, prices: Prices, start_s: NDArray[np.float64], end_s: NDArray[np.float64], machine_name: str
) -> Timeline:
    col = program.columns
    num_bytes = np.zeros(program.num_ops, np.int64) if prices.num_bytes is None else prices.num_bytes
    names, name = program.op_names()
    columns = {
        "rank": col["rank"],
        "lane": col["lane"],
        "op": np.arange(program.num_ops, dtype=np.int64),
        "name": name,
        "num_bytes": num_bytes,
        "start_s": start_s,
        "end_s": end_s,
    }
    for column in columns.values():
        column.flags.writeable = False
    meta = {"program": program.name, "machine": machine_name}
    lanes = tuple(lane.name for lane in program.lanes)
    return Timeline("predicted", program.num_ranks, lanes, names, columns, meta)
