"""How chains of tiles are scheduled: the grain, and whether messages overlap computation, by measured costs.

The costs are piecewise: no closed form is trusted where the protocol of messages, or a cache, changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from dovetail.core import PlanError
from dovetail.loops.chains import NON_OVERLAPPING, OVERLAPPING, Chains, linked
from dovetail.loops.recurrence import Link, pipeline_s

WORTH = 0.99  # overlapping must take this much of the time of the other, or less


class Message(NamedTuple):
    """What a message of some size takes: see `recurrence.Link`."""

    half_s: float
    gap_s: float
    send_s: float = 0.0
    recv_s: float = 0.0
    waits: bool = False
    progresses: bool = True


TileCost = Callable[[int, int], float]  # seconds of a tile of so many positions, on a rank
MessageCost = Callable[[int], Message]  # by bytes


class Found(NamedTuple):
    """The best grain and schedule, what it is predicted to take, and why; both schedules' best, and one tile a rank."""

    chains: Chains
    schedule: str
    predicted_s: float
    non_overlapping_s: float
    overlapping_s: float
    serial_s: float
    why: str


def predicted_s(chains: Chains, schedule: str, tile_s: TileCost, message: MessageCost, itemsize: int) -> float:
    """Seconds of a schedule of chains, by the recurrence."""
    compute_s = [tile_s(chains.grain, rank) for rank in range(chains.num_ranks)]
    links = [link for link, _ in _links(chains, message, itemsize)]
    return pipeline_s(chains.num_tiles, compute_s, links, overlapped=schedule == OVERLAPPING)


def best_chains(chains: Chains, tile_s: TileCost, message: MessageCost, itemsize: int = 8) -> Found:
    """The grain, in place of that of `chains`, and the schedule that are predicted to end first: an integer search.

    >>> chains = Chains(((1, 0), (0, 1)), (64, 4096), (4,), 1)
    >>> for waits in (False, True):
    ...     message = lambda num_bytes: Message(5e-5 + num_bytes * 8e-8, num_bytes * 8e-8, 2e-6, 2e-6, waits)
    ...     found = best_chains(chains, lambda grain, rank: 1e-6 * grain, message)
    ...     print(found.chains.grain, found.schedule, f"{found.predicted_s:.4f} s", found.why.split(",")[0])
    57 non_overlapping 0.0048 s sends do not wait for their receivers
    121 overlapping 0.0051 s sends wait for their receivers
    """

    def seconds(schedule: str, grain: int) -> float:
        return predicted_s(replace(chains, grain=grain), schedule, tile_s, message, itemsize)

    best = {schedule: _best_grain(chains, partial(seconds, schedule)) for schedule in (NON_OVERLAPPING, OVERLAPPING)}
    plain_s, over_s = best[NON_OVERLAPPING][1], best[OVERLAPPING][1]
    schedule = OVERLAPPING if over_s < WORTH * plain_s else NON_OVERLAPPING
    chosen = replace(chains, grain=best[schedule][0])
    costs = [cost for _, cost in _links(chosen, message, itemsize)]
    serial_s = seconds(NON_OVERLAPPING, chains.length)
    return Found(chosen, schedule, best[schedule][1], plain_s, over_s, serial_s, _why(schedule, costs))


def _links(chains: Chains, message: MessageCost, itemsize: int) -> Iterator[tuple[Link, Message]]:
    for rank in range(chains.num_ranks):
        for offset, target in linked(chains, rank, 1):
            cost = message(chains.grain * prod(chains.face(rank, offset)) * itemsize)
            yield Link(rank, target, *cost), cost


def _best_grain(chains: Chains, seconds: Callable[[int], float]) -> tuple[int, float]:
    """A geometric ladder of grains, then steps of half the size about the best, then tiles all as long as the last."""
    least, most = max(chains.back, 1), chains.length
    if least > most:
        raise PlanError("dependences are longer than the mapped loop", found=f"{least} of {most} points")
    known = {most: seconds(most)}

    def weigh(grain: int) -> None:
        if least <= grain <= most and grain not in known:
            known[grain] = seconds(grain)

    def best() -> int:
        return min(known, key=lambda grain: (known[grain], grain))

    grain = least
    while grain < most:
        weigh(grain)
        grain += 1 + grain // 5
    step = 1 + best() // 10
    while step:
        for grain in (best() - step, best() + step):
            weigh(grain)
        step //= 2
    tiles = -(-most // best())
    weigh(-(-most // tiles))
    return best(), known[best()]


def _why(schedule: str, costs: list[Message]) -> str:
    if not costs:
        return "no rank needs another"
    if not any(cost.waits for cost in costs):
        return "sends do not wait for their receivers, so that blocking ones overlap already"
    if schedule == OVERLAPPING:
        return "sends wait for their receivers, so that a tile is computed meanwhile"
    if not all(cost.progresses for cost in costs):
        return "messages do not travel while ranks compute, so that overlapping gains nothing"
    return "waiting for the receivers costs less than the longer pipeline"
