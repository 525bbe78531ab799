"""Shapes with which other libraries test their overlapped products, against float64, for 2 to 8 ranks.

Large ones are scaled down, all three sizes by one power of two, until a product takes milliseconds: what is kept is how
their sizes compare, whether ranks divide them, and that they are no multiples of tiles. Sources: PyTorch's
test_symmetric_memory, Transformer Engine, Flux, Triton-distributed, CUTLASS's example 65, MC²'s unit tests, and the
small-M sweep of pytorch/pytorch#179770.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from product_runs import agree, gathers, random, run, scatters, wide
from thorough import some

from dovetail.ir import Schedule
from dovetail.matmul import (
    AllGatherColumnsMatmul,
    AllGatherMatmul,
    AllToAllMatmul,
    MatmulAllReduce,
    MatmulAllToAll,
    MatmulReduceScatter,
    shard,
)
from dovetail.run.arrays import poison

GATHERED = [  # M, N, K
    (512, 16, 32), (1024, 1024, 1024), (4096, 1024, 1024), (1024, 1536, 1536), (256, 128, 64),
    (4096, 49152, 12288), (8192, 11008, 4096), (8192, 14336, 4096), (8192, 28672, 8192), (8192, 53248, 16384),
    (8192, 29568, 8192), (16384, 106496, 16384), (512, 3904, 12288), (2048, 1536, 4096), (327680, 10240, 15360),
    (8192, 12288, 5120), (8192, 0, 5120),
]  # fmt: skip
SUMMED = [
    (512, 16, 1024), (64, 128, 256), (4096, 12288, 49152), (8192, 8192, 29568), (4096, 4096, 12288),
    (8192, 12288, 1536), (16384, 2752, 4096), (8192, 12288, 512), (32, 16384, 7168), (16384, 16384, 7168),
]  # fmt: skip
REDUCED = [
    (64, 256, 256), (32, 5120, 25600), (28000, 7168, 4096), (8192, 12288, 1536), (12290, 12288, 15360),
    (1, 128, 65536), (128, 8192, 1536), (1024, 8192, 1536),
]  # fmt: skip
EXCHANGED = [(8192, 8192, 8192), (8192, 7168, 4096)]
MOST = 1 << 20  # most multiplications (m × k × n) of a scaled product
DTYPES = ("float16", "bfloat16", "float32", "float64")


def scaled(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Halve the sizes until the product is small; sizes other than 0 stay at least 1.

    >>> scaled((4096, 49152, 12288))
    (32, 384, 96)
    """
    m, n, k = shape
    while m * max(n, 1) * k > MOST:
        m, n, k = (max(size // 2, 1) if size else 0 for size in (m, n, k))
    return m, n, k


def odd(array: np.ndarray, how: int) -> np.ndarray:
    """Return the same numbers in another memory layout: unchanged, transposed, every second row, or backwards."""
    if how == 1:
        return np.asfortranarray(array)
    if how == 2:
        wider = np.zeros((2 * array.shape[0] + 1, array.shape[1] + 3), array.dtype)
        poison(wider)
        wider[1 : 2 * len(array) + 1 : 2, 2:-1] = array
        return wider[1 : 2 * len(array) + 1 : 2, 2:-1]
    return array[::-1, ::-1].copy()[::-1, ::-1] if how == 3 else array


def arguments(operator, ranks: int, seed: int):
    """Return each rank's arrays, in various layouts, and the expected results."""
    rng, every = np.random.default_rng(seed), range(ranks)
    if isinstance(operator, AllGatherMatmul | AllGatherColumnsMatmul):
        by_rows = isinstance(operator, AllGatherMatmul)
        shares = shard(operator.m, ranks) if by_rows else operator.heights(ranks)
        a = [random(rng, (share, operator.k) if by_rows else (operator.m, share), operator.dtype) for share in shares]
        b = [
            [random(rng, (operator.k, n), operator.dtype) for _ in range(operator.several)]
            for n in operator.widths(ranks)
        ]
        whole = np.concatenate(a, axis=0 if by_rows else 1)
        exact = [[wide(whole) @ wide(each) for each in b[r]] + [wide(whole)] * operator.gathered for r in every]
        given = [(a[r], *b[r]) for r in every]
    elif isinstance(operator, AllToAllMatmul | MatmulAllToAll):
        counts = operator.blocks(ranks).counts
        given = [
            tuple(random(rng, s, operator.dtype) for s in ((sum(row), operator.k), (operator.k, operator.n)))
            for row in counts
        ]
        cut = [np.split(a, np.cumsum(row)[:-1]) for (a, _), row in zip(given, counts, strict=True)]
        there = isinstance(operator, AllToAllMatmul)
        exact = [[np.concatenate([wide(cut[q][r]) @ wide(given[r if there else q][1]) for q in every])] for r in every]
    else:
        given = [
            (random(rng, (operator.m, k), operator.dtype), random(rng, (k, operator.n), operator.dtype))
            for k in operator.depths(ranks)
        ]
        total = sum((wide(a) @ wide(b) for a, b in given), np.zeros((operator.m, operator.n)))
        ends = np.cumsum(shard(operator.m, ranks))[:-1]
        exact = [
            [part] for part in (np.split(total, ends) if isinstance(operator, MatmulReduceScatter) else [total] * ranks)
        ]
    laid = [tuple(odd(each, (seed + r + i) % 4) for i, each in enumerate(mine)) for r, mine in enumerate(given)]
    return laid, exact


def check(operator, schedule: Schedule, ranks: int, seed: int) -> None:
    given, exact = arguments(operator, ranks, seed)
    for found, want in zip(run(operator, schedule, ranks, given, seed), exact, strict=True):
        results = found if isinstance(found, tuple) else (found,)
        for result, each in zip(results, want, strict=True):
            agree(result, each, operator.dtype, operator.k, terms=2 * ranks)


def schedules(operator, ranks: int) -> list[Schedule]:
    if isinstance(operator, MatmulAllReduce):
        tiles = (
            [(operator.m,), (operator.m - operator.m // 3, operator.m // 3)]
            if operator.m > 2
            else [(operator.m,)]
            if operator.m
            else [()]
        )
        return [Schedule.of("any", tiles=rows, by=by) for rows in tiles for by in ("library", "exchange", "ring")]
    if isinstance(operator, AllGatherColumnsMatmul):
        every = gathers(operator, ranks, ("library", "messages", "ring", "two_rings"))
        return [each for each in every if not each["fused"] and not each.get("slices")]
    if isinstance(operator, AllGatherMatmul):
        return gathers(operator, ranks, ("library", "messages", "ring", "two_rings"))
    if isinstance(operator, AllToAllMatmul):
        return gathers(operator, ranks, ("library", "messages"))
    sums = ("ring", "two_rings") if isinstance(operator, MatmulReduceScatter) else ()
    return scatters(operator, ranks, ("library", "messages", *sums))


def cases() -> Iterator[tuple[type, tuple[int, int, int]]]:
    for kind, shapes in (
        (AllGatherMatmul, GATHERED),
        (AllGatherColumnsMatmul, GATHERED[:6]),
        (MatmulReduceScatter, SUMMED),
        (MatmulAllReduce, REDUCED),
        (AllToAllMatmul, EXCHANGED),
        (MatmulAllToAll, EXCHANGED),
    ):
        yield from ((kind, shape) for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape"), [*cases()], ids=lambda it: "x".join(map(str, it)) if isinstance(it, tuple) else ""
)
def test_published_shapes(kind, shape):
    """Each number of ranks uses another schedule and dtype; each shape is also tested with one more row."""
    m, n, k = scaled(shape)
    for ranks in range(2, 9):
        seed = ranks + m
        operator = kind(m + ranks % 2, k, n, DTYPES[seed % 4])
        every = schedules(operator, ranks)
        check(operator, every[seed % len(every)], ranks, seed)


KINDS = st.sampled_from([AllGatherMatmul, AllGatherColumnsMatmul, MatmulReduceScatter, MatmulAllReduce])


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None)
@given(
    kind=KINDS,
    ranks=st.integers(1, 8),
    sizes=st.tuples(st.integers(0, 25), st.integers(0, 17), st.integers(0, 9)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_any_shape_shares_layout_and_schedule(kind, ranks, sizes, dtype, seed, data):
    operator = kind(*sizes, dtype)
    check(operator, data.draw(st.sampled_from(schedules(operator, ranks))), ranks, seed)


@pytest.mark.slow
@settings(max_examples=some(60), deadline=None)
@given(
    kind=st.sampled_from([AllToAllMatmul, MatmulAllToAll]),
    ranks=st.integers(1, 6),
    sizes=st.tuples(st.integers(0, 17), st.integers(0, 9)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_any_counts_layout_and_schedule(kind, ranks, sizes, dtype, seed, data):
    row = st.lists(st.integers(0, 5), min_size=ranks, max_size=ranks)
    counts = data.draw(st.lists(row, min_size=ranks, max_size=ranks))
    operator = kind(sum(map(sum, counts)), *sizes, dtype, counts)
    check(operator, data.draw(st.sampled_from(schedules(operator, ranks))), ranks, seed)


@pytest.mark.parametrize("kind", [AllGatherMatmul, MatmulReduceScatter, MatmulAllReduce, AllToAllMatmul])
def test_planted_fault_a_small_error_in_one_element_is_seen(kind):
    operator = kind(24, 16, 8, "float32")
    given, exact = arguments(operator, 3, 0)
    (result, *_), want = run(operator, schedules(operator, 3)[0], 3, given, 0), exact[0][0]
    agree(result, want, operator.dtype, operator.k, terms=6)
    result[-1, -1] += 1e-3
    with pytest.raises(AssertionError):
        agree(result, want, operator.dtype, operator.k, terms=6)
