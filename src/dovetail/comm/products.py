"""products: matrix products with a collective on arrays, inside a user's MPI program, by the schedule tuned for them.

Every rank of `comm` (an mpi4py communicator) makes the same call on arrays of its own: `all_gather_matmul(a, b, comm)`
and its kin in `dovetail.matmul`; shapes, and what else may be said, are those of the wish of that name. Every call
begins with 8 bytes of each rank for each other, by which all know whether these shapes, of all ranks, are new. If so,
ranks compare their arguments, and look up what `dovetail tune` found for them on these ranks; where nothing was tuned,
it computes and communicates in turn, by the library.
"""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dovetail.core import DovetailError, WishError
from dovetail.ir import Schedule, Wish, verify
from dovetail.matmul import DTYPES, Told
from dovetail.plan.kept import kept_schedule
from dovetail.plan.wishes import wish_class
from dovetail.run.arrays import Array
from dovetail.run.comm import adopted
from dovetail.run.embedded import Embedded
from dovetail.run.options import RunOptions
from dovetail.run.world import World

_bound: dict[tuple[int, bytes], tuple[Wish, Embedded]] = {}  # by communicator, and the hash of every rank's shapes


def product_call(name: str) -> Callable[..., Any]:
    """The call on arrays that carries out the wish of that name."""

    def call(a: Array, b: Array | Sequence[Array], comm: Any, *, out: Any = None, **said: Any) -> Any:
        given = (a, *b) if isinstance(b, list | tuple) else (a, b)
        asked, embedded = look_up(name, comm, given, said)
        inputs, wanted = asked.arguments(embedded.program, embedded.rank, given, out)
        held = embedded.run_checked(inputs, wanted)
        return asked.result(embedded.program, embedded.rank, held)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = wish_class(name).__doc__
    return call


def look_up(name: str, comm: Any, given: Sequence[Any], said: dict[str, Any]) -> tuple[Wish, Embedded]:
    """The wish that these arguments of all ranks make, and its Program on these ranks; made where they are new."""
    more = tuple(sorted((key, _frozen(value)) for key, value in said.items())) if said else ()
    mine = [(each.shape, each.dtype) if isinstance(each, np.ndarray) else None for each in given]
    ranks = adopted(comm)
    key = ranks.bound.key, ranks.gather_number(hash((name, more, *mine)))
    found = _bound.get(key)
    if found is None:
        for gone in [old for old, (_, embedded) in _bound.items() if embedded.world and embedded.world.freed]:
            del _bound[gone]
        found = _bound[key] = _bind(wish_class(name), ranks.world, given, dict(more))
    return found


def _frozen(value: Any) -> Any:
    return tuple(int(each) for each in value) if isinstance(value, list | tuple | np.ndarray) else value


def _bind(kind: Any, world: World, given: Sequence[Any], said: dict[str, Any]) -> tuple[Wish, Embedded]:
    """Ranks tell each other their shapes, make one wish of them, and bind the schedule that rank 0 knows for it."""
    everyone = world.share(world.gather((_fault(kind, given, said), _told(given, said))))
    for rank, (fault, told) in enumerate(everyone):
        if fault:
            raise WishError(f"rank {rank}: {fault}")
        if told.dtype != everyone[0][1].dtype:
            what = f"{kind.name} of {everyone[0][1].dtype} on rank 0, of {told.dtype} on rank {rank}"
            raise WishError(what, hint="arrays of one dtype")
    asked: Wish = kind.of_ranks([told for _, told in everyone])
    schedule = _schedule(asked, world)
    program = asked.program(schedule, world.size)
    verify(program).raise_if_bad()
    options = RunOptions(progress=schedule.progress, block_rows=schedule.block_rows, blocking=schedule.blocking)
    return asked, Embedded(program, asked.workload(program), options, world)


def _schedule(wish: Wish, world: World) -> Schedule:
    """What rank 0 finds in the cache for this wish, on every rank; else the serial schedule."""
    found, hosts = None, world.gather(platform.node())
    if world.rank == 0:
        try:
            found = kept_schedule(wish, world.library, hosts)
        except DovetailError as error:
            warnings.warn(f"what was tuned is left aside: {error}", RuntimeWarning, stacklevel=5)
    text = world.share(json.dumps(found.to_json()) if found else "")
    return Schedule.from_json(json.loads(text)) if text else wish.serial(world.size)


def _fault(kind: Any, given: Sequence[Any], said: dict[str, Any]) -> str:
    """What is wrong with a rank's own arguments, in words; empty where nothing is."""
    for place, each in enumerate(given):
        what = "B" if place else "A"
        if not isinstance(each, np.ndarray) or each.ndim != 2:
            shape = f"{each.ndim} axes" if isinstance(each, np.ndarray) else type(each).__name__
            return f"{kind.name} takes arrays of two axes, and its {what} has {shape}"
        if each.dtype.name not in DTYPES:
            return f"{kind.name} knows no {each.dtype}: one of {', '.join(DTYPES)}"
        if each.dtype != given[0].dtype:
            return f"its A is {given[0].dtype} and its {what} {each.dtype}"
        if place and each.shape[0] != given[0].shape[1]:
            return f"A of {given[0].shape} and B of {each.shape} do not fit"
        if place > 1 and each.shape != given[1].shape:
            return f"several B have one shape, not {given[1].shape} and {each.shape}"
    unknown = sorted(set(said) - set(kind.said))
    return f"{kind.name} has no argument '{unknown[0]}'" if unknown else ""


def _told(given: Sequence[Any], said: dict[str, Any]) -> Told:
    shapes = [each.shape if isinstance(each, np.ndarray) and each.ndim == 2 else (0, 0) for each in given]
    dtype = given[0].dtype.name if isinstance(given[0], np.ndarray) else ""
    return Told(shapes[0], shapes[1] if len(shapes) > 1 else (0, 0), len(given) - 1, dtype, said)
