"""Run by every rank of an MPI: the programs of a pickle, whose outputs rank 0 holds against the reference."""

import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from run_programs import KERNELS, assert_same

from dovetail.run import execute, fresh_inputs
from dovetail.run.engine import allocate_rank, bind, run_engines
from dovetail.run.ranks.library import Shim, build_shim
from dovetail.run.ranks.world import World


def main(path: str) -> None:
    world = World(Shim(build_shim()))
    try:
        for number, (program, workload, options) in enumerate(pickle.loads(Path(path).read_bytes())):
            inputs = whole_numbers(fresh_inputs(program, workload, number))
            arrays = allocate_rank(program, workload, world.rank)
            engine = bind(world.transport, program, world.rank, arrays, KERNELS, workload=workload)
            for how in options:
                run(world, program, workload, inputs, arrays, engine, replace(how, stall_s=120.0), number)
        if world.rank == 0:
            print("all the same")
    except BaseException as error:
        print(f"rank {world.rank}: {type(error).__name__}: {error}", flush=True)
        os._exit(1)
    world.finalize()


def whole_numbers(inputs):
    """So that sums are exact in whatever order a library adds; and without -0, which a library may prefer to 0."""
    return {name: [(np.rint(2 * np.asarray(x, "f8")) + 0.0).astype(x.dtype) for x in xs] for name, xs in inputs.items()}


def run(world, program, workload, inputs, arrays, engine, how, number) -> None:
    fresh = allocate_rank(program, workload, world.rank)
    for name, array in arrays.items():
        array[...] = inputs[name][world.rank] if name in inputs else fresh[name]
    world.barrier()
    with np.errstate(all="ignore"):
        (failure,) = run_engines([engine], how)
    assert not failure, failure
    everyone = world.gather(arrays)
    if world.rank == 0:
        found = {name: [arrays[name] for arrays in everyone] for name in arrays}
        try:
            expected = execute(program, inputs, KERNELS, workload=workload, reduce_op=how.reduce_op).outputs
            assert_same(found, expected)
        except AssertionError as error:
            raise AssertionError(f"program {number}, {how}: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1])
