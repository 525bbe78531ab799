"""products: matrix products with a collective on arrays, inside a user's MPI program, by the schedule tuned for them.

Every rank of `comm` (an mpi4py communicator) makes the same call on arrays of its own. The first call on new shapes
costs one small exchange, in which ranks compare their arguments, and looks up what `dovetail tune` found for these
shapes on these ranks; where nothing was tuned, it computes and then communicates, by the library. Later calls on the
same shapes go straight to work.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dovetail.core import DovetailError, WishError
from dovetail.ir import Schedule, Wish, verify
from dovetail.matmul import (
    DTYPES,
    AllGatherMatmul,
    AllToAllMatmul,
    MatmulAllReduce,
    MatmulAllToAll,
    MatmulReduceScatter,
)
from dovetail.plan.kept import kept_schedule
from dovetail.run.arrays import Array
from dovetail.run.embedded import Embedded, ranks_of
from dovetail.run.options import RunOptions
from dovetail.run.world import World

Numbers = list[list[int]]  # of each rank: its shapes, as `_told` has them
MakeWish = Callable[[Numbers, str], Wish]
_bound: dict[tuple[Any, ...], tuple[Wish, Embedded]] = {}


def matmul_all_reduce(a: Array, b: Array, comm: Any, *, out: Array | None = None) -> Array:
    """A·B summed over all ranks, on every rank: `a` (m, k_r), `b` (k_r, n), the result (m, n)."""

    def wish(told: Numbers, dtype: str) -> Wish:
        m, n, depths = _same(told, 0, "rows of A"), _same(told, 3, "columns of B"), tuple(row[1] for row in told)
        return MatmulAllReduce(m, sum(depths), n, dtype, shares=_uneven(depths))

    found: Array = _call("matmul_all_reduce", wish, comm, (a, b), out)
    return found


def all_gather_matmul(
    a: Array, b: Array | Sequence[Array], comm: Any, *, gathered: bool = False, out: Any = None
) -> Any:
    """All ranks' A, joined along rows, times this rank's B: `a` (m_r, k), `b` (k, n_r), the result (m, n_r).

    Several B, of equal shape, give as many results; with `gathered` the joined A comes last.
    """
    several = tuple(b) if isinstance(b, list | tuple) else (b,)

    def wish(told: Numbers, dtype: str) -> Wish:
        k, rows, columns = _same(told, 1, "columns of A"), [row[0] for row in told], [row[3] for row in told]
        about = {"rows": _uneven(rows), "columns": _uneven(columns)}
        return AllGatherMatmul(sum(rows), k, sum(columns), dtype, len(several), gathered, **about)

    return _call("all_gather_matmul", wish, comm, (a, *several), out, gathered)


def matmul_reduce_scatter(a: Array, b: Array, comm: Any, *, out: Array | None = None) -> Array:
    """This rank's rows of A·B summed over all ranks: `a` (m, k_r), `b` (k_r, n); rank r gets its share of the m rows,
    shares differing by at most one."""

    def wish(told: Numbers, dtype: str) -> Wish:
        m, n, depths = _same(told, 0, "rows of A"), _same(told, 3, "columns of B"), tuple(row[1] for row in told)
        return MatmulReduceScatter(m, sum(depths), n, dtype, shares=_uneven(depths))

    found: Array = _call("matmul_reduce_scatter", wish, comm, (a, b), out)
    return found


def all_to_all_matmul(a: Array, counts: Sequence[int], b: Array, comm: Any, *, out: Array | None = None) -> Array:
    """The rows that all ranks have for this one, times this rank's B: of `a`, `counts[r]` rows go to rank r, in this
    order; the result has them in the order of the ranks they came from."""
    return _with_counts("all_to_all_matmul", AllToAllMatmul, a, counts, b, comm, out)


def matmul_all_to_all(a: Array, counts: Sequence[int], b: Array, comm: Any, *, out: Array | None = None) -> Array:
    """Rows of every rank's A·B, sent back: of this rank's product, `counts[r]` rows go to rank r, in this order; the
    result has what came, in the order of the ranks it came from."""
    return _with_counts("matmul_all_to_all", MatmulAllToAll, a, counts, b, comm, out)


def _with_counts(name: str, kind: Any, a: Array, counts: Sequence[int], b: Array, comm: Any, out: Any) -> Array:
    mine = tuple(int(count) for count in counts)

    def wish(told: Numbers, dtype: str) -> Wish:
        k, n, size = _same(told, 1, "columns of A"), _same(told, 3, "columns of B"), len(told)
        everyone = tuple(tuple(row[6 : 6 + size]) for row in told)
        for rank, (row, each) in enumerate(zip(told, everyone, strict=True)):
            if sum(each) != row[0]:
                raise WishError(f"rank {rank} counts {sum(each)} rows", found=f"its A has {row[0]}")
        made: Wish = kind(sum(map(sum, everyone)), k, n, dtype, everyone)
        return made

    found: Array = _call(name, wish, comm, (a, b), out, mine)
    return found


def _call(name: str, wish: MakeWish, comm: Any, given: tuple[Array, ...], out: Any, more: Any = None) -> Any:
    """The call, by the program that is bound for these shapes; on new ones all ranks first agree."""
    world = ranks_of(comm)
    key = (name, world, more, *((each.shape, each.dtype) for each in given if isinstance(each, np.ndarray)))
    found = _bound.get(key)
    if found is None:
        for gone in [old for old in _bound if old[1].freed]:
            del _bound[gone]
        found = _bound[key] = _bind(name, wish, world, given, more)
    asked, embedded = found
    inputs, wanted = asked.arguments(embedded.program, embedded.rank, given, out)
    held = embedded.run_checked(inputs, wanted)
    return asked.result(embedded.program, embedded.rank, held)


def _bind(name: str, wish: MakeWish, world: World, given: Sequence[Array], more: Any) -> tuple[Wish, Embedded]:
    """Ranks tell each other their shapes, make one wish of them, and bind the schedule that rank 0 knows for it."""
    fault = _fault(name, given)
    everyone = world.share(world.gather((fault, _told(given, more), _dtype(given))))
    for rank, (theirs, _, dtype) in enumerate(everyone):
        if theirs:
            raise WishError(f"rank {rank}: {theirs}")
        if dtype != everyone[0][2]:
            raise WishError(f"{name} of {everyone[0][2]} on rank 0, of {dtype} on rank {rank}", hint="one dtype")
    asked = wish([numbers for _, numbers, _ in everyone], everyone[0][2])
    schedule = _schedule(asked, world)
    program = asked.program(schedule, world.size)
    verify(program).raise_if_bad()
    options = RunOptions(progress=schedule.progress, block_rows=schedule.block_rows, blocking=schedule.blocking)
    return asked, Embedded(program, asked.workload(program), options, world)


def _schedule(wish: Wish, world: World) -> Schedule:
    """What rank 0 finds in the cache for this wish, on every rank; else the serial schedule."""
    found, hosts = None, world.gather(_host())
    if world.rank == 0:
        try:
            found = kept_schedule(wish, world.library, hosts)
        except DovetailError as error:
            warnings.warn(f"what was tuned is left aside: {error}", RuntimeWarning, stacklevel=5)
    text = world.share(json.dumps(found.to_json()) if found else "")
    return Schedule.from_json(json.loads(text)) if text else wish.serial(world.size)


def _host() -> str:
    import platform

    return platform.node()


def _fault(name: str, given: Sequence[Any]) -> str:
    """What is wrong with a rank's own arrays, in words; empty where nothing is."""
    for place, each in enumerate(given):
        what = "A" if place == 0 else "B"
        if not isinstance(each, np.ndarray) or each.ndim != 2:
            shape = f"{each.ndim} axes" if isinstance(each, np.ndarray) else type(each).__name__
            return f"{name} takes arrays of two axes, and its {what} has {shape}"
        if each.dtype.name not in DTYPES:
            return f"{name} knows no {each.dtype}: one of {', '.join(DTYPES)}"
        if each.dtype != given[0].dtype:
            return f"its A is {given[0].dtype} and its {what} {each.dtype}"
        if place and each.shape[0] != given[0].shape[1]:
            return f"A of {given[0].shape} and B of {each.shape} do not fit"
        if place > 1 and each.shape != given[1].shape:
            return f"several B have one shape, not {given[1].shape} and {each.shape}"
    return ""


def _told(given: Sequence[Any], more: Any) -> list[int]:
    """Shapes of A and B, how many B there are, and whatever else ranks must agree on, as numbers."""
    shapes = [n for each in given[:2] if isinstance(each, np.ndarray) for n in each.shape][:4]
    counts = list(more) if isinstance(more, tuple) else []
    return [*shapes, *[0] * (4 - len(shapes)), len(given) - 1, int(more is True), *counts]


def _dtype(given: Sequence[Any]) -> str:
    return given[0].dtype.name if isinstance(given[0], np.ndarray) else ""


def _same(told: Numbers, place: int, what: str) -> int:
    """A number that all ranks must give; WishError, on all of them, naming the first that differs."""
    for rank, row in enumerate(told):
        if row[place] != told[0][place]:
            raise WishError(f"rank {rank} has {row[place]} {what}", found=f"rank 0 has {told[0][place]}")
    return told[0][place]


def _uneven(shares: Sequence[int]) -> tuple[int, ...] | None:
    """Shares, None where they are those that an even cut makes."""
    from dovetail.matmul import shard

    held = tuple(shares)
    return None if held == shard(sum(held), len(held)) else held
