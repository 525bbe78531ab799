"""Loop nests with dependences, on ranks: every cut and grain is proved, and equal to the loop nest bit by bit."""

import json
from dataclasses import replace

import needs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_trees import evaluate, trees
from pipeline_runs import arguments, check, native, results, schedule
from thorough import some

from dovetail import operator_of
from dovetail.core import OperatorError, PlanError, ProgramError
from dovetail.cost import Curve, Prices, Segment
from dovetail.ir import Builder, Kind, Schedule, op_works, verify, work_keys
from dovetail.ir.registry import operator_class, operator_from
from dovetail.loops import array, loop, maximum, nest, problems
from dovetail.machine import load
from dovetail.pipeline import kernel_forms as pipeline_kernels
from dovetail.pipeline.operator import NOTHING_TO_HIDE, PIPELINES_ALREADY, PipelineOperator
from dovetail.pipeline.operators import pipeline_of
from dovetail.pipeline.sweeps import pipelined_of
from dovetail.pipeline.tile_kernels import BoxKernel, SingleKernel, TileKernel
from dovetail.pipeline.tile_messages import Ledger
from dovetail.planner import plan
from dovetail.planner.costs import Costs
from dovetail.planner.search import with_schedule
from dovetail.sim import simulate
from dovetail.stencil.operator import StencilOperator
from dovetail.tiling.tiling import Tiling

GRIDS = {
    "sync_p2p": ("23x17", 3),
    "gauss_seidel2d": ("19x18", 4),
    "sor2d": ("18x19", 3),
    "ssor2d": ("10x12", 2),
    "seidel2d": ("11x13", 2),
    "lcs": ("21x22", 1),
    "smith_waterman": ("22x21", 1),
    "triple_nest": ("9x11x10", 1),
}


THOROUGH_RANKS = [pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (2, 4)]


def ways(operator, ranks):
    """Yield every way to cut and map."""
    return [way for mapped in operator.pipelined.mappable for way in operator._ways(ranks, mapped)]


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("ranks", [1, *THOROUGH_RANKS, 3])
@pytest.mark.parametrize("overlapped", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_shipped(name, ranks, overlapped):
    operator = operator_class(name)(*GRIDS[name])
    for way in ways(operator, ranks):
        for grain in (1, 5, 100):
            check(operator, schedule(way.cut, way.mapped, grain, overlapped), seed=ranks)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (2, 8))])
def test_compiled(name, ranks):
    operator = operator_class(name)(*GRIDS[name])
    for way in ways(operator, ranks)[:: max(ranks // 2, 1)]:
        check(operator, schedule(way.cut, way.mapped, 4, True), seed=ranks, run=native)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, 1, -1), (1, -1, -1)])
def test_compiled_with_skew_along_two_axes(signs):
    """One of three axes can be cut; tiles along the last axis are skewed along both others."""

    @nest(u=array("n", "m", "l"))
    def skewed3d(u, steps):
        def there(axis):
            n = u.shape[axis]
            return loop(1, n - 1) if signs[axis] > 0 else loop(n - 2, 0, -1)

        a, b, c = signs
        for _ in loop(steps):
            for i in there(0):
                for j in there(1):
                    for k in there(2):
                        u[i, j, k] = 0.5 * (u[i - a, j + b, k] + u[i, j - b, k + c]) + u[i, j, k - c] * u[i + 1, j, k]

    operator = operator_of(skewed3d)("9x8x10", 2)
    assert [operator.cutting((2, 1, 1), axis).skew(operator.pipelined.sweeps[0]) for axis in (1, 2)] == [
        (1, 0, 0),
        (1, 1, 0),
    ]
    for mapped, grain in ((1, 3), (2, 4)):
        check(operator, schedule((3, 1, 1), mapped, grain, True), run=native)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("columns", range(5, 10))
def test_compiled_rows_so_short_that_they_are_unrolled(columns):
    """GCC 12 wrongly vectorises such dependent rows unless it is prevented."""

    @nest(u=array("n", "m"), v=array("n", "m"))
    def shifted(u, v):
        n, m = u.shape
        for i in loop(1, n):
            for j in loop(1, m - 1):
                u[i, j] = u[i - 1, j - 1] + v[i, j]
                v[i, j] = u[i - 1, j] + v[i - 1, j + 1]

    operator = pipeline_of(shifted)(f"29x{columns}")
    for mapped in operator.pipelined.mappable:
        check(operator, schedule((1, 1), mapped, 9), run=native)


@pytest.mark.needs("compiler")
def test_compiled_does_not_call_python(monkeypatch):
    for kind in (TileKernel, BoxKernel, SingleKernel):
        monkeypatch.setattr(kind, "call", None)
    check(operator_class("sync_p2p")("20x12", 2), schedule((1, 3), 0, 4, True), run=native)


@pytest.mark.parametrize("name", ["red_black2d", "fdtd2d"])
def test_stencils_in_place_are_pipelines_too(name):
    """Several sweeps that read each other's values, with ghosts on both sides."""
    operator = pipeline_of(getattr(problems, name))("17x16", 3)
    for cut, mapped in (((1, 3), 0), ((2, 1), 1)):
        check(operator, schedule(cut, mapped, 4, True))


@pytest.mark.parametrize(("cut", "mapped"), [((1, 1), 0), ((1, 3), 0), ((2, 1), 1)])
def test_elements_of_arrays_of_fewer_axes(cut, mapped):
    """Several ranks hold copies of such an array: each writes its own copy, and returns it with its own axes."""

    @nest(u=array("n", "m"), s=array("n"), c=array("m"), e=array(3))
    def edges(u, s, c, e, steps):
        n, m = u.shape
        for _ in loop(steps):
            for i in loop(2, n - 1):
                for j in loop(1, m - 2):
                    u[i, j] = u[i - 1, j] + u[i, j - 1] + s[i - 1] * c[j] + e[1]
            s[1] = s[n - 1] + 1
            s[n - 1] = s[2] + u[3, 4]
            e[1] = c[0] * s[1]
            u[2, 2] = c[1] - e[1]
            c[4] = u[n - 2, m - 3] - s[n - 1]

    for overlapped in (False, True):
        check(operator_of(edges)("8x9", 3), schedule(cut, mapped, 2, overlapped))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int16"])
def test_whole_numbers(dtype):
    """Two statements in one loop, one of which reads the value that the other has just written; integers wrap
    around."""

    @nest(u=array("n", "m"), v=array("n", "m"), w=array("m"), c=array(3))
    def affine_gaps(u, v, w, c, steps):
        n, m = u.shape
        for _ in loop(steps):
            for i in loop(2, n):
                for j in loop(1, m - 1):
                    u[i, j] = maximum(u[i - 2, j] * c[1], v[i, j - 1]) + w[j + 1]
                    v[i, j] = u[i, j] * 3 + v[i - 1, j - 1] + c[2]

    operator = operator_of(affine_gaps)("19x14", 3, dtype)
    for cut, mapped in (((1, 4), 0), ((3, 1), 1)):
        for run in (None, native):
            check(operator, schedule(cut, mapped, 5, True), run=run)


signs = st.sampled_from([-1, 1])


def offsets(axes):
    """Draw offsets that are all <= 0 or all >= 0, so that no dependence goes backwards along an axis."""
    sizes = st.tuples(*[st.integers(0, 2)] * axes)
    return st.builds(lambda sign, by: tuple(sign * each for each in by), signs, sizes)


def directions(axes):
    """Draw the order of the loops of a sweep, and the direction of each."""
    return st.tuples(st.permutations(range(axes)), st.tuples(*[signs] * axes))


def upwards(axes):
    return st.just((tuple(range(axes)), (1,) * axes))


class Timeless:
    """An array of a nest for the expressions of `loop_trees`, whose indices include a time."""

    def __init__(self, array):
        self.array = array

    def __getitem__(self, at):
        return self.array[at[1:]]


@pytest.mark.slow
@settings(max_examples=some(80), deadline=None)
@given(
    data=st.data(),
    axes=st.integers(2, 3),
    ranks=st.integers(1, 4),
    steps=st.integers(0, 3),
    grain=st.integers(1, 8),
    overlapped=st.booleans(),
    dtype=st.sampled_from(["float64", "float32"]),
    anyhow=st.booleans(),
)
def test_random_nests(data, axes, ranks, steps, grain, overlapped, dtype, anyhow):
    """Two sweeps, the second over another box, with reads in one direction or in any, and loops in any order and
    direction: the result is correct, or the nest is refused because a part is too narrow or no axis can be cut."""
    first, second = (data.draw(trees(axes, offsets=None if anyhow else offsets(axes))) for _ in range(2))
    turns = [data.draw(directions(axes) if anyhow else upwards(axes)) for _ in range(2)]
    edge = data.draw(st.integers(2, 3))

    @nest(u=array(*"nml"[:axes]), c=array(*"nml"[:axes]))
    def random_nest(u, c, steps):
        def sweep(tree, bounds, order, signs, at):
            if len(at) == axes:
                place = tuple(at[axis] for axis in range(axes))
                u[place] = evaluate(tree, Timeless(u), c, 0, place)
                return
            axis = order[len(at)]
            low, high = bounds[axis]
            for i in loop(low, high) if signs[axis] > 0 else loop(high - 1, low - 1, -1):
                sweep(tree, bounds, order, signs, at | {axis: i})

        for _ in loop(steps):
            for tree, low, turn in ((first, 2, turns[0]), (second, edge, turns[1])):
                sweep(tree, [(low if axis == 0 else 2, n - 2) for axis, n in enumerate(u.shape)], *turn, {})

    grid = "x".join(str(data.draw(st.integers(6, 11))) for _ in range(axes))
    try:
        kind = pipeline_of(random_nest)
    except OperatorError:
        if turns[0][0][0] == turns[1][0][0]:  # the axis of both outermost loops can be cut
            raise
        return
    operator = kind(grid, steps, dtype)
    found = ways(operator, ranks)
    if found:
        way = data.draw(st.sampled_from(found))
        check_legal(way)
        with np.errstate(all="ignore"):
            check(operator, schedule(way.cut, way.mapped, grain, overlapped))


def check_legal(way):
    """Check by the tiling library that HD >= 0 in the rows of the cut axes and of the mapped axis."""
    for sweep in way.pipelined.sweeps:
        order = sweep.order
        unit = [[int(axis == other) for other in order] for axis in order]
        place = order.index(way.mapped)
        sides = [list(row) for row in unit]  # row `place` of H includes the skew, that of P = 1 / H does not
        sides[place] = [int(axis == way.mapped) - way.skew(sweep)[axis] for axis in order]
        deps = [tuple(inner.by[axis] for axis in order) for inner in way.pipelined.inner[sweep.name]]
        if deps:
            hd = Tiling(tuple(zip(*deps, strict=True)), tuple(map(tuple, sides))).hd
            tiled = [k for k, axis in enumerate(order) if axis == way.mapped or way.cut[axis] > 1]
            assert all(entry >= 0 for k in tiled for entry in hd[k]), (sweep.name, way)


class TestMessages:
    """Messages hold just the values that the next ranks need, each once."""

    @staticmethod
    def sent(name, grid, cut, mapped, steps=1, grain=100):
        """Return the bytes and the number of the messages that carry faces."""
        operator = operator_class(name)(grid, steps)
        how = schedule(cut, mapped, grain)
        program = operator.program(how, int(np.prod(cut)))
        slots = operator.workload(program, how).slots
        sends = [op for op in program.ops() if op.kind == Kind.send and "_to_" in op.reads[0].buffer]
        return sum(op.reads[0].num_slots * slots[op.reads[0].buffer][op.rank].num_bytes for op in sends), len(sends)

    def test_messages_are_minimal(self):
        assert self.sent("lcs", "30x20", (1, 2), 0) == (30 * 4 + 0, 2)  # a column, its first row before it begins
        assert self.sent("gauss_seidel2d", "30x20", (1, 2), 0, 1) == (2 * 28 * 8, 2)  # either way, inner rows only
        assert self.sent("gauss_seidel2d", "30x20", (1, 2), 0, 5, 7) == ((5 + 5) * 28 * 8, 5 * 4 + 1 + 4 * 4)
        assert self.sent("triple_nest", "8x8x30", (2, 2, 1), 2) == (4 * 4 * 29 * 8, 4)  # no corners
        assert self.sent("triple_nest", "8x8x30", (2, 1, 1), 2, grain=5) == (7 * 29 * 8 + 29 * 8, 6)

    def test_blocking_waits_for_its_messages(self):
        operator = operator_class("lcs")("30x20")
        for overlapped, waits in ((False, True), (True, False)):
            ops = list(operator.program(schedule((1, 2), 0, 5, overlapped), 2).ops())
            computes = [op for op in ops if op.kind == Kind.compute and op.rank == 0]
            kinds = {ops[row].kind for op in computes for row in op.after}
            assert (Kind.send in kinds) == waits

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["gauss_seidel2d", "sync_p2p", "triple_nest", "seidel2d", "ssor2d"])
    @pytest.mark.parametrize("overlapped", [False, True])
    def test_one_message_in_flight_is_enough(self, name, overlapped):
        """For any number of tiles, with faces in both directions, parts never wait for each other's sends."""
        grid, steps = {"triple_nest": ("5x6x60", 1), "seidel2d": ("20x50", 3)}.get(name, ("90x20", 3))
        operator = operator_class(name)(grid, steps)
        for way in ways(operator, 4):
            how = schedule(way.cut, way.mapped, 2, overlapped)
            assert verify(operator.program(how, 4), against=operator.reference(how, 4)).min_fifo_depth == 1

    def test_a_later_rank_begins_before_the_first_has_ended(self):
        """By the program's own dependencies: the last rank's first tile needs one tile of the first rank."""
        program = operator_class("sync_p2p")("40x20", 1).program(schedule((1, 2), 0, 4, True), 2)
        ops = list(program.ops())
        receives = [op for op in ops if op.kind == Kind.recv and op.rank == 1]
        assert len(receives) >= 10


class TestLevels:
    """Arrays with a time axis, whose new level is read while it is written."""

    @pytest.mark.parametrize("dtype", ["float64", "int32"])
    @pytest.mark.parametrize("ranks", [1, 2, 3, 5])
    def test_two_levels_in_one_array(self, ranks, dtype):
        operator = operator_of(both_levels)("19x17", 4, dtype)
        assert isinstance(operator, PipelineOperator)
        for way in ways(operator, ranks):
            check(operator, schedule(way.cut, way.mapped, 4, True), seed=ranks)

    @pytest.mark.needs("compiler")
    def test_compiled(self):
        operator = operator_of(both_levels)("15x16", 3)
        check(operator, schedule((1, 3), 0, 4, True), run=native)

    @pytest.mark.parametrize("beside", [0, 1])
    def test_values_that_one_array_cannot_hold_are_refused(self, beside):
        """Reading the old value of a computed point is refused, whether or not the new one is read too."""

        @nest(u=array("n", "m", time=True, boundary="fixed"))
        def backward(u, steps):
            n, m = u.shape
            for t in loop(steps):
                for i in loop(1, n):
                    for j in loop(1, m):
                        u[t + 1, i, j] = u[t + beside, i - 1, j] - u[t, i - 1, j] + u[t + 1, i, j - 1]

        with pytest.raises(OperatorError, match=r"u\[t, i - 1, j\] is overwritten before it is read"):
            operator_of(backward)

    def test_a_stencil_is_no_pipeline(self):
        assert issubclass(operator_of(problems.jacobi2d), StencilOperator)


@nest(u=array("n", "m", time=True, boundary="fixed"), c=array("n", "m"))
def both_levels(u, c, steps):
    n, m = u.shape
    for t in loop(steps):
        for i in loop(1, n - 1):
            for j in loop(m - 2, 0, -1):
                u[t + 1, i, j] = u[t + 1, i - 1, j] + u[t, i + 1, j] * c[i, j] + u[t, i, j] - u[t + 1, i, j + 1]
        u[t + 1, 0, 0] = u[t + 1, n - 2, 1]


class TestRefused:
    @pytest.mark.parametrize("grain", [0, -2, 2.5])
    def test_grain(self, grain):
        """Empty tiles are refused: both programs would do nothing, and so seem equal."""
        operator = operator_of(problems.gauss_seidel2d)("9x8", 2)
        for made in (operator.program, operator.reference):
            with pytest.raises(OperatorError, match="grain must be"):
                made(Schedule.of("asked", cut=(1, 2), mapped=0, grain=grain), 2)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("jacobi2d", r"u\[t, i, j - 1\] is overwritten before it is read"),
            ("acoustic3d", "array u is periodic|array u keeps 3 levels"),
        ],
    )
    def test_shipped(self, name, words):
        with pytest.raises(OperatorError, match=f"{name} is no pipeline: {words}"):
            pipelined_of(getattr(problems, name))

    def test_no_skew_helps(self):
        """Two sweeps with outermost loops along different axes: each forbids cutting the other's axis."""

        @nest(u=array("n", "m"))
        def across(u):
            n, m = u.shape
            for i in loop(1, n):
                for j in loop(m - 1):
                    u[i, j] = u[i - 1, j + 1]
            for j in loop(1, m):
                for i in loop(n - 1):
                    u[i, j] = u[i + 1, j - 1]

        words = r"its dependence \(1, -1\) goes backwards along j, and others along the other axes"
        with pytest.raises(OperatorError, match=f"across is no pipeline: {words}"):
            pipelined_of(across)

    def test_bounds_that_change_with_the_step(self):
        @nest(u=array("n", "m"))
        def later(u, steps):
            for t in loop(steps):
                for i in loop(t, u.shape[0]):
                    for j in loop(1, u.shape[1]):
                        u[i, j] = u[i, j - 1]

        with pytest.raises(OperatorError, match="the bounds of i change with other loops"):
            pipelined_of(later)

    def test_a_grid_that_is_no_box_is_refused(self):
        @nest(u=array("n", "n"))
        def triangle(u):
            for i in loop(1, u.shape[0]):
                for j in loop(i, u.shape[1]):
                    u[i, j] = u[i - 1, j]

        with pytest.raises(OperatorError, match="the bounds of j change with other loops"):
            pipelined_of(triangle)

    def test_turned(self):
        @nest(u=array("n", "n"))
        def turned(u):
            for i in loop(1, u.shape[0]):
                for j in loop(1, u.shape[1]):
                    u[i, j] = u[i - 1, j] + u[j, i]

        with pytest.raises(OperatorError, match="turned"):
            pipelined_of(turned)

    def test_cuts(self):
        operator = operator_class("gauss_seidel2d")("9x9", 2)
        with pytest.raises(PlanError, match="gauss_seidel2d cannot be cut like this"):
            operator.program(schedule((2, 1), 0, 3), 2)
        with pytest.raises(PlanError, match="a part would have no points"):
            operator.program(schedule((1, 10), 0, 3), 10)
        with pytest.raises(OperatorError, match="10 ranks cannot each have a part"):
            operator.serial(10)
        with pytest.raises(PlanError, match="does not fit gauss_seidel2d on 3 ranks"):
            operator.program(schedule((1, 2), 0, 3), 3)
        with pytest.raises(OperatorError, match="a grid of 2 axes"):
            operator_class("lcs")("9x9x9")
        with pytest.raises(OperatorError, match="lcs has no steps"):
            operator_class("lcs")("9x9", 2)

    def test_parts_too_narrow(self):
        @nest(u=array("n", "m"))
        def far(u):
            for i in loop(3, u.shape[0]):
                for j in loop(3, u.shape[1]):
                    u[i, j] = u[i, j - 3] + u[i - 1, j]

        operator = operator_of(far)("9x10")
        check(operator, schedule((1, 3), 0, 2))
        with pytest.raises(PlanError, match="a part would have no points"):
            operator.program(schedule((1, 11), 0, 2), 11)


class TestNarrowParts:
    """Parts narrower than the reach of dependences: faces come from several parts."""

    @staticmethod
    def far(back=4, on=1):
        edge = max(back, on)

        @nest(u=array("n", "m"), c=array("n", "m"))
        def far(u, c, steps):
            n, m = u.shape
            for _ in loop(steps):
                for i in loop(edge, n - edge):
                    for j in loop(edge, m - edge):
                        before = u[i - 1, j] + u[i, j - back] * c[i, j + 2] - u[i - back, j - 1]
                        u[i, j] = 0.25 * before + u[i, j + on] + c[i - 2, j - 3]

        return operator_of(far)

    @pytest.mark.parametrize("overlapped", [False, True])
    @pytest.mark.parametrize(("cut", "mapped"), [((1, 6), 0), ((1, 13), 0), ((5, 1), 1), ((13, 1), 1)])
    def test_correct(self, cut, mapped, overlapped):
        for back, on in ((4, 1), (3, 5)):
            check(self.far(back, on)("13x13", 2), schedule(cut, mapped, 4, overlapped))

    def test_corners(self):
        @nest(u=array("n", "m", "l"))
        def across(u):
            n, m, k = u.shape
            for i in loop(3, n):
                for j in loop(3, m):
                    for h in loop(k):
                        u[i, j, h] = u[i - 3, j - 2, h] + u[i - 1, j, h] - u[i, j - 3, h]

        for cut in ((4, 3, 1), (7, 2, 1)):
            check(operator_of(across)("7x8x5"), schedule(cut, 2, 2, True))

    def test_skewed_tiles(self):
        @nest(u=array("n", "m"))
        def skewed(u, steps):
            n, m = u.shape
            for _ in loop(steps):
                for i in loop(3, n - 1):
                    for j in loop(1, m - 1):
                        u[i, j] = u[i - 3, j + 1] + u[i - 1, j] + u[i, j - 1] - u[i + 1, j + 1]

        for cut in ((4, 1), (9, 1)):
            check(operator_of(skewed)("9x11", 2), schedule(cut, 1, 3, True))

    def test_no_more_is_sent_than_is_read(self):
        """Parts of one point each send each value once to each part that reads it."""

        @nest(u=array("n", "m"))
        def thrice(u):
            for i in loop(u.shape[0]):
                for j in loop(3, u.shape[1]):
                    u[i, j] = u[i, j - 3] + u[i, j - 2]

        program = operator_of(thrice)("5x7").program(schedule((1, 7), 0, 5), 7)
        sent = [op for op in program.ops() if op.kind == Kind.send]
        assert sum(op.reads[0].num_slots for op in sent) == 5 * (4 + 4)

    def test_a_forgotten_part_is_found(self):
        operator, how = self.far()("13x13", 2), schedule((1, 6), 0, 4)
        program, plain = operator.program(how, 6), operator.reference(how, 6)
        far_ones = [row for row, channel in enumerate(program.channels) if channel.dst - channel.src == 2]
        assert far_ones
        columns = {name: column.copy() for name, column in program.columns.items()}
        packs = [op for op in program.ops() if op.kind == Kind.send and op.chan_out in far_ones]
        columns["read_offset"][columns["read_start"][packs[0].index]] -= 1
        assert not verify(program.with_columns(columns), against=plain).ok


class TestPlantedFaults:
    """Each fault is found by the certificate or by the comparison of bits."""

    operator, how = operator_class("gauss_seidel2d")("16x12", 3), schedule((1, 2), 0, 4, True)

    def changed(self, change):
        program, plain = self.operator.program(self.how, 2), self.operator.reference(self.how, 2)
        assert verify(program, against=plain).ok
        columns = {name: column.copy() for name, column in program.columns.items()}
        change(program, columns)
        return verify(program.with_columns(columns), against=plain)

    def test_a_face_used_before_it_arrived(self):
        def forget(program, columns):
            kinds = program.columns["kind"]
            row = next(op.index for op in program.ops() if any(kinds[r] == Kind.recv for r in op.after))
            at = int(columns["dep_start"][row])
            columns["dep"] = np.delete(columns["dep"], at)
            columns["dep_start"][row + 1 :] -= 1

        assert not self.changed(forget).checks["races"].ok

    @pytest.mark.parametrize("kind", [Kind.send, Kind.compute])
    def test_other_positions(self, kind):
        def shift(program, columns):
            row = [op.index for op in program.ops() if op.kind == kind][-1]
            columns["read_offset"][columns["read_start"][row]] -= 1

        assert not self.changed(shift).ok

    def test_an_old_face(self, monkeypatch):
        """If it is forgotten that a sweep has changed a face, its old values are used again."""
        monkeypatch.setattr(Ledger, "write", lambda *_: None)
        program = self.operator_again().program(self.how, 2)
        assert not verify(program, against=self.operator.reference(self.how, 2)).checks["result"].ok

    def operator_again(self):
        """Return an equal operator without cached programs."""
        return pipeline_of(problems.gauss_seidel2d)("16x12", 3)

    def test_a_face_from_elsewhere(self, monkeypatch):
        """The certificate covers slots, not their elements: the comparison of bits finds this."""
        right = pipeline_kernels._packs

        def first_columns(*about):
            for kernel in right(*about):
                yield replace(kernel, source_box=tuple((0, high - low) for low, high in kernel.source_box))

        monkeypatch.setattr(pipeline_kernels, "_packs", first_columns)
        with pytest.raises(AssertionError):
            check(self.operator_again(), self.how)

    def test_points_in_a_wrong_order(self, monkeypatch):
        from dovetail.pipeline import tile_kernels

        at_once = lambda sides, weights: [tuple(np.indices(sides).reshape(len(sides), -1))]  # noqa: E731
        monkeypatch.setattr(tile_kernels, "diagonals", at_once)
        with pytest.raises(AssertionError):
            check(self.operator_again(), self.how)


class TestFaultsOfSkewedTiles:
    """Each fault is found by the certificate or by the comparison of bits."""

    how = schedule((2, 1), 1, 3, True)

    def check(self, name, how=None):
        check(pipeline_of(getattr(problems, name))("12x14", 2), how or self.how)

    def test_tiles_without_skew(self, monkeypatch):
        from dovetail.pipeline import sweeps as pipelined

        self.check("seidel2d")
        monkeypatch.setattr(pipelined, "least_skew", lambda *_: (0, 0))
        with pytest.raises(AssertionError):
            self.check("seidel2d")

    @pytest.mark.parametrize("change", [{"least": 1, "most": 1}, {"ahead": 0}])
    def test_a_face_of_other_positions(self, monkeypatch, change):
        from dovetail.pipeline import decomposition as cutting

        right = cutting.Cutting.needs

        def needs(self, *about):
            found = right(self, *about).items()
            return {face: tuple(need._replace(**change) for need in each) for face, each in found}

        monkeypatch.setattr(cutting.Cutting, "needs", needs)
        with pytest.raises((AssertionError, ProgramError)):
            self.check("seidel2d")

    def test_a_sweep_back_that_begins_with_the_first_part(self, monkeypatch):
        from dovetail.pipeline import decomposition as cutting

        self.check("ssor2d")
        monkeypatch.setattr(cutting.Cutting, "turn", lambda self, sweep, part: self.places[part])
        with pytest.raises((AssertionError, ProgramError)):
            self.check("ssor2d")

    def test_tiles_back_in_the_order_of_the_array(self, monkeypatch):
        from dovetail.pipeline import decomposition as cutting

        right = cutting.Cutting.tiles
        monkeypatch.setattr(cutting.Cutting, "tiles", lambda *about: right(*about)[::-1])
        with pytest.raises((AssertionError, ProgramError)):
            self.check("ssor2d")

    @pytest.mark.needs("compiler")
    def test_loops_that_go_up_instead_of_down(self, monkeypatch):
        from dovetail.pipeline.tile_text import TileWriter

        operator = pipeline_of(problems.ssor2d)("12x14", 2)
        check(operator, self.how, run=native)
        monkeypatch.setattr(
            TileWriter, "_place", lambda self, loop, at: f"{self.tile.box[loop][0] if loop == 0 else 0} + {at}"
        )
        with pytest.raises(AssertionError):
            check(pipeline_of(problems.ssor2d)("12x14", 2), self.how, run=native)

    @pytest.mark.needs("compiler")
    def test_two_rows_computed_too_close_to_one_another(self, monkeypatch):
        """In a nine-point stencil, the second row needs points of the first that are one point ahead."""
        right = pipeline_kernels.lag_of_rows
        operator = pipeline_of(problems.seidel2d)("12x14", 2)
        check(operator, self.how, run=native)
        monkeypatch.setattr(pipeline_kernels, "lag_of_rows", lambda *about: right(*about) - 2)
        with pytest.raises(AssertionError):
            check(pipeline_of(problems.seidel2d)("12x14", 2), self.how, run=native)


class TestSpace:
    """The iteration space, as the page shows it."""

    @pytest.mark.parametrize(
        ("name", "grid", "cut", "mapped"),
        [("seidel2d", "12x14", (3, 1), 1), ("ssor2d", "12x14", (1, 2), 0), ("triple_nest", "5x6x9", (1, 2, 1), 2)],
    )
    @pytest.mark.parametrize("overlapped", [False, True])
    def test_points_are_in_the_tiles_that_compute_them(self, name, grid, cut, mapped, overlapped):
        operator, across = pipeline_of(getattr(problems, name))(grid), cut.index(max(cut))
        how = schedule(cut, mapped, 4, overlapped)
        space, way = operator.space(how, max(cut)), operator.cutting(cut, mapped)
        shown = {}
        for piece in space.pieces:
            for row in range(piece.low, piece.high):
                assert shown.setdefault((row, space.number(piece.step)), (piece.rank, piece.turn)) == (
                    piece.rank,
                    piece.turn,
                )
        sweep = operator.pipelined.sweeps[0]
        assert len(shown) == np.prod(
            [way.sweep_box(sweep)[axis][1] - way.sweep_box(sweep)[axis][0] for axis in (across, mapped)]
        )
        for tile in way.tiles(sweep, 4):
            for part in range(way.num_parts):
                if about := way.tile_of(sweep, part, tile):
                    low, skew = about
                    for k, row in enumerate(range(*way.part_box(sweep, part)[across])):
                        for at in range(*skew.row(way.skew(sweep)[across] * k)):
                            assert shown[row, low + at] == (part, tile[0] // 4 + part * (1 + overlapped) + 1)

    def test_large_spaces_are_shown_in_part(self):
        space = operator_class("seidel2d")("500x4000").space(schedule((2, 1), 1, 100), 2)
        assert (space.first, space.number(49), space.stride) == (1, 1 + 1600 + 32, 34)
        assert space.cuts == (250,)
        assert len({piece.turn for piece in space.pieces}) > 16
        assert operator_class("lcs")("1x5").space(schedule((1, 1), 0, 1), 1) is None


class TestSweepsOneAfterAnother:
    """The next sweep begins before the last rank has finished the one before, if dependences allow it."""

    @staticmethod
    def waits(name, ranks):
        """Return the time of one more step beyond its work, if points take a second each and messages no time."""
        ends, busy = [], []
        for steps in (5, 6):
            operator = pipeline_of(getattr(problems, name))("26x26", steps)
            how = operator.default_schedule(ranks).with_parameters(grain=2)
            program = operator.program(how, ranks)
            work_s = np.zeros(program.num_ops)
            for row, work in op_works(program, operator.workload(program, how)).items():
                work_s[row] = work.flops
            ends.append(simulate(program, Prices.plain(program, work_s)).makespan_s)
            busy.append(max(work_s[program.columns["rank"] == rank].sum() for rank in range(ranks)))
        return (ends[1] - ends[0]) / (busy[1] - busy[0])

    @pytest.mark.parametrize("ranks", [2, 3])
    def test_no_rank_waits(self, ranks):
        assert self.waits("gauss_seidel2d", ranks) < 1.001
        assert self.waits("seidel2d", ranks) < 1.001

    def test_where_dependences_forbid_it(self):
        """A backward sweep begins where the forward one ended; a single statement reads the very last point."""
        assert self.waits("ssor2d", 2) > 1.05
        assert self.waits("sync_p2p", 2) > 1.05


def test_a_sweep_without_points_is_predicted():
    @nest(u=array("n", "m"))
    def inside(u):
        for i in loop(4, u.shape[0] - 4):
            for j in loop(1, u.shape[1]):
                u[i, j] = u[i - 1, j] + u[i, j - 1]

    operator = pipeline_of(inside)("7x6")
    program, _, repeats = operator.prediction_model(operator.serial(2), 2)
    assert (program.num_ranks, repeats) == (2, 1.0)


class TestOperator:
    def test_document(self):
        for name in GRIDS:
            operator = operator_class(name)(*GRIDS[name])
            assert isinstance(operator, PipelineOperator)
            assert operator_from(operator.to_json()) == operator
        assert operator_class("sync_p2p")("9x8", 3).title == "sync_p2p 9 × 8, 3 steps, float64"

    def test_kinds(self):
        assert issubclass(operator_of(problems.jacobi2d), StencilOperator)
        assert issubclass(operator_of(problems.gauss_seidel2d), PipelineOperator)
        assert issubclass(operator_of(problems.fdtd2d), StencilOperator)

    def test_mapped_along_a_long_axis(self):
        assert operator_class("triple_nest")("16x16x16384").mapped == 2
        assert operator_class("sync_p2p")("1000x1000").mapped == 0
        assert operator_class("sync_p2p")("400x1000").mapped == 1

    def test_samples_have_the_stated_numbers_of_points(self):
        """Also skewed tiles, which end at the grid; several samples of one size are different tiles."""
        operator = pipeline_of(problems.seidel2d)("30x50", 2)
        sample = operator.samples(2)[0]
        for amount in (1, 3, 20, 33, sample.most):
            b = Builder("sample", 2)
            rows = sample.add(b, 2, [amount] * 3)
            program = b.build()
            works = op_works(program, operator.workload(program, sample.schedule(amount)))
            assert [len(rows[rank]) for rank in (0, 1)] == [3, 3]
            assert all(amount <= work.units < amount + 0.5 for work in works.values())
            tiles = {next(iter(op.writes)).offset for op in program.ops() if op.rank == 0}
            assert len(tiles) == (3 if amount < 16 else 1 if amount >= 34 else len(tiles))

    @pytest.mark.slow
    def test_a_plan(self):
        """The chosen grain is neither one nor all positions; the plan says so if blocking sends are as good."""
        operator, machine = operator_class("lcs")("2000x2000"), load("shared-memory-2")
        curve = Curve("rows", (Segment(0.0, 1e-6, 2e-6),), label="prior", provenance={}).to_json()
        serial = operator.serial(2)
        program = operator.program(serial, 2)
        keys = [key for key in work_keys(program, operator.workload(program, serial)) if not key.startswith("moved")]
        costs = {f"kernel:{key}": curve for key in keys} | {"flops:moved:int32": curve}
        found = plan(operator, machine.with_costs(costs), extrapolate=True)
        assert found.predicted_s < 0.7 * found.serial_s
        assert 2 < found.schedule["grain"] < 1000
        blocking = plan(operator, machine.with_costs(costs), schedule="blocking", extrapolate=True)
        assert blocking.predicted_s < 1.01 * found.predicted_s
        assert {PIPELINES_ALREADY} & {*blocking.notes} or "nothing to hide" in str(blocking.notes)

    @pytest.mark.parametrize(("point_s", "says"), [(1e-6, True), (1e-9, False)])
    def test_messages_too_short_to_hide(self, point_s, says):
        """If messages are much shorter than tiles, the plan says so, and sends overlap only on request."""
        operator, machine = operator_class("triple_nest")("16x16x512"), load("shared-memory-2")
        curve = Curve("rows", (Segment(0.0, 0.0, 128 * point_s),), label="prior", provenance={}).to_json()
        hows = [operator.serial(2).with_parameters(cut=cut) for cut in ((2, 1, 1), (1, 2, 1))]
        programs = [(operator.program(how, 2), how) for how in hows]
        keys = {key for program, how in programs for key in work_keys(program, operator.workload(program, how))}
        costs = {f"kernel:{key}": curve for key in keys if not key.startswith("moved")} | {"flops:moved:float64": curve}
        known = machine.with_costs(costs)
        found, over = (plan(operator, known, schedule=family, extrapolate=True) for family in ("auto", "overlapped"))
        sentence = NOTHING_TO_HIDE.split("{")[0]
        assert any(note.startswith(sentence) for note in found.notes) == says
        assert not any(note.startswith(sentence) for note in over.notes)
        assert over.family == "overlapped"
        assert found.family == "blocking" if says else True
        if says:
            other = with_schedule(found, over.schedule, Costs.of(operator, known, 2)[0])
            assert not any(note.startswith(sentence) for note in other.notes)


MINE = """
from dovetail.loops import array, loop, nest

@nest(u=array("n", "m"))
def mine(u, steps):
    for t in loop(steps):
        for i in loop(1, u.shape[0]):
            for j in loop(1, u.shape[1] - 1):
                u[i, j] = 0.5 * u[i - 1, j] + 0.25 * (u[i, j - 1] + u[i, j + 1])

@nest(u=array("n", "m"))
def none(u):
    for i in loop(1, u.shape[0]):
        for j in loop(1, u.shape[1] - 1):
            u[i, j] = u[i - 1, j + 1] + u[i, j - 1]
    for j in loop(1, u.shape[1]):
        for i in loop(1, u.shape[0] - 1):
            u[i, j] = u[i + 1, j - 1] + u[i - 1, j]
"""


@pytest.mark.mpi
@pytest.mark.thorough
@pytest.mark.needs("mpich", "compiler")
def test_tuned_by_the_command_line(tmp_path, dovetail_with_links):
    """A loop nest of the user is probed, planned, proved, measured and checked."""
    (tmp_path / "my_loops.py").write_text(MINE)
    asked = ("my_loops.py:mine", "--grid", "64x48", "--steps", "3", "--ranks", "2")
    done = dovetail_with_links("tune", *asked, "--rounds", "3", "--budget", "4", "--json")
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["max_rel_error"] == 0.0
    assert reported["tolerance"] > 0.0  # results were compared
    grain = ("--grain", "9", "--schedule", "blocking")
    planned = dovetail_with_links("plan", *asked, *grain, "--extrapolate", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["choices"]["parameters"] == {"cut": [1, 2], "grain": 9, "mapped": 0}
    refused = dovetail_with_links("plan", "my_loops.py:none", "--grid", "9x9", "--ranks", "2")
    assert refused.returncode == 2
    assert "none is no pipeline: its dependence (1, -1) goes backwards along j" in refused.stderr


@pytest.mark.mpi
@pytest.mark.needs("compiler")
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), THOROUGH_RANKS[0], 3])
@pytest.mark.usefixtures("own_cache")
def test_on_communicators(mpi, ranks, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    done = mpi.run(ranks, needs.RANKS / "pipelined_ranks.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["all right"]


def test_without_a_compiler(monkeypatch):
    """Without a compiler, NumPy runs the nest, with a warning."""
    from dovetail.core import EnvironmentFault
    from dovetail.loops.code import run

    def none(*_):
        raise EnvironmentFault("no C compiler found")

    monkeypatch.setattr(run, "compile_for_here", none)
    operator, how = operator_class("lcs")("13x12"), Schedule.of("any", cut=(1, 2), mapped=0, grain=5)
    program, given = operator.program(how, 2), arguments(operator)
    run.compiled.cache_clear(), run.address.cache_clear()
    with pytest.warns(RuntimeWarning) as reported:
        found = results(operator, program, how, given, native)
    assert "lcs_S0 runs by NumPy: no C compiler found" in {str(warning.message) for warning in reported}
    run.compiled.cache_clear(), run.address.cache_clear()
    wanted = problems.lcs.reference(*given)
    assert np.array_equal(np.concatenate([each for (each,) in found], axis=1), wanted)
