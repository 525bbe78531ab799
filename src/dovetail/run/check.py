"""Checking the numbers of a run against a float64 reference, by error bounds that follow from dtype and length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import RunError
from dovetail.ir import Post, Program, Term, Workload
from dovetail.run.arrays import Array, Arrays, workload_slots
from dovetail.run.kernels import KernelCall, builtin_kernels

_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_TINIEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
_BLOCK = 1 << 20  # elements compared at a time


@dataclass(frozen=True)
class Agreement:
    """How outputs compare with the reference.

    `max_rel_error`: the greatest error of an element over its magnitude (for a product, the element of |A|·|B|, so
    that cancellation does not count as error); inf for NaN. `tolerance`: the greatest bound on the same scale.
    `ok`: every element is within its own bound. `worst`: the worst element in words.
    """

    ok: bool
    max_rel_error: float
    tolerance: float
    num_wrong: int
    worst: str

    def raise_if_bad(self) -> None:
        if not self.ok:
            found = f"{self.num_wrong} wrong elements, the worst {self.worst}"
            raise RunError("the results disagree with the float64 reference", found=found)


class Reference:
    """The outputs that a program's post-conditions ask for, computed once in float64 from its inputs.

    A kernel's results must be sums of products of what it reads (as matmul and stencils are): it is called on float64
    arrays, and on absolute values for magnitudes. Integers must agree exactly. `kernels` adds to the built-in ones.

    >>> from dovetail.collective import family
    >>> from dovetail.matmul import MatmulAllReduce, program
    >>> from dovetail.run import execute, fresh_inputs
    >>> wish = MatmulAllReduce(6, 40, 3, "float16")
    >>> summed, workload = program(wish, 2, [2, 4], family("ring")), wish.workload(2)
    >>> inputs = fresh_inputs(summed, workload, seed=1)
    >>> outputs = execute(summed, inputs, workload=workload).outputs
    >>> reference = Reference(summed, workload, inputs)
    >>> reference.compare(outputs).ok
    True
    >>> outputs["C"][1][4, 2] = 0
    >>> reference.compare(outputs).worst.split(":")[0]
    'C[4], element (2,), on rank 1'
    """

    def __init__(
        self, program: Program, workload: Workload, inputs: Arrays, kernels: Mapping[str, KernelCall] | None = None
    ) -> None:
        functions = builtin_kernels() | dict(kernels or {})
        self._asked = [_ask(program, post, workload, inputs, functions) for post in program.posts]

    def compare(self, outputs: Mapping[str, Sequence[Array | None]]) -> Agreement:
        """Compare outputs (buffer -> array of each rank, None for ranks that are not here) with what is asked.

        Slots that no post-condition speaks of are not looked at.
        """
        pieces = [piece for asked in self._asked for piece in _compare(asked, outputs)]
        worst = max(
            pieces, key=lambda piece: (piece.num_wrong > 0, piece.max_rel_error), default=_Piece(0, 0.0, 0.0, "")
        )
        return Agreement(
            ok=all(piece.num_wrong == 0 for piece in pieces),
            max_rel_error=max((piece.max_rel_error for piece in pieces), default=0.0),
            tolerance=max((piece.tolerance for piece in pieces), default=0.0),
            num_wrong=sum(piece.num_wrong for piece in pieces),
            worst=worst.text,
        )


def max_rel_error(outputs: Mapping[str, Sequence[Array | None]], reference: Reference) -> float:
    """The greatest error of any element over its magnitude (see Agreement); inf where something is NaN."""
    return reference.compare(outputs).max_rel_error


@dataclass(frozen=True)
class _Asked:
    """What one post-condition asks: values, magnitudes and error bounds, slots on axis 0."""

    post: Post
    values: NDArray[np.float64]
    magnitude: NDArray[Any]
    bound: NDArray[Any]


class _Piece(NamedTuple):
    """The comparison of some slots of one rank."""

    num_wrong: int
    max_rel_error: float
    tolerance: float
    text: str


def _ask(program: Program, post: Post, workload: Workload, inputs: Arrays, kernels: Mapping[str, KernelCall]) -> _Asked:
    slot = workload_slots(workload, post.region.buffer, program.num_ranks)[post.ranks[0]]
    shape = (post.region.num_slots, *slot.shape)
    coarse = np.float64 if slot.dtype == "float64" else np.float32
    values, magnitude, partials = np.zeros(shape), np.zeros(shape, coarse), np.zeros(shape, coarse)
    length = 1
    for term in post.terms:
        reads = [np.asarray(inputs[r.buffer][rank][r.slots()], dtype=np.float64) for rank, r in term.args]
        part = _apply(term, reads, shape, kernels)
        values += part
        partials += np.abs(part)
        magnitude += _apply(term, [np.abs(read).astype(coarse) for read in reads], shape, kernels)
        length = max(length, prod(reads[0].shape[1:]) if term.kernel else 1)
    return _Asked(post, values, magnitude, _bound(slot.dtype, len(post.terms), length, magnitude, partials))


def _apply(term: Term, reads: list[Array], shape: tuple[int, ...], kernels: Mapping[str, KernelCall]) -> Array:
    if term.kernel is None:
        return reads[0]
    if term.kernel not in kernels:
        raise RunError(f"no kernel '{term.kernel}' to compute a reference with", found=", ".join(sorted(kernels)))
    result = np.empty(shape, reads[0].dtype)
    kernels[term.kernel](reads, [result])
    return result


def _bound(dtype: str, num_terms: int, length: int, magnitude: Array, partials: Array) -> Array:
    """How far each element may be from its true value.

    A sum of `length` products errs by `length` roundoffs of its magnitude at worst, by about the square root of that
    in practice (10·√length is exceeded with probability under 1e-20; Higham and Mary 2019); half types accumulate in
    float32. Each of `num_terms` terms is then rounded to the dtype and added, each sum rounded too.
    """
    if dtype not in _ROUNDOFF:
        return np.zeros_like(magnitude)
    summing = min(_ROUNDOFF[dtype], _ROUNDOFF["float32"]) * min(length + 1, 10 * sqrt(length))
    rounding = (1 + _ROUNDOFF[dtype]) ** num_terms - 1
    bound: Array = 2 * summing * magnitude + rounding * partials + num_terms * _TINIEST[dtype]
    return bound


def _compare(asked: _Asked, outputs: Mapping[str, Sequence[Array | None]]) -> Iterator[_Piece]:
    slots = asked.post.region.slots()
    step = max(_BLOCK // max(prod(asked.values.shape[1:]), 1), 1)
    for rank in asked.post.ranks:
        array = outputs[asked.post.region.buffer][rank]
        if array is not None and asked.values.size:
            for start in range(0, len(slots), step):
                yield _compare_block(asked, array, rank, slots[start : start + step], slice(start, start + step))


def _compare_block(asked: _Asked, array: Array, rank: int, slots: NDArray[np.int64], rows: slice) -> _Piece:
    found = np.asarray(array[slots], dtype=np.float64)
    values, magnitude, bound = asked.values[rows], asked.magnitude[rows], asked.bound[rows]
    with np.errstate(all="ignore"):
        error = np.abs(found - values)
        error[np.isnan(error)] = np.inf
        error[found == values] = 0.0  # equal infinities too
        relative = np.where(error > 0, error / magnitude, 0.0)
        tolerance = np.where(magnitude > 0, bound / magnitude, 0.0)
        wrong = error > bound
    at = np.unravel_index(int(np.argmax(np.where(wrong, np.inf, relative))), error.shape)
    where = f"{asked.post.region.buffer}[{slots[at[0]]}], element {tuple(int(i) for i in at[1:])}, on rank {rank}"
    text = f"{where}: {found[at]:.9g} instead of {values[at]:.9g} ± {bound[at]:.2g}"
    return _Piece(int(wrong.sum()), float(relative.max()), float(tolerance.max()), text)
