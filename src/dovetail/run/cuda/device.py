"""device: a CUDA device and its memory. Loads the native module, and looks for the driver, when first used."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core import EnvironmentFault, RunError
from dovetail.ir import Program, Slot, Workload
from dovetail.run.arrays import Array, is_float, poison, random_slots, shape_of, workload_slots
from dovetail.run.cuda.spots import Spot
from dovetail.run.cuda.stream_commands import Homes

ON_HOST, ON_CUDA, PINNED = 1, 2, 3  # kinds of devices, as DLPack numbers them
_CODES = {"i": 0, "u": 1, "f": 2}  # of DLPack; bfloat16 has a separate one
_BFLOAT = 4
MADE_UP_BYTES, MOST_MADE_UP = 64 << 20, 8  # limits of random blocks of each size: bytes in all, number


@cache
def native() -> Any:
    """Return the compiled module for CUDA. Raises EnvironmentFault if Dovetail was built without it."""
    try:
        from dovetail._native import _cuda  # type: ignore[attr-defined]

        return _cuda
    except ImportError as error:
        hint = "install CUDA 12.8 or later (nvcc), then build and install Dovetail again"
        raise EnvironmentFault("Dovetail was built without CUDA", found=str(error), hint=hint) from error


@dataclass
class Gpu:
    """One device, opened. Raises EnvironmentFault if there is no driver, or no such device."""

    index: int = 0
    device: Any = field(init=False, repr=False)
    _blas: Any = field(init=False, default=None, repr=False)
    _made_up: dict[tuple[int, str], list[Any]] = field(init=False, default_factory=dict, repr=False)
    _turns: int = field(init=False, default=0, repr=False)

    def __post_init__(self) -> None:
        self.device = native().open_device(self.index)

    @property
    def blas(self) -> Any:
        """cuBLASLt, opened when first used."""
        if self._blas is None:
            self._blas = native().open_blas(self.device, blas_paths())
        return self._blas

    def facts(self) -> dict[str, Any]:
        """Facts of the device and its driver."""
        return dict(self.device.facts())

    def allocate(self, num_bytes: int, on_host: bool = False) -> Any:
        """Allocate device memory; `on_host`: pinned host memory, which the device's copies reach."""
        return native().allocate(self.device, num_bytes, on_host)

    def make_up(self, num_bytes: int, dtype: str) -> int:
        """Return pinned host memory with random elements, for messages whose contents do not matter. Several blocks of
        each size are used round robin."""
        address, is_new = self._next(num_bytes, dtype)
        if is_new:
            held = np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))
            held[:] = np.resize(_some(dtype), num_bytes)
        return address

    def sink(self, num_bytes: int) -> int:
        """Return pinned host memory for a message that nobody reads; blocks are used as those of `make_up` are."""
        return self._next(num_bytes, "sink")[0]

    def _next(self, num_bytes: int, kind: str) -> tuple[int, bool]:
        """Return the next block's address, and whether it is new: a run that takes such memory anew takes long."""
        places, self._turns = self._made_up.setdefault((num_bytes, kind), []), self._turns + 1
        if is_new := len(places) < min(max(MADE_UP_BYTES // max(num_bytes, 1), 1), MOST_MADE_UP):
            places.append(self.allocate(num_bytes, on_host=True))
        return int(places[-1 if is_new else self._turns % len(places)].address), is_new

    def upload(self, address: int, array: Array) -> None:
        """Copy a contiguous host array to `address`."""
        self.device.copy(address, int(array.ctypes.data), array.nbytes)

    def download(self, array: Array, address: int) -> None:
        """Copy device memory at `address` into a contiguous host array."""
        self.device.copy(int(array.ctypes.data), address, array.nbytes)


def blas_paths() -> list[str]:
    """Return paths where cuBLASLt may be: first in wheels of PyPI, then in the toolkit.

    PyTorch loads the wheels' libraries, and two versions must not be loaded in one process.
    """
    names = ["libcublasLt.so.13", "libcublasLt.so.12"]
    wheels: list[Path] = []
    spec = find_spec("nvidia")
    for root in spec.submodule_search_locations if spec and spec.submodule_search_locations else ():
        wheels += [Path(root) / "cu13" / "lib", Path(root) / "cublas" / "lib"]
    toolkits = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    beside = [Path(found) / "lib64" for found in toolkits if found]

    def found_in(folders: list[Path]) -> list[str]:
        return [str(path) for folder in folders for name in names if (path := folder / name).exists()]

    return [*found_in(wheels), *names, *found_in(beside)]


@dataclass
class DeviceMemory:
    """All ranks' buffers of a program on one device, and further memory of its runs; freed together.

    With `more` devices ranks are distributed round robin: of n devices, rank r is on device r mod n. `given`: arrays on
    the device, by buffer and rank, used in place (`checked`). `lent`: blocks that already have their contents.
    `keep_host`: keeps the runs' host memory alive for later readers.
    """

    gpu: Gpu
    program: Program
    workload: Workload
    given: dict[tuple[str, int], Any] = field(default_factory=dict)
    lent: Mapping[tuple[str, int], Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    more: tuple[Gpu, ...] = ()
    keep_host: list[Any] = field(default_factory=list, repr=False)
    _blocks: list[Any] = field(default_factory=list, repr=False)
    _homes: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)
    _starts: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.ranks = self.ranks or tuple(range(self.program.num_ranks))
        for buffer in self.program.buffers:
            for rank in self.ranks:
                self._keep(buffer.name, rank)

    def _keep(self, name: str, rank: int) -> None:
        shape, dtype = shape_of(self.program, self.workload, name, rank)
        key = (name, rank)
        if key in self.lent:
            self._homes[key] = int(self.lent[key].address)
        elif key in self.given:
            self._homes[key] = checked(self.gpu_of(rank), self.given[key], name, rank, shape, dtype)
        else:
            self._homes[key] = self.take(rank, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        starts = self.workload.starts(name, rank)
        if starts is not None:
            table = np.ascontiguousarray(starts * dtype.itemsize)
            self._starts[key] = self.take(rank, table.nbytes)
            self.gpu_of(rank).upload(self._starts[key], table)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All devices."""
        return self.gpu, *self.more

    def seat_of(self, rank: int) -> int:
        """Return the number of the device that a rank is on."""
        return rank % len(self.gpus)

    def gpu_of(self, rank: int) -> Gpu:
        """Return the device of a rank."""
        return self.gpus[self.seat_of(rank)]

    def take(self, rank: int, num_bytes: int, on_host: bool = False) -> int:
        """Allocate memory on the device of `rank` (or pinned host memory), and return its address."""
        block = self.gpu_of(rank).allocate(num_bytes, on_host)
        (self.keep_host if on_host else self._blocks).append(block)
        return int(block.address)

    def settle(self) -> None:
        """Wait for pending work of other libraries on the given arrays, in those libraries' streams."""
        for gpu in self.gpus if self.given else ():
            gpu.device.synchronize()

    def homes(self) -> Homes:
        """Return the memory's interface for `StreamCommands`."""
        return Homes(self.address, self.starts, self.take, self.take_on_host, self.gpu.make_up, self.gpu.sink)

    def starts(self, rank: int, name: str) -> int:
        """Return the address of the table of a buffer's slots if they differ in size; else 0."""
        return self._starts.get((name, rank), 0)

    def take_on_host(self, num_bytes: int) -> int:
        """Allocate pinned host memory, and return its address."""
        return self.take(0, num_bytes, True)

    def address(self, rank: int, name: str) -> int:
        """Return the address of a buffer."""
        return self._homes[name, rank]

    def put(self, name: str, rank: int, array: Array) -> None:
        """Copy a host array into a buffer."""
        shape, dtype = shape_of(self.program, self.workload, name, rank)
        if array.shape != shape or array.dtype != dtype:
            found = f"{array.dtype}{list(array.shape)}, not {dtype}{list(shape)}"
            raise RunError(f"input buffer '{name}' of rank {rank} has another size or dtype", found=found)
        self.gpu_of(rank).upload(self._homes[name, rank], np.ascontiguousarray(array))

    def poison(self, name: str, rank: int) -> None:
        """Fill a buffer with values that no correct run leaves in it."""
        shape, dtype = shape_of(self.program, self.workload, name, rank)
        if is_float(dtype):  # all bits set are a NaN: no upload is needed
            num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self.gpu_of(rank).device.fill(self._homes[name, rank], 0xFF, num_bytes)
            return
        array = np.empty(shape, dtype)
        poison(array)
        self.gpu_of(rank).upload(self._homes[name, rank], array)

    def fetch(self, name: str, rank: int) -> Array:
        """Copy a buffer to a new host array."""
        array = np.empty(*shape_of(self.program, self.workload, name, rank))
        self.gpu_of(rank).download(array, self._homes[name, rank])
        return array

    def on_device(self, name: str, rank: int) -> DeviceArray:
        """Return a buffer as an array that other libraries take in place by DLPack; it keeps the memory alive."""
        return DeviceArray(self, name, rank)

    def spot(self, rank: int, name: str) -> Spot:
        """Return the Spot of a whole buffer."""
        slot = workload_slots(self.workload, name, self.program.num_ranks)[rank]
        size = self.workload.length(name, rank, self.program.slots_of(name, rank)) * slot.num_bytes
        return Spot.at(self._homes[name, rank], size)


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A buffer on its device, for other libraries: the array API's two methods of DLPack (JAX asks for both)."""

    memory: DeviceMemory = field(repr=False)
    name: str
    rank: int

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's kind and number of the device."""
        return ON_CUDA, self.memory.gpu_of(self.rank).index

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a new capsule, without a version, which keeps the memory alive. No `stream` has to wait: runs have
        ended when they return. Raises BufferError for a copy or another device."""
        kind, index = self.__dlpack_device__()
        if copy or dl_device not in (None, (kind, index)):
            raise BufferError(f"buffer '{self.name}' of rank {self.rank} is used where it lies, on CUDA device {index}")
        shape, dtype = shape_of(self.memory.program, self.memory.workload, self.name, self.rank)
        about = list(shape), *dlpack_type(dtype), index, self.memory
        return native().as_array(self.memory.address(self.rank, self.name), *about)


@cache
def _some(dtype: str) -> Array:
    """Bytes of a few random elements, a prime number of them."""
    return random_slots(np.random.default_rng(0), 65_537, Slot((), dtype)).view(np.uint8)


def dlpack_type(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return DLPack's code and bits of a dtype.

    >>> dlpack_type(np.dtype("float32"))
    (2, 32)
    """
    return (_BFLOAT if dtype.name == "bfloat16" else _CODES[dtype.kind]), 8 * dtype.itemsize


def checked(gpu: Gpu, array: Any, name: str, rank: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the address of a device array. Raises RunError unless it is on this device, C-contiguous, and has the
    buffer's shape and dtype."""
    where = f"the array for buffer '{name}' of rank {rank}"
    try:
        address, kind, index, found, code, bits, in_rows = native().describe(array)
    except TypeError as error:
        raise RunError(f"{where} does not support DLPack", found=type(array).__name__) from error
    if kind != ON_CUDA or index != gpu.index:
        place = (
            f"CUDA device {index}"
            if kind == ON_CUDA
            else "the host"
            if kind in (1, PINNED)
            else f"a device of kind {kind}"
        )
        raise RunError(f"{where} is on another device", found=place, hint=f"move it to CUDA device {gpu.index}")
    if tuple(found) != tuple(shape) or (code, bits) != dlpack_type(dtype):
        text = f"shape {list(found)} of {bits} bits, not {list(shape)} of {dtype}"
        raise RunError(f"{where} has another size or dtype", found=text)
    if not in_rows:
        raise RunError(f"{where} must be C-contiguous", hint="pass its .contiguous(), or a copy in C order")
    return int(address)
