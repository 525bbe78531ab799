"""check: compare a run's results with its post-conditions in float64, within bounds from dtypes and lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import RunError
from dovetail.ir import Agreement, KernelCall, KernelForm, Operand, Post, Program, Region, Term, Workload
from dovetail.ir.slots import ROUNDOFF, TINIEST
from dovetail.run.arrays import Array, Arrays, places
from dovetail.run.job import Variant

NEAR = 64  # roundoffs by which two orders of the same operations, with other implementations of functions, may differ
BLOCK = 1 << 20  # elements compared at a time
SLOTS = 48  # that a kernel's own check computes exactly, over all terms of all post-conditions: this bounds its time
OPS = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
Inputs = Callable[[str, int], Array]  # (buffer, rank) -> initial contents
Expected = tuple[Array, Array, Array]  # expected elements, their magnitude, and the allowed error


def check_outputs(
    program: Program,
    workload: Workload,
    inputs: Arrays,
    outputs: Mapping[str, Sequence[Array | None]],
    kernels: Mapping[str, KernelCall] | None = None,
) -> Agreement:
    """Compare every element of the outputs (buffer -> array of each rank; None: rank not here) with the
    post-conditions. `kernels`: further kernels, beside the workload's.

    >>> from dovetail.ir import Schedule
    >>> from dovetail.matmul import MatmulAllReduce
    >>> from dovetail.run import execute, fresh_inputs
    >>> operator = MatmulAllReduce(6, 40, 3, "float16")
    >>> ring = Schedule.of("given", tiles=(2, 4), by="ring")
    >>> summed = operator.program(ring, 2)
    >>> workload = operator.workload(summed, ring)
    >>> inputs = fresh_inputs(summed, workload, seed=1)
    >>> outputs = execute(summed, inputs, workload=workload).outputs
    >>> check_outputs(summed, workload, inputs, outputs).ok
    True
    >>> outputs["C"][1][4, 2] = 0
    >>> check_outputs(summed, workload, inputs, outputs).worst.split(":")[0]
    'C[4], element 2 of the slot, on rank 1'
    """
    found = []
    for rank in range(program.num_ranks):
        held = {name: parts[rank] for name, parts in outputs.items()}
        asked = [post for post in program.posts if rank in post.ranks and held[post.region.buffer] is not None]
        mine = {name: array for name, array in held.items() if array is not None}
        checker = _Checker(program, workload, rank, mine, lambda name, at: inputs[name][at], kernels=kernels)
        found += [piece for post in asked for piece in checker.every_element(post)]
    return Agreement.total(found)


def check_rank(
    program: Program,
    workload: Workload,
    rank: int,
    held: Mapping[str, Array],
    inputs: Inputs,
    reduce_op: str = "sum",
) -> Agreement:
    """Compare a rank's buffers with its post-conditions, computed from the inputs of all ranks.

    A kernel's own check is used, if it has one; everything else is compared element by element. Moved data, minima and
    maxima must be equal to the bit. A sum of n values may err by n roundoffs of the sum of magnitudes, a product of n
    by n roundoffs of itself. NaN is an error.
    """
    checker = _Checker(program, workload, rank, held, inputs, reduce_op)
    return Agreement.total(piece for post in program.posts if rank in post.ranks for piece in checker.pieces(post))


def check_results(
    variant: Variant,
    held: Mapping[int, Mapping[str, Array]],
    inputs: Inputs,
    reference: Callable[[], Mapping[int, Mapping[str, Array]]] | None = None,
) -> Agreement:
    """Compare a variant's results on these ranks with its post-conditions (`check_rank`), and its outputs with those of
    its reference program `Variant.against` (`near`).

    Parameters
    ----------
    held : rank → buffer → array
        Buffers after one run from fresh inputs; slots first.
    inputs : (buffer, rank) → array
        Initial contents, of any rank.
    reference : () → rank → output → array
        Runs the program of `against`, for these ranks. Default: by the NumPy executor, on all ranks.
    """
    program, workload, reduce_op = variant.program, variant.workload, variant.options.reduce_op
    found = [check_rank(program, workload, rank, parts, inputs, reduce_op) for rank, parts in held.items()]
    if variant.against is not None:
        wanted = reference() if reference else _by_numpy(*variant.against, inputs, reduce_op)
        for rank, parts in held.items():
            found += [near(f"{name} on rank {rank}", parts[name], array) for name, array in wanted[rank].items()]
    return Agreement.total(found)


def _by_numpy(
    program: Program, workload: Workload, inputs: Inputs, reduce_op: str
) -> Mapping[int, Mapping[str, Array]]:
    """The outputs of a program, by rank, computed by NumPy."""
    from dovetail.run.reference import execute

    ranks = range(program.num_ranks)
    known = {b.name: [inputs(b.name, rank) for rank in ranks] for b in program.buffers if b.role == "input"}
    outputs = execute(program, known, workload=workload, reduce_op=reduce_op).outputs
    return {rank: {name: parts[rank] for name, parts in outputs.items()} for rank in ranks}


def near(what: str, found: Array, wanted: Array) -> Agreement:
    """Compare two arrays: integers must be equal; floats may differ by NEAR roundoffs of the largest magnitude.

    >>> near("u", np.array([1.0, 2.0]), np.array([1.0, 2.0])).ok, near("u", np.array([1, 3]), np.array([1, 2])).worst
    (True, 'u, element 1: 3 instead of 2')
    """
    if not found.size:
        return Agreement()
    wide = found.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
    scale = float(np.abs(wide[1]).max()) or 1.0
    with np.errstate(all="ignore"):
        error = np.where(found.ravel() == wanted.ravel(), 0.0, np.abs(wide[0] - wide[1]) / scale)
    error[np.isnan(error)] = np.inf
    tolerance, at = NEAR * ROUNDOFF.get(found.dtype.name, 0.0), int(error.argmax())
    text = f"{what}, element {at}: {wide[0][at]:.9g} instead of {wide[1][at]:.9g}"
    return Agreement(float(error[at]), tolerance, int((error > tolerance).sum()), text)


def raise_if_bad(found: Agreement) -> None:
    """Raise RunError if results disagree."""
    if not found.ok:
        text = f"{found.num_wrong} wrong elements, the worst {found.worst}"
        raise RunError("the results disagree with the float64 reference", found=text)


class _Checker:
    """Compares one rank's buffers with its post-conditions."""

    def __init__(
        self,
        program: Program,
        workload: Workload,
        rank: int,
        held: Mapping[str, Array],
        inputs: Inputs,
        reduce_op: str = "sum",
        kernels: Mapping[str, KernelCall] | None = None,
    ) -> None:
        self.program, self.workload, self.rank, self.held = program, workload, rank, held
        self.inputs, self.reduce_op, self.kernels = inputs, reduce_op, kernels or {}
        self._num_posts = sum(rank in post.ranks for post in program.posts) if program.kernels else 1

    def pieces(self, post: Post) -> Iterator[Agreement]:
        """Compare one post-condition; yield an Agreement for each piece."""
        names = {term.kernel for term in post.terms}
        form = self._form(names.pop()) if len(names) == 1 else None
        found = self._slots(self.held[post.region.buffer], post.region, self.rank)
        if form is None or form.check is None or found.dtype.name not in ROUNDOFF:
            yield from self.every_element(post)
            return
        if self.reduce_op != "sum":
            raise RunError(f"no reference for the {self.reduce_op} of results of kernel '{form.name}'")
        slots = max(SLOTS // (len(post.terms) * self._num_posts), 1)
        agreed = form.check((self._operands(term) for term in post.terms), found, slots, self.rank)
        yield agreed._replace(worst=f"{post.region} on rank {self.rank}: {agreed.worst}")

    def every_element(self, post: Post) -> Iterator[Agreement]:
        found = self._slots(self.held[post.region.buffer], post.region, self.rank).reshape(-1)
        computes = any(term.kernel is not None for term in post.terms)
        expected = self._computed(post, found) if computes else self._moved(post, found)
        for start, values in expected:
            yield self._compare(post, start, found[start : start + len(values[0])], values)

    def _form(self, kernel: str | None) -> KernelForm | None:
        return None if kernel is None else self.workload.form(kernel)

    def _slots(self, array: Array, region: Region, rank: int) -> Array:
        """The slots of a region; a view if they are contiguous."""
        found: Array = array[places(region, self.workload.starts(region.buffer, rank))]
        return found

    def _operands(self, term: Term) -> list[Array]:
        return [self._slots(self.inputs(region.buffer, rank), region, rank) for rank, region in sources(term)]

    def _moved(self, post: Post, found: Array) -> Iterator[tuple[int, Expected]]:
        """Expected results of moved and reduced inputs, block by block."""
        parts = [self._operands(term)[0].reshape(-1) for term in post.terms]
        for part in parts:
            if len(part) != len(found):
                raise RunError(f"the post-condition of {post.region} needs {len(found)} elements, not {len(part)}")
        for start in range(0, len(found), BLOCK):
            yield start, _reduced([part[start : start + BLOCK] for part in parts], self.reduce_op)

    def _computed(self, post: Post, found: Array) -> Iterator[tuple[int, Expected]]:
        """Expected results of kernels, called on float64 inputs; and on absolute values, for magnitudes."""
        dtype, count = found.dtype.name, len(post.terms)
        values, magnitude, partials = (np.zeros(len(found)) for _ in range(3))
        length = 1.0
        for term in post.terms:
            reads = [part.astype(np.float64) for part in self._operands(term)]
            part = self._apply(term, reads, post.region)
            values += part
            partials += np.abs(part)
            magnitude += self._apply(term, [np.abs(read) for read in reads], post.region)
            length = max(length, self._length(term, reads, post.region))
        yield 0, (values, magnitude, _bound(dtype, count, length, magnitude, partials))

    def _apply(self, term: Term, reads: list[Array], region: Region) -> Array:
        if term.kernel is None:
            return reads[0].reshape(-1)
        form = self._form(term.kernel)
        call = self.kernels.get(term.kernel) or (form.call if form else None)
        if call is None:
            raise RunError(f"no kernel '{term.kernel}' to compute a reference with", hint="give the Workload its form")
        result = np.zeros_like(self._slots(self.held[region.buffer], region, self.rank), np.float64)
        call(reads, [result])
        return result.reshape(-1)

    def _length(self, term: Term, reads: list[Array], region: Region) -> float:
        """About how many products each element of a kernel's result sums: by the kernel's work, else by slot size."""
        if term.kernel is None:
            return 1.0
        form = None if term.kernel in self.kernels else self._form(term.kernel)
        if form is None:
            return float(reads[0][:1].size)
        writes = self._operand(self.rank, region)
        flops = form.work([self._operand(*arg) for arg in sources(term)], [writes]).flops
        return flops / 2 / max(writes.elements, 1)

    def _operand(self, rank: int, region: Region) -> Operand:
        slot, starts = self.workload.slots[region.buffer][rank], self.workload.starts(region.buffer, rank)
        size = int(np.prod(slot.shape, dtype=np.int64))
        sizes = None if starts is None else np.diff(starts)[region.slots()]
        return Operand(slot, region.num_slots, size * region.num_slots if sizes is None else int(sizes.sum()))

    def _compare(self, post: Post, start: int, found: Array, expected: Expected) -> Agreement:
        values, magnitude, bound = expected
        with np.errstate(all="ignore"):
            if found.dtype.name in ROUNDOFF:
                error = np.abs(found.astype(np.float64) - values)
            else:
                error = (found != values).astype(np.float64)
            error[np.isnan(error)] = np.inf
            error[found == values] = 0.0  # equal infinities too
            relative = np.where(error > 0, error / magnitude, 0.0)
            tolerance = np.where(magnitude > 0, bound / magnitude, 0.0)
            wrong = error > bound
        if not len(found):
            return Agreement()
        at = int(np.argmax(np.where(wrong, np.inf, relative)))
        text = f"{float(found[at]):.9g} instead of {float(values[at]):.9g} ± {float(bound[at]):.2g}"
        where = self._place(post.region, start + at)
        return Agreement(float(relative.max()), float(tolerance.max()), int(wrong.sum()), f"{where}: {text}")

    def _place(self, region: Region, element: int) -> str:
        """The text that names an element of a region."""
        slots, starts = region.slots(), self.workload.starts(region.buffer, self.rank)
        slot = self.workload.slots[region.buffer][self.rank]
        size = int(np.prod(slot.shape, dtype=np.int64))
        ends = np.cumsum(np.full(len(slots), size) if starts is None else np.diff(starts)[slots])
        place = int(np.searchsorted(ends, element, "right"))
        inside = element - (int(ends[place - 1]) if place else 0)
        return f"{region.buffer}[{slots[place]}], element {inside} of the slot, on rank {self.rank}"


def sources(term: Term) -> list[tuple[int, Region]]:
    """Return the operands of a term. They must be inputs: a term does not contain the size of a kernel's result."""
    regions = [arg for arg in term.args if not isinstance(arg, Term)]
    if len(regions) < len(term.args):
        hint = "compare with the outputs of a reference program"
        raise RunError(f"no reference for results of kernel '{term.kernel}' on computed values", hint=hint)
    return regions


def _reduced(parts: list[Array], reduce_op: str) -> Expected:
    """Reduce parts element by element. Integers wrap around, as in the executors, and must be equal."""
    dtype, count = parts[0].dtype.name, len(parts)
    if dtype not in ROUNDOFF:
        values = _folded(parts, reduce_op)
        return values, np.ones(len(values)), np.zeros(len(values))
    wide = [part.astype(np.float64) for part in parts]
    divisor = count if reduce_op == "avg" else 1
    values = _folded(wide, reduce_op) / divisor
    magnitude = np.abs(values)
    if reduce_op in ("sum", "avg"):
        magnitude = _folded([np.abs(part) for part in wide], "sum") / divisor
    if count == 1 or reduce_op in ("min", "max"):
        return values, magnitude, np.zeros(len(values))
    return values, magnitude, ((1 + ROUNDOFF[dtype]) ** (count + 1) - 1) * magnitude + count * TINIEST[dtype]


def _folded(parts: list[Array], reduce_op: str) -> Array:
    total = parts[0].copy()
    for part in parts[1:]:
        OPS[reduce_op](total, part, out=total)
    return total


def _bound(
    dtype: str, num_terms: int, length: float, magnitude: NDArray[Any], partials: NDArray[Any]
) -> NDArray[np.float64]:
    """The allowed error of each element of a sum of kernels' results.

    A sum of `length` products errs by `length` roundoffs of its magnitude at worst, by about the square root of that
    in practice (10·√length is exceeded with probability under 1e-20; Higham and Mary 2019); half types accumulate in
    float32. Each of `num_terms` terms is then rounded to the dtype and added, each sum rounded too.
    """
    if dtype not in ROUNDOFF:
        return np.zeros(len(magnitude))
    summing = min(ROUNDOFF[dtype], ROUNDOFF["float32"]) * min(length + 1, 10 * sqrt(length))
    rounding = (1 + ROUNDOFF[dtype]) ** num_terms - 1
    bound: NDArray[np.float64] = 2 * summing * magnitude + rounding * partials + num_terms * TINIEST[dtype]
    return bound
