"""Run random nests as Programs on 1 to 5 ranks of this process: proved, executed, compared with our own evaluation."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import nest_cases as cases
import numpy as np
import pipeline_runs
import stencil_runs
from nest_cases import Case
from nest_fuzz import refused, wanted

from dovetail.call.nest_operators import operator_of
from dovetail.core import DovetailError
from dovetail.ir import Schedule, verify
from dovetail.ir.signature import Signature
from dovetail.run.local import execute_local
from dovetail.stencil.operator import StencilOperator


def cuts_of(ranks: int, axes: int) -> Iterator[tuple[int, ...]]:
    return (cut for cut in itertools.product(range(1, ranks + 1), repeat=axes) if prod(cut) == ranks)


def kind_of_operator(operator: Any) -> str:
    """The family of schedules: "stencil", "pipeline" or "line"."""
    if isinstance(operator, StencilOperator):
        return "stencil"
    return "line" if any(each.__name__ == "BandOperator" for each in type(operator).__mro__) else "pipeline"


def asked(case: Case, kind: str, rng: Random) -> tuple[int, dict[str, Any]]:
    """How many ranks, and what is asked of them."""
    ranks, dims = rng.randint(1, 5), len(case.sizes)
    if kind == "line":
        return ranks, {"depth": rng.randint(1, 4), "grain": rng.randint(1, 12)}
    if kind == "pipeline":
        mapped = rng.randrange(dims)
        cuts = [cut for cut in cuts_of(ranks, dims) if cut[mapped] == 1]
        return ranks, {
            "mapped": mapped,
            "cut": rng.choice(cuts),
            "grain": rng.randint(1, 6),
            "overlapped": rng.random() < 0.5,
        }
    cuts = list(cuts_of(ranks, max(1, dims - 1)))
    how = {"cut": rng.choice(cuts), "depth": rng.choice((0, 0, 1, 2, 3, 4)), "overlapped": rng.random() < 0.4}
    if rng.random() < 0.35:
        how["tile"] = rng.randint(1, 5)
    rows = dict(case.sizes)["n"]
    if how["cut"][0] == ranks and rows >= ranks and rng.random() < 0.2:
        ends = [0, *sorted(rng.sample(range(1, rows), ranks - 1)), rows]
        how["shares"] = tuple(b - a for a, b in itertools.pairwise(ends))
    return ranks, how


def schedule_of(how: dict[str, Any]) -> Schedule:
    words = {"tile": None, "shares": None} if "mapped" not in how and "grain" not in how else {}
    if "overlapped" in how:
        how = how | {"overlapped": how["overlapped"] or None}
    return Schedule.of("any", **(words | how))


def operator_for(case: Case, nest: Any) -> Any:
    grid = "x".join(str(size) for _, size in case.sizes)
    return operator_of(nest)(grid, dtype=case.dtype, **case.parameters)


def native(program: Any, workload: Any, inputs: Any) -> Any:
    return execute_local(program, workload, inputs)[0]


def found_by_rank(operator: Any, kind: str, program: Any, how: Schedule, ranks: int, given: list[np.ndarray]) -> Any:
    """Each rank's results, and where each lies in the whole."""
    if kind == "stencil":
        found = stencil_runs.results(operator, program, how, given, native)
        boxes = stencil_runs.owned(operator, how)
        names = operator.stencil.written
        places = [{name: stencil_place(operator, name, box) for name in names} for box in boxes]
        return found, places
    if kind == "pipeline":
        found = pipeline_runs.results(operator, program, how, given, native)
        cutting = pipeline_runs.cutting(operator, how)
        return found, [{n: cutting.block(n, rank) for n in operator.pipelined.written} for rank in range(ranks)]
    return line_results(operator, program, how, ranks, given)


def stencil_place(operator: Any, name: str, box: Any) -> tuple[slice, ...]:
    places = tuple(slice(*each) for each in box)
    return (slice(None), *places) if operator.stencil.given[name] > 1 else places


def line_results(operator: Any, program: Any, how: Schedule, ranks: int, given: list[np.ndarray]) -> Any:
    arrays = Signature.of(operator, how, ranks)
    blocks = [arrays.blocks(rank) for rank in range(ranks)]
    mine = [[each[block[name]] for name, each in zip(operator.nest.arrays, given, strict=True)] for block in blocks]
    held = [arrays.arguments(rank, each, None)[0] for rank, each in enumerate(mine)]
    inputs = {name: [each[name] for each in held] for name in held[0]}
    outputs = native(program, operator.workload(program, how), inputs)
    found = [arrays.result(rank, {n: a[rank] for n, a in outputs.items()}) for rank in range(ranks)]
    return [each if isinstance(each, tuple) else (each,) for each in found], blocks


def on_ranks(case: Case, folder: Path) -> str | None:
    """None: the Program is proved and gives the bits of the evaluation on every rank. Else the refusal or the fault."""
    given = cases.arguments(case)
    want = wanted(case, given)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            operator = operator_for(case, cases.made(case, folder))
            kind = kind_of_operator(operator)
            ranks, how = asked(case, kind, Random(case.seed))
            schedule = schedule_of(how)
            program = operator.program(schedule, ranks)
            verify(program, against=operator.reference(schedule, ranks)).raise_if_bad()
            found, places = found_by_rank(operator, kind, program, schedule, ranks, given)
    except DovetailError as error:
        return refused(error, case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(want, str):
        return f"not refused, although {want}"
    for rank, (mine, place) in enumerate(zip(found, places, strict=True)):
        for name, have, whole in zip(case.written, mine, want, strict=True):
            if wrong := cases.wrong(have, whole[place[name]]):
                return f"{kind} on ranks: {wrong} of {name} on rank {rank} of {ranks}, {how}"
    return None
