"""product: what one wish's matrix product costs against rows, and how it and messages slow each other."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.cost import CostModel, Curve, Samples, Segment, fit, fit_factor
from dovetail.machine import Machine
from dovetail.matmul import MatmulAllReduce
from dovetail.probe import programs
from dovetail.probe.take import ROUNDS, Budget, Executor, Say, as_samples, median_s, take
from dovetail.run.job import Job
from dovetail.run.options import RunOptions
from dovetail.timeline import Timeline

CONTENTION_BYTES = (32 << 10, 128 << 10, 512 << 10)
TILES = 10  # of the product beside which messages stream
BESIDE = 1.6  # messages are streamed for so many times the seconds of the product
MOST_MESSAGES = 2000


def probe_matmul(
    executor: Executor, machine: Machine, wish: MatmulAllReduce, budget: Budget | None = None, say: Say | None = None
) -> Machine:
    """The machine with the costs of one wish: its product against rows, all_reduce up to C, and contention.

    DIL is read from the product's curve, CIL (`cil:compute`, `cil:net`) from a stream of messages beside it; both are
    measured here, where the seeds assume 1.15. Source: seed 000 (steps 2-4 of its preparations), seed 001 (DIL, CIL).
    """
    if not wish.m or not wish.n:
        return _with_nothing_to_compute(machine, wish)
    say, ranks, afford = say or (lambda what, done: None), machine.ranks, budget or Budget()
    say("the product, by rows", 0.3)
    whole_s = median_s(executor, programs.matmul_rows(wish, ranks, wish.m, 1, RunOptions()))
    measured = [
        programs.matmul_rows(wish, ranks, rows, _tiles_worth(afford, whole_s, rows, wish.m), RunOptions())
        for rows in row_grid(wish.m)
    ]
    samples = take(executor, measured + _all_reduces(machine, wish, afford))
    fitted = {key: fit(s).to_json() for key, s in samples.items()}
    product = next(curve for key, curve in fitted.items() if key.startswith("kernel:"))
    fitted |= {f"kernel:{work.key}": product for work in wish.workload(ranks).kernels["matmul"]}
    machine = machine.with_costs(fitted)
    if ranks == 1:
        return machine
    say("compute beside messages", 0.7)
    return _with_contention(executor, machine, wish)


def _with_nothing_to_compute(machine: Machine, wish: MatmulAllReduce) -> Machine:
    """An empty product costs nothing; its collective is that of no bytes."""
    free = Curve("rows", (Segment(0.0, 0.0, 0.0),), label="prior", provenance={"source": "an empty product"})
    works = wish.workload(machine.ranks).kernels["matmul"]
    return machine.with_costs({f"kernel:{work.key}": free.to_json() for work in works})


def row_grid(m: int, most: int = 12) -> list[int]:
    """Tile lengths to measure, from a small one to all of m.

    >>> row_grid(2048)
    [32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048]
    """
    step = max(1, m // 64)
    grid = {step, m}
    while step < m and len(grid) < most:
        grid |= {step, min(m, step * 3 // 2)}
        step *= 2
    return sorted(grid)


def _tiles_worth(budget: Budget, whole_s: float, rows: int, m: int) -> int:
    """How many tiles of `rows` rows are worth their time, given that all m rows take `whole_s`."""
    return max(2, min(budget.trips(whole_s * rows / m) - 1, max(8, 2 * m // rows)))


def _all_reduces(machine: Machine, wish: MatmulAllReduce, budget: Budget) -> list[programs.Measurement]:
    """all_reduce at the sizes of this wish's tiles, up to all of C."""
    if machine.ranks < 2:
        return []
    model, row_bytes = CostModel.of(machine), wish.workload(machine.ranks).slot_bytes("C", 0)
    sizes = {max(4, row_bytes * rows // 4 * 4) for rows in row_grid(wish.m, 8)} | {1 << 10, 64 << 10}
    key = f"all_reduce:{machine.ranks}"
    worth = {size: budget.trips(float(model.seconds(key, size, extrapolate=True))) for size in sorted(sizes)}
    return [programs.all_reduce(machine.ranks, size, trips) for size, trips in worth.items()]


@dataclass(frozen=True)
class _Beside:
    """One message size of the contention probe: how many messages, and what either side did beside the other."""

    num_bytes: int
    compute: Samples | None
    net: Samples | None
    overlap: float


def _with_contention(executor: Executor, machine: Machine, wish: MatmulAllReduce) -> Machine:
    """Add `cil:compute` and `cil:net`: either side beside the other over either side alone, by message size."""
    found = [_beside(executor, machine, wish, size) for size in CONTENTION_BYTES]
    curves = {}
    for key, parts in (("cil:compute", [f.compute for f in found]), ("cil:net", [f.net for f in found])):
        rows = [(x, s, r) for p in parts if p for x, s, r in zip(p.x, p.seconds, p.repeat, strict=True)]
        if rows:
            curves[key] = fit_factor(as_samples(rows)).to_json()
    return machine.with_costs(curves, overlap_fraction={str(f.num_bytes): f.overlap for f in found})


def _beside(executor: Executor, machine: Machine, wish: MatmulAllReduce, size: int) -> _Beside:
    model, ranks, tiles = CostModel.of(machine), machine.ranks, [max(1, wish.m // TILES)] * TILES
    key, kind = wish.workload(ranks).kernels["matmul"][0].key, "net" if machine.num_nodes > 1 else "shm"
    compute_s = TILES * float(model.seconds(f"kernel:{key}", tiles[0], extrapolate=True))
    message_s = float(model.seconds(f"exchange:{kind}", size, extrapolate=True))
    count = int(min(max(BESIDE * compute_s / message_s, 4), MOST_MESSAGES))
    streams = [programs.stream(wish, ranks, t, size, n) for t, n in ((tiles, 0), ([], count), (tiles, count))]
    job = Job(tuple(s.variant for s in streams), rounds=ROUNDS, keep_all=True)
    outcomes = executor.execute(job).outcomes
    rows = []
    for repeat, timelines in enumerate(zip(*(outcome.timelines for outcome in outcomes), strict=True)):
        compute, net = _stretch(streams, timelines)
        rows.append((compute, net, repeat))
    compute_rows = [(float(size), compute, repeat) for compute, _, repeat in rows]
    net_rows = [(float(size), net, repeat) for _, net, repeat in rows if net is not None]
    alone_s, stream_s, both_s = (outcome.median_s for outcome in outcomes)
    overlap = (alone_s + stream_s - both_s) / min(alone_s, stream_s)
    return _Beside(size, as_samples(compute_rows), as_samples(net_rows) if net_rows else None, overlap)


def _stretch(streams: list[programs.Stream], timelines: tuple[Timeline, ...]) -> tuple[float, float | None]:
    """(compute, messages) beside the other over alone; None where too few messages came during the product."""
    alone, quiet, both = (programs.ends_of(timeline) for timeline in timelines)
    products = streams[2].products[0]

    def busy_s(spans: programs.Spans, rows: list[int]) -> float:
        return sum(spans[row][1] - spans[row][0] for row in rows)

    compute = busy_s(both, products) / busy_s(alone, streams[0].products[0])
    came = sum(both[row][1] <= both[products[-1]][1] for row in streams[2].receives[0])
    if came < 2:
        return compute, None
    begin = both[products[0]][0], min(start for start, _ in quiet.values())
    passed = both[streams[2].receives[0][came - 1]][1] - begin[0]
    usual = quiet[streams[1].receives[0][came - 1]][1] - begin[1]
    return compute, max(passed / max(usual, 1e-9), 1e-3)
