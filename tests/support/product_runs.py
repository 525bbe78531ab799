"""Products with a collective, run whole by the reference executor and held against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Schedule, verify
from dovetail.ir.signature import Signature
from dovetail.matmul.gather import even_tiles
from dovetail.run import execute, numpy_dtype

Array = NDArray[Any]
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return (2 * rng.random(shape) - 1).astype(numpy_dtype(dtype))


def proved(operator: Any, schedule: Schedule, ranks: int) -> Any:
    """The Program of a schedule, which must hold, and hold what the serial one does."""
    program = operator.program(schedule, ranks)
    verify(program).raise_if_bad()
    return program


def run(operator: Any, schedule: Schedule, ranks: int, given: Sequence[Sequence[Array]], seed: int = 0) -> list[Any]:
    """Each rank's result, from each rank's arguments."""
    program = proved(operator, schedule, ranks)
    arrays = Signature.of(operator, schedule, ranks)
    held = [arrays.arguments(rank, given[rank], None)[0] for rank in range(ranks)]
    inputs = {name: [each[name] for each in held] for name in held[0]}
    outputs = execute(program, inputs, seed=seed, workload=operator.workload(program, schedule)).outputs
    return [arrays.result(rank, {n: each[rank] for n, each in outputs.items()}) for rank in range(ranks)]


def agree(found: Array, exact: Array, dtype: str, depth: int, terms: int = 1) -> None:
    """Every element within its error bound: rounding of `terms` partial results, and of sums of `depth` products."""
    assert found.shape == exact.shape
    assert found.dtype == numpy_dtype(dtype)
    sums = min(ROUNDOFF[dtype], ROUNDOFF["float32"]) * 10 * np.sqrt(max(depth, 1))
    bound = (8 * (terms + 1) * ROUNDOFF[dtype] + sums) * np.sqrt(max(depth, 1)) + 1e-30
    assert np.abs(found.astype(np.float64) - exact).max(initial=0.0) <= bound


def wide(array: Array) -> Array:
    return array.astype(np.float64)


def gathers(operator: Any, ranks: int, ways: Sequence[str]) -> list[Schedule]:
    """Schedules of all shapes of a product whose rows of A travel."""
    longest, found = operator.blocks(ranks).longest, []
    for by, own, fused, steps in product(ways, ("first", "together"), (True, False), (1, 2, ranks)):
        found.append(Schedule.of("any", tiles=even_tiles(longest, steps), by=by, own_block=own, fused=fused))
    for by, own, fused in product(ways, ("first", "together"), (True, False)):
        if operator.k >= ranks > 1 and longest:
            found.append(Schedule.of("any", slices=ranks, by=by, own_block=own, fused=fused))
    return found + in_turn(found)


def in_turn(found: Sequence[Schedule]) -> list[Schedule]:
    """Some of those by messages straight to each rank, to one after the other."""
    return [each.with_parameters(in_turn=True) for each in found if each["by"] == "messages"][1::2]


def scatters(operator: Any, ranks: int, ways: Sequence[str]) -> list[Schedule]:
    """Schedules of all shapes of a product whose results travel."""
    longest, owns = operator.blocks(ranks).longest, ("first", "last", "together")
    found = [
        Schedule.of("any", tiles=even_tiles(longest, steps), by=by, own_block=own, fused=fused)
        for by, own, fused, steps in product(ways, owns, (True, False), (1, 2, ranks))
    ]
    return found + in_turn(found)


def costs(ranks: int, **asked: Any) -> Any:
    """Costs of nothing real: each takes about as long as the other."""
    options = {"by": "auto", "align": 1, "floor": 1, "max_tiles": 3, "rows_per_message": None, "reading": "max"}
    return SimpleNamespace(
        ranks=ranks,
        options=options | {"ficco_threshold_s": 1e-3} | asked,
        work_s=lambda works, rows: rows * 1e-3,
        collective_s=lambda kind, num_bytes: 1e-5 + num_bytes * 1e-5,
        messages_s=lambda operator, schedule: 1e-3 * sum(schedule.tiles),
        least_amount=lambda works: 1.0,
        knows_collective=lambda kind: True,
        knows_messages=lambda: True,
        stretch=lambda schedule: (1.0, 1.0),
        has_one_way_out=lambda: False,
    )


def wrong_in_some(program: Any, change: Callable[[dict[str, Array]], None]) -> Any:
    """The certificate of a program whose columns were tampered with."""
    columns = {name: column.copy() for name, column in program.columns.items()}
    change(columns)
    return verify(program.with_columns(columns))
