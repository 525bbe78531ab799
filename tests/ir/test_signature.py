"""The arrays of a call of every operator: they fit its Program, become buffers and back, and are checked."""

from dataclasses import replace

import numpy as np
import pytest
from registered import names_in, small

from dovetail.core import OperatorError
from dovetail.ir.abilities import BalancedSizes, HasHeuristics, Nested, OnArrays, PublishedCases
from dovetail.ir.arrays import ArraySpec, slots_of
from dovetail.ir.registry import OPERATORS, operator_class
from dovetail.ir.signature import Signature
from dovetail.run import numpy_dtype
from dovetail.run.arrays import shape_of

pytestmark = pytest.mark.usefixtures("examples_installed")


@pytest.mark.parametrize("name", names_in(OPERATORS))
@pytest.mark.parametrize("way", ["serial", "default_schedule"])
def test_specs_fit_the_program_of_every_operator(name, way):
    """Buffers have the shapes of the workload, and come back as the arrays from which they were made."""
    operator, ranks = small(name), 3
    schedule = getattr(operator, way)(ranks)
    program, signature = operator.program(schedule, ranks), Signature.of(operator, schedule, ranks)
    workload = operator.workload(program, schedule)
    sides = {buffer.name for buffer in program.buffers if buffer.role != "scratch"}
    specs = {spec.buffer: spec for spec in (*signature.inputs, *signature.outputs)}
    assert {*specs} == sides
    for buffer, spec in specs.items():
        for rank in range(ranks):
            shape, dtype = shape_of(program, workload, buffer, rank)
            assert (spec.buffer_shapes[rank], numpy_dtype(spec.dtype)) == (shape, dtype), (buffer, rank)
            array = np.arange(np.prod(spec.shapes[rank], dtype=int)).reshape(spec.shapes[rank])
            assert np.array_equal(spec.from_slots(spec.to_slots(array, rank), rank), array)


@pytest.mark.parametrize("name", ["jacobi2d", "seidel2d", "seidel1d", "all_gather_matmul", "all_reduce"])
def test_nothing_is_read_from_a_programs_name(name):
    operator, ranks = small(name), 3
    schedule = operator.default_schedule(ranks)
    program = operator.program(schedule, ranks)
    found = operator.workload(replace(program, name="another"), schedule)
    assert found.slots == operator.workload(program, schedule).slots
    assert {form.name for form in found.forms} >= {kernel.name for kernel in program.kernels}


@pytest.mark.parametrize("slices", [2, 3])
@pytest.mark.parametrize("gathered", [False, True])
def test_specs_of_slices(slices, gathered):
    """If K is cut, evenly or not, arrays are cut as in the Program."""
    operator = operator_class("all_gather_matmul").points(m=8, k=4, n=6, several=2, gathered=gathered)[0]
    serial = operator.serial(2)
    schedule = serial.with_parameters(slices=slices, tiles=None, own_block="first", by="messages")
    program = operator.program(schedule, 2)
    workload = operator.workload(program, schedule)
    for spec in (*operator.inputs(schedule, 2), *operator.outputs(schedule, 2)):
        assert spec.buffer_shapes[1] == shape_of(program, workload, spec.buffer, 1)[0], spec.name


def test_slots_along_another_axis():
    spec = ArraySpec.of_blocks("u", "float32", (4, 6), [(slice(0, 2),), (slice(2, 4),)], within=1, axis=1)
    array = np.arange(12.0, dtype="f4").reshape(2, 6)
    assert spec.buffer_shapes[0] == (6, 2)
    assert np.array_equal(spec.to_slots(array, 1), array.T)
    assert np.shares_memory(spec.from_slots(spec.to_slots(array, 1), 1), array)
    assert slots_of([spec])["u"][0].shape == (2,)


class TestBlocks:
    """Blocks of whole arrays of any strides; results are copied into arrays that are not C-contiguous."""

    operator = operator_class("jacobi2d")("8x6", 2)
    signature = Signature.of(operator, operator.serial(2), 2)

    def test_results_are_computed_in_place_if_possible(self):
        given, out = np.ones((4, 6), "f4"), np.zeros((4, 6), "f4")
        inputs, wanted = self.signature.arguments(0, [given], out)
        assert np.shares_memory(inputs["u"], given)
        assert np.shares_memory(wanted["u_out"], out)
        turned = np.zeros((6, 4), "f4").T
        assert self.signature.arguments(0, [given], turned)[1] == {}
        assert self.signature.result(0, {"u_out": given.reshape(4, 6)}, turned) is turned
        assert np.array_equal(turned, given)

    @pytest.mark.parametrize(
        ("given", "what"),
        [
            ([], "takes 1 array: u"),
            ([np.ones((4, 5), "f4")], r"'u' of rank 1 must be the rank's block, of shape \(4, 6\)"),
            ([np.ones((4, 6))], r"astype\('float32'\), or make the operator with dtype='float64'"),
            ([[[1.0]]], "must be a NumPy array"),
            ([np.ma.masked_array(np.ones((4, 6), "f4"))], "is a masked array"),
        ],
    )
    def test_arguments_that_do_not_fit_are_refused(self, given, what):
        with pytest.raises(OperatorError, match=what):
            self.signature.arguments(1, given, None)

    def test_results_must_not_share_memory_with_inputs(self):
        given = np.ones((4, 6), "f4")
        with pytest.raises(OperatorError, match="shares memory with u"):
            self.signature.arguments(0, [given], given)

    def test_places_of_blocks(self):
        assert self.signature.blocks(1) == {"u": (slice(4, 8), slice(None))}

    def test_results_without_an_array_in_out_are_returned_after_it(self):
        operator = operator_class("jacobi2d")("8x6", 2, test=1)
        signature, out = Signature.of(operator, operator.serial(1), 1), np.zeros((8, 6), "f4")
        held = {"u_out": np.ones((8, 6), "f4"), "change": np.array([4.0, 9.0])}
        first, changes = signature.result(0, held, out)
        assert first is out
        assert changes.tolist() == [2.0, 3.0]


def test_a_plan_refuses_masked_arrays():
    operator = operator_class("matmul_all_reduce")(2, 2, 2)
    signature, a = Signature.of(operator, operator.serial(1), 1), np.ones((2, 2), "f4")
    with pytest.raises(OperatorError, match="masked"):
        signature.arguments(0, [np.ma.masked_array(a), a], None)
    assert signature.arguments(0, [a.tolist(), a], None)[0]["A"].dtype == "float32"


@pytest.mark.parametrize(
    ("name", "abilities"),
    [
        ("matmul_all_reduce", {OnArrays, BalancedSizes, PublishedCases}),
        ("jacobi2d", set()),
        ("all_reduce", set()),
    ],
)
def test_abilities_of_classes(name, abilities):
    kind = operator_class(name)
    assert {each for each in (OnArrays, BalancedSizes, PublishedCases) if issubclass(kind, each)} == abilities
    operator = small(name)
    assert isinstance(operator, Nested) == (name == "jacobi2d")
    assert isinstance(operator, HasHeuristics) == (name == "matmul_all_reduce")
