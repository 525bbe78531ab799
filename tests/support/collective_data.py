"""Collectives on real arrays, by their definition: what an algorithm's outputs must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.collective import Spec, spec_of
from dovetail.ir import Program, Slot, Workload
from dovetail.ir.proof.sizes import slot_sizes
from dovetail.run import execute

Array = NDArray[Any]


def counts_of(spec: Spec, rng: np.random.Generator, most: int = 9) -> Any:
    """Elements of a unit: random, uneven for the v-variants, 0 among them."""
    if spec.kind == "all_to_all_v":
        return rng.integers(0, most, (spec.num_ranks, spec.num_ranks)).tolist()
    return rng.integers(0, most, spec.num_ranks).tolist() if spec.kind.endswith("_v") else int(rng.integers(0, most))


def unit(spec: Spec, counts: Any, source: int, target: int) -> int:
    """Elements that rank `source` has for (or rank `target` gets from) the other."""
    if spec.kind == "all_to_all_v":
        return int(counts[source][target])
    if spec.kind.endswith("_v"):
        return int(counts[source if spec.kind == "all_gather_v" else target])
    return int(counts)


def wanted(spec: Spec, counts: Any, inputs: list[Array]) -> list[tuple[int, int, Array]]:
    """What must lie where in the result (out of place the output): rank, first element, elements."""
    n, kind = spec.num_ranks, spec.kind.removesuffix("_v")
    ranks = range(n)
    if kind in ("all_reduce", "reduce"):
        return [(r, 0, sum(inputs)) for r in (ranks if kind == "all_reduce" else [spec.root])]
    if kind == "broadcast":
        return [(r, 0, inputs[spec.root]) for r in ranks]
    if kind == "all_to_next":
        return [(r, 0, inputs[r - 1]) for r in range(1, n)]
    widths = [[unit(spec, counts, s, t) for t in ranks] for s in ranks]
    if kind in ("all_gather", "gather"):
        starts = np.cumsum([0] + [widths[s][0] for s in ranks])
        own = [inputs[s][starts[s] : starts[s + 1]] if spec.in_place else inputs[s] for s in ranks]
        return [(r, 0, np.concatenate(own)) for r in (ranks if kind == "all_gather" else [spec.root])]
    parts = [np.split(inputs[s], np.cumsum(widths[s])[:-1]) if len(inputs[s]) else [inputs[s]] * n for s in ranks]
    if kind == "all_to_all":
        return [(r, 0, np.concatenate([parts[s][r] for s in ranks])) for r in ranks]
    if kind == "scatter":
        return [(r, 0, parts[spec.root][r]) for r in ranks]
    first = [sum(widths[0][:r]) if spec.in_place else 0 for r in ranks]
    return [(r, first[r], sum(parts[s][r] for s in ranks)) for r in ranks]


def check(spec: Spec, program: Program, rng: np.random.Generator) -> None:
    """Run a compiled algorithm on random whole numbers in a random interleaving, and compare."""
    many = [n // m for n, m in zip(program.buffer("input").slots, spec.buffers[0].slots, strict=True) if m]
    emitted = spec_of(spec.kind, spec.num_ranks, chunks=spec.chunks * many[0], in_place=spec.in_place, root=spec.root)
    counts = counts_of(spec, rng)
    known = emitted.sizes(counts)
    sizes = slot_sizes(program, known)
    workload = Workload({b.name: (Slot((), "int64"),) * spec.num_ranks for b in program.buffers}, sizes=sizes)
    inputs = [rng.integers(-99, 99, int(size.sum())) for size in known["input"]]
    outputs = execute(program, {"input": inputs}, seed=int(rng.integers(1 << 30)), workload=workload).outputs
    for rank, first, values in wanted(spec, counts, inputs):
        got = outputs["input" if spec.in_place else "output"][rank][first : first + len(values)]
        np.testing.assert_array_equal(got, values, err_msg=f"{program.name} rank {rank}, counts {counts}")
