"""Stencils on ranks: every cut, halo depth and overlap is proved, and equal to a single rank bit by bit."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_trees import evaluate, trees
from stencil_runs import arguments, check, native, results, schedule, whole
from thorough import some

from dovetail import operator_of
from dovetail.core import DovetailError, OperatorError, PlanError
from dovetail.ir import Kind, Schedule, verify
from dovetail.ir.compute_calls import work_keys
from dovetail.ir.registry import operator_class, operator_from
from dovetail.ir.signature import Signature
from dovetail.loops import array, loop, maximum, nest, problems, where
from dovetail.loops.grid.blocks import boxes, cuts
from dovetail.prober.programs import computations
from dovetail.run.local import execute_local
from dovetail.run.options import RunOptions
from dovetail.run.ranks import embedded
from dovetail.stencil.operator import StencilOperator, stencil_operator

GRIDS = {
    "jacobi1d": ("37",),
    "jacobi2d": ("19x7",),
    "jacobi3d": ("13x11x6",),
    "heat3d": ("12x11x5",),
    "acoustic3d": ("13x12x6",),
    "acoustic3d_4": ("17x16x9",),
    "acoustic3d_8": ("36x34x11",),
    "fdtd2d": ("17x6",),
    "laplace2d": ("18x9",),
    "red_black2d": ("19x8",),
}
SHIPPED = [(name, grid) for name, grids in GRIDS.items() for grid in grids]


def cut_for(operator, ranks):
    """Return the most even cut."""
    return min(cuts(ranks, len(operator.rows)), key=lambda cut: max(cut) - min(cut))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "grid"), SHIPPED)
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("overlapped", [False, True])
def test_shipped(name, grid, depth, overlapped):
    operator = operator_class(name)(grid, 5, "float32")
    for ranks in (1, 2, 4):
        cut = cut_for(operator, ranks)
        if depth < 3 or ranks < 4:
            check(operator, schedule(cut, depth, overlapped), seed=ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "grid"), SHIPPED)
@pytest.mark.parametrize(("depth", "tile"), [(0, 4), (1, 1), (2, 2), (3, 5)])
def test_shipped_in_tiles(name, grid, depth, tile):
    operator = operator_class(name)(grid, 5, "float32")
    for ranks in (1, 2):
        program = check(operator, schedule(cut_for(operator, ranks), depth, tile=tile), seed=ranks)
        whole = operator.program(schedule(cut_for(operator, ranks), depth), ranks)
        assert sum(map(sweeps, program.ops())) > sum(map(sweeps, whole.ops()))


def sweeps(op):
    return op.kind == Kind.compute and "version" in op.line


@pytest.mark.parametrize("ranks", range(1, 9))
def test_ranks_and_uneven_shares(ranks):
    operator = operator_class("jacobi2d")("29x5", 3, "float64")
    check(operator, schedule((ranks,), overlapped=True))
    box = operator_class("heat3d")("13x14x4", 3, "float64")
    for cut in cuts(ranks, 2):
        check(box, schedule(cut, 0, True))


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["fixed", "periodic", "reflecting"])
@pytest.mark.parametrize("cut", [(1, 1), (3, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_boundaries_with_corners_and_asymmetric_reach(boundary, cut, depth):
    edge = 2 if boundary == "fixed" else 0

    @nest(u=array("n", "m", "l", time=True, boundary=boundary), c=array("n", "m", "l"))
    def lopsided(u, c, steps):
        n, m, k = u.shape
        for t in loop(1, steps + 1):
            for i in loop(edge, n - edge):
                for j in loop(edge, m - edge):
                    for h in loop(edge, k - edge):
                        near = u[t, i - 2, j + 1, h] - u[t, i + 1, j - 2, h - 1] * c[i, j, h]
                        u[t + 1, i, j, h] = near - u[t - 1, i, j, h + 1]

    operator = stencil_operator(lopsided)("17x14x6", 4, "float64")
    for overlapped in (False, True):
        check(operator, schedule(cut, depth, overlapped))
    check(operator, schedule(cut, depth, tile=3))


@pytest.mark.parametrize("boundary", ["fixed", "periodic", "reflecting"])
@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_whole_numbers(boundary, dtype):
    edge = 1 if boundary == "fixed" else 0

    @nest(u=array("n", "m", time=True, boundary=boundary), v=array("n", "m", dtype="int32"), c=array("n", "m"))
    def whole_numbers(u, v, c, steps):
        n, m = u.shape
        for t in loop(steps):
            for i in loop(edge, n - edge):
                for j in loop(edge, m - edge):
                    u[t + 1, i, j] = maximum(u[t, i - 1, j] * 3 - c[i, j], u[t, i, j + 1]) + where(c[i, j] > 1, 7, 1)
            for i in loop(n):
                for j in loop(m):
                    v[i, j] = v[i, j] * 3 + 1

    operator = stencil_operator(whole_numbers)("19x6", 5, dtype)
    for ranks, depth, overlapped in ((1, 2, False), (3, 0, True), (2, 2, False)):
        for run in (None, native):
            check(operator, schedule((ranks,), depth, overlapped), run=run)


@pytest.mark.slow
@settings(max_examples=some(100), deadline=None)
@given(
    data=st.data(),
    axes=st.integers(1, 3),
    boundary=st.sampled_from(["fixed", "periodic", "reflecting"]),
    ranks=st.integers(1, 5),
    depth=st.integers(0, 3),
    overlapped=st.booleans(),
    tile=st.sampled_from([None, 1, 2, 3, 7]),
    steps=st.integers(0, 4),
)
def test_random_stencils(data, axes, boundary, ranks, depth, overlapped, tile, steps):
    """The result is correct, or the stencil is refused because there are too few rows to mirror."""
    tree, edge = data.draw(trees(axes)), 2 if boundary == "fixed" else 0

    @nest(u=array(*"nml"[:axes], time=True, boundary=boundary), c=array(*"nml"[:axes]))
    def stencil(u, c, steps):
        for t in loop(steps):
            for i in loop(edge, u.shape[0] - edge):
                if axes == 1:
                    u[t + 1, i] = evaluate(tree, u, c, t, (i,))
                for j in loop(edge, u.shape[1] - edge) if axes > 1 else ():
                    if axes == 2:
                        u[t + 1, i, j] = evaluate(tree, u, c, t, (i, j))
                    for k in loop(edge, u.shape[2] - edge) if axes > 2 else ():
                        u[t + 1, i, j, k] = evaluate(tree, u, c, t, (i, j, k))

    grid = "x".join(str(data.draw(st.integers(5, 12))) for _ in range(axes))
    operator = stencil_operator(stencil)(grid, steps, "float64")
    cut = data.draw(st.sampled_from(cuts(ranks, operator.stencil.row_axes)))
    how = schedule(cut, depth, overlapped, tile)
    try:
        operator.program(how, ranks)
    except PlanError:
        return
    with np.errstate(all="ignore"):
        check(operator, how)


class TestShares:
    """Different numbers of rows for ranks of different speed."""

    def test_given_shares(self):
        operator = operator_class("jacobi2d")("30x7", 4)
        for shares in ((21, 5, 4), (4, 4, 22)):
            for depth, tile in ((0, None), (2, None), (2, 3)):
                program = check(operator, schedule((3,), depth, tile=tile, shares=shares))
                assert program.buffers[0].slots == shares
        box = operator_class("heat3d")("15x9x4", 3)
        check(box, schedule((3, 2), overlapped=True, shares=(9, 2, 4)))

    @pytest.mark.parametrize("shares", [(20, 9), (10, 10, 10), (31, -1)])
    def test_impossible_shares_are_refused(self, shares):
        with pytest.raises(PlanError, match="invalid shares of 30 rows"):
            operator_class("jacobi2d")("30x7", 4).program(schedule((2,), shares=shares), 2)


@pytest.mark.parametrize("boundary", ["fixed", "periodic", "reflecting"])
class TestNarrowParts:
    """Ghosts reach beyond the next part, and more than once around the grid."""

    SHARES = ((1,) * 8, (1, 9, 1, 2), (2, 2, 5), (3, 1, 1))

    @staticmethod
    def operator(boundary, rows, low=4, high=1, steps=3):
        edge = max(low, high) if boundary == "fixed" else 0

        @nest(u=array("n", "m", time=True, boundary=boundary))
        def far(u, steps):
            for t in loop(steps):
                for i in loop(edge, u.shape[0] - edge):
                    for j in loop(u.shape[1]):
                        u[t + 1, i, j] = 0.5 * u[t, i - low, j] + 0.25 * u[t, i + high, j] - u[t, i, j]

        return stencil_operator(far)(f"{rows}x2", steps, "float64")

    @pytest.mark.parametrize("shares", SHARES)
    def test_correct(self, boundary, shares):
        for low, high in ((4, 1), (0, 3)):
            check(self.operator(boundary, sum(shares), low, high), schedule((len(shares),), 0, low > 0, shares=shares))
        even = self.operator(boundary, sum(shares), 2, 2, 5)
        for depth, tile in ((2, None), (3, 2)):
            if boundary != "reflecting" or sum(shares) > 2 * depth:
                check(even, schedule((len(shares),), depth, tile=tile, shares=shares))

    def test_tiles_of_a_row(self, boundary):
        """If a sweep reads farther back than ahead, a mirrored row may come from a row far ahead."""
        edge = 4 if boundary == "fixed" else 0

        @nest(u=array("n", "m", time=True, boundary=boundary))
        def wave(u, steps):
            for t in loop(1, steps + 1):
                for i in loop(edge, u.shape[0] - edge):
                    for j in loop(u.shape[1]):
                        u[t + 1, i, j] = u[t, i - 4, j] + 0.5 * u[t, i + 1, j] - u[t - 1, i, j]

        check(stencil_operator(wave)("16x2", 4, "float64"), schedule((2,), 2, tile=1))

    @pytest.mark.parametrize("shares", SHARES)
    def test_no_more_is_sent_than_is_read(self, boundary, shares):
        """Each row that a part reads from others is sent once per step."""
        rows, steps, low, high = sum(shares), 3, 4, 1
        ends = np.cumsum([0, *shares]).tolist()
        wanted = 0
        for begin, end in pairwise(ends):
            edge = max(low, high) if boundary == "fixed" else 0
            computed = range(max(begin, edge), min(end, rows - edge))
            read = {self.inside(row + by, rows, boundary) for row in computed for by in (-low, high)}
            wanted += len(read - {*range(begin, end)})
        operator = self.operator(boundary, rows, low, high, steps)
        program = operator.program(schedule((len(shares),), shares=shares), len(shares))
        sent = sum(op.reads[0].count * op.reads[0].blocks for op in program.ops() if op.kind == Kind.send)
        assert sent == steps * wanted

    @staticmethod
    def inside(row, rows, boundary):
        return row % rows if boundary == "periodic" else min(abs(row), 2 * (rows - 1) - abs(row))


class TestMessages:
    """Ghosts are exactly as wide as dependences reach."""

    @staticmethod
    def rows_sent(name, grid, cut, depth=0, steps=6):
        program = operator_class(name)(grid, steps).program(schedule(cut, depth), int(np.prod(cut)))
        col = program.columns
        sends = np.flatnonzero(col["kind"] == Kind.send)
        regions = col["read_start"][sends]
        return int((col["read_count"][regions] * col["read_blocks"][regions]).sum()), len(sends)

    def test_messages_are_minimal(self):
        assert self.rows_sent("jacobi2d", "32x8", (2,)) == (2 * 6, 2 * 6)
        assert self.rows_sent("jacobi2d", "32x8", (4,)) == (6 * 6, 6 * 6)
        assert self.rows_sent("jacobi2d", "32x8", (2,), depth=3) == (
            2 * 6,
            4,
        )  # the same rows in a third of the messages
        assert self.rows_sent("jacobi3d", "8x8x8", (2, 2)) == (8 * 4 * 6, 8 * 6)  # no corners
        assert self.rows_sent("fdtd2d", "16x8", (2,)) == (2 * 6, 2 * 6)  # one field each way
        assert self.rows_sent("acoustic3d", "16x8x8", (2, 1)) == (2 * 8 * 6, 2 * 6)

    def test_interior_waits_for_no_message(self):
        program = operator_class("jacobi2d")("32x8", 2).program(schedule((2,), overlapped=True), 2)
        ops = list(program.ops())
        computes = [op for op in ops if op.kind == Kind.compute and op.rank == 0]
        waits = [{ops[row].kind for row in op.after} for op in computes]
        assert [Kind.recv in each for each in waits] == [False, True, False, True]


class TestCopies:
    """The first sweeps read the user's arrays, and the last one writes the result: only edges are copied."""

    @staticmethod
    def copied(name, grid, cut, **about):
        """Return the number of copied rows, by the source line of the copy."""
        program = operator_class(name)(grid, 6).program(schedule(cut, **about), int(np.prod(cut)))
        found = {}
        for op in program.ops():
            if op.kind == Kind.copy:
                found[op.line] = found.get(op.line, 0) + op.reads[0].num_slots
        return found

    def test_edges_only(self):
        """Each rank copies its one outermost row to both planes and to the result."""
        for overlapped in (False, True):
            assert self.copied("jacobi2d", "32x8", (2,), overlapped=overlapped) == {"edge of u": 2 * 3}

    def test_rows_beside_ghosts_are_copied_once(self):
        assert self.copied("jacobi2d", "32x8", (2,), depth=2)["enter u"] == 2
        assert self.copied("jacobi2d", "64x8", (2,), depth=3, tile=2)["enter u"] < 2 * 10

    def test_two_levels(self):
        copied = self.copied("acoustic3d", "16x8x8", (2, 1))
        assert copied["leave u"] == 16 * 8
        assert "enter u" not in copied

    def test_rows_with_margins_and_arrays_of_one_level(self):
        margins = operator_class("heat3d")("12x8x4", 6).program(schedule((2, 1)), 2)
        assert [op.kind for op in margins.ops() if op.line == "enter u"] == [Kind.compute] * 2
        assert self.copied("fdtd2d", "16x8", (2,))["enter ey"] == 16

    @pytest.mark.parametrize("steps", [0, 1, 2, 3])
    def test_few_steps(self, steps):
        for name, grid in (("jacobi2d", "13x5"), ("acoustic3d", "12x9x6"), ("red_black2d", "12x6")):
            operator = operator_class(name)(grid, steps, "float64")
            for how in (schedule(cut_for(operator, 2)), schedule(cut_for(operator, 2), 2, tile=3)):
                check(operator, how)

    def test_a_missing_copy_is_found(self):
        operator = operator_class("jacobi2d")("16x6", 4)
        program = operator.program(schedule((2,), 2), 2)
        row = next(op.index for op in program.ops() if op.line == "enter u")
        columns = {name: column.copy() for name, column in program.columns.items()}
        columns["kind"][row] = Kind.nop
        for side in ("read", "write"):
            at = int(columns[f"{side}_start"][row])
            columns[f"{side}_start"][row + 1 :] -= 1
            for part in ("buffer", "offset", "count", "stride", "blocks"):
                columns[f"{side}_{part}"] = np.delete(columns[f"{side}_{part}"], at)
        assert (
            not verify(program.with_columns(columns), against=operator.reference(schedule((2,)), 2)).checks["result"].ok
        )


class TestRefused:
    def test_nests_that_are_no_stencils_are_refused(self):
        for made, words in (
            (problems.gauss_seidel2d, "iterations of i need one another"),
            (problems.lcs, "array a has axes that the first array does not have"),
            (problems.sync_p2p, "is not the point of its loops|iterations of i need one another"),
        ):
            with pytest.raises(OperatorError, match=f"{made.name} is no stencil: .*({words})"):
                stencil_operator(made)

    def test_parts_too_narrow(self):
        operator = operator_class("jacobi2d")("12x8", 8)
        with pytest.raises(PlanError, match="a part would have no rows"):
            operator.program(schedule((13,)), 13)
        with pytest.raises(OperatorError, match="13 ranks cannot each have rows") as refused:
            operator.serial(13)
        assert refused.value.hint == "fewer ranks, or a grid of at least 13 rows"
        with pytest.raises(PlanError, match="the schedule does not fit jacobi2d on 3 ranks"):
            operator.program(schedule((2,)), 3)

    @pytest.mark.parametrize(
        ("grid", "words"),
        [("12", "a grid of 2 axes"), ("1x2x3", "a grid of 2 axes"), ("axb", "is no grid"), ("0x4", "is no grid")],
    )
    def test_invalid_grids_are_refused(self, grid, words):
        with pytest.raises(OperatorError, match=words):
            operator_class("jacobi2d")(grid)

    @pytest.mark.parametrize("asked", [{"depth": -1}, {"tile": 0}, {"tile": -3}, {"depth": 1.5}])
    def test_depth_and_tile(self, asked):
        with pytest.raises(OperatorError, match="must be"):
            operator_class("jacobi2d")("8x8").program(Schedule.of("asked", cut=(2,), **{"depth": 1} | asked), 2)

    def test_dtype_and_steps(self):
        with pytest.raises(OperatorError, match="u has dtype float16"):
            operator_class("jacobi2d")("8x8", 1, "float16")
        with pytest.raises(OperatorError, match="int32"):
            operator_class("jacobi2d")("8x8", 1, "int32")
        with pytest.raises(OperatorError, match="steps must be at least 0"):
            operator_class("jacobi2d")("8x8", -1)

    def test_other_parameters(self):
        @nest(u=array("n", time=True, boundary="fixed"))
        def cut_off(u, steps, first):
            for t in loop(steps):
                for i in loop(first, u.shape[0]):
                    u[t + 1, i] = u[t, i]

        with pytest.raises(OperatorError, match="has a parameter 'first'"):
            stencil_operator(cut_off)


class TestPlantedFaults:
    """The certificate finds each fault planted in a correct program."""

    def program(self):
        operator = operator_class("jacobi2d")("16x6", 4)
        return operator.program(schedule((2,), 2, True), 2), operator.reference(schedule((2,)), 2)

    def changed(self, change):
        program, plain = self.program()
        columns = {name: column.copy() for name, column in program.columns.items()}
        change(program, columns)
        return verify(program.with_columns(columns), against=plain)

    def test_the_program_without_faults_passes(self):
        program, plain = self.program()
        assert verify(program, against=plain).ok

    def test_ghosts_used_before_they_arrived(self):
        def forget(program, columns):
            row = next(op.index for op in program.ops() if op.kind == Kind.compute and len(op.after))
            at = int(columns["dep_start"][row])
            columns["dep"] = np.delete(columns["dep"], at)
            columns["dep_start"][row + 1 :] -= 1

        assert not self.changed(forget).checks["races"].ok

    @pytest.mark.parametrize("kind", [Kind.send, Kind.compute])
    def test_wrong_rows(self, kind):
        def shift(program, columns):
            row = next(op.index for op in program.ops() if op.kind == kind)
            columns["read_offset"][columns["read_start"][row]] += 1

        certificate = self.changed(shift)
        assert not certificate.ok

    def test_a_level_too_old(self):
        def older(program, columns):
            row = [op.index for op in program.ops() if op.kind == Kind.compute][-1]
            start, stop = columns["read_start"][row : row + 2]
            columns["read_buffer"][start] = columns["write_buffer"][columns["write_start"][row]]
            del stop

        assert not self.changed(older).ok


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(("name", "grid"), SHIPPED)
def test_native_is_equal(name, grid):
    """Compiled C code on threads gives the same result."""
    for dtype in ("float32", "float64"):
        operator = operator_class(name)(grid, 4, dtype)
        check(operator, schedule(cut_for(operator, 2), 2, True), run=native)


AT_ONCE = {"jacobi2d": "19x64", "jacobi3d": "9x8x33", "heat3d": "7x8x40", "acoustic3d_4": "13x12x61"}


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(("name", "grid"), AT_ONCE.items())
def test_rows_computed_in_one_loop(name, grid):
    """The ends of rows are as if computed row by row, and nothing beyond the last row is written."""
    operator = operator_class(name)(grid, 5, "float32")
    assert all(kernel.at_once for kernel in operator.kernels[: len(operator.stencil.sweeps)])
    for cut, depth, tile in ((1, 0, None), (2, 0, None), (2, 2, 3)):
        check(operator, schedule((cut, *(1,) * (len(operator.rows) - 1)), depth, True, tile), run=native)


def test_rows_in_place_are_not_computed_in_one_loop():
    assert not any(kernel.at_once for kernel in operator_class("fdtd2d")("17x64", 5, "float32").kernels)


@pytest.mark.needs("compiler")
def test_native_does_not_call_python(monkeypatch):
    from dovetail.stencil.row_kernels import RowKernel

    monkeypatch.setattr(RowKernel, "call", None)
    operator = operator_class("jacobi2d")("64x16", 4)
    how, given = schedule((2,)), arguments(operator)
    found = results(operator, operator.program(how, 2), how, given, lambda *about: execute_local(*about)[0])
    assert np.array_equal(np.concatenate([each for (each,) in found]), whole(operator, given)[0])


@pytest.mark.needs("compiler")
def test_bound_before_the_first_call(monkeypatch):
    """Kernels are bound once: later calls pass only the addresses of their arrays."""
    operator = operator_class("jacobi2d")("16x8", 3)
    how = schedule((1,))
    program = operator.program(how, 1)
    run = embedded.Embedded(program, operator.workload(program, how), RunOptions(), None)
    run.bind()
    monkeypatch.setattr(embedded, "bind", None)
    for seed in range(2):
        given = arguments(operator, seed)
        signature = Signature.of(operator, how, 1)
        found = run(signature.arguments(0, given, None)[0])
        assert np.array_equal(signature.result(0, found), whole(operator, given)[0])


class TestOperator:
    operator = staticmethod(lambda: operator_class("jacobi3d")("16x12x8", 7))

    def test_document(self):
        assert operator_from(self.operator().to_json()) == self.operator()
        assert self.operator().title == "jacobi3d 16 × 12 × 8, 7 steps, float32"
        with pytest.raises(DovetailError):
            StencilOperator.from_json({"schema": "dovetail.operator.stencil/1"})

    def test_serial_uses_the_cut_with_least_traffic(self):
        assert self.operator().serial(4)["cut"] == (2, 2)
        assert operator_class("jacobi3d")("64x4x8", 7).serial(4)["cut"] == (4, 1)

    def test_a_long_run_is_predicted_from_a_short_one(self):
        operator = operator_class("jacobi2d")("32x8", 1000)
        program, workload, times = operator.prediction_model(schedule((2,), 4), 2)
        assert program.num_ops < operator.program(schedule((2,), 4), 2).num_ops / 10
        assert times == pytest.approx(1000 / 64)
        assert {form.name for form in workload.forms} == {"jacobi2d_S0", "jacobi2d_S0_far"}

    def test_parts_cover_the_grid(self):
        found = boxes((7, 5), (3, 2))
        assert sorted((i, j) for (a, b), (c, d) in found for i in range(a, b) for j in range(c, d)) == [
            (i, j) for i in range(7) for j in range(5)
        ]


@nest(u=array("n", "m", time=True, dtype="int32", boundary="reflecting"))
def mirrored(u, steps):
    n, m = u.shape
    for t in loop(steps):
        for i in loop(n):
            for j in loop(m):
                u[t + 1, i, j] = u[t, i - 1, j] + u[t, i, j + 1]


@pytest.mark.parametrize(("name", "grid"), [*SHIPPED, ("mirrored", "12x9")])
def test_every_price_has_a_probe(name, grid):
    """For every family, and for copies into planes with margins too."""
    operator = (operator_of(mirrored) if name == "mirrored" else operator_class(name))(grid, 6)
    for ranks in (1, 2):
        measured = [computations(operator, each, ranks, each.most, 1).variant for each in operator.samples(ranks)]
        probed = {key for each in measured for key in work_keys(each.program, each.workload)}
        for depth, overlapped in ((0, False), (0, True), (2, False)):
            how = schedule((ranks, *[1] * (len(operator.rows) - 1)), depth, overlapped)
            program, workload, _ = operator.prediction_model(how, ranks)
            assert {*work_keys(program, workload)} <= probed


class TestSpace:
    """The iteration space, as the page shows it."""

    @pytest.mark.parametrize(("depth", "tile"), [(0, None), (2, None), (3, 2)])
    def test_every_row_of_every_step_is_owned_once(self, depth, tile):
        operator = operator_class("jacobi2d")("30x6", 6)
        space = operator.space(schedule((2,), depth, tile=tile), 2)
        rows = [(p.step, row) for p in space.pieces if not p.beyond for row in range(p.low, p.high)]
        steps = max(step for step, _ in rows)
        low, high = max(space.low, 1), min(space.high, 29)
        assert sorted(rows) == [(step, row) for step in range(1, steps + 1) for row in range(low, high)]
        beyond = {(p.step, row) for p in space.pieces if p.beyond for row in range(p.low, p.high)}
        assert len(beyond) == {0: 0, 2: 2 * 2, 3: 2 * (4 + 2)}[depth]
        assert space.cuts == (15,)

    def test_tiles_are_skewed(self):
        space = operator_class("jacobi2d")("64x6", 8).space(schedule((1,), 4, tile=4), 1)
        second = sorted((p.step, p.low, p.high) for p in space.pieces if p.turn == 3)
        assert [(high - low) for _, low, high in second] == [4] * 4
        assert [low for _, low, _ in second] == [second[0][1] - each for each in range(4)]


@pytest.mark.parametrize("boundary", ["fixed", "periodic"])
def test_loops_in_any_order_and_direction(boundary):
    edge = 1 if boundary == "fixed" else 0

    @nest(u=array("n", "m", time=True, boundary=boundary), c=array("n", "m"))
    def turned(u, c, steps):
        n, m = u.shape
        for t in loop(steps):
            for j in loop(m - 1 - edge, edge - 1, -1):
                for i in loop(edge + 2, n - edge + 2):
                    near = u[t, i - 3, j] - 0.5 * u[t, i - 2, j + 1] * c[i - 2, j]
                    u[t + 1, i - 2, j] = near - 0.25 * u[t, i - 1, j - 1]

    operator = stencil_operator(turned)("9x8", 2, "float64")
    check(operator, schedule((2,)))
    check(operator, schedule((3,), 1, overlapped=True))
