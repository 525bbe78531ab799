"""Pipelines on ranks, run whole by an executor, and what their nests make of the whole grid."""

from math import prod

import numpy as np

from dovetail.ir import Schedule, verify
from dovetail.ir.signature import Signature
from dovetail.run import execute
from dovetail.run.local import execute_local


def schedule(cut, mapped, grain, overlapped=False):
    return Schedule.of("any", cut=cut, mapped=mapped, grain=grain, overlapped=overlapped or None)


def native(program, workload, inputs):
    """Run by threads, kernels compiled."""
    return execute_local(program, workload, inputs)[0]


def arguments(operator, seed=0):
    """Random arrays for the whole grid."""
    rng, found = np.random.default_rng(seed), []
    for spec in operator.inputs(operator.serial(1), 1):
        shape, dtype = spec.shapes[0], spec.dtype
        whole = np.dtype(dtype).kind in "iu"
        found.append((rng.integers(0, 4, shape) if whole else rng.random(shape) + 0.5).astype(dtype))
    return found


def whole(operator, given):
    """The results, by the nest on the whole grid: the function itself, element by element."""
    found = operator.nest.reference(*given, **({"steps": operator.steps} if operator.nest.parameters else {}))
    return found if isinstance(found, tuple) else (found,)


def cutting(operator, schedule):
    return operator.cutting(schedule["cut"], schedule["mapped"])


def blocks(operator, schedule, given):
    """Each rank's arguments."""
    how, names = cutting(operator, schedule), operator.nest.arrays
    pairs = list(zip(names, given, strict=True))
    return [[array[how.block(name, rank)] for name, array in pairs] for rank in range(how.num_parts)]


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


def check(operator, schedule, seed=0, run=None, exact=True):
    """A schedule is proved, against the same on one rank, and gives the nest's bits on every rank."""
    ranks = prod(schedule["cut"])
    program = operator.program(schedule, ranks)
    verify(program, against=operator.reference(schedule, ranks)).raise_if_bad()
    given = arguments(operator, seed)
    wanted, how = whole(operator, given), cutting(operator, schedule)
    found = results(operator, program, schedule, given, run)
    for rank in range(ranks):
        for name, want, have in zip(operator.pipelined.written, wanted, found[rank], strict=True):
            assert np.array_equal(have, want[how.block(name, rank)], equal_nan=True), (
                operator.title,
                str(schedule),
                rank,
            )
    return program
