"""Bands of steps of sweeps over one axis, on ranks: proved, and equal to the loop nest bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_runs import arguments, native, whole
from thorough import some

from dovetail import operator_of
from dovetail.core import OperatorError, PlanError
from dovetail.cost import Curve, Segment
from dovetail.ir import Kind, Schedule, op_works, verify, work_keys
from dovetail.ir.registry import operator_class
from dovetail.ir.signature import Signature
from dovetail.loops import array, loop, maximum, nest, problems
from dovetail.machine import load
from dovetail.passes.keep_engine import keep_engine
from dovetail.pipeline import band_program as line_program
from dovetail.planner import plan
from dovetail.run import execute
from dovetail.stencil.operator import StencilOperator


@nest(u=array("n", time=True, boundary="fixed"), c=array("n"), k=array(3))
def back(u, c, k, steps):
    n = u.shape[0]
    for t in loop(steps):
        for i in loop(n - 3, 1, -1):
            u[t + 1, i] = k[1] * (u[t, i - 1] + u[t, i - 2]) + u[t + 1, i + 2] * c[i + 1] - k[0] * u[t + 1, i + 1]


@nest(sums=array("n"))
def upright(sums, steps):
    for _ in loop(steps):
        for i in loop(2, sums.shape[0]):
            sums[i] = sums[i] + sums[i - 2]


@nest(u=array("n"), v=array("n"), best=array("n"))
def several(u, v, best, steps):
    for _ in loop(steps):
        for i in loop(1, u.shape[0] - 2):
            u[i] = u[i - 1] - v[i + 2]
            best[i] = maximum(best[i - 1], u[i])
            v[i] = v[i] + best[i]


NESTS = {"seidel1d": problems.seidel1d, "back": back, "upright": upright, "several": several}


def schedule(depth, grain):
    return Schedule.of("bands", depth=depth, grain=grain)


def check(operator, ranks, depth, grain, seed=0, run=None):
    """Check that a schedule is proved against one rank, and that every rank's result equals the loop nest bit by
    bit."""
    how = schedule(depth, grain)
    program = operator.program(how, ranks)
    verify(program, against=operator.reference(how, ranks)).raise_if_bad()
    given = arguments(operator, seed)
    arrays = Signature.of(operator, how, ranks)
    blocks = [arrays.blocks(rank) for rank in range(ranks)]
    mine = [[each[block[name]] for name, each in zip(operator.nest.arrays, given, strict=True)] for block in blocks]
    held = [arrays.arguments(rank, each, None)[0] for rank, each in enumerate(mine)]
    inputs, workload = {name: [each[name] for each in held] for name in held[0]}, operator.workload(program, how)
    outputs = run(program, workload, inputs) if run else execute(program, inputs, workload=workload).outputs
    for rank, block in enumerate(blocks):
        found = arrays.result(rank, {name: each[rank] for name, each in outputs.items()})
        found = found if isinstance(found, tuple) else (found,)
        for name, want, have in zip(operator.pipelined.written, whole(operator, given), found, strict=True):
            assert np.array_equal(have, want[block[name]]), (operator.title, ranks, str(how), rank)
    return program


@settings(max_examples=some(25), deadline=None)
@given(st.data())
def test_any_bands_on_any_ranks(data):
    name = data.draw(st.sampled_from(list(NESTS)))
    points, steps, ranks = data.draw(st.integers(6, 40)), data.draw(st.integers(0, 14)), data.draw(st.integers(1, 5))
    dtype = data.draw(st.sampled_from(["float64", "float32"] if name == "seidel1d" else ["float64", "int32"]))
    depth, grain = data.draw(st.integers(1, 15)), data.draw(st.integers(2, 50))
    check(operator_of(NESTS[name])(f"{points}", steps, dtype), ranks, depth, grain, seed=points)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_compiled(name, ranks):
    check(operator_of(NESTS[name])("37", 11), ranks, 3, 7, run=native)
    check(operator_of(NESTS[name])("19", 5), ranks, 2, 50, run=native)


@pytest.mark.needs("compiler")
def test_many_rounds_equal_those_written_one_by_one():
    """With enough bands, the ops of a round are repeated in bulk."""
    operator = operator_of(upright)("12", 131, "int64")
    program = check(operator, 2, 3, 8, run=native)
    written = line_program._Writer(operator.line(schedule(3, 8), 2)).run()
    assert program.num_ops == written.num_ops


class TestSpace:
    """The iteration space of bands, as the page shows it."""

    @pytest.mark.parametrize(("name", "depth", "grain"), [("seidel1d", 3, 7), ("back", 2, 9), ("upright", 4, 50)])
    def test_every_position_of_every_step_is_done_once(self, name, depth, grain):
        operator = operator_of(NESTS[name])("40", 11)
        space, line = operator.space(schedule(depth, grain), 2), operator.line(schedule(depth, grain), 2)
        assert (space.low, space.high) == line.box
        done = [(p.step, at) for p in space.pieces for at in range(p.low, p.high)]
        assert sorted(done) == [(step, at) for step in range(1, 12) for at in range(space.low, space.high)]
        ranks = [rank for band in line.bands for rank in [band.rank] * band.depth]
        assert all(piece.rank == ranks[piece.step - 1] for piece in space.pieces)

    def test_turns_follow_dependences(self):
        """A tile comes after its neighbours in the step before, and after its predecessor in its own step."""
        operator = operator_of(problems.seidel1d)("60", 12)
        space = operator.space(schedule(3, 10), 3)
        turns = {(p.step, at): p.turn for p in space.pieces for at in range(p.low, p.high)}
        vectors = problems.seidel1d.vectors()
        pairs = [(at, (at[0] - by[0], at[1] - by[1])) for at in turns for by in vectors]
        assert all(turns[at] >= turns[before] for at, before in pairs if before in turns)
        line = operator.line(schedule(3, 10), 3)
        tiles = sum(1 for band in line.bands for _ in line.tiles(band.depth))
        assert len({(p.rank, p.turn) for p in space.pieces}) == tiles > max(turns.values())  # ranks overlap

    def test_of_a_long_run_only_some_bands_are_shown(self):
        space = operator_of(problems.seidel1d)("100000", 4000).space(schedule(60, 2000), 2)
        assert (space.low, space.high, space.number(2) - space.number(1)) == (1, 32001, 5)
        assert len(space.pieces) < 2000


def test_a_later_rank_begins_before_the_first_has_ended():
    """There are as many messages as tiles: each tile sends its values once."""
    operator = operator_of(problems.seidel1d)("200", 8)
    program = operator.program(schedule(4, 20), 2)
    kinds = [(op.rank, op.kind) for op in program.ops()]
    tiles = kinds.count((0, Kind.compute))
    assert tiles == kinds.count((1, Kind.compute)) == 11
    assert kinds.count((0, Kind.send)) <= tiles + 3
    first = next(row for row, each in enumerate(kinds) if each == (1, Kind.recv))
    assert kinds[:first].count((0, Kind.compute)) <= 11


def test_a_forgotten_message_is_found(monkeypatch):
    """Planted fault: a rank uses its values of the band before instead of a message."""
    operator = operator_of(problems.seidel1d)("30", 9)
    how, messages_of = schedule(2, 6), line_program.messages_of

    def forgets(line, tiles):
        return (each for each in messages_of(line, tiles) if each.user != 13)

    plain = operator.reference(how, 2)
    monkeypatch.setattr(line_program, "messages_of", forgets)
    certificate = verify(line_program.line_program(operator.line(how, 2)), against=plain)
    assert not certificate.ok


def test_too_little_skew_is_found(monkeypatch):
    """The proof does not look into tiles; the comparison with the loop nest finds the fault."""
    monkeypatch.setattr("dovetail.pipeline.bands.skew_of", lambda _: 0)
    with pytest.raises(AssertionError):
        check(operator_of(problems.seidel1d)("30", 4), 1, 4, 6)


class TestOperator:
    def test_a_plan(self):
        """Deep bands send few messages but start late; the search finds a depth between, whose neighbours are valid."""
        operator, machine = operator_class("seidel1d")("40000", 256), load("shared-memory-2")
        curve = Curve("points", (Segment(0.0, 1e-6, 2e-9),), label="prior", provenance={}).to_json()
        serial = operator.serial(2)
        (key,) = work_keys(program := operator.program(serial, 2), operator.workload(program, serial))
        found = plan(operator, machine.with_costs({f"kernel:{key}": curve}), extrapolate=True)
        assert found.predicted_s < 0.7 * found.serial_s
        assert found.schedule.family == "bands"
        for engine in ("compute", "net"):
            assert verify(keep_engine(found.program, engine)).checks["races"].ok

    def test_costs_depend_on_points(self):
        operator = operator_class("seidel1d")("400", 12)
        how = schedule(4, 50)
        works = op_works(program := operator.program(how, 2), operator.workload(program, how))
        assert sum(work.units for work in works.values()) == 398 * 12

    def test_the_default_schedule(self):
        operator = operator_class("seidel1d")("1000000", 1000)
        how = operator.default_schedule(3)
        assert len(operator.line(how, 3).bands) % 3 == 0
        assert operator.describe(how, 3) == "18 bands of 56 steps in turn, 24 tiles of 41669, skewed by 1"

    def test_heat_is_a_stencil(self):
        assert issubclass(operator_of(problems.jacobi1d), StencilOperator)

    @pytest.mark.parametrize("asked", [(-3, 4), (3, -4), (0, 4), (3, 0)])
    def test_depth_and_grain(self, asked):
        """Bands without steps are refused: both programs would do nothing, and so seem equal."""
        with pytest.raises(OperatorError, match="must be at least 1"):
            operator_class("seidel1d")("40", 3).program(schedule(*asked), 2)

    def test_too_many_ranks(self):
        with pytest.raises(PlanError, match="a part would have no points"):
            operator_class("seidel1d")("4", 3).program(schedule(1, 1), 5)


class TestRefused:
    def test_one_step(self):
        @nest(u=array("n"))
        def summed(u):
            for i in loop(1, u.shape[0]):
                u[i] = u[i] + u[i - 1]

        with pytest.raises(OperatorError, match="its grid has one axis, and it has no loop of steps"):
            operator_of(summed)

    def test_two_sweeps(self):
        @nest(u=array("n"))
        def there_and_back(u, steps):
            n = u.shape[0]
            for _ in loop(steps):
                for i in loop(1, n):
                    u[i] = u[i] + u[i - 1]
                for i in loop(n - 2, -1, -1):
                    u[i] = u[i] + u[i + 1]

        with pytest.raises(OperatorError, match="a step has more than one loop or statement beside the loop"):
            operator_of(there_and_back)
