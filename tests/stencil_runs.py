"""Stencils on ranks, run whole by an executor, and what their nests make of the whole grid."""

from math import prod

import numpy as np

from dovetail.ir import Schedule, verify
from dovetail.run import execute
from dovetail.run.local import execute_local


def schedule(cut, depth=0, overlapped=False, tile=None, shares=None):
    return Schedule.of("any", cut=cut, depth=depth, overlapped=overlapped or None, tile=tile, shares=shares)


def native(program, workload, inputs):
    """Run by threads, kernels compiled."""
    return execute_local(program, workload, inputs)[0]


def arguments(wish, seed=0):
    """Random arrays for the whole grid."""
    rng, found = np.random.default_rng(seed), []
    for name, array in wish.nest.arrays.items():
        given = wish.stencil.given[name]
        shape = (given, *wish.points_by_axis) if given > 1 else wish.points_by_axis
        found.append((rng.random(shape) + 0.5).astype(array.dtype or wish.dtype))
    return found


def part(wish, name, array, box):
    """A rank's block of an array."""
    places = tuple(slice(*each) for each in box)
    return array[(slice(None), *places)] if wish.stencil.given[name] > 1 else array[places]


def owned(wish, schedule):
    """The box of each rank."""
    return wish.decomposition(schedule, prod(schedule["cut"])).owned


def blocks(wish, schedule, given):
    """Each rank's arguments."""
    names = wish.nest.arrays
    return [
        [part(wish, name, array, box) for name, array in zip(names, given, strict=True)]
        for box in owned(wish, schedule)
    ]


def whole(wish, given):
    """The results, by the nest on the whole grid."""
    found = wish.nest.numpy(*given, **({"steps": wish.steps} if wish.nest.parameters else {}))
    return found if isinstance(found, tuple) else (found,)


def check(wish, schedule, seed=0, run=None):
    """A schedule is proved, against the same on one rank, and gives the nest's bits on every rank."""
    ranks = prod(schedule["cut"])
    program = wish.program(schedule, ranks)
    certificate = verify(program, against=wish.plain(schedule, ranks))
    certificate.raise_if_bad()
    given = arguments(wish, seed)
    wanted = whole(wish, given)
    found = results(wish, program, schedule, given, run)
    for rank, box in enumerate(owned(wish, schedule)):
        for name, want, have in zip(wish.stencil.written, wanted, found[rank], strict=True):
            assert np.array_equal(have, part(wish, name, want, box)), (wish.title, str(schedule), rank)
    return program


def results(wish, program, schedule, given, run=None):
    """Each rank's results."""
    mine = blocks(wish, schedule, given)
    held = [wish.arguments(program, rank, each, None)[0] for rank, each in enumerate(mine)]
    inputs = {name: [each[name] for each in held] for name in held[0]}
    workload = wish.workload(program)
    outputs = run(program, workload, inputs) if run else execute(program, inputs, workload=workload).outputs
    found = [wish.result(program, rank, {n: a[rank] for n, a in outputs.items()}) for rank in range(len(mine))]
    return [each if isinstance(each, tuple) else (each,) for each in found]
