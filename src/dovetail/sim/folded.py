"""folded: predict a folded program's Timeline from a few representatives; equal to that of all ranks, or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.core import ProgramError
from dovetail.cost import Prices, price_folded
from dovetail.ir import Folded, Program, Slot
from dovetail.ir.op_lists import name_op
from dovetail.machine import Rails, Torus
from dovetail.sim.simulate import simulate
from dovetail.timeline import Timeline


def simulate_folded(folded: Folded, machine: Rails | Torus, slot: Slot) -> Timeline:
    """Simulate the ranks of one server, or of a torus's first place, of a folded program; return their Timeline.

    Rank r of the Timeline stands for the ranks r + k * devices of all servers: each of their ops starts and ends at
    exactly the time of the representative's, as `simulate` of the whole program would find. docs/how.md says why.

    Parameters
    ----------
    folded : Folded
        The program, which `verify_folded` has proved: the equality needs that its order does not depend on timing.
    machine : Rails or Torus
        A machine of as many ranks.
    slot : Slot
        A slot of any buffer.

    Raises
    ------
    ProgramError
        If it cannot finish, or if two messages may reach a link at the same time, so that the outcome would depend on
        how ops are numbered, and ranks might differ.
    CostError
        If the machine has another number of ranks, or another symmetry, or lacks a cost.
    MachineError
        If a message has several shortest ways on a torus.
    """
    program, prices = price_folded(folded, machine, slot, machine.devices)
    found = simulate(program, prices, machine.name)
    _check_turns(program, prices, found)
    return replace(found, meta={**found.meta, "stands_for_ranks": folded.num_ranks})


def _check_turns(program: Program, prices: Prices, timeline: Timeline) -> None:
    """Raise ProgramError unless messages that use one link do so one after another.

    A message joins a link's queue after its op could start, and before the op ends. If no two such spans on a link
    overlap, no two messages join at the same time.
    """
    channel = program.chan_out.astype(np.int64)
    rows = np.flatnonzero(channel >= 0)
    counts = np.diff(prices.route_start)[channel[rows]]
    ops = np.repeat(rows, counts)
    within = np.arange(len(ops)) - np.repeat(np.cumsum(counts) - counts, counts)
    links = prices.route[np.repeat(prices.route_start[channel[rows]], counts) + within]
    start, end = timeline.columns["start_s"], timeline.columns["end_s"]
    order = np.lexsort((end[ops], start[ops], links))
    ops, links = ops[order], links[order]
    meet = (start[ops[1:]] < end[ops[:-1]]) | (start[ops[1:]] == start[ops[:-1]])
    bad = np.flatnonzero((links[1:] == links[:-1]) & meet)
    if len(bad):
        one, other = ops[bad[0]], ops[bad[0] + 1]
        raise ProgramError(
            f"{name_op(program, int(one))} and {name_op(program, int(other))} may reach a link at the same time",
            where=program.op(int(other)).line,
            found=f"their waits overlap from {start[other]:.9f} s on",
            hint="the order may differ among ranks: simulate the expanded program",
        )
