"""site_sums: add up calls by call site and name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.analysis.sites import call_sites
from dovetail.trace.trace import Trace

Array = NDArray[Any]


@dataclass(frozen=True)
class SiteStats:
    """All calls of a name from one call site (`file.c:42`, `program+0x1234`, or "" if unknown), on all ranks."""

    site: str
    name: str
    count: int
    num_bytes: int
    seconds: float
    mpi_share: float  # share of the time that all ranks spend in MPI, without MPI_Init and MPI_Finalize

    def to_json(self) -> dict[str, Any]:
        shown = {"site": self.site, "name": self.name, "count": self.count, "bytes": self.num_bytes}
        return {**shown, "seconds": self.seconds, "mpi_share": self.mpi_share}


class SiteSums:
    """Counts, bytes and seconds by rank, name and address of the call."""

    def __init__(self, counts: Array) -> None:
        """`counts`: for each name, whether its calls count."""
        self.counts = counts
        self.sums: dict[tuple[int, int], Array] = {}  # (rank * len(counts) + name, address) -> count, bytes, seconds

    def add(self, col: dict[str, Array], once: Array, moves: Array) -> None:
        """Add rows. `once`: whether a row is the first of its call; `moves`: whether its bytes count."""
        mine = self.counts[col["name"]] & (once | moves)
        at = np.flatnonzero(mine)
        address, of_address = np.unique(col["arg"][at], return_inverse=True)  # `arg`: the address of the call
        cell = col["rank"][at].astype("i8") * len(self.counts) + col["name"][at]
        key, of_key = np.unique(cell * max(len(address), 1) + of_address, return_inverse=True)
        seconds = (col["end_s"] - col["start_s"] - col["pause_s"])[at] * once[at]
        values = ((1 + col["repeats"][at]) * once[at], col["num_bytes"][at] * moves[at], seconds)
        sums = np.stack([np.bincount(of_key, value, len(key)) for value in values], axis=1)
        for one, row in zip(key.tolist(), sums, strict=True):
            number, which = divmod(one, len(address))
            place = number, int(address[which])
            self.sums[place] = self.sums.get(place, 0.0) + row

    def stats(self, num_ranks: int, names: tuple[str, ...], meta: dict[str, Any]) -> tuple[SiteStats, ...]:
        """Return the sums by call site and name, longest first."""
        if not self.sums:
            return ()
        cell, address = (np.array(column, "i8") for column in zip(*self.sums, strict=True))
        rank, name = np.divmod(cell, len(names))
        found = Trace(num_ranks, names, (), {"rank": rank, "arg": address}, meta)
        sites = call_sites(found, np.arange(len(rank)))
        return _by_place(sites, name.tolist(), list(self.sums.values()), names)


def _by_place(
    sites: Sequence[str], name: Sequence[int], sums: Sequence[Array], names: Sequence[str]
) -> tuple[SiteStats, ...]:
    whole: dict[tuple[str, str], Array] = {}
    for site, number, row in zip(sites, name, sums, strict=True):
        whole[site, names[number]] = whole.get((site, names[number]), np.zeros(3)) + row
    spent = sum(row[2] for row in whole.values()) or 1.0
    order = sorted(whole, key=lambda place: -whole[place][2])
    rows = ((place, whole[place].tolist()) for place in order)
    return tuple(SiteStats(*place, int(count), int(size), s, float(s / spent)) for place, (count, size, s) in rows)
