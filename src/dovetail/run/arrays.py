"""arrays: arrays for a Program's buffers: dtypes by name, allocation, poison, random inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import EnvironmentFault, RunError
from dovetail.ir import Program, Region, Slot, Workload, dtype_bytes

PAGE, APART = 4096, 25 * 64  # bytes; multiples of APART are spread over a page

Array = NDArray[Any]
Arrays = Mapping[str, Sequence[Array]]  # buffer -> array of each rank, axis 0 is slots


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype called `name`; bfloat16 comes from ml_dtypes.

    >>> numpy_dtype("float16")
    dtype('float16')
    """
    dtype_bytes(name)  # refuses unknown names
    if name != "bfloat16":
        return np.dtype(name)
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise EnvironmentFault("bfloat16 needs the package ml_dtypes", hint="pip install ml_dtypes") from None
    dtype: np.dtype[Any] = np.dtype(bfloat16)
    return dtype


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is a real floating type, including bfloat16 (unlike numpy's own test)."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def poison(array: Array) -> None:
    """Fill an array with values that no correct run leaves in it: NaN, or the most extreme integer."""
    if is_float(array.dtype) or array.dtype.kind == "c":
        array[...] = np.nan
    elif array.dtype.kind in "iu":
        info = np.iinfo(array.dtype)
        array[...] = info.min if info.min else info.max


def allocate(num_slots: int, slot: Slot) -> Array:
    """Return a poisoned array of `num_slots` slots, shape (num_slots, *slot.shape)."""
    array = np.empty((num_slots, *slot.shape), numpy_dtype(slot.dtype))
    poison(array)
    return array


def allocate_buffer(program: Program, workload: Workload, buffer: str, rank: int) -> Array:
    """Return a poisoned array for a buffer of one rank: slots first, or flat if slots differ in size."""
    array = np.empty(*shape_of(program, workload, buffer, rank))
    poison(array)
    return array


def allocate_apart(shape: tuple[int, ...], dtype: np.dtype[Any], number: int, memory: Array | None = None) -> Array:
    """Return a poisoned array that begins with a cache line, at an offset in its page that depends on `number`: loads
    wait for stores to the same offset of another page. `memory`: bytes to put it in, PAGE more.

    >>> [allocate_apart((4, 9), np.dtype("f4"), number).ctypes.data % PAGE for number in range(4)]
    [0, 1600, 3200, 704]
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(num_bytes + PAGE, np.uint8) if memory is None else memory
    start = (number * APART - memory.ctypes.data) % PAGE
    array: Array = memory[start : start + num_bytes].view(dtype).reshape(shape)
    poison(array)
    return array


def shape_of(program: Program, workload: Workload, buffer: str, rank: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a buffer of one rank."""
    slot = workload_slots(workload, buffer, program.num_ranks)[rank]
    return (workload.length(buffer, rank, program.slots_of(buffer, rank)), *slot.shape), numpy_dtype(slot.dtype)


def fresh_inputs(program: Program, workload: Workload, seed: int) -> dict[str, list[Array]]:
    """Random arrays for the input buffers of every rank; the same seed gives the same bits.

    Signs are mixed, so that slots that were swapped, lost or added twice show (see `run.check`).
    """
    rng = np.random.default_rng(seed)
    inputs: dict[str, list[Array]] = {}
    for buffer in program.buffers:
        if buffer.role == "input":
            slots = workload_slots(workload, buffer.name, program.num_ranks)
            lengths = [workload.length(buffer.name, rank, n) for rank, n in enumerate(buffer.slots)]
            inputs[buffer.name] = [random_slots(rng, n, slot) for n, slot in zip(lengths, slots, strict=True)]
    return inputs


def workload_slots(workload: Workload, buffer: str, num_ranks: int) -> tuple[Slot, ...]:
    """Return the Slot of `buffer` on each rank. Raises RunError, naming what the workload lacks."""
    slots = workload.slots.get(buffer, ())
    if len(slots) != num_ranks:
        raise RunError(
            f"the workload gives buffer '{buffer}' {len(slots)} slot sizes, not one for each of {num_ranks} ranks"
        )
    return slots


def random_slots(rng: np.random.Generator, num_slots: int, slot: Slot) -> Array:
    """Return `num_slots` random slots: floats in (-1, 1), integers in [-8, 8]; from 0 on if
    they have no sign."""
    shape, dtype = (num_slots, *slot.shape), numpy_dtype(slot.dtype)
    if not is_float(dtype):
        return rng.integers(0 if dtype.kind == "u" or not slot.signed else -8, 9, shape).astype(dtype)
    wide = np.float64 if dtype.itemsize == 8 else np.float32
    values = rng.random(shape, wide)
    if slot.signed:
        values *= 2
        values -= 1
    return values.astype(dtype, copy=False)


def places(region: Region, starts: NDArray[np.int64] | None) -> slice | NDArray[np.int64]:
    """Return indices along axis 0 of a region's slots, or of their elements if slots begin at `starts`."""
    if region.blocks == 1:
        ends = (region.offset, region.offset + region.count)
        return slice(*ends) if starts is None else slice(int(starts[ends[0]]), int(starts[ends[1]]))
    return region.slots() if starts is None else elements(region.slots(), starts)


def elements(slots: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return indices of the elements of `slots`, in order, in a flat array whose slot i begins at starts[i].

    >>> elements(np.array([2, 0]), np.array([0, 2, 3, 6])).tolist()
    [3, 4, 5, 0, 1]
    """
    lengths = starts[slots + 1] - starts[slots]
    first = starts[slots] - (np.cumsum(lengths) - lengths)
    return np.repeat(first, lengths) + np.arange(int(lengths.sum()))
