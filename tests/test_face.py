"""The Python face: what users of NumPy, mpi4py and torch find where they look for it."""

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import face_stub
import numpy as np
import pytest
from sim_executor import SimExecutor, two_hosts

import dovetail as dt
from dovetail.core import OperatorError, PlanError
from dovetail.ir.arrays import borrowed
from dovetail.ir.registry import BUILT_IN, OPERATORS
from dovetail.ir.signature import Signature
from dovetail.planner.rival import distinct


def test_a_grid_is_a_tuple_however_it_is_given_and_text_in_documents():
    operators = [dt.Jacobi2d(grid, 3) for grid in ((64, 32), [64, np.int64(32)], "64x32", "064X32")]
    assert {operator.grid for operator in operators} == {(64, 32)}
    assert len(set(operators)) == 1
    assert operators[0].to_json()["grid"] == "64x32"
    assert dt.Jacobi2d.from_json(operators[0].to_json()) == operators[0]
    assert dt.Lcs((8, 8)).title == dt.Lcs("8x8").title
    assert dt.Jacobi1d(64).grid == (64,)
    for wrong in ((64, 0), (), "64y32", (64.0, 32), None):
        with pytest.raises(OperatorError, match=r"grid|axis"):
            dt.Jacobi2d(wrong, 3)


# What is printed, and what a notebook shows


@pytest.fixture(scope="module")
def made():
    return dt.plan(dt.MatmulAllReduce(512, 512, 512), "shared-memory-2", extrapolate=True)


def test_print_explains_a_plan_and_repr_is_one_line(made):
    assert str(made) == dt.explain(made)
    assert str(made).splitlines()[0] == "matmul_all_reduce 512 × 512 × 512 float32 on 2 ranks of shared-memory-2"
    assert "Predicted" in str(made)
    assert repr(made).startswith("<Plan: matmul_all_reduce 512 × 512 × 512 float32 on 2 ranks of shared-memory-2: ")


def test_the_repr_of_each_type_is_one_line(made):
    machine = dt.Machine.load("atlas-a2-8")
    alone = dt.plan(dt.MatmulAllReduce(2, 1, 2), "shared-memory-2", ranks=1)
    assert (
        repr(alone._bound_to(None))
        == "<Bound: matmul_all_reduce 2 × 1 × 2 float32 on rank 0 of 1: serial, 1 tile, library>"
    )
    assert repr(machine) == f"<Machine 'atlas-a2-8': 8 ranks on {machine.num_nodes} node, {len(machine.costs)} costs>"
    assert repr(dt.Jacobi2d((8, 4), 2)) == "Jacobi2d(grid=(8, 4), steps=2, dtype='float32', test=0)"
    assert repr(made.operator).startswith("MatmulAllReduce(m=512, k=512, n=512")
    assert repr(made.program).startswith("<Program 'matmul_all_reduce': 2 ranks, ")
    assert repr(made.predicted).startswith("<Timeline: ")
    assert all("\n" not in repr(each) for each in (made, machine, made.operator, made.program, made.predicted))


def test_an_explanation_shows_a_table_and_a_timeline_in_a_notebook(made):
    shown = dt.explain(made)._repr_html_()
    assert "<th>predicted</th>" in shown
    assert shown.count("<tr>") == 3 + len(distinct(made.rivals))  # head, taken, rivals, ideal
    assert 'src="data:image/svg+xml;base64,' in shown
    assert "<table>" not in dt.explain(made.predicted)._repr_html_()


def test_the_notebook_extension_shows_each_type_by_itself(made):
    shown = {}

    formatter = SimpleNamespace(for_type_by_name=lambda module, name, show: shown.update({(module, name): show}))
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    dt.load_ipython_extension(shell)
    for what in (made, made.predicted):
        place = type(what).__module__, type(what).__qualname__
        assert "data:image/svg+xml" in shown[place](what)
    assert (dt.TuneResult.__module__, "TuneResult") in shown


# The river, arrow by arrow


def test_a_plan_is_simulated_as_it_was_predicted_and_compared(made):
    found = dt.simulate(made, "shared-memory-2", extrapolate=True)
    assert found.to_json() == made.predicted.to_json()
    assert dt.compare(made.predicted, found).ratio == 1.0


def test_a_program_is_simulated_by_the_bytes_of_its_slots(made):
    program = dt.AllReduce(1 << 16).program(dt.AllReduce(1 << 16).serial(2), 2)
    with pytest.raises(OperatorError, match=r"sizes of program .* are unknown"):
        dt.simulate(program, "shared-memory-2")
    small, large = (dt.simulate(program, "shared-memory-2", slot_bytes=n, extrapolate=True) for n in (64, 1 << 20))
    assert 0 < small.makespan_s < large.makespan_s
    with pytest.raises(OperatorError, match="sizes of program"):
        dt.simulate(made.program, "shared-memory-2", slot_bytes=4)


def test_probe_takes_an_executor_and_an_operator(monkeypatch):
    executor = SimExecutor(two_hosts())
    plain, own = dt.probe(2, executor=executor), dt.probe(2, dt.MatmulAllReduce(256, 256, 256), executor=executor)
    assert plain.ranks == 2
    assert {*own.costs} > {*plain.costs}
    with pytest.raises(OperatorError, match="only be measured on MPI ranks"):
        dt.probe(2, executor=executor, calls=True)
    with pytest.raises(OperatorError, match="expected an operator, not str"):
        dt.probe(2, "matmul_all_reduce", executor=executor)


def test_type_hints_have_bound():
    assert dt.Bound.__name__ == "Bound"


# Arrays of others


class Tensor:
    """Lends an array by DLPack, and says whether it may be written."""

    device = (1, 0)

    def __init__(self, held):
        self.held = held

    def __dlpack__(self, **asked):
        return self.held.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.device


class OldTensor(Tensor):
    """Lends it as DLPack did before 1.0, which cannot say so."""

    def __dlpack__(self):
        return self.held.__dlpack__()

    def __array__(self, dtype=None, copy=None):
        return self.held


class OnDevice(Tensor):
    device = (2, 1)


class Bfloat16(Tensor):
    dtype = "torch.bfloat16"

    def __dlpack__(self, **asked):
        raise BufferError("no such type")


class Interface:
    def __init__(self, held):
        self.held, self.__array_interface__ = held, held.__array_interface__

    __array_interface__ = None


@pytest.mark.parametrize("lend", [Tensor, OldTensor, memoryview, Interface, np.asarray])
def test_arrays_of_others_are_taken_and_written_without_a_copy(lend):
    made = dt.plan(dt.MatmulAllReduce(2, 1, 2), "shared-memory-2", ranks=1)
    held, a, b = np.zeros((2, 2), "f4"), np.array([[1], [2]], "f4"), np.array([[3, 4]], "f4")
    assert np.shares_memory(borrowed(lend(held)), held)
    out = lend(held)
    assert made.run(lend(a), lend(b), out=out) is out
    assert held.tolist() == [[3, 4], [6, 8]]
    stencil = dt.Jacobi2d((4, 3), 2)
    signature, given, result = (
        Signature.of(stencil, stencil.serial(1), 1),
        np.ones((4, 3), "f4"),
        np.zeros((4, 3), "f4"),
    )
    inputs, wanted = signature.arguments(0, [lend(given)], lend(result))
    assert all(np.shares_memory(each, given) for each in inputs.values())
    assert all(np.shares_memory(each, result) for each in wanted.values())


def test_planted_fault_what_may_not_be_written_stays_so():
    class Frozen(OldTensor):
        def __array__(self, dtype=None, copy=None):
            return fixed

    held = np.ones(3)
    fixed = held.view()
    fixed.flags.writeable = False
    lent = [Frozen(held), Tensor(fixed), memoryview(fixed), Interface(fixed)]
    assert [borrowed(each).flags.writeable for each in lent] == [False] * 4


@pytest.mark.parametrize(
    ("kind", "said"), [(OnDevice, "DLPack device 2, number 1"), (Bfloat16, "torch.bfloat16: no such")]
)
def test_what_cannot_be_lent_is_refused_and_named(kind, said):
    made = dt.plan(dt.MatmulAllReduce(2, 2, 2), "shared-memory-2", ranks=1)
    given, bad = np.ones((2, 2), "f4"), kind(np.ones((2, 2), "f4"))
    for arrays, out in (((bad, given), None), ((given, given), bad)):
        with pytest.raises(OperatorError, match=said):
            made.run(*arrays, out=out)


@pytest.mark.parametrize("given", [[1.0, 2.0], 3.0, None, "text", b"text", np.float32(1)])
def test_what_lends_no_memory_is_left_as_it_is(given):
    assert borrowed(given) is given


# Options


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("max_tile", "max_tiles"), ("contentions", "contention"), ("extrapolated", "extrapolate"), ("qqqq", None)],
)
def test_an_unknown_option_names_the_nearest_of_the_operator_and_of_plan(misspelt, meant):
    found = f"did you mean '{meant}'" if meant else "leave it out"
    with pytest.raises(PlanError, match=rf"no option '{misspelt}'\n.*schedules: reading, floor.*\n.*{found}"):
        dt.plan(dt.MatmulAllReduce(2, 2, 2), "shared-memory-2", **{misspelt: 3})


def test_tune_refuses_an_unknown_option_before_it_measures():
    with pytest.raises(PlanError, match=r"no option 'budget'\n.*\n.*did you mean 'budget_s'"):
        dt.tune(dt.MatmulAllReduce(2, 2, 2), 2, executor=SimpleNamespace(), budget=3)


def keywords_of(function):
    return inspect.signature(function).parameters.values()


def test_functions_of_the_face_have_their_options_in_their_signatures():
    """Only options of an operator's own are open, and their docstrings say so; `nest` takes a function's arguments."""
    names = [*dt.__all__, *face_stub.ON_ARRAYS]
    functions = {name: getattr(dt, name) for name in names if not isinstance(getattr(dt, name), type)}
    is_open = {
        name
        for name, each in functions.items()
        if any(k.kind == k.VAR_KEYWORD and k.annotation != "Never" for k in keywords_of(each))
    }
    assert is_open == {"nest", "plan", "tune", "schedule_for"}
    for name in is_open - {"nest"}:
        assert re.search(r"\*\*options\n.*differ\s+by\s+(operator|product)", functions[name].__doc__, re.DOTALL)


def test_the_stub_completes_the_options_of_every_built_in_operator():
    stub = ast.parse(Path(dt.__file__).with_suffix(".pyi").read_text())
    listed = {node.name: {each.arg for each in node.args.kwonlyargs} for node in stub.body if hasattr(node, "args")}
    wanted = {option.name for name in BUILT_IN for option in OPERATORS[name].options if option.of == "schedules"}
    for name in ("plan", "tune"):
        own = {each.name for each in keywords_of(getattr(dt, name)) if each.kind == each.KEYWORD_ONLY}
        assert listed[name] == own | wanted
