"""failure: simulate a link or a rank that fails at some time: what still ends, and which ops and ranks hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError, seconds_text
from dovetail.cost import Prices
from dovetail.cost.routes import carriers
from dovetail.ir import Kind, Program
from dovetail.ir.op_lists import name_op
from dovetail.sim.simulate import simulate
from dovetail.timeline import Timeline

NEVER_S = 1e200  # seconds that an op takes which the failure stops; far beyond every clock, and below overflow


@dataclass(frozen=True)
class Failed:
    """What a failure leaves.

    Attributes
    ----------
    timeline : Timeline
        The ops that end all the same, in their order; row `ops[i]` of the program is row i.
    ops : ndarray of int
        Their rows in the program.
    struck : tuple of int
        Rows of the ops that the failure itself stops: those of the rank, or those whose message would use the link.
    hung : tuple of int
        Rows of the other ops that never end, because they wait for those.
    whole_s : float
        Seconds of the program without the failure.
    """

    timeline: Timeline
    ops: NDArray[np.int64]
    struck: tuple[int, ...]
    hung: tuple[int, ...]
    whole_s: float

    @property
    def survives(self) -> bool:
        """Whether every op ends: the failure came too late, or concerned nothing that the program uses."""
        return not self.struck

    def ranks(self, program: Program) -> tuple[int, ...]:
        """Return the ranks with an op that never ends."""
        rows = np.array([*self.struck, *self.hung], np.int64)
        return tuple(np.unique(program.columns["rank"][rows]).tolist())

    def explain(self, program: Program) -> str:
        """Return in a sentence what stops, and which rank waits first for it."""
        if self.survives:
            return f"{program.name} ends as without the failure"
        first = name_op(program, self.struck[0])
        many = len(self.struck) + len(self.hung)
        ranks, last = self.ranks(program), seconds_text(self.timeline.makespan_s)
        return (
            f"{many} of {program.num_ops} ops never end, on {len(ranks)} of {program.num_ranks} ranks; first "
            f"{first}; the last that ends does so at {last} of {seconds_text(self.whole_s)}"
        )


def simulate_failure(
    program: Program,
    prices: Prices,
    at_s: float,
    *,
    rank: int | None = None,
    links: Sequence[int] = (),
    machine_name: str = "",
) -> Failed:
    """Simulate a program of which one rank, or some links, fail at a time, and for good.

    Until then all happens as without the failure. A rank's ops that have not ended by then never do; nor do messages
    that would use a link and whose send has not ended. These occupy lanes, links and FIFO places for ever, and what
    waits for them hangs; all else goes on, at the times that this leaves it.

    Parameters
    ----------
    program : Program
        The program.
    prices : Prices
        Its costs.
    at_s : float
        When it fails, in seconds.
    rank : int, optional
        The rank that fails.
    links : sequence of int
        Numbers of the links that fail, as in `prices.route`.
    machine_name : str
        Name in the timeline.

    Returns
    -------
    Failed
        What ends, and what does not.

    Raises
    ------
    OperatorError
        If the time, the rank or a link does not exist, or a link fails in a program that calls collectives.
    ProgramError
        If the program cannot finish even without the failure.

    >>> from dovetail.ir import Builder, Kind
    >>> b = Builder("ping", 2)
    >>> net, channel = b.lane("net", "net"), b.channel(0, 1)
    >>> rows = b.add(Kind.send, 0, net, chan_out=channel), b.add(Kind.recv, 1, net, chan_in=channel)
    >>> ping = b.build()
    >>> failed = simulate_failure(ping, Prices.plain(ping, wire_s=3.0), 2.0, links=[0])
    >>> failed.struck, failed.hung, failed.survives
    ((0,), (1,), False)
    """
    if not (isfinite(at_s) and at_s >= 0):
        raise OperatorError("a failure needs a time of at least 0 s", found=repr(at_s))
    if rank is not None and not 0 <= rank < program.num_ranks:
        raise OperatorError(f"no rank {rank}", found=f"ranks 0 to {program.num_ranks - 1}")
    unknown = [link for link in links if not 0 <= link < prices.num_links]
    if unknown:
        raise OperatorError(f"no link {unknown[0]}", found=f"{prices.num_links} links")
    if links and (program.kind == Kind.collective).any():
        what = "a link's failure is simulated for messages, not for calls of collectives, whose links are unknown"
        raise OperatorError(what, found=program.name, hint="let a rank fail: --fail rank:0@1ms")
    whole = simulate(program, prices, machine_name)
    open_ = whole.columns["end_s"] > at_s
    struck = open_ & (_uses(program, prices, links) | (program.columns["rank"] == (-1 if rank is None else rank)))
    if not struck.any():
        every = np.arange(program.num_ops, dtype=np.int64)
        return Failed(whole, every, (), (), whole.makespan_s)
    names = ("work_s", "wire_s", "latency_s")
    slow = {name: np.where(struck, NEVER_S, getattr(prices, name)) for name in names}
    left = simulate(program, prices.with_columns(**slow), machine_name)
    ends = (left.columns["end_s"] < NEVER_S / 2) & ~struck
    rows = np.flatnonzero(ends)
    columns = {name: column[rows] for name, column in left.columns.items()}
    timeline = replace(left, columns=columns)
    hung = np.flatnonzero(~ends & ~struck)
    return Failed(timeline, rows, tuple(np.flatnonzero(struck).tolist()), tuple(hung.tolist()), whole.makespan_s)


def _uses(program: Program, prices: Prices, links: Sequence[int]) -> NDArray[np.bool_]:
    """Return, for each op, whether its message uses one of the links."""
    uses = np.isin(prices.route, np.array(links, np.int64))
    total = np.concatenate([[0], np.cumsum(uses)])
    by_channel = np.append(total[prices.route_start[1:]] > total[prices.route_start[:-1]], False)
    found: NDArray[np.bool_] = by_channel[carriers(program)]
    return found
