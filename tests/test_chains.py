"""Chains of tiles as Programs: proved against the plain one, run in any order, timed as the recurrence says."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core import PlanError, WishError
from dovetail.cost.prices import Prices
from dovetail.ir import Kind, parse, to_text, verify
from dovetail.loops import chain_tiles
from dovetail.loops.chain_grain import Message, best_chains, predicted_s
from dovetail.loops.chains import NON_OVERLAPPING, OVERLAPPING, Chains
from dovetail.run import execute
from dovetail.sim import simulate

SCHEDULES = (NON_OVERLAPPING, OVERLAPPING)
UNITS = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
CASES = {
    "triple nest": Chains(UNITS, (5, 6, 20), (2, 2), 7),
    "uneven": Chains(UNITS, (7, 5, 11), (3, 2), 4),
    "alignment": Chains(((1, 0, 1), (0, 1, 1)), (9, 30), (4,), 4),
    "far": Chains(((1, 0, 2, 0), (0, 1, 1, 0), (0, 0, 0, 2)), (8, 8, 9), (2, 2), 4),
    "first loop mapped": Chains(((1, 0, 3), (0, 1, 1)), (31, 8), (2,), 5, mapped=0),
    "no way back": Chains(((1,), (0,)), (8, 6), (4,), 1),
    "one rank": Chains(((1, 0), (0, 1)), (4, 9), (1,), 2),
    "one tile": Chains(((1, 0), (0, 1)), (4, 9), (2,), 9),
}


def by_point(chains):
    """A tile's points, one by one: sums of what they depend on, made whole numbers."""
    order = [chains.axis, *(k for k in range(len(chains.shape)) if k != chains.axis)]
    vectors = [tuple(int(vector[k]) for k in order) for vector in zip(*chains.deps, strict=True)]
    begin = (chains.back, *chains.reach)

    def compute(work):
        for point in product(*(range(low, n) for low, n in zip(begin, work.shape, strict=True))):
            sources = (tuple(a - b for a, b in zip(point, vector, strict=True)) for vector in vectors)
            work[point] = (work[point] + sum((k + 2) * work[source] for k, source in enumerate(sources))) % 10007

    return compute


def whole(chains):
    """What is given: the points, and those before the first."""
    reach = list(chains.reach)
    reach.insert(chains.axis, chains.back)
    shape = [n + before for n, before in zip(chains.shape, reach, strict=True)]
    return np.random.default_rng(1).integers(0, 99, shape)


def expected(chains, array):
    work = np.moveaxis(array.copy(), chains.axis, 0)
    by_point(chains)(work)
    own = work[(slice(chains.back, None), *(slice(reach, None) for reach in chains.reach))]
    return np.moveaxis(own, 0, chains.axis)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
class TestPrograms:
    def test_proved(self, name, schedule):
        found = verify(CASES[name].program(schedule), against=CASES[name].plain())
        assert found.ok, found.checks
        assert found.checks["result"].message == "every output that 'plain_chains' writes is the same"

    def test_computes_what_plain_loops_do(self, name, schedule):
        chains = CASES[name]
        array, load = whole(chains), chain_tiles.workload(chains, by_point(chains), "int64")
        arrays = {"given": [chain_tiles.given(chains, array, rank) for rank in range(chains.num_ranks)]}
        for seed in (None, 1, 2):
            found = execute(chains.program(schedule), arrays, seed=seed, workload=load)
            assert np.array_equal(chain_tiles.joined(chains, found.outputs["made"]), expected(chains, array))

    def test_the_plain_one_does_so_too(self, name, schedule):
        chains = CASES[name]
        array, load = whole(chains), chain_tiles.workload(chains, by_point(chains), "int64")
        arrays = {"given": [chain_tiles.given(chains, array, rank) for rank in range(chains.num_ranks)]}
        found = execute(chains.plain(), arrays, workload=load)
        assert np.array_equal(chain_tiles.joined(chains, found.outputs["made"]), expected(chains, array))


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        (" after send.0", "", "races"),  # a face is computed anew before the last one is gone
        ("send to_1[2:4] to 1", "send to_1[0:2] to 1", "result"),  # another tile's face
        ("given[3:5] made[1:2]", "given[3:5] made[0:1]", "result"),  # another position before the tile
        ('  recv from 0 -> from_1[2:4] at "tile 1 from rank 0"\n', "", "deadlock"),
    ],
)
def test_planted_faults_are_refused(old, new, check):
    chains = Chains(((1, 0), (0, 1)), (4, 6), (2,), 2)
    text = to_text(chains.program(OVERLAPPING))
    assert old in text
    program = (
        text.replace(old, new, 1) if check != "deadlock" else text.replace(old, new, 1).replace(" after recv.2", "")
    )
    found = verify(parse(program), against=chains.plain())
    assert not found.ok
    assert not found.checks[check].ok or check == "deadlock"


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_chains_are_proved(data):
    """Random dependences, shapes, parts and grains, where they are allowed."""
    loops = data.draw(st.integers(2, 3))
    vectors = data.draw(st.lists(st.tuples(*[st.integers(0, 2)] * loops).filter(any), min_size=1, max_size=4))
    shape = tuple(data.draw(st.integers(2, 9)) for _ in range(loops))
    parts = tuple(data.draw(st.integers(1, 3)) for _ in range(loops - 1))
    how = data.draw(st.integers(1, 9)), data.draw(st.integers(-1, loops - 1))
    try:
        chains = Chains(tuple(zip(*vectors, strict=True)), shape, parts, *how)
    except PlanError:
        return
    for schedule in SCHEDULES:
        found = verify(chains.program(schedule), against=chains.plain())
        assert found.ok, (chains, found.checks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"deps": ((1, 1), (0, -1), (0, 0))}, "the dependence (1, -1, 0) goes backwards"),
        ({"deps": ((1, 0), (0, 0), (0, 0))}, "the dependence (0, 0, 0) goes backwards"),
        ({"grain": 0}, "a tile must hold its dependences"),
        ({"grain": 21}, "a tile must hold its dependences"),
        ({"deps": ((0,), (0,), (9,))}, "a tile must hold its dependences"),
        ({"parts": (6, 2)}, "a part has fewer points"),
        ({"deps": ((3,), (0,), (0,))}, "a part has fewer points"),
    ],
)
def test_what_cannot_be(change, said):
    with pytest.raises(PlanError) as error:
        replace(CASES["triple nest"], **change)
    assert said in str(error.value)


def test_what_does_not_fit():
    with pytest.raises(WishError):
        replace(CASES["triple nest"], parts=(4,))
    with pytest.raises(PlanError):
        CASES["triple nest"].program("sometimes")


def in_sim(chains, schedule, compute_s, wire_s, latency_s):
    program = chains.program(schedule)
    kinds = program.columns["kind"]
    prices = Prices.plain(
        program,
        np.where(kinds == Kind.compute, compute_s, 0.0),
        np.where(kinds == Kind.send, wire_s, 0.0),
        latency_s=latency_s,
    )
    return float(simulate(program, prices).columns["end_s"].max())


@pytest.mark.parametrize(("wire_s", "latency_s"), [(0.0, 0.0), (0.3, 0.2), (0.9, 4.0)])
def test_simulated_as_the_recurrence_says(wire_s, latency_s):
    """A chain of ranks, messages that wait for nobody. Not overlapped: the sender is kept until the wire is free."""
    chains = Chains(((1, 0), (0, 1)), (8, 60), (4,), 5)
    cost = {NON_OVERLAPPING: wire_s, OVERLAPPING: 0.0}
    for schedule, send_s in cost.items():
        message = Message(wire_s + latency_s, wire_s, send_s)
        told = predicted_s(chains, schedule, lambda grain, rank: 1.0, lambda num_bytes, m=message: m, 8)
        assert in_sim(chains, schedule, 1.0, wire_s, latency_s) == pytest.approx(told)


class TestGrain:
    chains = Chains(UNITS, (16, 16, 2048), (4, 4), 1)

    @staticmethod
    def tile_s(grain, rank):
        """Twice as slow where a tile leaves the cache: no affine law."""
        return 1e-6 * grain * (2 if grain > 300 else 1)

    @staticmethod
    def message(waits_from, progresses=True):
        def cost(num_bytes):
            return Message(1e-4 + 8e-8 * num_bytes, 8e-8 * num_bytes, 2e-5, 2e-5, num_bytes >= waits_from, progresses)

        return cost

    @pytest.mark.slow
    def test_within_a_hundredth_of_every_grain(self):
        for waits_from in (0, 4096, 1 << 30):
            message = self.message(waits_from)
            found = best_chains(self.chains, self.tile_s, message)
            all_of_them = (
                predicted_s(replace(self.chains, grain=grain), schedule, self.tile_s, message, 8)
                for schedule in SCHEDULES
                for grain in range(1, 2049, 7)
            )
            assert found.predicted_s <= 1.011 * min(all_of_them)

    def test_blocking_sends_that_overlap_already_are_taken_and_told(self):
        found = best_chains(self.chains, self.tile_s, self.message(1 << 30))
        assert found.schedule == NON_OVERLAPPING
        assert found.why == "sends do not wait for their receivers, so that blocking ones overlap already"

    def test_overlapping_is_taken_where_sends_wait(self):
        found = best_chains(self.chains, self.tile_s, self.message(0))
        assert found.schedule == OVERLAPPING
        assert found.predicted_s < 0.9 * found.non_overlapping_s

    def test_less_is_gained_without_progress(self):
        found, other = (best_chains(self.chains, self.tile_s, self.message(0, way)) for way in (True, False))
        assert other.non_overlapping_s == found.non_overlapping_s
        assert other.overlapping_s > 1.1 * found.overlapping_s

    def test_a_cache_bounds_the_grain(self):
        """Free messages would have made one tile for each rank."""
        found = best_chains(replace(self.chains, parts=(1, 1)), self.tile_s, self.message(0))
        assert found.chains.grain <= 300
