"""prices: the costs of every op of one Program on one machine, as columns; `cost` computes them, `sim` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.core import CostError
from dovetail.ir import Kind, Program

FLOATS = ("work_s", "wire_s", "latency_s", "slow_by_net", "slow_by_compute")


@dataclass(frozen=True, eq=False)
class Prices:
    """Costs of the ops of one Program: columns of length `num_ops` unless stated, times in seconds.

    - `work_s`: local busy time (compute, copy, reduce, the add of a recv_reduce*, receive overhead); for a collective
      its duration once all members arrived.
    - `wire_s`: for ops that send or put, the time for which every link of the route is occupied.
    - `latency_s`: a message arrives at its start on the wire + latency_s + wire_s; a signal latency_s after it.
    - `rendezvous`: the message waits for its receive to be posted.
    - `slow_by_net` (>= 1): factor of ops on compute lanes while traffic of that rank is going on.
    - `slow_by_compute` (>= 1): factor of net and copy activities while a compute lane of a rank involved is busy.
    - Channel c occupies the links route[route_start[c]:route_start[c + 1]], each a number below `num_links`.
    - `uplinks`: number of the first links of a channel's route that lead to a switch which stores messages: there they
      wait for the links beyond. The length of the route, the default, if no switch does: a message then waits until all
      links of its route are free.
    - `num_bytes`: bytes that each op moves, for the timeline; None if unknown.
    """

    work_s: NDArray[np.float64]
    wire_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    rendezvous: NDArray[np.bool_]
    slow_by_net: NDArray[np.float64]
    slow_by_compute: NDArray[np.float64]
    route_start: NDArray[np.int64]
    route: NDArray[np.int64]
    num_links: int
    num_bytes: NDArray[np.int64] | None = field(default=None)
    uplinks: NDArray[np.int64] = field(default=None)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if self.uplinks is None:
            object.__setattr__(self, "uplinks", np.diff(self.route_start))
        for name in FLOATS:
            self._freeze(name, np.float64)
        self._freeze("rendezvous", np.bool_)
        for name in ("route_start", "route", "uplinks", *self._optional()):
            self._freeze(name, np.int64)
        self._check()

    @property
    def num_ops(self) -> int:
        return len(self.work_s)

    @classmethod
    def plain(cls, program: Program, work_s: ArrayLike = 0.0, wire_s: ArrayLike = 0.0, **columns: Any) -> Prices:
        """Return prices from numbers or columns: no latency, no contention, and one link per channel, unless given.

        A number stands for every op; `columns` are any of the fields.
        """
        channels = len(program.channels)
        given: dict[str, Any] = {"route_start": np.arange(channels + 1), "route": np.arange(channels)}
        given |= {"num_links": channels, "work_s": work_s, "wire_s": wire_s, "latency_s": 0.0, "rendezvous": False}
        given |= {"slow_by_net": 1.0, "slow_by_compute": 1.0, **columns}
        for name in (*FLOATS, "rendezvous", "num_bytes"):
            if name in given:
                given[name] = np.broadcast_to(np.asarray(given[name]), (program.num_ops,))
        return cls(**given)

    def with_columns(self, **columns: Any) -> Prices:
        """Return the prices with some columns replaced."""
        return replace(self, **columns)

    def as_run(self, program: Program) -> Prices:
        """Return the prices as executors run the program: without computations in it, they post receives ahead, and no
        message waits for its receive."""
        if not self.rendezvous.any() or (program.kind == Kind.compute).any():
            return self
        return self.with_columns(rendezvous=np.zeros(program.num_ops, np.bool_))

    def check_fit(self, program: Program) -> None:
        """Raise CostError if the columns do not fit `program`."""
        channels = len(program.channels)
        for what, found, want in (
            ("ops", self.num_ops, program.num_ops),
            ("channels", len(self.route_start) - 1, channels),
        ):
            if found != want:
                raise CostError(f"prices do not fit program '{program.name}'", found=f"{found} {what}, not {want}")

    def _optional(self) -> tuple[str, ...]:
        return () if self.num_bytes is None else ("num_bytes",)

    def _freeze(self, name: str, dtype: Any) -> None:
        column = np.ascontiguousarray(getattr(self, name), dtype=dtype).view()
        column.flags.writeable = False
        object.__setattr__(self, name, column)

    def _check(self) -> None:
        for name in (*FLOATS, "rendezvous", *self._optional()):
            column = getattr(self, name)
            if column.shape != (self.num_ops,):
                raise CostError(f"price column '{name}' must have one row for each op", found=f"shape {column.shape}")
        for name in FLOATS:
            least, column = (1.0 if name.startswith("slow") else 0.0), getattr(self, name)
            if not len(column) or (column.min() >= least and column.max() < np.inf):  # both are false for NaN
                continue
            bad = np.flatnonzero(~((column >= least) & np.isfinite(column)))
            if len(bad):
                found = f"{column[bad[0]]} for op {bad[0]}"
                raise CostError(f"price column '{name}' must be finite and at least {least:g}", found=found)
        self._check_routes()

    def _check_routes(self) -> None:
        start, route = self.route_start, self.route
        shaped = start.ndim == route.ndim == 1 and len(start) > 0 and start[0] == 0 and start[-1] == len(route)
        if not shaped or np.any(np.diff(start) < 0):
            raise CostError("'route_start' does not index 'route'")
        if self.uplinks.shape != (len(start) - 1,) or np.any((self.uplinks < 0) | (self.uplinks > np.diff(start))):
            raise CostError("'uplinks' must have one count for each channel, at most the length of its route")
        if len(route) and (route.min() < 0 or route.max() >= self.num_links):
            raise CostError(f"a route leaves the {self.num_links} links")
        channel = np.repeat(np.arange(len(start) - 1), np.diff(start))
        crossings = np.sort(channel * max(self.num_links, 1) + route)
        if np.any(np.diff(crossings) == 0):
            raise CostError("a route crosses one link twice")
