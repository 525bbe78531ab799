"""timing: what a collective takes at several sizes by one algorithm, in the terms of nccl-tests; nothing is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.collective.library import LIBRARY
from dovetail.collective.wish import CollectiveWish
from dovetail.core import DovetailError, Say
from dovetail.ir import Schedule
from dovetail.plan.selection import Choice, selection_for
from dovetail.probe import find_ranks
from dovetail.run.job import Executor, Job
from dovetail.tune.machines import default_executor
from dovetail.tune.measure import Entry, repeats_worth
from dovetail.tune.tune import fresh_seed

Rule = Callable[[CollectiveWish], Schedule]
TUNED = "tuned"
SHORT_BYTES = 64 << 10  # sizes up to this are timed in one job


@dataclass(frozen=True)
class Timed:
    """One size: the wish, what carried it out on how many ranks, and what that took. `num_wrong`: elements, on all
    ranks."""

    wish: CollectiveWish
    ranks: int
    choice: Choice
    seconds: float
    spread: float
    num_wrong: int | None

    @property
    def count(self) -> int:
        """Elements of the larger of a rank's buffers."""
        return self.wish.count(self.ranks) * self.wish.parts(self.ranks)

    @property
    def bandwidths(self) -> tuple[float, float]:
        """Algorithm and bus bandwidth in GB/s (10^9 bytes), as nccl-tests defines them."""
        return bandwidths(self.wish.num_bytes, self.seconds, bus_factor(self.wish.name, self.ranks))

    def to_json(self) -> dict[str, Any]:
        rates = dict(zip(("algbw_gb_per_s", "busbw_gb_per_s"), self.bandwidths, strict=True))
        head = {"num_bytes": self.wish.num_bytes, "count": self.count, **self.choice._asdict()}
        return {**head, "measured_s": self.seconds, "spread": self.spread, **rates, "num_wrong": self.num_wrong}


def bus_factor(collective: str, ranks: int) -> float:
    """What nccl-tests multiplies the algorithm bandwidth by, so that it can be held against the links'.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    share = (ranks - 1) / ranks
    factors = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share}
    return factors.get(collective, 1.0)


def bandwidths(num_bytes: int, seconds: float, factor: float) -> tuple[float, float]:
    """Algorithm and bus bandwidth in GB/s (10^9 bytes), as nccl-tests defines them.

    >>> bandwidths(4_000_000, 1e-3, 1.5)
    (4.0, 6.0)
    """
    rate = num_bytes / seconds / 1e9 if seconds else 0.0
    return rate, rate * factor


def time_collective(
    wishes: Sequence[CollectiveWish],
    ranks: int,
    algorithm: str = TUNED,
    *,
    parameters: Choice | None = None,
    executor: Executor | None = None,
    rounds: int = 5,
    budget_s: float = 60.0,
    seed: int | None = None,
    say: Say | None = None,
) -> list[Timed]:
    """Time a collective at each of its sizes (see `CollectiveWish.points`), and check every result.

    `algorithm`: one by name with these `parameters`, `library` for the library's call, or `tuned`, as it was tuned for
    these ranks.
    """
    given = (parameters or Choice())._replace(algorithm=LIBRARY if algorithm == TUNED else algorithm)
    for wish in wishes:  # before anything runs
        wish.check_ranks(ranks)
        wish.by(*given)
    tell, runner = say or (lambda what, done: None), executor or default_executor()
    hosts, facts = find_ranks(runner, ranks)
    settled = [wish.settled({"nodes": hosts}, ranks)[0] for wish in wishes]
    wanted = sorted({wish.num_bytes: wish for wish in settled}.values(), key=lambda wish: wish.num_bytes)
    rule: Rule = lambda wish: wish.by(*given)  # noqa: E731
    if algorithm == TUNED:
        rule = tuned_rule(wanted[0], ranks, str(facts["mpi"]), hosts)
    timed: list[Timed] = []
    short, long = ([w for w in wanted if (w.num_bytes <= SHORT_BYTES) is few] for few in (True, False))
    for group in [short, *([wish] for wish in long)]:
        if group:
            tell(group[-1].title, len(timed) / len(wanted))
            limit_s = budget_s / len(wanted) * len(group)
            timed += _time(group, ranks, rule, runner, rounds, limit_s, fresh_seed(seed))
    return timed


def tuned_rule(wish: CollectiveWish, ranks: int, library: str, hosts: Sequence[str]) -> Rule:
    """What the table of these ranks says of each size; DovetailError where the collective was not tuned here."""
    table, group = selection_for(library, hosts), (wish.name, ranks, wish.nodes)
    if table is None or not any(row.group == group for row in table.rows):
        hint = f"dovetail tune {wish.name} --ranks {ranks}, or --algorithm library"
        raise DovetailError(f"{wish.name} on {ranks} ranks has not been tuned here", hint=hint)

    def rule(asked: CollectiveWish) -> Schedule:
        row = table.lookup(asked.name, ranks, asked.num_bytes, asked.nodes, asked.dtype)
        return asked.by(*(row.choice if row else Choice()))

    return rule


def _time(
    wishes: Sequence[CollectiveWish],
    ranks: int,
    rule: Rule,
    executor: Executor,
    rounds: int,
    budget_s: float,
    seed: int,
) -> list[Timed]:
    entries = [Entry(wish.title, wish, ranks, rule(wish), {}) for wish in wishes]
    repeats = (repeats_worth(hoped_s(wish)) for wish in wishes)
    variants = (each.variant(each.serial, count, check=True) for each, count in zip(entries, repeats, strict=True))
    result = executor.execute(Job(tuple(variants), rounds=rounds, seed=seed, budget_s=budget_s))
    return [
        Timed(wish, ranks, Choice.of(each.serial), outcome.median_s, outcome.spread, outcome.num_wrong)
        for wish, each, outcome in zip(wishes, entries, result.outcomes, strict=True)
    ]


def hoped_s(wish: CollectiveWish) -> float:
    """Seconds of a run where all goes well, to begin with: on one node, or across a good network.

    >>> from dovetail.collective.wish import Broadcast
    >>> [round(hoped_s(Broadcast(1 << 20, nodes=nodes)) * 1e6) for nodes in (1, 2)]
    [1059, 8449]
    """
    return 60e-6 + wish.num_bytes * 8e-9 if (wish.nodes or 1) > 1 else 10e-6 + wish.num_bytes * 1e-9
