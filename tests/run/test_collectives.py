"""The library's collectives in parts of different sizes: proved, refused, priced, and run by every executor."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_programs import rebuilt, specs_of
from run_programs import DTYPES, assert_same, library_call, uneven_of, workload_of
from thorough import some

from dovetail import _native
from dovetail.core import RunError
from dovetail.cost import Curve
from dovetail.cost.price import op_bytes, price
from dovetail.ir import Program, Region, Workload, canonical, parse, to_text, verify, verify_reference
from dovetail.machine import Machine
from dovetail.run import execute, fresh_inputs
from dovetail.run.engine import bind, moved_bytes, run_engines
from dovetail.run.library_calls import collective_parts
from dovetail.run.local import execute_local
from dovetail.run.options import RunOptions
from dovetail.sim import simulate

KINDS = ("all_gather", "reduce_scatter", "all_to_all")
MATRIX = [[1, 0, 3], [2, 2, 0], [0, 4, 1]]


@st.composite
def calls(draw) -> Program:
    """One call on some of up to four ranks, in any order."""
    kind = draw(st.sampled_from(KINDS))
    group = tuple(draw(st.permutations(range(draw(st.integers(1, 4))))))
    group = group[: draw(st.integers(1, len(group)))]
    size, n = st.integers(0, 3), len(group)
    row = st.lists(size, min_size=n, max_size=n)
    counts = draw(st.lists(row, min_size=n, max_size=n) if kind == "all_to_all" else row)
    in_place = kind == "all_gather" and draw(st.booleans())
    return library_call(kind, counts, group, in_place, swapped=draw(st.booleans()))


how = st.builds(RunOptions, progress=st.sampled_from(["poll", "thread"]), blocking=st.booleans(), stall_s=st.just(60.0))


def check(asked: Program, workload: Workload, options: RunOptions) -> None:
    inputs = fresh_inputs(asked, workload, 3)
    with np.errstate(all="ignore"):
        expected = execute(asked, inputs, workload=workload, reduce_op=options.reduce_op).outputs
        found, _ = execute_local(asked, workload, inputs, options=options)
    assert_same(found, expected)


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None)
@given(calls(), st.sampled_from(DTYPES), how, st.sampled_from([(), (3,)]))
def test_native_equals_the_reference(asked, dtype, options, shape):
    assert verify(asked).ok
    assert verify_reference(asked).ok
    assert parse(to_text(asked)) == canonical(asked)
    check(asked, workload_of(asked, shape, dtype), options)


@pytest.mark.slow
@settings(max_examples=some(100), deadline=None)
@given(calls(), st.sampled_from(DTYPES), how, st.integers(0, 2**32))
def test_slots_may_differ_in_size_too(asked, dtype, options, seed):
    check(asked, uneven_of(asked, dtype, seed), options)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_that_are_alike_go_the_plain_way(kind):
    even = [[2] * 3] * 3 if kind == "all_to_all" else [2] * 3
    asked = library_call(kind, even)
    assert collective_parts(asked, 1, workload_of(asked, (5,), "int8")) == []


def test_parts_as_mpi_takes_them():
    asked = library_call("all_to_all", MATRIX)
    parts = collective_parts(asked, 1, workload_of(asked, (5,), "int8"))
    assert parts == [(1, False, [10, 10, 0, 0, 10, 20])]
    gathered = library_call("all_gather", [1, 0, 2], in_place=True)
    assert collective_parts(gathered, 2, workload_of(gathered, (), "int8")) == [(2, True, [1, 0, 2])]
    apart = rebuilt(gathered, changed(gathered, 0, reads=[Region("y", 2, 1)]))
    assert collective_parts(apart, 2, workload_of(apart, (), "int8")) == [(2, False, [1, 0, 2])]


def test_an_even_part_of_one_region_meets_a_region_of_its_own():
    asked = library_call("all_to_all", [[2, 2], [2, 2]])
    mixed = rebuilt(asked, changed(asked, 0, reads=[Region("x", 0, 4)], writes=[Region("y", 0, 4)]))
    assert verify(mixed).ok
    assert verify_reference(mixed).ok
    check(mixed, workload_of(mixed, (2,), "int32"), RunOptions())


def changed(program: Program, row: int, **sides):
    ops = specs_of(program)
    ops[row] = replace(ops[row], **sides)
    return ops


def refused(program: Program) -> str:
    """Which check refuses it, in C++ as in Python, and why."""
    fast, slow = verify(program), verify_reference(program)
    assert fast.failed == slow.failed
    assert fast.failed is not None
    assert fast.checks[fast.failed].message == slow.checks[slow.failed].message
    return f"{fast.failed}: {fast.checks[fast.failed].message}; {fast.checks[fast.failed].found}"


class TestPlantedFaults:
    def test_two_parts_swapped(self):
        asked = library_call("all_to_all", [[1, 2, 2], [2, 1, 2], [2, 2, 1]])
        first, second, third = asked.op(0).reads
        found = refused(rebuilt(asked, changed(asked, 0, reads=[first, third, second])))
        assert found.startswith("result: y[")
        first, second, third = asked.op(2).writes
        assert refused(rebuilt(asked, changed(asked, 2, writes=[first, third, second]))).startswith("bounds")

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_size_off_by_one(self, kind):
        asked = library_call(kind, MATRIX if kind == "all_to_all" else [1, 0, 3])
        side = "reads" if kind == "all_gather" else "writes"
        regions = list(getattr(asked.op(2), side))
        regions[-1] = regions[-1]._replace(count=regions[-1].count - 1)
        found = refused(rebuilt(asked, changed(asked, 2, **{side: regions})))
        assert found.startswith("bounds: op 0 'collective' on rank 0")
        assert f"the members of this {kind} disagree on sizes" in found
        assert "rank 2 " in found

    def test_regions_missing(self):
        asked = library_call("all_to_all", MATRIX)
        found = refused(rebuilt(asked, changed(asked, 1, reads=list(asked.op(1).reads[:2]))))
        assert "it needs 1 region to read and 1 to write, or 3 of each, one for each member" in found

    def test_one_part_over_another(self):
        asked = library_call("all_to_all", MATRIX)
        writes = [asked.op(0).writes[0], asked.op(0).writes[0]._replace(count=2), asked.op(0).writes[2]]
        assert refused(rebuilt(asked, changed(asked, 0, writes=writes))).startswith("races")

    def test_sizes_of_slots_that_do_not_fit(self):
        """Sizes that no proof speaks of are looked at when the engine is bound."""
        asked = library_call("all_gather", [1, 1])
        right = uneven_of(asked, "int8", 1)
        sizes = {**right.sizes, "y": tuple(part + 1 for part in right.sizes["y"])}
        workload = Workload(right.slots, {}, sizes)
        inputs = fresh_inputs(asked, workload, 0)
        with pytest.raises(RunError, match="into others of another size"):
            execute_local(asked, workload, inputs)

    def test_members_that_differ_at_run_time(self):
        """A native call whose members ask for different parts ends in an error on each."""
        right, wrong = library_call("all_gather", [1, 2]), library_call("all_gather", [2, 1])
        hub = _native.LocalHub(2)
        arrays = [{"x": np.zeros(n, "i1"), "y": np.zeros(3, "i1")} for n in (1, 1)]
        engines = [
            bind(_native.local_transport(hub, rank), asked, rank, arrays[rank])
            for rank, asked in enumerate((right, wrong))
        ]
        failures = run_engines(engines, RunOptions(stall_s=5))
        assert any("members of a collective, differ in size" in text for text in failures)


def test_bytes_of_the_larger_side():
    """What a call costs goes by its largest member, and what a span shows by what the op moves."""
    asked = library_call("all_to_all", MATRIX)
    workload = workload_of(asked, (), "int32")
    assert op_bytes(asked, workload).tolist() == [4 * 4, 4 * 6, 4 * 5]
    assert moved_bytes(asked, workload).tolist() == [4 * 4, 4 * 4, 4 * 5]


def test_all_members_take_as_long_as_the_largest():
    asked = library_call("all_to_all", MATRIX)
    costs = {"all_to_all:3": Curve.through([0, 1000], [0.0, 1000.0]).to_json()}
    prices = price(asked, Machine("three", 3, (0, 0, 0), (), costs), workload_of(asked, (), "int32"))
    assert simulate(asked, prices).columns["end_s"].tolist() == pytest.approx([24.0] * 3)


EXCHANGE = """program exchange ranks 2
buffer y input 3
lane net net
collective all_to_all 0 1
post 0 y[0:1] = y@0[0:1]
post 0 y[1:3] = y@1[0:2]
post 1 y[0:2] = y@0[1:3]
post 1 y[2:3] = y@1[2:3]
rank 0 lane net
  collective all_to_all y[0:1] y[1:3] -> y[0:1] y[1:3] group 0 1
rank 1 lane net
  collective all_to_all y[0:2] y[2:3] -> y[0:2] y[2:3] group 0 1
"""


def test_an_exchange_in_place():
    """What comes from a member may take the place of what went to it, and of nothing else."""
    asked = parse(EXCHANGE)
    assert verify(asked).ok
    assert verify_reference(asked).ok
    check(asked, workload_of(asked, (2,), "int32"), RunOptions())
    wrong = changed(asked, 0, writes=[Region("y", 2, 1), Region("y", 0, 2)])
    assert refused(rebuilt(asked, wrong)).startswith("races")
