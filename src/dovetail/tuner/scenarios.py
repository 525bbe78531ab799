"""scenarios: operators on machines whose true costs are known (published or random), to judge choosers of schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from dovetail.cost import Curve, Segment
from dovetail.ir import Operator, compute_calls, work_keys
from dovetail.ir.abilities import PublishedCases
from dovetail.ir.collectives import COLLECTIVES
from dovetail.machine import SWITCH, Link, Machine, load

Random = np.random.Generator
SIZES = (4, 6, 8)  # number of ranks of a random machine
PEAK = 5e13, 1e15  # FLOP/s of a rank
LINK = 20e9, 200e9  # bytes/s of a link
INTENSITY = 50.0, 300.0  # FLOP/s over memory's bytes/s
BALANCE = 1 / 8, 8.0  # allowed ratio of communication to computation seconds; others are drawn again
STRETCH = 1.0, 1.4  # slowdown of computation by communication, or of communication by computation
SPREAD = (1 << 12, 1 << 17, 1 << 22, 1 << 27)  # message sizes, in bytes, at which a slowdown is drawn


@dataclass(frozen=True)
class Scenario:
    """An operator on its true machine. A chooser sees only the machine's links, and the costs that a probe measures."""

    name: str
    operator: Operator
    machine: Machine
    of_ranks: int | None = None  # ranks of the machine that take part; None: all

    @property
    def ranks(self) -> int:
        """Number of ranks; default: all of the machine."""
        return self.of_ranks or self.machine.ranks

    @property
    def topology(self) -> str:
        """Return the machine's fact `topology`, else its name."""
        return str(self.machine.facts.get("topology", self.machine.name))


def published(kind: type[Operator]) -> Iterator[Scenario]:
    """Yield the scenarios of a class of operators whose figures are published."""
    if issubclass(kind, PublishedCases):
        for name, operator, machine in kind.published_cases():
            yield Scenario(name, operator, load(machine))


def drawn(kind: type[Operator], count: int, seed: int) -> Iterator[Scenario]:
    """Yield `count` random operators of a class, each on a random machine, cycling through topologies.

    Deterministic by `seed`.
    """
    for number in range(count):
        if not issubclass(kind, PublishedCases):
            return
        rng = np.random.default_rng([seed, number, crc32(kind.name.encode())])
        topology = list(TOPOLOGIES)[number % len(TOPOLOGIES)]
        ranks = int(rng.choice(SIZES))
        operator, speeds = _balanced(kind, rng, topology, ranks)
        yield Scenario(f"{topology}-{seed}-{number}", operator, _machine(rng, operator, topology, ranks, speeds))


def _balanced(kind: type[PublishedCases], rng: Random, topology: str, ranks: int) -> tuple[Operator, Speeds]:
    """Draw an operator and a machine's speeds until communication / computation lies within BALANCE."""
    while True:
        speeds, operator = Speeds(_between(rng, *PEAK), 1 / _between(rng, *LINK)), kind.drawn(rng, ranks)
        if BALANCE[0] <= _balance(operator, topology, ranks, speeds) <= BALANCE[1]:
            return operator, speeds


class Speeds(NamedTuple):
    """Speeds of a machine: a rank's FLOP/s, and a link's seconds per byte."""

    peak: float
    byte_s: float


def mesh(ranks: int) -> tuple[Link, ...]:
    """Return a link from every rank to every other."""
    return tuple(Link(a, b, "link") for a in range(ranks) for b in range(ranks) if a != b)


def star(ranks: int) -> tuple[Link, ...]:
    """Return a link from every rank to one switch, and back."""
    return tuple(Link(*ends, "link") for a in range(ranks) for ends in ((a, SWITCH), (SWITCH, a)))


def torus(ranks: int) -> tuple[Link, ...]:
    """Return the links of two rows of ranks: each row is a ring, and both ranks of a column are linked.

    >>> len(torus(6)), len(torus(4))
    (18, 8)
    """
    columns = ranks // 2
    along = {(row * columns + i, row * columns + (i + step) % columns) for row in (0, 1) for i in range(columns)
             for step in (1, -1)}  # fmt: skip
    across = {(i, (i + columns) % ranks) for i in range(ranks)}
    return tuple(Link(a, b, "link") for a, b in sorted(along | across) if a != b)


TOPOLOGIES: dict[str, Callable[[int], tuple[Link, ...]]] = {"mesh": mesh, "switch": star, "torus": torus}


def _machine(rng: Random, operator: Operator, topology: str, ranks: int, speeds: Speeds) -> Machine:
    """Draw a machine with these speeds and piecewise linear costs. No message waits for its receive, as with DMA."""
    bare = Machine(f"{topology}-{ranks}", ranks, tuple(range(ranks)), TOPOLOGIES[topology](ranks))
    serial, (peak, byte_s) = operator.serial(ranks), speeds
    program = operator.program(serial, ranks)
    rates = {_rate_of(key) for key in work_keys(program, operator.workload(program, serial))}
    memory = _between(rng, *INTENSITY) / peak
    costs = {name: _products(rng, peak, _between(rng, 2e-6, 2e-5)) for name in sorted(rates)}
    costs |= {"memory": _straight(0.0, memory)}
    costs |= {"copy": _straight(1e-6, 2 * memory), "reduce": _straight(1e-6, 3 * memory)}
    costs |= {f"cil:{side}": _factors(rng) for side in ("compute", "net")} | _messages(rng, byte_s)
    for kind in dict.fromkeys(["all_reduce", *(call.kind for call in operator.library_calls(ranks))]):
        trips = 1 + COLLECTIVES[kind].sums_everywhere
        costs[f"{kind}:{ranks}"] = _library(rng, byte_s * _share(topology, ranks) * trips)
    return bare.with_costs(costs, topology=topology)


def _balance(operator: Operator, topology: str, ranks: int, speeds: Speeds) -> float:
    """Return seconds of all communication over seconds of all computation, at full speed."""
    compute_s = sum(_flops(operator, ranks)) / ranks / speeds.peak
    comm_s = sum(call.num_bytes for call in operator.library_calls(ranks)) * _share(topology, ranks) * speeds.byte_s
    return comm_s / compute_s


def _flops(operator: Operator, ranks: int) -> Iterator[float]:
    serial = operator.serial(ranks)
    program = operator.program(serial, ranks)
    workload = operator.workload(program, serial)
    calls = compute_calls(program, workload)
    for number in calls.which.tolist():
        call = calls.kinds[number]
        form = workload.form(program.kernels[call.kernel].name)
        yield 0.0 if form is None else form.work(call.reads, call.writes).flops


def _rate_of(key: str) -> str:
    """Return the name of a kernel's rate (`flops:kernel:dtype`), given a computation's key."""
    parts = key.split(":")
    return f"flops:{parts[0]}:{next(part for part in reversed(parts) if '=' not in part)}"


def _share(topology: str, ranks: int) -> float:
    """Return the share of a rank's larger buffer that the busiest link carries in a collective."""
    if topology == "mesh":
        return 1 / ranks
    return (ranks - 1) / ranks * (1.0 if topology == "switch" else 0.5)


def _products(rng: Random, peak: float, start_s: float) -> dict[str, Any]:
    """Draw a product's cost: a start, then segments nearer and nearer to the peak, so that pieces cost extra."""
    edges = peak * np.array([0.0, _between(rng, 1e-5, 1e-4), _between(rng, 2e-4, 2e-3)])
    slopes = 1 / (peak * np.array([rng.uniform(0.3, 0.6), rng.uniform(0.6, 0.75), rng.uniform(0.75, 0.9)]))
    return _bent(edges, slopes, start_s, "flop")


def _messages(rng: Random, byte_s: float) -> dict[str, dict[str, Any]]:
    """Draw the costs of a message: one way, and within streams in both directions at once."""
    latency_s, edge = _between(rng, 1e-6, 2e-5), float(2 ** rng.integers(13, 20))
    slopes = byte_s * np.array([rng.uniform(1.0, 2.0), 1.0])
    one_way = _bent(np.array([0.0, edge]), slopes, latency_s, "bytes")
    stream = _bent(np.array([0.0, edge]), slopes * rng.uniform(1.0, 1.15), 0.3 * latency_s, "bytes")
    return {"p2p:link": one_way, "exchange:link": stream}


def _library(rng: Random, byte_s: float) -> dict[str, Any]:
    """Draw the cost of a library's collective, which is cheaper per byte beyond a random size."""
    edge = float(2 ** rng.integers(16, 24))
    slopes = byte_s * np.array([rng.uniform(1.2, 3.0), rng.uniform(1.0, 1.6)])
    return _bent(np.array([0.0, edge]), np.sort(slopes)[::-1], _between(rng, 5e-6, 5e-5), "bytes")


def _factors(rng: Random) -> dict[str, Any]:
    """Draw a slowdown that depends on the message size."""
    factors = [float(rng.uniform(*STRETCH)) for _ in SPREAD]
    return Curve.through(list(SPREAD), factors, rising=False, high=float(SPREAD[-1]), label="prior").to_json()


def _bent(edges: Any, slopes: Any, start_s: float, unit: str) -> dict[str, Any]:
    """Return a continuous, piecewise linear curve."""
    segments = [Segment(0.0, start_s, float(slopes[0]))]
    for (_, edge), slope in zip(pairwise(edges), slopes[1:], strict=True):
        segments.append(Segment(float(edge), segments[-1].at(float(edge)), float(slope)))
    return Curve(unit, tuple(segments), label="prior").to_json()


def _straight(start_s: float, slope: float) -> dict[str, Any]:
    return _bent(np.zeros(1), np.array([slope]), start_s, "bytes")


def _between(rng: Random, least: float, most: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))
