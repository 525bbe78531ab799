"""Kernels: products on any regions, equal in native code and NumPy; what runs in Python; checks of results."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_programs import assert_same
from thorough import some

from dovetail.core import ProgramError, RunError
from dovetail.ir import Builder, Kernel, KernelForm, Kind, Operand, Region, Slot, Term, Work, Workload, compute_calls
from dovetail.matmul import MATMUL
from dovetail.matmul.kernels import check_product, shape
from dovetail.run import execute, fresh_inputs, numpy_dtype
from dovetail.run.check import check_outputs, check_rank
from dovetail.run.local import execute_local
from dovetail.run.options import RunOptions

FLOATS = ("float16", "bfloat16", "float32", "float64")


def forbidden(reads, writes):
    raise AssertionError("ran in Python")


NATIVE = replace(MATMUL, call=forbidden)


class Place(NamedTuple):
    """Storage of a matrix: a buffer of so many slots, a slot's shape or the elements of each slot, and the region."""

    slots: int
    shape: tuple[int, ...]
    region: Region
    sizes: tuple[int, ...] | None = None


@st.composite
def places(draw, name: str, rows: int, cols: int) -> Place:
    """Draw a storage for `rows` rows of `cols` elements: slots are rows, parts, pieces, or blocks of different
    sizes."""
    some = ["columns", "parts", "runs", "pieces", "uneven", "blocks"] if rows and cols else []
    kind = draw(st.sampled_from(["rows", "whole", "scalars", *some]))
    before, wide = draw(st.integers(0, 2)), draw(st.integers(2, 3))
    if kind == "rows":
        return Place(before + rows, (cols,), Region(name, before, rows))
    if kind == "columns":  # slots are (row, column block); one column block of all rows
        return Place(wide * rows, (cols,), Region(name, before % wide, 1, wide, rows))
    if kind == "parts":  # the same, with one element per slot
        return Place((cols + wide) * rows + 1, (), Region(name, before % wide, cols, cols + wide, rows))
    if kind == "runs" and rows % 2 == 0:
        return Place(before + rows // 2 * 3, (cols,), Region(name, before, 2, 3, rows // 2))
    if kind == "pieces":  # every second element of a row
        return Place(before + 2 * rows * cols, (1,), Region(name, before, 1, 2, rows * cols))
    if kind == "scalars":
        return Place(before + rows * cols, (), Region(name, before, rows * cols))
    if kind == "uneven":  # slots are (row, column block), with column blocks of different sizes
        sizes = tuple(draw(st.permutations([cols, 0, 3]))) * rows
        return Place(3 * rows, (), Region(name, sizes.index(cols), 1, 3, rows), sizes)
    if kind == "blocks":  # slots are blocks of different numbers of rows
        cut = draw(st.integers(0, rows))
        return Place(3, (), Region(name, 1, 2), (5, cut * cols, (rows - cut) * cols))
    return Place(before + 1, (rows, cols), Region(name, before, 1))


@st.composite
def products(draw):
    """Draw two products on one rank, the second added to the first. Any regions are valid, since every result depends
    on all that is read."""
    b, found, sizes, slots = Builder("products", 1), [], {}, {}
    m, n = draw(st.integers(0, 6)), draw(st.integers(0, 5))
    c = draw(places("C", m, n))
    lane = b.lane("compute", "compute")
    for name, role in (("Z", "input"), ("C", "output")):
        found.append((name, role, c))
    for number in (0, 1):
        k = draw(st.integers(0, 6))
        found += [(f"A{number}", "input", draw(places(f"A{number}", m, k)))]
        found += [(f"B{number}", "input", draw(places(f"B{number}", k, n)))]
    for name, role, place in found:
        b.buffer(name, role, place.slots)
        slots[name] = (Slot(place.shape, draw(st.shared(st.sampled_from(FLOATS), key="dtype"))),)
        if place.sizes is not None:
            sizes[name] = (np.array(place.sizes, np.int64),)
    whole = Region("Z", 0, c.slots)
    b.add(Kind.copy, 0, lane, reads=[whole], writes=[whole._replace(buffer="C")])
    for number in (0, 1):
        reads = [place.region for name, _, place in found if name.endswith(str(number))]
        call = b.kernel("matmul", ("all", "all"), draw(st.booleans()))
        b.add(Kind.compute, 0, lane, reads=reads, writes=[c.region], call=call)
    return b.build(), Workload(slots, (MATMUL,), sizes)


def whole_numbers(inputs):
    """Return inputs of small whole numbers, so that sums of products are exact in any order and dtype."""
    return {name: [np.rint(2 * np.asarray(x, "f4")).astype(x.dtype) for x in xs] for name, xs in inputs.items()}


@pytest.mark.slow
@settings(max_examples=some(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(products(), st.sampled_from([0, 1, 2, 5]), st.sampled_from(["poll", "thread"]))
def test_products_on_any_regions_run_natively_and_as_the_reference(made, block_rows, progress):
    asked, workload = made
    inputs = whole_numbers(fresh_inputs(asked, workload, 1))
    options = RunOptions(progress, block_rows=block_rows, repeats=2)
    found, _ = execute_local(asked, replace(workload, forms=(NATIVE,)), inputs, options=options)
    with np.errstate(all="ignore"):
        expected = execute(asked, inputs, workload=workload).outputs
    assert_same({name: [x + 0 for x in xs] for name, xs in found.items()}, {"C": [expected["C"][0] + 0]})


def grid(ranks: int = 1, k_blocks: int = 3, n_blocks: int = 2, dtype: str = "float32", faulty: bool = False):
    """C (row, column block) += A (row, K block) @ B (K block, column block), in row tiles that are not adjacent."""
    b, rows = Builder("grid", ranks), 8
    b.buffer("A", "input", rows * k_blocks), b.buffer("B", "input", k_blocks * n_blocks)
    b.buffer("Z", "input", rows * n_blocks), b.buffer("C", "output", rows * n_blocks)
    lane, call = b.lane("compute", "compute"), b.kernel("matmul", ("each", "all"), True)
    for rank in range(ranks):
        zero = Region("Z", 0, rows * n_blocks)
        b.add(Kind.copy, rank, lane, reads=[zero], writes=[zero._replace(buffer="C")])
        for tile in (0, 1):
            for j in range(n_blocks):
                for s in range(k_blocks):
                    wrong = faulty and (tile, j, s) == (1, 0, 1)
                    a = Region("A", tile * k_blocks + s, 1, 2 * k_blocks, rows // 2)
                    c = Region("C", tile * n_blocks + j, 1, 2 * n_blocks, rows // 2)
                    part = Region("B", (s + wrong) * n_blocks + j, 1)
                    b.add(Kind.compute, rank, lane, reads=[a, part], writes=[c], call=call)
    slots = {"A": (4,), "B": (4, 5), "Z": (5,), "C": (5,)}
    return b.build(), Workload({name: (Slot(shape, dtype),) * ranks for name, shape in slots.items()}, (MATMUL,))


@pytest.mark.parametrize("dtype", FLOATS)
def test_tiles_of_all_three_dimensions(dtype):
    asked, workload = grid(dtype=dtype)
    inputs = fresh_inputs(asked, workload, 0)
    inputs["Z"][0][...] = 0
    found, _ = execute_local(asked, replace(workload, forms=(NATIVE,)), inputs)
    a, b = inputs["A"][0].reshape(8, 12), inputs["B"][0].reshape(3, 2, 4, 5).transpose(0, 2, 1, 3).reshape(12, 10)
    assert check_product([(a, np.ascontiguousarray(b))], found["C"][0].reshape(8, 10)).ok
    wrong, _ = execute_local(grid(dtype=dtype, faulty=True)[0], workload, inputs)
    agreement = check_product([(a, np.ascontiguousarray(b))], wrong["C"][0].reshape(8, 10))
    assert agreement.num_wrong > 0, "planted: a tile took another block of B"


def test_an_accumulating_half_product_rounds_once():
    """2048 + (1 + 2^-12) is above the midpoint of 2048 and 2050. If the product were rounded first, to 1, there would
    be a tie."""
    b = Builder("once", 1)
    b.buffer("A", "input", 1), b.buffer("B", "input", 1), b.buffer("Z", "input", 1), b.buffer("C", "output", 1)
    lane, region = b.lane("compute", "compute"), Region("Z", 0, 1)
    b.add(Kind.copy, 0, lane, reads=[region], writes=[region._replace(buffer="C")])
    reads, call = [Region("A", 0, 1), Region("B", 0, 1)], b.kernel("matmul", ("each", "all"), True)
    b.add(Kind.compute, 0, lane, reads=reads, writes=[Region("C", 0, 1)], call=call)
    shapes = {"A": (2,), "B": (2, 1), "Z": (1,), "C": (1,)}
    workload = Workload({name: (Slot(shape, "float16"),) for name, shape in shapes.items()}, (MATMUL,))
    inputs = {"A": [np.array([[1, 2**-12]], "f2")], "B": [np.ones((1, 2, 1), "f2")], "Z": [np.array([[2048]], "f2")]}
    found, _ = execute_local(b.build(), workload, inputs)
    assert found["C"][0].item() == 2050


class TestPython:
    """Products without a native kernel run in Python."""

    @pytest.mark.parametrize("dtypes", ["int32 int32 int32", "float16 float16 float32", "float32 float32 float64"])
    def test_integers_and_mixtures(self, dtypes):
        a, b, c = dtypes.split()
        asked, workload = self.one(a, b, c)
        inputs, calls = whole_numbers(fresh_inputs(asked, workload, 0)), []

        def counted(reads, writes):
            calls.append(1)
            MATMUL.call(reads, writes)

        found, _ = execute_local(asked, replace(workload, forms=(replace(MATMUL, call=counted),)), inputs)
        assert len(calls) == 1
        np.testing.assert_array_equal(found["C"][0], inputs["A"][0].astype(c) @ inputs["B"][0][0].astype(c))

    def test_kernels_of_the_user_replace_the_form(self):
        asked, workload = self.one()
        inputs, kernels = fresh_inputs(asked, workload, 0), {"matmul": lambda reads, writes: writes[0].fill(7)}
        found, _ = execute_local(asked, workload, inputs, kernels=kernels)
        assert (found["C"][0] == 7).all()

    def test_slots_of_different_sizes(self):
        """Slots are flat arrays, as those of the reference executor."""
        b = Builder("flat", 1)
        b.buffer("x", "input", 4), b.buffer("y", "output", 4)
        lane, call = b.lane("compute", "compute"), b.kernel("twice", ("each",))
        for region in (Region("x", 0, 2), Region("x", 2, 1, 1, 2)):
            b.add(Kind.compute, 0, lane, reads=[region], writes=[region._replace(buffer="y")], call=call)

        def twice(reads, writes):
            np.multiply(reads[0], 2, out=writes[0])

        form = KernelForm("twice", twice, lambda reads, writes: Work("", 0, 0))
        sizes = {name: (np.array([3, 0, 1, 2]),) for name in "xy"}
        workload = Workload({name: (Slot((), "int16"),) for name in "xy"}, (form,), sizes)
        inputs = {"x": [np.arange(6, dtype="i2")]}
        found, _ = execute_local(b.build(), workload, inputs)
        assert_same(found, execute(b.build(), inputs, workload=workload).outputs)
        assert found["y"][0].tolist() == [0, 2, 4, 6, 8, 10]

    def test_without_a_form(self):
        asked, workload = self.one()
        with pytest.raises(RunError, match=r"no kernel 'matmul'(.|\n)*give the Workload its form"):
            execute_local(asked, replace(workload, forms=()), fresh_inputs(asked, workload, 0))

    def one(self, *dtypes: str):
        b = Builder("one", 1)
        b.buffer("A", "input", 2), b.buffer("B", "input", 1), b.buffer("C", "output", 2)
        reads, writes = [Region("A", 0, 2), Region("B", 0, 1)], [Region("C", 0, 2)]
        call = b.kernel("matmul", ("each", "all"))
        b.add(Kind.compute, 0, b.lane("compute", "compute"), reads=reads, writes=writes, call=call)
        shapes = zip("ABC", ((3,), (3, 4), (4,)), dtypes or ("float32",) * 3, strict=True)
        return b.build(), Workload({name: (Slot(shape, dtype),) for name, shape, dtype in shapes}, (MATMUL,))


class TestForm:
    def test_can_be_sent_to_ranks(self):
        assert pickle.loads(pickle.dumps(MATMUL)) == MATMUL

    def test_equal_ops_are_described_once(self):
        asked, workload = grid(ranks=2)
        rows, which, kinds = compute_calls(asked, workload)
        assert len(rows) == 2 * 12
        assert len(kinds) == 1
        assert not which.any()
        slot = Slot((4,), "float32")
        assert kinds[0].reads == (Operand(slot, 4, 16), Operand(Slot((4, 5), "float32"), 1, 20))
        assert MATMUL.work(kinds[0].reads, kinds[0].writes) == (
            ("matmul:k=4:n=5:float32", 4, 2 * 4 * 4 * 5, 4 * 4 * (4 + 5), 4 * 4 * 5)
        )
        mine = compute_calls(asked, workload, 1)
        assert set(asked.columns["rank"][mine.rows]) == {1}

    @given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
    def test_the_shape_follows_from_the_elements(self, m, k, n):
        found = shape(m * k, k * n, m * n, m)
        assert (found.m * found.k, found.m * found.n) == (m * k, m * n)
        if m and k and n:
            assert found == (m, k, n)
        if m:
            assert found.m == m

    @pytest.mark.parametrize("elements", [(6, 12, 9), (6, 0, 8), (0, 12, 8), (6, 12, 0)])
    def test_operands_without_a_shape_are_refused(self, elements):
        with pytest.raises(ProgramError, match="no matrices"):
            shape(*elements)

    def test_slots_that_disagree_are_refused(self):
        """Operands of 8 x 8 and 2 x 2 elements could be 16 x 4 and 4 x 1 if slots were not rows."""
        operands = [Operand(Slot((8,), "float32"), 8, 64), Operand(Slot((2, 2), "float32"), 1, 4)]
        with pytest.raises(ProgramError, match="shapes disagree"):
            MATMUL.work(operands, [Operand(Slot((2,), "float32"), 8, 16)])


class TestCheckProduct:
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("size", [(300, 64, 512), (1, 1, 1), (5, 3, 2048)])
    def test_planted_faults(self, dtype, size):
        a, b, c = self.product(dtype, *size)
        found = check_product([(a, b)], c)
        assert found.ok
        assert found.max_rel_error < found.tolerance / 2
        row, column = size[0] // 2, size[2] // 3
        for fault in (0.0, np.nan, np.inf):
            wrong = c.copy()
            wrong[row] = fault
            assert not check_product([(a, b)], wrong).ok
        wrong = c.copy()
        wrong[row, column] += wrong.dtype.type(2 * np.std(c.astype(float)) + 1)
        found = check_product([(a, b)], wrong)
        assert found.max_rel_error > found.tolerance
        assert f"row {row}," in found.worst
        wrong[row, column] = np.nan
        assert check_product([(a, b)], wrong).max_rel_error == np.inf

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_one_wrong_element_in_any_row(self, dtype):
        """Of 300 rows, 48 are checked one by one."""
        a, b, c = self.product(dtype, 300, 64, 32)
        for row in range(0, 300, 7):
            wrong = c.copy()
            wrong[row, 5] += wrong.dtype.type(2 * np.std(c.astype(float)) + 1)
            assert check_product([(a, b)], wrong).num_wrong == 1

    def test_a_lost_term_is_noticed(self):
        terms = [self.product("float32", 100, k, 20, seed=k) for k in (16, 0, 8)]
        total = sum(c for _, _, c in terms)
        assert check_product([term[:2] for term in terms], total).ok
        found = check_product([term[:2] for term in terms], total - terms[2][2])
        assert found.num_wrong > 100

    def test_empty_products(self):
        for m, k, n in ((0, 3, 2), (2, 3, 0), (2, 0, 3)):
            assert check_product([(np.ones((m, k)), np.ones((k, n)))], np.zeros((m, n))).max_rel_error == 0
        assert not check_product([(np.ones((2, 0)), np.ones((0, 3)))], np.full((2, 3), 1.0)).ok

    def product(self, dtype, m, k, n, seed=0):
        rng, wide = np.random.default_rng(seed), "f8" if dtype == "float64" else "f4"
        a, b = ((2 * rng.random(s) - 1).astype(numpy_dtype(dtype)) for s in ((m, k), (k, n)))
        return a, b, (a.astype(wide) @ b.astype(wide)).astype(a.dtype)


def summed(m: int, k: int, n: int, dtype: str):
    """Return a program whose result is the sum, by a library call, of the products of two ranks."""
    b, ranks = Builder("summed", 2), range(2)
    b.buffer("A", "input", m), b.buffer("B", "input", 1), b.buffer("P", "scratch", m), b.buffer("C", "output", m)
    compute, net = b.lane("compute", "compute"), b.lane("net", "net")
    matmul, call = b.kernel("matmul", ("each", "all")), b.collective("all_reduce", ranks)
    reads, (part, whole) = [Region("A", 0, m), Region("B", 0, 1)], (Region(name, 0, m) for name in "PC")
    b.post(ranks, whole, [Term("matmul", tuple((rank, region) for region in reads)) for rank in ranks])
    for rank in ranks:
        done = b.add(Kind.compute, rank, compute, reads=reads, writes=[part], call=matmul)
        b.add(Kind.collective, rank, net, reads=[part], writes=[whole], call=call, after=[done])
    shapes = {"A": (k,), "B": (k, n), "P": (n,), "C": (n,)}
    return b.build(), Workload({name: (Slot(shape, dtype),) * 2 for name, shape in shapes.items()}, (MATMUL,))


@pytest.mark.parametrize("dtype", FLOATS)
def test_both_checks_notice_a_wrong_block_of_k(dtype):
    """Planted fault: a rank multiplies the rows of a tile by another rank's block of B."""
    asked, workload = summed(200, 24, 24, dtype)
    inputs = fresh_inputs(asked, workload, 3)
    swapped = inputs | {"B": [inputs["B"][0], inputs["B"][0]]}
    outputs = execute(asked, inputs, workload=workload).outputs
    wrong = execute(asked, swapped, workload=workload).outputs
    pairs = zip(outputs["C"], wrong["C"], strict=True)
    partly = {"C": [np.concatenate([good[:120], bad[120:]]) for good, bad in pairs]}
    for held, ok in ((outputs, True), (wrong, False), (partly, False)):
        assert check_outputs(asked, workload, inputs, held).ok is ok
        found = check_rank(asked, workload, 1, {"C": held["C"][1]}, lambda name, at: inputs[name][at])
        assert found.ok is ok
        assert ok or "C[0:200] on rank 1" in found.worst


def test_a_mixture_of_terms_is_compared_element_by_element():
    """C = Z + A·B has no check by random vectors."""
    asked, workload = TestPython().one("float32", "float32", "float32")
    region = Region("C", 0, 2)
    product = Term("matmul", ((0, Region("A", 0, 2)), (0, Region("B", 0, 1))))
    b = Builder("mixed", 1)
    b.buffer("A", "input", 2), b.buffer("B", "input", 1), b.buffer("Z", "input", 2), b.buffer("C", "output", 2)
    b.kernel("matmul", ("each", "all"))
    b.post((0,), region, [Term(None, ((0, region._replace(buffer="Z")),)), product])
    workload = replace(workload, slots=workload.slots | {"Z": workload.slots["C"]})
    inputs = fresh_inputs(b.build(), workload, 0)
    held = {"C": inputs["Z"][0] + inputs["A"][0] @ inputs["B"][0][0]}
    asked = b.build()
    assert asked.kernels == (Kernel("matmul", ("each", "all")),)
    assert check_rank(asked, workload, 0, held, lambda name, at: inputs[name][at]).ok
    held["C"][1, 3] += np.float32(1e-4)
    found = check_rank(asked, workload, 0, held, lambda name, at: inputs[name][at])
    assert found.num_wrong == 1
    assert found.worst.startswith("C[1], element 3 of the slot, on rank 0")
    post = replace(asked, posts=(asked.posts[0]._replace(terms=(product,)),))
    with pytest.raises(RunError, match="no reference for the max of results of kernel 'matmul'"):
        check_rank(post, workload, 0, held, lambda name, at: inputs[name][at], "max")
