"""One rank of a Program in memory that processes share, without MPI: SEGMENT RANK SIZE ALGORITHM ELEMENTS CALLS.

Prints "ready", waits for a line, makes the calls and prints the last error, or "right".
"""

import sys

import numpy as np

from dovetail import _native
from dovetail.collective import build
from dovetail.core import OperatorError
from dovetail.ir import uneven
from dovetail.run.engine import bind_script

STALL_S = 20.0


def bound(neighbours, program, elements):
    """A script and this rank's arrays: `elements` in each slot."""
    rank, ranks = neighbours.rank, range(program.num_ranks)
    known = {b.name: tuple(np.full(b.slots[r], elements) for r in ranks) for b in program.buffers}
    work = uneven(program, known, "float32")
    arrays = {name: np.zeros(int(sizes[rank].sum()), "float32") for name, sizes in work.sizes.items()}
    return bind_script(neighbours, program, rank, arrays, work), arrays


def main(name, rank, size, algorithm, elements, calls):
    neighbours = _native.Neighbours(_native.Segment.open(name), int(rank), int(size))
    try:
        script, arrays = bound(neighbours, build(algorithm, int(size)), int(elements))
    except OperatorError as error:
        print(f"refused: {error}", flush=True)
        return
    print("ready", flush=True)
    sys.stdin.readline()
    for call in range(int(calls)):
        arrays["input"][...] = float(rank) + call
        failure = script.run(STALL_S, 0)
        if failure:
            print(failure, flush=True)
            return
        total = sum(r + call for r in range(int(size)))
        if "all_reduce" in algorithm and not (arrays["input"] == total).all():
            print(f"call {call} is wrong", flush=True)
            return
    print("right", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
