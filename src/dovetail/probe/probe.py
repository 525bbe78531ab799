"""probe: measures a machine by running small Programs on its ranks, and fits what they took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Protocol

import numpy as np

from dovetail.core import CostError
from dovetail.cost import CostModel, Samples, eager_limit, fit, fit_factor
from dovetail.machine import SWITCH, Link, Machine
from dovetail.matmul import MatmulAllReduce
from dovetail.probe import programs
from dovetail.probe.programs import PAUSE_S, Measurement
from dovetail.run.job import Job, JobResult
from dovetail.run.options import RunOptions

Say = Callable[[str, float], None]  # what is being done, and the share of the whole that is done
PILOT_BYTES = (64, 16 << 10, 256 << 10)
MESSAGE_BYTES = (1, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
EAGER_BYTES = (1 << 10, 8 << 10, 32 << 10, 64 << 10, 128 << 10, 512 << 10)
CONTENTION_BYTES = (32 << 10, 128 << 10, 512 << 10)
ROUNDS = 3


class Executor(Protocol):
    """Whatever runs a job on ranks."""

    def execute(self, job: Job) -> JobResult: ...


@dataclass(frozen=True)
class Budget:
    """How long a probe may take: seconds for each size of each cost, and the trips that this is worth at most."""

    each_s: float = 0.15
    least: int = 4
    most: int = 60

    def trips(self, expected_s: float) -> int:
        return int(np.clip(self.each_s / max(expected_s, 1e-9) / ROUNDS, self.least, self.most)) + 1


def probe_links(
    executor: Executor, ranks: int, name: str, budget: Budget = Budget(), say: Say | None = None
) -> Machine:
    """A Machine with the costs of messages: `p2p`, `exchange`, `all_reduce`, `reduce`, and the eager limit.

    Ranks on hosts of one name share a node; links between nodes are of kind `net`, within a node `shm`.
    """
    tell = say or (lambda what, done: None)
    tell("finding the ranks", 0.0)
    hosts = _hosts(executor, ranks)
    machine = _bare(name, hosts)
    measured: list[Measurement] = []
    pairs = _pairs(machine)
    expected = _pilot(executor, machine, pairs)
    for (kind, pair), rate in zip(pairs.items(), expected, strict=True):
        for size in MESSAGE_BYTES:
            trips = budget.trips(rate(size))
            if size and rate(size) < budget.each_s:
                measured.append(programs.ping_pong(ranks, pair, size, trips, kind))
                measured.append(programs.exchange(ranks, pair, size, trips, kind))
    slow = expected[0] if expected else (lambda size: size / 5e9)
    for size in MESSAGE_BYTES[2:]:
        if ranks > 1 and 2 * slow(size) < 2 * budget.each_s:
            measured.append(programs.all_reduce(ranks, size, budget.trips(2 * slow(size))))
        measured.append(programs.reduce(ranks, size, budget.trips(size / 5e9)))
    tell("messages and collectives", 0.1)
    samples = take(executor, measured)
    machine = machine.with_costs({key: fit(s).to_json() for key, s in samples.items()})
    return _with_eager_limits(executor, machine, pairs, tell)


def probe_matmul(
    executor: Executor,
    machine: Machine,
    wish: MatmulAllReduce,
    progress: str = "poll",
    budget: Budget = Budget(),
    say: Say | None = None,
) -> Machine:
    """The machine with the costs of one wish: its product against rows, its all_reduce up to C, and contention."""
    tell = say or (lambda what, done: None)
    if not wish.m or not wish.n:
        return machine
    tell("the product, by rows", 0.3)
    options = RunOptions(progress="poll")
    ranks, grid = machine.ranks, row_grid(wish.m)
    whole_s = _whole_product_s(executor, wish, ranks)
    measured = [
        programs.matmul_rows(wish, ranks, rows, budget_rows(budget, whole_s, rows, wish.m), options) for rows in grid
    ]
    measured += _all_reduces(machine, wish, budget)
    samples = take(executor, measured)
    keys = {work.key for work in wish.workload(ranks).kernels["matmul"]}
    fitted = {key: fit(s).to_json() for key, s in samples.items()}
    product = next(curve for key, curve in fitted.items() if key.startswith("kernel:"))
    fitted |= {f"kernel:{key}": product for key in keys}
    machine = machine.with_costs(fitted)
    if ranks > 1:
        tell("compute beside messages", 0.7)
        machine = _with_contention(executor, machine, wish, replace(options, progress=progress))  # type: ignore[arg-type]
    return machine


def take(executor: Executor, measured: Sequence[Measurement]) -> dict[str, Samples]:
    """Run all measurements interleaved in one job, several rounds; their timings by cost key."""
    job = Job(tuple(m.variant for m in _renamed(measured)), rounds=ROUNDS, keep_all=True)
    result = executor.execute(job)
    rows: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for measurement, outcome in zip(measured, result.outcomes, strict=True):
        for repeat, timeline in enumerate(outcome.timelines):
            rows[measurement.key] += [(measurement.x, s, repeat) for s in measurement.seconds(timeline) if s > 0]
    provenance = {"facts": result.facts, "rounds": result.rounds, "disturbed": result.disturbed}
    unit = {key: "rows" if key.startswith("kernel:") else "bytes" for key in rows}
    return {
        key: Samples(*(np.array(column) for column in zip(*values, strict=True)), unit[key], provenance)  # type: ignore[arg-type]
        for key, values in rows.items()
    }


def row_grid(m: int, most: int = 12) -> list[int]:
    """Tile lengths to measure, from a small one to all of m.

    >>> row_grid(2048)
    [32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048]
    """
    least = max(1, m // 64)
    grid = {least, m}
    step = least
    while step < m and len(grid) < most:
        grid |= {step, min(m, step * 3 // 2)}
        step *= 2
    return sorted(grid)


def budget_rows(budget: Budget, whole_s: float, rows: int, m: int) -> int:
    """How many tiles of `rows` rows are worth their time, given that all m rows take `whole_s`."""
    return max(2, min(budget.trips(whole_s * rows / m) - 1, max(8, 2 * m // rows)))


def _renamed(measured: Sequence[Measurement]) -> Iterable[Measurement]:
    for index, m in enumerate(measured):
        yield m._replace(variant=replace(m.variant, name=f"{index} {m.variant.name}"))


def _hosts(executor: Executor, ranks: int) -> tuple[list[str], dict[str, Any]]:
    """The host of every rank, and the facts, from a first tiny job."""
    tiny = programs.reduce(ranks, 1 << 10, 1)
    facts = executor.execute(Job((tiny.variant,), rounds=1, warmup=0)).facts
    hosts = facts["host"] if isinstance(facts["host"], list) else [facts["host"]] * ranks
    return hosts, facts


def _bare(name: str, found: tuple[list[str], dict[str, Any]]) -> Machine:
    hosts, facts = found
    names = list(dict.fromkeys(hosts))
    nodes = tuple(names.index(host) for host in hosts)
    pairs = [(a, b) for a in range(len(names)) for b in range(len(names)) if a != b]
    links = tuple(Link(a, b, "net") for a, b in pairs)
    if len(names) > 2:
        links = tuple(Link(*ends, "net") for a in range(len(names)) for ends in ((a, SWITCH), (SWITCH, a)))
    probed = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Machine(name, len(hosts), nodes, links, {}, {**facts, "hosts": names, "probed": probed})


def _pairs(machine: Machine) -> dict[str, tuple[int, int]]:
    """For each link kind a pair of ranks that it joins, the slowest kind (between nodes) first."""
    found: dict[str, tuple[int, int]] = {}
    for a in range(machine.ranks):
        for b in range(a + 1, machine.ranks):
            found.setdefault(machine.route(a, b)[0], (a, b))
    return dict(sorted(found.items(), key=lambda item: item[0] != "net"))


def _pilot(executor: Executor, machine: Machine, pairs: dict[str, tuple[int, int]]) -> list[Callable[[float], float]]:
    """For each pair, a rough guess of the seconds of a message, to share out the time."""
    if not pairs:
        return []
    ask = [programs.ping_pong(machine.ranks, pair, n, 3, kind) for kind, pair in pairs.items() for n in PILOT_BYTES]
    samples = take(executor, ask)
    guesses = []
    for kind in pairs:
        known = samples[f"p2p:{kind}"]
        per_byte = float(known.medians[-1] / known.sizes[-1])
        least = float(known.medians[0])
        guesses.append(lambda size, least=least, per_byte=per_byte: least + size * per_byte)
    return guesses


def _with_eager_limits(executor: Executor, machine: Machine, pairs: dict[str, tuple[int, int]], tell: Say) -> Machine:
    """Add the fact `eager_limit_bytes`, by link kind, from sends whose receive is posted late."""
    tell("eager limits", 0.25)
    limits: dict[str, int] = {}
    for kind, pair in pairs.items():
        ask = [programs.late_receive(machine.ranks, pair, size, 3) for size in EAGER_BYTES]
        found = eager_limit(take(executor, ask)["eager"], PAUSE_S)
        limits[kind] = found.limit_bytes
    return machine.with_costs({}, eager_limit_bytes=limits) if limits else machine


def _whole_product_s(executor: Executor, wish: MatmulAllReduce, ranks: int) -> float:
    pilot = programs.matmul_rows(wish, ranks, wish.m, 1, RunOptions())
    return float(np.median(take(executor, [pilot])[pilot.key].medians))


def _all_reduces(machine: Machine, wish: MatmulAllReduce, budget: Budget) -> list[Measurement]:
    """all_reduce at the sizes of this wish's tiles, up to all of C."""
    if machine.ranks < 2:
        return []
    row_bytes = wish.workload(machine.ranks).slot_bytes("C", 0)
    known = _all_reduce_s(machine)
    sizes = sorted({max(4, row_bytes * rows // 4 * 4) for rows in row_grid(wish.m, 8)} | {1 << 10, 64 << 10})
    return [programs.all_reduce(machine.ranks, size, budget.trips(known(size))) for size in sizes]


def _all_reduce_s(machine: Machine) -> Callable[[float], float]:
    model = CostModel.of(machine)
    return lambda size: float(model.seconds(f"all_reduce:{machine.ranks}", size, extrapolate=True))


def _with_contention(executor: Executor, machine: Machine, wish: MatmulAllReduce, options: RunOptions) -> Machine:
    """Add `cil:compute` and `cil:net`: either side beside the other over either side alone, by message size."""
    ranks = machine.ranks
    tile = max(1, wish.m // 10)
    tiles = [tile] * 10
    model = CostModel.of(machine)
    key = wish.workload(ranks).kernels["matmul"][0].key
    compute_s = 10 * float(model.seconds(f"kernel:{key}", tile, extrapolate=True))
    kind = "net" if machine.num_nodes > 1 else "shm"
    factors: dict[str, list[tuple[float, float, int]]] = {"cil:compute": [], "cil:net": []}
    overlap: dict[int, float] = {}
    for size in CONTENTION_BYTES:
        message_s = float(model.seconds(f"exchange:{kind}", size, extrapolate=True))
        count = int(np.clip(1.6 * compute_s / message_s, 4, 3000))
        both, products, receives = programs.stream(wish, ranks, tiles, size, count, options)
        alone, _, _ = programs.stream(wish, ranks, tiles, size, 0, options)
        quiet, _, quiet_receives = programs.stream(wish, ranks, [], size, count, options)
        result = executor.execute(Job((alone, quiet, both), rounds=ROUNDS, keep_all=True))
        rounds = zip(*(outcome.timelines for outcome in result.outcomes), strict=True)
        for repeat, (a, q, t) in enumerate(rounds):
            stretch = _stretch(a, q, t, products, quiet_receives, receives)
            if stretch is None:
                continue
            factors["cil:compute"].append((size, stretch[0], repeat))
            factors["cil:net"].append((size, stretch[1], repeat))
        sums = [outcome.median_s for outcome in result.outcomes]
        overlap[size] = (sums[0] + sums[1] - sums[2]) / max(min(sums[:2]), 1e-12)
    curves = {}
    for name, rows in factors.items():
        if rows:
            x, factor, repeats = zip(*rows, strict=True)
            curves[name] = fit_factor(Samples(np.array(x), np.array(factor), np.array(repeats))).to_json()
    return machine.with_costs(curves, overlap_fraction=overlap)


def _stretch(
    alone: Any, quiet: Any, both: Any, products: dict[int, list[int]], quiet_rows: dict[int, list[int]], rows: Any
) -> tuple[float, float] | None:
    """(compute, messages) beside the other over alone, over the time in which both were going on."""
    a, q, t = (programs.ends_of(timeline) for timeline in (alone, quiet, both))
    first = next(iter(rows))
    mine = products[first]
    compute = sum(t[r][1] - t[r][0] for r in mine) / sum(a[r][1] - a[r][0] for r in mine)
    end = t[mine[-1]][1]
    came = sum(t[row][1] <= end for row in rows[first])
    if came < 2:
        return None
    begin_t, begin_q = t[mine[0]][0], min(start for start, _ in q.values())
    passed = t[rows[first][came - 1]][1] - begin_t
    usual = q[quiet_rows[first][came - 1]][1] - begin_q
    if usual <= 0:
        raise CostError("a stream of messages took no time")
    return compute, max(passed / usual, 0.01)


def spot_check(executor: Executor, machine: Machine, tolerance: float = 0.25) -> bool:
    """Whether a machine still is as it was probed: hosts and MPI, and one exchange on its slowest links."""
    hosts, facts = _hosts(executor, machine.ranks)
    same = all(facts.get(key) == machine.facts.get(key) for key in ("host", "cpu", "mpi", "cores"))
    pairs = _pairs(machine)
    if not same or not pairs:
        return same and hosts == [machine.facts["hosts"][node] for node in machine.nodes]
    kind, pair = next(iter(pairs.items()))
    size = 256 << 10
    ask = programs.exchange(machine.ranks, pair, size, 6, kind)
    found = float(np.median(take(executor, [ask])[ask.key].medians))
    expected = float(CostModel.of(machine).seconds(ask.key, size, extrapolate=True))
    return bool(abs(found - expected) <= tolerance * expected)
