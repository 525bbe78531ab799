"""Programs for the tests of the executors: random ones with kernels that NumPy computes exactly alike everywhere."""

from __future__ import annotations

import ir_programs
import numpy as np

from dovetail.ir import Program, Slot, Work, Workload

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")


class Maker(ir_programs.Maker):
    """Without puts and gets, which the native executors do not have."""

    def put(self) -> None:
        self.message()

    def get(self) -> None:
        self.message()


def workload_of(program: Program, shape: tuple[int, ...], dtype: str) -> Workload:
    """One slot for all buffers."""
    slots = {buffer.name: (Slot(shape, dtype),) * program.num_ranks for buffer in program.buffers}
    return Workload(slots, {k.name: (Work(k.name, 0.0),) * program.num_ranks for k in program.kernels})


def _f(reads, writes):
    writes[0][...] = reads[0] + reads[0]


def _g(reads, writes):
    writes[0][...] = 1
    for slot in reads[1]:
        writes[0][...] += slot
    writes[0][...] += reads[0]


def _h(reads, writes):
    writes[0][...] = 3
    for slot in reads[0]:
        writes[0][...] += slot


def _s(reads, writes):
    writes[0][...] = reads[0]
    writes[0][...] -= reads[1]


KERNELS = {"f": _f, "g": _g, "h": _h, "s": _s}


def assert_same(found, expected) -> None:
    """Equal to the bit, but for the bits of NaN."""
    assert found.keys() >= expected.keys()
    for name, parts in expected.items():
        for rank, (mine, theirs) in enumerate(zip(found[name], parts, strict=True)):
            assert mine.dtype == theirs.dtype
            words = f"u{mine.dtype.itemsize}"
            same = mine.view(words) == theirs.view(words)
            assert np.all(same | ((mine != mine) & (theirs != theirs))), f"{name} of rank {rank}: {mine} {theirs}"
