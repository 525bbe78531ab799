"""Stencils on ranks, run whole by an executor, and what their nests make of the whole grid."""

from math import prod

import numpy as np

from dovetail.ir import Schedule, verify
from dovetail.ir.signature import Signature
from dovetail.run import execute
from dovetail.run.local import execute_local


def schedule(cut, depth=0, overlapped=False, tile=None, shares=None):
    return Schedule.of("any", cut=cut, depth=depth, overlapped=overlapped or None, tile=tile, shares=shares)


def native(program, workload, inputs):
    """Run by threads, kernels compiled."""
    return execute_local(program, workload, inputs)[0]


def arguments(operator, seed=0):
    """Random arrays for the whole grid."""
    rng, found = np.random.default_rng(seed), []
    for name, array in operator.nest.arrays.items():
        given = operator.stencil.given[name]
        shape = (given, *operator.grid) if given > 1 else operator.grid
        found.append((rng.random(shape) + 0.5).astype(array.dtype or operator.dtype))
    return found


def part(operator, name, array, box):
    """A rank's block of an array."""
    places = tuple(slice(*each) for each in box)
    return array[(slice(None), *places)] if operator.stencil.given[name] > 1 else array[places]


def owned(operator, schedule):
    """The box of each rank."""
    return operator.decomposition(schedule, prod(schedule["cut"])).owned


def blocks(operator, schedule, given):
    """Each rank's arguments."""
    names = operator.nest.arrays
    return [
        [part(operator, name, array, box) for name, array in zip(names, given, strict=True)]
        for box in owned(operator, schedule)
    ]


def whole(operator, given):
    """The results, by the nest on the whole grid."""
    found = operator.nest.numpy(*given, **({"steps": operator.steps} if operator.nest.parameters else {}))
    return found if isinstance(found, tuple) else (found,)


def check(operator, schedule, seed=0, run=None):
    """A schedule is proved, against the same on one rank, and gives the nest's bits on every rank."""
    ranks = prod(schedule["cut"])
    program = operator.program(schedule, ranks)
    certificate = verify(program, against=operator.reference(schedule, ranks))
    certificate.raise_if_bad()
    given = arguments(operator, seed)
    wanted = whole(operator, given)
    found = results(operator, program, schedule, given, run)
    for rank, box in enumerate(owned(operator, schedule)):
        for name, want, have in zip(operator.stencil.written, wanted, found[rank], strict=True):
            assert np.array_equal(have, part(operator, name, want, box)), (operator.title, str(schedule), rank)
    return program


def results(operator, program, schedule, given, run=None):
    """Each rank's results."""
    mine = blocks(operator, schedule, given)
    arrays = Signature.of(operator, schedule, len(mine))
    held = [arrays.arguments(rank, each, None)[0] for rank, each in enumerate(mine)]
    inputs = {name: [each[name] for each in held] for name in held[0]}
    workload = operator.workload(program, schedule)
    outputs = run(program, workload, inputs) if run else execute(program, inputs, workload=workload).outputs
    found = [arrays.result(rank, {n: a[rank] for n, a in outputs.items()}) for rank in range(len(mine))]
    return [each if isinstance(each, tuple) else (each,) for each in found]
