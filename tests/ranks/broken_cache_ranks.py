"""Run by every rank: a file of the cache that cannot be used costs each rank a warning, at every door; results are
right."""

import json
import os
import platform
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dovetail as dt
from dovetail.ir import Schedule
from dovetail.loops import problems
from dovetail.run.ranks.embedded import ranks_of
from dovetail.store.selection import Choice, Point, Selection, rows_of, save_selection, selection_item
from dovetail.store.tuned_schedules import save_schedule, schedule_item

COMM = MPI.COMM_WORLD
RANKS = COMM.size
LIBRARY, HOSTS = ranks_of(COMM).library, [platform.node()] * RANKS


def cut(path: Path) -> None:
    """Only half of it was written."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_version(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": "dovetail.store/0"}))


def malformed(path: Path) -> None:
    """An envelope of ours with something else in it."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"document": {"schedule": 7, "facts": [{}]}}))


def foreign(path: Path) -> None:
    """Somebody else's."""
    os.chown(path, 12345, -1)


FAULTS = [cut, of_another_version, malformed, *([foreign] if os.geteuid() == 0 else [])]


def nest(rows: int) -> tuple[Path, Callable[[], bool]]:
    """The tuned schedule of a nest, by the rows of each rank."""
    grid = (rows * RANKS, 7)
    operator = dt.operator_of(problems.jacobi2d)(f"{grid[0]}x{grid[1]}", 4)
    save_schedule(operator, Schedule.of("deep", cut=(RANKS, 1), depth=2), LIBRARY, HOSTS)
    whole = np.random.default_rng(rows).random(grid).astype("f4")

    def right() -> bool:
        here = dt.bind(problems.jacobi2d, COMM, grid, steps=4)
        return np.array_equal(here(whole[here.block]), problems.jacobi2d.reference(whole, steps=4)[here.block])

    return schedule_item(operator, LIBRARY, HOSTS).path, right


def product(rows: int) -> tuple[Path, Callable[[], bool]]:
    """That of a product, called on arrays."""
    operator = dt.MatmulAllReduce(rows, 2 * RANKS, 3)
    save_schedule(operator, operator.serial(RANKS), LIBRARY, HOSTS)
    a, b = np.ones((rows, 2), "f4"), np.ones((2, 3), "f4")
    path = schedule_item(operator, LIBRARY, HOSTS).path
    return path, lambda: np.array_equal(dt.matmul_all_reduce(a, b, COMM), RANKS * (a @ b))


def operator(rows: int) -> tuple[Path, Callable[[], bool]]:
    """That of an operator that is bound."""
    made = dt.AllGatherMatmul(rows * RANKS, 2, 3 * RANKS)
    save_schedule(made, made.serial(RANKS), LIBRARY, HOSTS)
    a, b = np.ones((rows, 2), "f4"), np.ones((2, 3), "f4")
    path = schedule_item(made, LIBRARY, HOSTS).path
    return path, lambda: np.array_equal(dt.bind(made, COMM)(a, b), np.full((rows * RANKS, 3), 2, "f4"))


def selection(_: int) -> tuple[Path, Callable[[], bool]]:
    """The table of collectives."""
    row = rows_of("all_reduce", RANKS, 1, [(Choice("ring_all_reduce"), Point(4096, 1e-5))], "float32")
    save_selection(Selection({}, row), LIBRARY, HOSTS)

    def right() -> bool:
        own = COMM.Dup()
        found = dt.all_reduce(np.ones(1024, "f4"), own)
        own.Free()
        return bool((found == RANKS).all())

    return selection_item(LIBRARY, HOSTS).path, right


def program(rows: int) -> tuple[Path, Callable[[], bool]]:
    """A written Program, of which each rank has a look at the file."""
    grid = (128, rows)
    whole = np.random.default_rng(rows).random(grid).astype("f8")

    def right() -> bool:
        here = dt.bind(problems.jacobi2d, COMM, grid, steps=24, dtype="float64", cut=(RANKS,), depth=8, tile=2)
        return np.array_equal(here(whole[here.block]), problems.jacobi2d.reference(whole, steps=24)[here.block])

    assert right()
    COMM.Barrier()
    return max(Path(os.environ["DOVETAIL_CACHE"]).glob("programs/*"), key=lambda path: path.stat().st_mtime), right


def check(door: Callable[[int], tuple[Path, Callable[[], bool]]]) -> None:
    """Each fault at a door, on sizes of its own: what was bound before must not serve."""
    for number, fault in enumerate(FAULTS if door is not program else [cut, *FAULTS[3:]]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path, right = door(5 + number)
        COMM.Barrier()
        if COMM.rank == 0:
            fault(path)
        COMM.Barrier()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert right(), (door.__name__, fault.__name__)
        ours = [str(each.message) for each in seen if issubclass(each.category, RuntimeWarning)]
        warned = COMM.allgather(len(ours))
        # a rank that comes late finds the Program that another one has written anew
        assert warned == [1] * RANKS or (door is program and sorted(set(warned)) == [0, 1]), (fault.__name__, ours)


if __name__ == "__main__":
    try:
        for each in (nest, product, operator, selection, program):
            check(each)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        COMM.Abort(1)
    if COMM.rank == 0:
        print("all right")
