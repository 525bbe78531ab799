"""Collectives on this machine: probe → contenders → contest → selection; and timings as nccl-tests gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from dovetail.cli.options import nearest
from dovetail.cli.tuning import probed_machine
from dovetail.core import DovetailError, Say, WishError, parse_bytes
from dovetail.machine import Machine
from dovetail.plan.arena import hoped_s, repeats_worth, variant
from dovetail.plan.contenders import Aim
from dovetail.plan.contest import Contest, contest
from dovetail.plan.selection import LIBRARY, Choice, Row, Selection, keep, selection_for
from dovetail.probe import find_ranks
from dovetail.run.job import Job
from dovetail.run.mpi import MpiExecutor

TUNE_SCHEMA = "dovetail.collective_tune/1"
BENCH_SCHEMA = "dovetail.bench/1"
TUNED = "tuned"
SHORT_BYTES = 64 << 10  # sizes up to this are timed in one job


@dataclass(frozen=True)
class Wish:
    """A collective as it is asked for; `nodes` None: those on which the ranks are found."""

    collective: str
    ranks: int
    nodes: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self.aim(1)  # refuses what cannot be

    def aim(self, found: int) -> Aim:
        """What is to be chosen or timed, where the ranks were found on so many nodes."""
        return Aim(self.collective, self.ranks, self.nodes or found, self.dtype)

    def notes(self, found: int) -> tuple[str, ...]:
        differs = self.nodes is not None and self.nodes != found
        return (f"Chosen for {self.nodes} nodes; the ranks were found on {found}.",) if differs else ()


@dataclass(frozen=True)
class Tuned:
    """What tuning one collective found, and the files that hold it."""

    contest: Contest
    machine: Machine
    files: tuple[Path, ...]
    seed: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        aim = self.contest.aim
        head = {"collective": aim.collective, "ranks": aim.ranks, "nodes": aim.nodes, "dtype": aim.dtype}
        about = {"machine": self.machine.name, "facts": self.contest.facts, "seed": self.seed}
        rows = [each.to_json() for each in self.contest.judged]
        files = [str(path) for path in self.files]
        return {"schema": TUNE_SCHEMA, **head, "rows": rows, "files": files, **about, "notes": list(self.notes)}


@dataclass(frozen=True)
class Timed:
    """One row of a bench: a size, what carried it out, and what it took. `num_wrong`: elements, on all ranks."""

    num_bytes: int
    count: int
    choice: Choice
    seconds: float
    spread: float
    num_wrong: int | None

    def to_json(self, factor: float) -> dict[str, Any]:
        rates = bandwidths(self.num_bytes, self.seconds, factor)
        head = {"num_bytes": self.num_bytes, "count": self.count, **self.choice._asdict(), "measured_s": self.seconds}
        speeds = {"spread": self.spread, "algbw_gb_per_s": rates[0], "busbw_gb_per_s": rates[1]}
        return {**head, **speeds, "num_wrong": self.num_wrong}


def tune_collective(
    wish: Wish,
    sizes: Sequence[int],
    *,
    out: Path,
    executor: MpiExecutor,
    machine: Machine | None = None,
    rounds: int = 9,
    budget_s: float = 60.0,
    fresh: bool = False,
    seed: int = 0,
    say: Say | None = None,
) -> Tuned:
    """Choose how a collective is carried out at each size, by measurement; into the cache, and into files in `out`."""
    tell = say or (lambda what, done: None)
    runner = replace(executor, folder=out / "runs")
    base = machine or probed_machine(runner, wish.ranks, fresh=fresh, say=tell)  # launcher → machine, cached
    nodes = even_nodes(base.nodes[: wish.ranks])
    aim, notes = wish.aim(nodes), wish.notes(nodes)
    found = contest(aim, sizes, base, runner, rounds=rounds, budget_s=budget_s, seed=seed, say=tell)  # → measured
    selection = found.selection  # → ranges of sizes
    kept = keep(selection, found.facts["mpi"], hosts_of(found.facts, aim.ranks))
    files, refused = written(selection, aim, out)
    return Tuned(found, base, (kept, *files), seed, (*notes, *found.notes, *refused))


def written(selection: Selection, aim: Aim, out: Path) -> tuple[list[Path], list[str]]:
    """The selection in `out`: ours, the rows for NCCL's tuner, MSCCL files by size; and what could not be written."""
    from dovetail.plan.contenders import built
    from dovetail.report.selections import write_msccl, write_nccl_tuner

    ours = [selection.save(out / "selection.json"), write_nccl_tuner(selection, out / "nccl_tuner.conf")]
    files, refused = write_msccl(selection, out / "msccl", lambda row: built(aim, row.choice, strided=False))
    return [*ours, *files], refused


def even_nodes(nodes: Sequence[Any]) -> int:
    """How many nodes hold equally many consecutive ranks; 1 where they do not.

    >>> even_nodes([0, 0, 1, 1]), even_nodes([0, 1, 0, 1]), even_nodes([0, 0, 1])
    (2, 1, 1)
    """
    count = len(set(nodes))
    each = len(nodes) // max(count, 1)
    even = all(len(set(nodes[i * each : (i + 1) * each])) == 1 for i in range(count))
    return count if even and each * count == len(nodes) else 1


def hosts_of(facts: Mapping[str, Any], ranks: int) -> list[str]:
    """The host of every rank, by the facts of a job, which give one where all are the same.

    >>> hosts_of({"host": "a"}, 2), hosts_of({"host": ["a", "b"]}, 2)
    (['a', 'a'], ['a', 'b'])
    """
    host = facts["host"]
    return list(host) if isinstance(host, list) else [str(host)] * ranks


def sizes_between(least: str, most: str, factor: float) -> list[int]:
    """Bytes from `least` to `most`, each `factor` times the one before.

    >>> sizes_between("1K", "64K", 4)
    [1024, 4096, 16384, 65536]
    """
    low, high = parse_bytes(least), parse_bytes(most)
    if not 0 < low <= high or not 1 < factor < inf:
        found = f"from {low} to {high}, each {factor:g} times the one before"
        raise WishError("sizes must begin above 0 and grow", found=found, hint="--min 1K --max 64M --factor 4")
    sizes, size = [], float(low)
    while round(size) <= high:
        sizes.append(round(size))
        size *= factor
    return list(dict.fromkeys(sizes))


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


def bench_collective(
    wish: Wish,
    sizes: Sequence[int],
    algorithm: str,
    *,
    executor: MpiExecutor,
    choice: Choice | None = None,
    rounds: int = 5,
    budget_s: float = 60.0,
    seed: int = 0,
    say: Say | None = None,
) -> tuple[Aim, list[Timed]]:
    """Time a collective by the library's call, by one algorithm with the parameters of `choice`, or as tuned."""
    tell = say or (lambda what, done: None)
    if algorithm not in (TUNED, LIBRARY):
        nearest(algorithm, (TUNED, LIBRARY, *wish.aim(1).makers), "algorithm")
    hosts, facts = find_ranks(executor, wish.ranks)
    aim = wish.aim(even_nodes(hosts))
    rule = _rule(aim, algorithm, choice or Choice(), str(facts["mpi"]), hosts)
    wanted = sorted({aim.bytes_of(size) for size in sizes})
    timed: list[Timed] = []
    for group in [[s for s in wanted if s <= SHORT_BYTES], *([s] for s in wanted if s > SHORT_BYTES)]:
        if group:
            tell(f"{aim.collective} up to {group[-1]} bytes", len(timed) / len(wanted))
            timed += _time(aim, group, rule, executor, rounds, budget_s / len(wanted) * len(group), seed)
    return aim, timed


def _time(
    aim: Aim,
    sizes: Sequence[int],
    rule: Callable[[int], Choice],
    executor: MpiExecutor,
    rounds: int,
    budget_s: float,
    seed: int,
) -> list[Timed]:
    made = [(size, rule(size)) for size in sizes]
    variants = (variant(aim, choice, size, repeats_worth(hoped_s(aim, size)), True) for size, choice in made)
    result = executor.execute(Job(tuple(variants), rounds=rounds, seed=seed, budget_s=budget_s))
    return [
        Timed(size, aim.count(size) * aim.parts, choice, outcome.median_s, outcome.spread, outcome.num_wrong)
        for (size, choice), outcome in zip(made, result.outcomes, strict=True)
    ]


def _rule(aim: Aim, algorithm: str, given: Choice, library: str, hosts: Sequence[str]) -> Callable[[int], Choice]:
    if algorithm == TUNED:
        table = selection_for(library, hosts)
        if table is None or not any(row.group == (aim.collective, aim.ranks, aim.nodes) for row in table.rows):
            hint = f"dovetail tune {aim.collective} --ranks {aim.ranks}, or --algorithm library"
            raise DovetailError(f"{aim.collective} on {aim.ranks} ranks has not been tuned here", hint=hint)
        return lambda size: _chosen(table.lookup(aim.collective, aim.ranks, size, aim.nodes, aim.dtype))
    if algorithm == LIBRARY:
        return lambda size: Choice()
    return lambda size: given._replace(algorithm=algorithm)


def _chosen(row: Row | None) -> Choice:
    return row.choice if row else Choice()
