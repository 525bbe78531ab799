"""disturbance: what other programs, and the hypervisor, took of the ranks' cores while a program was traced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.run.load import Domain, Load, Place, Spent, blocks, domains, load_of, stolen, waits

Array = NDArray[Any]


@dataclass(frozen=True)
class Disturbance:
    """Time that the ranks lost to others, as `tune` counts it (`dovetail.run.load`).

    Attributes
    ----------
    load : Load
        Shares that others took over the whole run, of the rank that lost most.
    times_s : array of float, shape (n + 1,)
        Bounds of intervals on the trace's clock.
    lost_s : array of float, shape (ranks, n)
        Seconds that each rank lost in each interval.
    crowded_s : array of float, shape (ranks, n)
        Seconds that each rank lost to ranks of its own job, where these are more than their cores.
    """

    load: Load
    times_s: Array = field(repr=False)
    lost_s: Array = field(repr=False)
    crowded_s: Array = field(repr=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return a sentence for each kind of disturbance that took more than LIMIT, and when most of it was."""
        if not self.load.warnings:
            return ()
        total_s = self.lost_s.sum(axis=0)
        rate = total_s / np.diff(self.times_s)
        worst = np.flatnonzero(rate >= 0.5 * rate.max())
        begin_s, end_s = self.times_s[worst[0]], self.times_s[worst[-1] + 1]
        is_whole = end_s - begin_s > 0.8 * (self.times_s[-1] - self.times_s[0])
        when = "throughout" if is_whole else f"mostly from {begin_s:.3g} s to {end_s:.3g} s"
        lost = f"The ranks lost {total_s.sum():.3g} s in all, {when}"
        return (*(text.split(":")[0] for text in self.load.warnings), lost)

    def shares_lost(self) -> Array:
        """Return by rank the share of the run that it lost to others."""
        found: Array = self.lost_s.sum(axis=1) / (self.times_s[-1] - self.times_s[0])
        return found

    def caused_s(self, start_s: Array, end_s: Array, saves_s: float) -> float:
        """Return how much of a saving in calls with these times others may have caused.

        A second that a rank loses delays the run by at most one second. The saving is divided among the intervals in
        proportion to the calls' time; in each, others caused at most what all ranks lost there.
        """
        spent_s = np.histogram((start_s + end_s) / 2, self.times_s, weights=np.maximum(end_s - start_s, 1e-12))[0]
        if not spent_s.sum():
            return 0.0
        return float(np.minimum(saves_s * spent_s / spent_s.sum(), self.lost_s.sum(axis=0)).sum())

    def shares(self, lost_s: Array, late: Array, waiting: Array, until_s: Array, excess_s: Array) -> Array:
        """Return the share of each wait due to `lost_s`: at most what the late rank lost so in the wait's interval."""
        count, ranks = lost_s.shape[1], len(lost_s)
        at = np.clip(np.searchsorted(self.times_s, until_s, side="right") - 1, 0, count - 1)
        cell = late.astype("i8") * count + at
        both, place = np.unique(cell * ranks + waiting, return_inverse=True)
        most_s = np.zeros(ranks * count)
        np.maximum.at(most_s, both // ranks, np.bincount(place.ravel(), excess_s, len(both)))
        share = np.minimum(np.divide(lost_s.ravel(), most_s, out=np.zeros_like(most_s), where=most_s > 0), 1.0)
        found: Array = share[cell]
        return found


def disturbance(meta: Mapping[str, Any], num_ranks: int) -> Disturbance | None:
    """Return what others took of a traced run, from a trace's meta; None if the trace does not show it.

    Traces lack it if a rank has no readings of the kernel's counters, or less than two, or if the run was shorter than
    `/proc/stat` can tell (0.2 s).
    """
    abouts = sorted((a for a in meta.get("ranks", ()) if len(a.get("load", {}).get("time_s", ())) > 1), key=_rank)
    if [_rank(about) for about in abouts] != list(range(num_ranks)):
        return None
    places = [Place(a["load"]["booted_s"], a["host"], frozenset(a["load"]["cpus"]), {}) for a in abouts]
    found = [part for domain in domains(places) if (part := _lost(domain, [abouts[r]["load"] for r in domain.ranks]))]
    if not found:
        return None
    times_s = max((it.times_s for it in found), key=len)
    both = np.zeros((2, num_ranks, len(times_s) - 1))
    for it in found:
        for kind, lost in enumerate((it.lost_s, it.crowded_s)):
            for rank, row in zip(it.domain.ranks, lost.T, strict=True):
                sums = np.concatenate([[0.0], np.cumsum(row)])
                both[kind, rank] = np.diff(np.interp(times_s, it.times_s, sums))
    return Disturbance(Load.worst([it.load for it in found]), times_s, both[0], both[1])


def _rank(about: Mapping[str, Any]) -> int:
    return int(about["rank"])


class _Lost(NamedTuple):
    """What ranks that share CPUs lost: the shares taken, bounds of intervals, and seconds by interval and rank."""

    domain: Domain
    load: Load
    times_s: Array
    lost_s: Array
    crowded_s: Array


def _lost(domain: Domain, loads: list[Mapping[str, Any]]) -> _Lost | None:
    """Return what ranks that share CPUs lost; None if their counters do not show it."""
    begin_s, end_s = max(it["time_s"][0] for it in loads), min(it["time_s"][-1] for it in loads)
    own_s = np.array(loads[0]["time_s"])
    times_s = np.unique([begin_s, *own_s[(own_s > begin_s) & (own_s < end_s)], end_s])
    if begin_s >= end_s or any(None in it["programs_s"] for it in loads):
        return None
    used, waited = (np.stack([_rise(it, name, times_s) for it in loads], axis=1) for name in ("used_s", "waited_s"))
    names = ("programs_s", "interrupts_s", "steal_s")
    whole = (np.sum([_rise(it, name, times_s) for it in _apart(loads)], axis=0) for name in names)
    spent = Spent(np.diff(times_s), used, waited, *whole)
    load = load_of(domain, spent)
    if load.foreign is None:
        return None
    of_others = np.where(np.isnan(waited), load.foreign, waits(domain, spent))
    share = np.minimum(of_others + stolen(domain, blocks(spent))[:, None], 1.0)
    is_crowded = len(domain.ranks) > len(domain.cpus)
    own_s = np.nan_to_num(waited - of_others * spent.wall_s[:, None]) if is_crowded else np.zeros_like(waited)
    return _Lost(domain, load, times_s, share * spent.wall_s[:, None], np.maximum(own_s, 0.0))


def _rise(load: Mapping[str, Any], name: str, times_s: Array) -> Array:
    """Return how much a counter rises in each interval."""
    if None in load[name]:
        return np.full(len(times_s) - 1, np.nan)
    return np.diff(np.interp(times_s, load["time_s"], load[name]))


def _apart(loads: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the loads of ranks whose CPUs do not overlap, so that no CPU's counters count twice."""
    seen: set[int] = set()
    for load in loads:
        if not seen & {*load["cpus"]}:
            seen |= {*load["cpus"]}
            yield load
