"""The order of events: many pending at once, alike or far apart; the C++ simulator equals the reference bit by bit."""

import numpy as np
import pytest

from dovetail.cost.prices import Prices
from dovetail.ir.shapes import ring_all_reduce
from dovetail.sim import reference
from dovetail.sim.simulate import run
from dovetail.sim.tables import Tables

RANKS = 48
TIMES = {
    "alike": lambda rng, n: np.full(n, 1e-6),
    "few values": lambda rng, n: rng.choice([0.0, 1e-6, 2e-6], n),
    "all different": lambda rng, n: rng.random(n) * 1e-6,
    "of all sizes": lambda rng, n: 10.0 ** rng.uniform(-12, 3, n),
    "one far off": lambda rng, n: np.where(rng.random(n) < 0.001, 1e6, rng.random(n) * 1e-9),
    "beyond the clock's resolution": lambda rng, n: np.where(rng.random(n) < 0.5, 1e-12, 1e5),
    "beyond all numbers": lambda rng, n: np.where(rng.random(n) < 0.01, 1e308, 1.0),
}


@pytest.mark.parametrize("slowed", [False, True])
@pytest.mark.parametrize("times", TIMES)
def test_many_pending_events(times: str, slowed: bool) -> None:
    program = ring_all_reduce(RANKS, 1)
    rng = np.random.default_rng(7)
    columns = {name: TIMES[times](rng, program.num_ops) for name in ("work_s", "wire_s", "latency_s")}
    if slowed and times != "beyond all numbers":
        columns |= {name: rng.choice([1.0, 1.5], program.num_ops) for name in ("slow_by_net", "slow_by_compute")}
    links = np.arange(RANKS)
    routes = {"route_start": 2 * np.arange(RANKS + 1), "num_links": 2 * RANKS}
    routes["route"] = np.stack([links, RANKS + (links + 1) % RANKS], axis=1).ravel()
    tables = Tables.of(program, Prices.plain(program, **columns, **routes))
    with np.errstate(over="ignore"):
        want, got = reference.run(tables), run(tables)
    for ours, theirs in zip(got, want, strict=True):
        assert np.array_equal(ours, theirs, equal_nan=ours.dtype == np.float64)
