"""timing: time one algorithm of a collective at several sizes, and report bandwidths as nccl-tests does."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.collective.library import LIBRARY
from dovetail.collective.operators import CollectiveOperator
from dovetail.core import DovetailError, Say
from dovetail.ir import Schedule
from dovetail.ir.collectives import traits_of
from dovetail.prober import find_ranks
from dovetail.run.executor import Executor, flags_of
from dovetail.run.job import Job
from dovetail.store.selection import Choice, given_selection, recall_selection
from dovetail.tuner.baselines import Compared, compare
from dovetail.tuner.collectives import BESIDE, prepared
from dovetail.tuner.measure import Entry, repeats_worth

Rule = Callable[[CollectiveOperator], Schedule]  # which schedule to time for an operator
TUNED = "tuned"
SHORT_BYTES = 64 << 10  # sizes up to this are timed in one job


@dataclass(frozen=True)
class Timed:
    """One size of a timed collective: operator, ranks, algorithm, median seconds, relative spread.

    `num_wrong`: wrong elements over all ranks; None if the result was not checked. `beside`: the library's own program
    and the algorithm, launched alternately; None if not reached, or where ranks are no processes of MPI.
    """

    operator: CollectiveOperator
    ranks: int
    choice: Choice
    seconds: float
    spread: float
    num_wrong: int | None
    beside: Compared | None = None

    @property
    def count(self) -> int:
        """Return the elements of the larger of a rank's buffers."""
        return self.operator.count(self.ranks) * self.operator.parts(self.ranks)

    @property
    def bandwidths(self) -> tuple[float, float]:
        """Return algorithm and bus bandwidth in GB/s (10^9 bytes), as nccl-tests defines them."""
        return bandwidths(self.operator.num_bytes, self.seconds, bus_factor(self.operator.name, self.ranks))

    def to_json(self) -> dict[str, Any]:
        """Return the row of one size: bytes, seconds, GB/s."""
        rates = dict(zip(("algbw_gb_per_s", "busbw_gb_per_s"), self.bandwidths, strict=True))
        head = {"num_bytes": self.operator.num_bytes, "count": self.count, **self.choice._asdict()}
        return {**head, "measured_s": self.seconds, "spread": self.spread, **rates, "num_wrong": self.num_wrong} | {
            "beside": self.beside and self.beside.to_json()
        }


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth / algorithm bandwidth, as nccl-tests defines them. Bus bandwidth compares with a link's.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    traits, share = traits_of(collective), (ranks - 1) / ranks
    if traits.sums_everywhere:
        return 2 * share
    return share if traits.in_parts and not traits.rooted and not traits.even else 1.0


def bandwidths(num_bytes: int, seconds: float, factor: float) -> tuple[float, float]:
    """Return algorithm and bus bandwidth in GB/s (10^9 bytes), as nccl-tests defines them.

    >>> bandwidths(4_000_000, 1e-3, 1.5)
    (4.0, 6.0)
    """
    rate = num_bytes / seconds / 1e9 if seconds else 0.0
    return rate, rate * factor


def time_collective(
    operators: Sequence[CollectiveOperator],
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
    """Time a collective at each of its sizes, and check every result.

    Parameters
    ----------
    algorithm : str
        "tuned": the algorithms that `dovetail tune` chose for these ranks. "library": the MPI library's call. Else the
        name of an algorithm.
    parameters : Choice, optional
        Parameters of a named algorithm.
    rounds : int
        Timings of each size.
    operators, ranks, executor, budget_s, seed, say
        As in `tune_collective` and `tune`.

    Returns
    -------
    list of Timed
        One per size, smallest first.

    Raises
    ------
    OperatorError
        If the collective, or the algorithm, cannot run on these ranks.
    DovetailError
        If `algorithm` is "tuned" and the collective was not tuned for these ranks.
    RunError
        If a rank fails.
    """
    given = (parameters or Choice())._replace(algorithm=LIBRARY if algorithm == TUNED else algorithm)
    runner, seed, notify = prepared(operators, ranks, executor, seed, say)
    for operator in operators:  # before anything runs
        operator.by(*given)
    runner = runner.at_level("serialized")
    hosts, facts = find_ranks(runner, ranks)
    resolved = [operator.resolve({"nodes": hosts}, ranks)[0] for operator in operators]
    wanted = sorted(
        {operator.num_bytes: operator for operator in resolved}.values(), key=lambda operator: operator.num_bytes
    )
    rule: Rule = lambda operator: operator.by(*given)  # noqa: E731
    if algorithm == TUNED:
        rule = tuned_rule(wanted[0], ranks, str(facts["mpi"]), hosts, runner)
    timed: list[Timed] = []
    short, long = ([w for w in wanted if (w.num_bytes <= SHORT_BYTES) is few] for few in (True, False))
    for group in [short, *([operator] for operator in long)]:
        if group:
            notify(group[-1].title, len(timed) / len(wanted))
            limit_s = (1 - BESIDE) * budget_s / len(wanted) * len(group)
            timed += _time(group, ranks, rule, runner, rounds, limit_s, seed)
    entries = [(_entry(each.operator, ranks, rule), rule(each.operator), each.seconds) for each in timed]
    about: dict[str, Any] = {"rounds": rounds, "budget_s": BESIDE * budget_s, "seed": seed, "say": notify}
    beside, _ = compare(entries, runner, str(facts["mpi"]), **about)
    return [replace(each, beside=beside.get(each.operator.num_bytes)) for each in timed]


def tuned_rule(
    operator: CollectiveOperator, ranks: int, library: str, hosts: Sequence[str], executor: Executor
) -> Rule:
    """Return the rule that the cached selection table defines. Raise DovetailError if the collective was not tuned."""
    (table, fault), group = recall_selection(library, hosts), (operator.name, ranks, operator.nodes)
    if table is None or not any(row.group[:3] == group for row in table.rows):
        raise _not_tuned(operator.name, ranks, library, fault, executor)

    def rule(asked: CollectiveOperator) -> Schedule:
        row = table.lookup(asked.name, ranks, asked.num_bytes, asked.nodes, asked.dtype)
        return asked.by(*(row.choice if row else Choice()))

    return rule


def _not_tuned(collective: str, ranks: int, library: str, fault: str, executor: Executor) -> DovetailError:
    """Return the error for a collective without a row in the table. `fault`: why the table cannot be read, if so."""
    what = f"{collective} on {ranks} ranks has not been tuned here for messages by {' '.join(library.split())}"
    if not fault and (given := given_selection()):
        fault = f"no row for it in the table that DOVETAIL_SELECTION names: {given}"
    tune = shlex.join(["dovetail", "tune", collective, "--ranks", str(ranks), *flags_of(executor)])
    found = fault.partition("\n")[0] or None
    return DovetailError(what, found=found, hint=f"{tune}, or --algorithm library")


def _time(
    operators: Sequence[CollectiveOperator],
    ranks: int,
    rule: Rule,
    executor: Executor,
    rounds: int,
    budget_s: float,
    seed: int,
) -> list[Timed]:
    entries = [_entry(operator, ranks, rule) for operator in operators]
    repeats = (repeats_worth(hoped_s(operator)) for operator in operators)
    variants = (each.variant(each.serial, count, check=True) for each, count in zip(entries, repeats, strict=True))
    result = executor.execute(Job(tuple(variants), rounds=rounds, seed=seed, budget_s=budget_s))
    return [
        Timed(operator, ranks, Choice.of(each.serial), outcome.median_s, outcome.spread, outcome.num_wrong)
        for operator, each, outcome in zip(operators, entries, result.outcomes, strict=True)
    ]


def _entry(operator: CollectiveOperator, ranks: int, rule: Rule) -> Entry:
    return Entry(operator.title, operator, ranks, rule(operator), {})


def hoped_s(operator: CollectiveOperator) -> float:
    """Return an optimistic guess of a run's seconds: on one node, or across a fast network.

    >>> from dovetail.collective.operators import Broadcast
    >>> [round(hoped_s(Broadcast(1 << 20, nodes=nodes)) * 1e6) for nodes in (1, 2)]
    [1059, 8449]
    """
    return 60e-6 + operator.num_bytes * 8e-9 if (operator.nodes or 1) > 1 else 10e-6 + operator.num_bytes * 1e-9
