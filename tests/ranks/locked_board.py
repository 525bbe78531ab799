"""Run by two ranks without MPI: one is killed while it has locked the board, and the other one names it."""

import ctypes
import os
import signal

import numpy as np

import dovetail as dt
from dovetail import _native
from dovetail.core import OperatorError, RunError
from dovetail.run.ranks.comm import adopted

HOLDER = 128  # where Board::Head has it, at the start of the memory that `adopted` opens
comm, held, opened = dt.world(), [], _native.Segment.open


class Segment:
    make = _native.Segment.make

    @staticmethod
    def open(name):
        held.append(opened(name))
        return opened(name)


_native.Segment = Segment
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # with it the launcher ends the ranks that are left
dt.all_reduce(np.ones(3), comm)
bound = adopted(comm).bound
assert bound.has_board
if comm.rank == 1:
    ctypes.c_uint32.from_address(held[-1].address + HOLDER).value = comm.rank + 1
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dt.all_reduce(np.ones(3), comm, op="no such")
except OperatorError:
    print("its own error", flush=True)
try:
    while True:  # the other rank may still be about to lock the board
        bound.fault()
except RunError as error:
    print(error, flush=True)
