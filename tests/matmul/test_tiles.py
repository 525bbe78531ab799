"""Tilings: the worked example of seed 000, cases that it does not cover, and the optimum against brute force."""

import numpy as np
import pytest
from effort import assert_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.core import OperatorError, PlanError
from dovetail.matmul import optimum
from dovetail.matmul.local_search import climb
from dovetail.matmul.optimum import optimal
from dovetail.matmul.tiles import mc2, mc2_short, pipeline_s, serial, uniform

M, K, N = 4096, 3072, 8192


def matmul_s(rows):
    """Linear through 0 and the seed's 803 us for 4096 rows, since the seed gives no fit."""
    return 803e-6 / 4096 * rows


def all_reduce_s(rows):
    """The seed's fit of an 8-card all-reduce of float16 rows of 8192, x in MiB."""
    x = rows * N * 2 / 2**20
    return 1e-6 * np.where(x < 8, -0.9698202 * x * x + 27.0622573 * x + 14.769, 13.58491263 * x + 61.508333)


def us(seconds):
    return round(seconds * 1e6)


class TestSeed:
    def test_worked_example(self):
        found = mc2(M, K, N, matmul_s, all_reduce_s)
        assert found.tiles == (512, 896, 896, 896, 896)
        steps = found.steps
        assert [steps[key] for key in ("a", "b", "c", "m0")] == [171, 192, 384, 384]
        assert [steps[key] for key in ("m1_raw", "m1", "count", "m1_final", "m0_final")] == [834, 768, 4, 896, 512]
        assert steps["bound"] == "communication"
        assert us(steps["t1_s"]) == 164
        assert found.notes == ()
        assert us(pipeline_s(found.tiles, matmul_s, all_reduce_s)) == 1283

    def test_the_rule_as_in_the_text_takes_the_least_candidate(self):
        found = mc2(M, K, N, matmul_s, all_reduce_s, reading="min")
        assert found.tiles == (256, *[384] * 10)
        assert us(pipeline_s(found.tiles, matmul_s, all_reduce_s)) == 1580

    def test_serial_is_the_sum(self):
        assert us(pipeline_s(serial(M).tiles, matmul_s, all_reduce_s)) == 1734

    def test_aligning_to_nearest_gives_the_same_tiles_by_other_steps(self):
        """Planted fault: with m1 rounded to nearest, the steps would contain 896."""
        steps = dict(mc2(M, K, N, matmul_s, all_reduce_s).steps)
        assert -(-steps["m1_raw"] // 128) * 128 == 896 != steps["m1"]

    @pytest.mark.parametrize(
        ("floor", "factor", "tiles", "micros"),
        [
            (384, 1.0, (512, 768, 1152, 1664), 1218),
            (128, 1.0, (128, 512, 768, 1152, 1536), 1214),
            (384, 1.15, None, 1357),
            (128, 1.15, None, 1342),
        ],
    )
    def test_optimal_is_faster_than_mc2_on_the_model_of_mc2(self, floor, factor, tiles, micros):
        def comm(rows):
            return factor * all_reduce_s(rows)

        found = optimal(M, matmul_s, comm, floor=floor)
        assert us(pipeline_s(found.tiles, matmul_s, comm)) == micros
        assert us(found.steps["model_s"]) == micros
        assert tiles is None or found.tiles == tiles
        assert min(found.tiles) >= floor


class TestMc2:
    def test_computation_bound_puts_the_short_block_last(self):
        found = mc2(8192, 8192, 4096, lambda r: 1e-6 * r, lambda r: 20e-6 + 0.4e-6 * r)
        assert found.steps["bound"] == "computation"
        assert found.tiles[-1] == found.steps["m0_final"]
        assert len(set(found.tiles[:-1])) == 1
        assert found.steps["m1_raw"] == 1054  # 0.4 r + 20 <= 1.15 * 384
        assert found.tiles == (*[1024] * 7, 1024)

    @pytest.mark.parametrize("m", [1, 127, 383, 384, 385, 1151])
    def test_a_short_product_is_not_cut_and_a_note_says_so(self, m):
        found = mc2(m, K, N, matmul_s, all_reduce_s)
        assert found.tiles == (m,)
        assert "not cut" in found.notes[0]

    def test_an_unaligned_m_is_reported(self):
        found = mc2(M + 1, K, N, matmul_s, all_reduce_s)
        assert found.tiles == (513, 896, 896, 896, 896)
        assert "multiple of 128" in found.notes[0]

    def test_a_startup_above_the_short_block_leaves_no_long_block(self):
        found = mc2(4096, K, N, lambda r: 1e-6 * r, lambda r: 600e-6 + 0.5e-6 * r)
        assert found.steps["m1_raw"] == 0
        assert found.steps["m1"] == 128
        assert sum(found.tiles) == 4096

    def test_empty_products(self):
        assert mc2(0, K, N, matmul_s, all_reduce_s).tiles == ()
        assert mc2(64, 0, N, matmul_s, all_reduce_s).tiles == (64,)
        assert mc2(64, K, 0, matmul_s, all_reduce_s).tiles == (64,)

    def test_invalid_arguments_are_refused(self):
        with pytest.raises(PlanError, match="reading"):
            mc2_short(K, N, "median")
        with pytest.raises(OperatorError):
            mc2(-1, K, N, matmul_s, all_reduce_s)

    @given(
        m=st.integers(0, 20000),
        k=st.integers(1, 10000),
        n=st.integers(1, 10000),
        reading=st.sampled_from(["max", "min"]),
        slopes=st.tuples(*[st.floats(1e-9, 1e-5)] * 2),
        starts=st.tuples(*[st.floats(0, 1e-3)] * 2),
    )
    def test_always_tiles_all_rows(self, m, k, n, reading, slopes, starts):
        curves = [lambda r, s=s, a=a: a + s * np.asarray(r) for s, a in zip(slopes, starts, strict=True)]
        found = mc2(m, k, n, *curves, reading=reading)
        assert sum(found.tiles) == m
        assert all(t > 0 for t in found.tiles)
        if len(found.tiles) > 1:
            short = found.tiles[0] if found.steps["bound"] == "communication" else found.tiles[-1]
            assert short >= found.steps["m0"]
            assert found.steps["m1_final"] >= found.steps["m1"]
            assert sorted(set(found.tiles)) == sorted({short, found.steps["m1_final"]})
            assert (short % 128 == 0) or found.notes


@given(m=st.integers(0, 5000), count=st.integers(1, 40), align=st.sampled_from([1, 2, 7, 64, 128]))
def test_uniform_is_even(m, count, align):
    tiles = uniform(m, count, align).tiles
    assert sum(tiles) == m
    assert len(tiles) == min(count, -(-m // align))
    assert all(t % align == 0 for t in tiles[:-1])
    if tiles:
        assert min(tiles) > 0
        blocks = [-(-t // align) for t in tiles]
        assert max(blocks) - min(blocks) <= 1


def compositions(m, floor, most):
    """Yield every list of tiles of `m` rows that the options allow."""
    if m < floor:
        return [[m]]

    def rest(left, count):
        if left == 0:
            yield []
            return
        if count == most:
            return
        for first in range(floor, left + 1):
            for tail in rest(left - first, count + 1):
                yield [first, *tail]

    return list(rest(m, 0))


@st.composite
def problems(draw):
    m = draw(st.integers(1, 9))
    tables = [np.array([0.0, *draw(st.lists(st.integers(0, 20), min_size=m, max_size=m))]) for _ in range(2)]
    factors = draw(st.tuples(*[st.sampled_from([1.0, 1.15, 1.5, 2.0, 3.0])] * 2))
    return m, tables, factors, draw(st.integers(1, 4)), draw(st.sampled_from([None, 1, 2, 3, 4]))


@pytest.mark.slow
@settings(max_examples=some(400), deadline=None)
@given(problem=problems())
def test_optimal_equals_brute_force(problem):
    m, tables, factors, floor, most = problem
    compute, comm = (lambda r, t=t: t[np.asarray(r)] for t in tables)
    found = optimal(
        m, compute, comm, align=1, floor=floor, max_count=most, compute_factor=factors[0], comm_factor=factors[1]
    )
    every = [pipeline_s(tiles, compute, comm, *factors) for tiles in compositions(m, floor, most)]
    assert found.steps["exact"] == 1
    assert sum(found.tiles) == m
    assert list(found.tiles) in compositions(m, floor, most)
    assert pipeline_s(found.tiles, compute, comm, *factors) == pytest.approx(min(every), rel=1e-9)


@given(points=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40))
def test_a_front_keeps_undominated_points_and_the_first_of_equal_ones(points):
    """Also if many partial tilings have equal times, or equal communication left."""
    beaten = [any(a <= c and b <= d and (a, b) != (c, d) for a, b in points) for c, d in points]
    wanted = [row for row, point in enumerate(points) if not beaten[row] and points.index(point) == row]
    first, second = np.array(points, dtype=float).reshape(-1, 2).T
    assert optimum._front_2d(first, second).tolist() == sorted(wanted, key=points.__getitem__)


def test_brute_force_notices_a_front_that_keeps_too_little(monkeypatch):
    """Planted fault: if only the partial tiling whose compute ends first is kept, the optimum is missed."""
    compute = lambda r: np.array([0, 3, 8, 8, 9, 12])[np.asarray(r)]  # noqa: E731
    comm = lambda r: np.array([0, 3, 4, 5, 7, 10])[np.asarray(r)]  # noqa: E731
    best = min(pipeline_s(t, compute, comm) for t in compositions(5, 1, None))
    monkeypatch.setattr(optimum, "_front_2d", lambda first, second: np.lexsort((second, first))[:1])
    assert pipeline_s(optimal(5, compute, comm, align=1).tiles, compute, comm) > best


@settings(max_examples=some(60), deadline=None)
@given(
    m=st.integers(1, 60), align=st.sampled_from([1, 3, 8]), points=st.sampled_from([4, 9, 17]), start=st.floats(0, 20)
)
def test_a_coarse_grid_is_sound_and_no_worse_than_serial(m, align, points, start):
    compute, comm = lambda r: 1.0 * r, lambda r: start + 1.2 * r
    found = optimal(m, compute, comm, align=align, max_points=points)
    assert sum(found.tiles) == m
    assert min(found.tiles) > 0
    assert pipeline_s(found.tiles, compute, comm) <= pipeline_s([m], compute, comm) * (1 + 1e-12)
    exact = optimal(m, compute, comm, align=1)
    assert pipeline_s(exact.tiles, compute, comm) <= pipeline_s(found.tiles, compute, comm) * (1 + 1e-12)


def test_optimal_of_many_rows_takes_less_than_one_pass_over_all_pairs_would():
    compute = lambda r: 5e-6 + matmul_s(r) * (1 + 50 / (r + 50))  # noqa: E731
    found = assert_quick(lambda: optimal(32768, compute, all_reduce_s), 100)
    assert found.steps["exact"] == 1


def test_invalid_arguments_of_optimal_are_refused():
    with pytest.raises(PlanError, match="at least 1"):
        optimal(8, matmul_s, all_reduce_s, comm_factor=0.5)
    with pytest.raises(OperatorError):
        optimal(8, matmul_s, all_reduce_s, floor=0)
    assert optimal(0, matmul_s, all_reduce_s).tiles == ()
    assert optimal(5, matmul_s, all_reduce_s, floor=100).tiles == (5,)


def test_pipeline_slows_only_what_overlaps():
    compute, comm = lambda r: 10.0 * np.ones(len(r)), lambda r: 5.0 * np.ones(len(r))
    assert pipeline_s([1], compute, comm, 2.0, 3.0) == 15.0
    assert pipeline_s([1, 1], compute, comm) == 25.0
    # beside compute, the message of 5 s takes 15 s, in which 7.5 s of the second tile's work are done
    assert pipeline_s([1, 1], compute, comm, 2.0, 3.0) == pytest.approx(10 + 15 + 2.5 + 5)
    assert pipeline_s([], compute, comm) == 0.0


def test_climbing_never_loses_rows_and_never_gets_slower() -> None:
    def seconds(tiles: tuple[int, ...]) -> float:
        return sum(abs(rows - 24) for rows in tiles) + 3.0 * len(tiles)

    start = (64, 32, 96)
    found = climb(start, seconds, align=32, floor=8)
    assert sum(found) == sum(start)
    assert seconds(found) < seconds(start)
    assert min(found) >= 8
    assert climb(start, lambda tiles: 1.0, 32, 8) == start
