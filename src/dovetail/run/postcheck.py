"""postcheck: compares what a rank holds with what the post-conditions ask, in float64, for Programs without kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import RunError
from dovetail.ir import Post, Program, Region, Workload
from dovetail.run.arrays import Array

BLOCK = 1 << 20  # elements compared at a time
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
TINIEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
OPS = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
Floats = NDArray[np.float64]
Inputs = Callable[[str, int], Array]  # buffer and rank -> what that rank began with


class Wrong(NamedTuple):
    """Elements beyond their error bound, the greatest error and the greatest bound, both over the magnitude."""

    num_wrong: int
    max_rel_error: float
    tolerance: float


def posts_error(
    program: Program, workload: Workload, rank: int, held: dict[str, Array], inputs: Inputs, reduce_op: str = "sum"
) -> Wrong:
    """Compare every element that a post-condition speaks of on `rank` with what the inputs of all ranks make of it.

    What is only moved, or the least or greatest of some, must be equal to the bit; a sum of n may err by n roundoffs of
    the sum of magnitudes, a product by n roundoffs of itself. NaN is wrong.
    """
    total = Wrong(0, 0.0, 0.0)
    for post in program.posts:
        if rank not in post.ranks:
            continue
        for found, parts in _blocks(workload, post, rank, held, inputs):
            piece = _compare(found, parts, reduce_op)
            total = Wrong(total.num_wrong + piece.num_wrong, *map(max, total[1:], piece[1:]))
    return total


def elements(workload: Workload, region: Region, rank: int, array: Array) -> Array:
    """The elements of a region of an array, flat; a view where its slots lie side by side.

    >>> from dovetail.ir import Slot
    >>> each = Workload({"x": (Slot((2,), "int8"),)}, {})
    >>> elements(each, Region("x", 1, 2), 0, np.arange(8).reshape(4, 2)).tolist()
    [2, 3, 4, 5]
    """
    ends = workload.starts(region.buffer, rank)
    if ends is None:
        rows = array.reshape(len(array), -1)
        one = slice(region.offset, region.offset + region.count)
        return (rows[one] if region.blocks == 1 else rows[region.slots()]).ravel()
    flat, slots = array.ravel(), region.slots()
    if region.blocks == 1:
        return flat[ends[region.offset] : ends[region.offset + region.count]]
    return np.concatenate([flat[:0], *(flat[ends[slot] : ends[slot + 1]] for slot in slots)])


def _blocks(
    workload: Workload, post: Post, rank: int, held: dict[str, Array], inputs: Inputs
) -> Iterator[tuple[Array, list[Array]]]:
    found = elements(workload, post.region, rank, held[post.region.buffer])
    parts = []
    for term in post.terms:
        if term.kernel is not None:
            raise RunError(f"no reference for kernel '{term.kernel}'", hint="check a product by its output's name")
        ((source, region),) = term.args
        parts.append(elements(workload, region, source, inputs(region.buffer, source)))
        if len(parts[-1]) != len(found):
            raise RunError(f"the post-condition of {post.region} asks for {len(found)} elements of {len(parts[-1])}")
    for start in range(0, len(found), BLOCK):
        yield found[start : start + BLOCK], [part[start : start + BLOCK] for part in parts]


def _compare(found: Array, parts: list[Array], reduce_op: str) -> Wrong:
    dtype, count = found.dtype.name, len(parts)
    if dtype not in ROUNDOFF:
        expected = _reduced(parts, reduce_op)
        return Wrong(int(np.count_nonzero(expected != found)), float(np.any(expected != found)), 0.0)
    wide = [part.astype(np.float64) for part in parts]
    expected = _reduced(wide, reduce_op) / (count if reduce_op == "avg" else 1)
    magnitude = np.abs(expected)
    if reduce_op in ("sum", "avg"):
        magnitude = sum((np.abs(part) for part in wide), np.zeros(len(found))) / (count if reduce_op == "avg" else 1)
    exact = count == 1 or reduce_op in ("min", "max")
    roundings = 0.0 if exact else (1 + ROUNDOFF[dtype]) ** (count + 1) - 1
    with np.errstate(all="ignore"):
        error = np.abs(found.astype(np.float64) - expected)
        error[np.isnan(error)] = np.inf
        wrong = error > roundings * magnitude + (not exact) * count * TINIEST[dtype]
        relative = np.where(error > 0, error / magnitude, 0.0)
    return Wrong(int(np.count_nonzero(wrong)), float(relative.max(initial=0.0)), roundings)


def _reduced(parts: list[Array], reduce_op: str) -> Array:
    """The parts reduced element by element; integers wrap, as the executors' do."""
    total = parts[0].copy()
    for part in parts[1:]:
        OPS[reduce_op](total, part, out=total)
    return total
