"""Run by the ranks of an MPI: random nests on blocks of arrays, compared with an evaluation of our own.

PYTHONPATH=tests/support mpiexec -n 5 python tests/ranks/nest_ranks.py --seed 0 --cases 100
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
import warnings
from pathlib import Path
from random import Random
from typing import Any

import nest_cases as cases
import numpy as np
from mpi4py import MPI
from nest_cases import Case
from nest_drawn import drawn
from nest_fuzz import Tally, fault_kind, refused, shown, wanted
from nest_programs import asked, kind_of_operator, operator_for

from dovetail import bind
from dovetail.core import DovetailError

COMM = MPI.COMM_WORLD
LIMIT_S = 300
KINDS = ("stencil",) * 5 + ("pipeline",) * 3 + ("levels",)


def block_of(here: Any, kind: str, name: str, array: np.ndarray, given: int) -> np.ndarray:
    """This rank's part of an array."""
    if kind != "stencil":
        return array[here.blocks[name]]
    return array[(slice(None), *here.block)] if given > 1 else array[here.block]


def on_communicator(case: Case, nest: Any, comm: Any, given: list[np.ndarray]) -> tuple[str, Any, Any]:
    """The kind of operator, the handle and its results, two calls after one another."""
    kind = kind_of_operator(operator_for(case, nest))
    # What is asked is drawn for up to 5 ranks; draw until it is for as many as there are.
    rng = Random(case.seed)
    how: dict[str, Any] = next(how for ranks, how in iter(lambda: asked(case, kind, rng), None) if ranks == comm.size)
    how = {name: value for name, value in how.items() if value is not None}
    grid = [size for _, size in case.sizes]
    here = bind(nest, comm, grid, dtype=case.dtype, **case.parameters, **how)
    specs = zip(case.arrays, given, strict=True)
    mine = [np.ascontiguousarray(block_of(here, kind, spec.name, array, spec.given)) for spec, array in specs]
    found = here(*mine, allow_nonfinite=True)
    return kind, here, here(*mine, allow_nonfinite=True) if case.seed % 2 else found


def run(case: Case, folder: Path, comm: Any, index: int) -> str | None:
    """None, the refusal or the fault, as this rank sees it."""
    given = cases.arguments(case)
    want = wanted(case, given)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            kind, here, found = on_communicator(case, cases.made(case, folder, f"case_{index}"), comm, given)
    except DovetailError as error:
        return refused(error, case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(want, str):
        return f"not refused, although {want}"
    parts = found if isinstance(found, tuple) else (found,)
    for name, have, whole in zip(case.written, parts, want, strict=True):
        if wrong := cases.wrong(have, block_of(here, kind, name, whole, case.spec(name).given)):
            return f"{kind} on ranks: {wrong} of {name} on rank {comm.rank} of {comm.size}"
    return None


def of_all(mine: list[str | None]) -> str | None:
    """What all ranks say together: all agree, all were refused alike, or a fault."""
    if any(fault_kind(each) for each in mine):
        return next(each for each in mine if fault_kind(each))
    if len({each is None for each in mine}) > 1:
        return f"refused on some ranks only: {mine}"
    return mine[0]


def wait_for_all() -> None:
    """A barrier that leaves the cores to those who still compute."""
    barrier = COMM.Ibarrier()
    while not barrier.Test():
        time.sleep(0.001)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    about = parser.parse_args()
    tally, parts = Tally(), {size: COMM.Split(COMM.rank < size, COMM.rank) for size in range(1, COMM.size + 1)}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(about.first, about.first + about.cases):
            rng = Random(f"{about.seed}/{index}/ranks")
            case = drawn(about.seed, index, rng.choice(KINDS))
            size = COMM.size if rng.random() < 0.5 else rng.randint(1, COMM.size)
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            mine = run(case, Path(folder), parts[size], index) if COMM.rank < size else None
            wait_for_all()
            everyone = COMM.gather(mine)
            faulthandler.cancel_dump_traceback_later()
            if COMM.rank == 0:
                tally.add(index, case, of_all(everyone[:size]))
    if COMM.rank == 0:
        print(tally.report())
        print(*(shown(*fault) for fault in tally.faults), sep="\n")
    sys.stdout.flush()
    return bool(COMM.bcast(len(tally.faults)))


if __name__ == "__main__":
    sys.exit(main())
