"""folded: routes and prices of the representatives of a folded program on a machine that is given by a rule."""

from __future__ import annotations

import numpy as np

from dovetail.core import CostError
from dovetail.cost.price import price
from dovetail.cost.prices import Prices
from dovetail.cost.routes import Routes
from dovetail.ir import Folded, Program, Slot, Workload
from dovetail.machine import Rails, Torus


def price_folded(folded: Folded, machine: Rails | Torus, slot: Slot, period: int) -> tuple[Program, Prices]:
    """Return the quotient of a folded program by `period`, and the costs of its ops.

    Links that ranks `period` apart have in the same place become one. A renumbering that adds multiples of `period`
    must leave the machine unchanged, so `period` is a multiple of its devices.

    Parameters
    ----------
    folded : Folded
        The program.
    machine : Rails or Torus
        The machine, of as many ranks.
    slot : Slot
        A slot of any buffer.
    period : int
        Number of representatives.

    Raises
    ------
    CostError
        If the machine has another number of ranks, other symmetry, or lacks a cost.
    """
    fits = machine.ranks == folded.num_ranks and period % machine.devices == 0
    if not fits or not machine.is_kept_by(folded.symmetry.plus, period):
        found = f"{folded.num_ranks} ranks that repeat after {period}"
        raise CostError(f"'{folded.name}' does not fit machine '{machine.name}'", found=found, hint=f"{machine}")
    program = folded.quotient(period)
    workload = Workload({buffer.name: (slot,) * period for buffer in program.buffers})
    prices = price(program, machine.curves(), workload, routes=_routes(folded, machine, period))
    return program, prices


def _routes(folded: Folded, machine: Rails | Torus, period: int) -> Routes:
    """Return the links of each channel of a quotient: those of its representative, up to the period."""
    rows: dict[tuple[int, ...], int] = {}
    starts, links, kinds = [0], list[int](), list[str]()
    for offset in folded.offsets:
        for rank, there in enumerate(folded.symmetry.plus(np.arange(period), offset).tolist()):
            kind, hops = machine.route(rank, there)
            links += [rows.setdefault(machine.alike(hop, period), len(rows)) for hop in hops]
            kinds.append(kind)
            starts.append(len(links))
    two_way = np.zeros(len(kinds), np.bool_)  # neither machine has costs that depend on it
    start = np.array(starts, np.int64)
    return Routes(start, np.array(links, np.int64), len(rows), tuple(kinds), two_way, np.diff(start))
