"""verify on random Programs: C++ equals the Python reference word for word, and both equal independent oracles."""

from __future__ import annotations

import random

import ir_products
import ir_programs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.core import ProgramError
from dovetail.ir import Certificate, Program, verify, verify_reference
from dovetail.ir.op_lists import OpLists
from dovetail.ir.proof.greedy import Greedy
from dovetail.ir.proof.overlap import self_conflict
from dovetail.ir.proof.symbolic import Execution, first_difference, first_wrong
from dovetail.ir.proof.symbols import Symbols

RNG = st.integers(0, 2**32).map(random.Random)  # choices drawn one by one would give too simple programs
SIZES = st.integers(0, 60)


def certificate(program: Program) -> Certificate:
    found = verify(program)
    assert found.to_json() == verify_reference(program).to_json()
    return found


def oks(found: Certificate) -> dict[str, bool]:
    return {name: check.ok for name, check in found.checks.items()}


@pytest.mark.slow
@settings(max_examples=some(200), deadline=None)
@given(RNG, SIZES)
def test_programs_valid_by_construction_pass(rng: random.Random, num_ops: int) -> None:
    found = certificate(ir_programs.Maker(rng, num_ops).program())
    assert found.ok, [check for check in found.checks.values() if not check.ok]


@pytest.mark.slow
@settings(max_examples=some(400), deadline=None)
@given(RNG, SIZES, st.integers(1, 3))
def test_verdicts_on_mutated_programs_equal_those_of_the_reference(
    rng: random.Random, num_ops: int, changes: int
) -> None:
    program = ir_programs.Maker(rng, num_ops).program()
    for _ in range(changes):
        program = ir_programs.mutated(program, rng)
    certificate(program)


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None)
@given(RNG, SIZES, st.integers(2, 5))
def test_coarse_slots_change_nothing(rng: random.Random, num_ops: int, factor: int) -> None:
    """With each slot split into several, C++ joins them to cells again, and the verdict stays the same."""
    maker = ir_programs.Maker(rng, num_ops, ir_programs.KERNELS)  # no sums over slots, which would get more terms
    program = ir_programs.mutated(maker.program(), rng)
    assume(ir_programs.tells_sizes(program))
    assert oks(certificate(ir_programs.scaled(program, factor))) == oks(certificate(program))


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None)
@given(RNG, SIZES, st.integers(0, 2))
def test_races_equal_those_found_in_the_order_graph(rng: random.Random, num_ops: int, changes: int) -> None:
    program = ir_programs.Maker(rng, num_ops).program()
    for _ in range(changes):
        program = ir_programs.mutated(program, rng)
    found = verify(program)
    if found.checks["races"].message.startswith("not reached"):
        return
    lists = OpLists(program)
    run = Greedy(lists)()
    alone = any(self_conflict(program, op, [lists.ops[r] for r in run.groups.get(op.index, ())]) for op in lists.ops)
    assert found.checks["races"].ok == (not alone and not ir_programs.has_race(program))


@pytest.mark.slow
@settings(max_examples=some(400), deadline=None)
@given(RNG)
def test_messages_that_come_back_in_parts(rng: random.Random) -> None:
    program = ir_programs.looping(rng)
    checks = certificate(program).checks
    assert checks["deadlock"].ok
    assert checks["races"].ok == (not ir_programs.has_race(program))


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None)
@given(RNG, SIZES, st.integers(0, 2))
def test_proved_programs_are_correct_in_other_orders(rng: random.Random, num_ops: int, changes: int) -> None:
    """If neither a deadlock nor a race was found, every random order completes with the same result."""
    program = ir_programs.Maker(rng, num_ops).program()
    for _ in range(changes):
        program = ir_programs.mutated(program, rng)
    found = verify(program)
    if not all(found.checks[name].ok for name in ("bounds", "deadlock", "races")):
        return
    lists = OpLists(program)
    for _ in range(5):
        run = ir_programs.random_run(lists, rng)
        assert run.complete
        execution = Execution(program, run, Symbols())
        execution.execute(lists.ops, run.order)
        assert (first_wrong(execution, program.posts) is None) == found.checks["result"].ok


@settings(max_examples=some(60), deadline=None)
@given(RNG, SIZES)
def test_the_least_depth_is_minimal(rng: random.Random, num_ops: int) -> None:
    program = ir_programs.mutated(ir_programs.Maker(rng, num_ops).program(), rng)
    least = verify(program).min_fifo_depth
    if least is None:
        return
    lists = OpLists(program)
    channels = len(program.channels)
    assert Greedy(lists, [least] * channels)().complete
    assert least == 1 or not Greedy(lists, [least - 1] * channels)().complete


def compared(program: Program, against: Program) -> Certificate | str:
    """Return the certificate of a comparison, or the error; C++ and the reference agree."""
    found: list[Certificate | str] = []
    for judge in (verify, verify_reference):
        try:
            found.append(judge(program, against=against))
        except ProgramError as error:
            found.append(str(error))
    one, other = found
    if isinstance(one, Certificate) and isinstance(other, Certificate):
        assert one.to_json() == other.to_json()
    else:
        assert one == other
    return one


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None)
@given(RNG, SIZES, st.integers(0, 2))
def test_comparisons_equal_those_of_the_reference(rng: random.Random, num_ops: int, changes: int) -> None:
    """A changed program is compared with the original; if they are found equal, so are all exact values."""
    against = ir_programs.Maker(rng, num_ops).program()
    program = against
    for _ in range(changes):
        program = ir_programs.mutated(program, rng)
    found = compared(program, against)
    if isinstance(found, str) or not all(found.checks[name].ok for name in ("bounds", "deadlock", "races")):
        return
    symbols = Symbols()
    runs = []
    for each in (program, against):
        lists = OpLists(each)
        runs.append(Execution(each, Greedy(lists)(), symbols, is_reference=each is against and runs != []))
        runs[-1].execute(lists.ops, runs[-1].run.order)
    same = first_difference(*runs) is None
    assert found.checks["result"].ok == (same and first_wrong(runs[0], program.posts) is None)


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None)
@given(RNG)
def test_products_cut_in_any_way_equal_the_uncut_one(rng: random.Random) -> None:
    operator = ir_products.Products(rng)
    program, plain = operator.cut(), operator.plain()
    for one, other in ((program, plain), (plain, program)):
        found = compared(one, other)
        assert isinstance(found, Certificate)
        assert found.ok, [check for check in found.checks.values() if not check.ok]


@pytest.mark.slow
@settings(max_examples=some(300), deadline=None)
@given(RNG, st.integers(1, 2))
def test_verdicts_on_wrong_products_equal_those_of_the_reference(rng: random.Random, changes: int) -> None:
    operator = ir_products.Products(rng)
    program, plain = operator.cut(), operator.plain()
    for _ in range(changes):
        program = ir_programs.mutated(program, rng)
    compared(program, plain)
