"""arrays: NumPy arrays in memory that all ranks of a host map: other ranks read them without copying them first."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dovetail import _native
from dovetail.core import EnvironmentFault, OperatorError
from dovetail.ir import RECVS, Kind, Program, is_one_of
from dovetail.run.arrays import Array
from dovetail.run.ranks.comm import adopted
from dovetail.run.ranks.library import SharedCalls
from dovetail.run.ranks.together import common, of_all
from dovetail.run.ranks.world import World
from dovetail.run.shared.world import world


def empty(shape: int | Sequence[int], dtype: DTypeLike = float, comm: Any = None) -> Array:
    """Return a new array of zeros in memory that all ranks of `comm` map.

    In calls on `comm`, another rank reads a long message straight from where it lies in such an array: it is not copied
    into shared memory and out of it. The memory is given back when the last array on it is dropped.

    Parameters
    ----------
    shape : int or tuple of int
        Of this rank's array. It may differ between ranks.
    dtype : str or NumPy dtype
        Of its elements, which have a fixed size.
    comm : communicator, optional
        Of mpi4py, its ranks on one host; or of `dovetail.world()`, which is the default. All of its ranks call this
        together.

    Raises
    ------
    OperatorError
        On every rank, if one gives an invalid shape or dtype, or `comm` is not a communicator.
    EnvironmentFault
        On every rank, if ranks are on several hosts, or cannot share memory.
    """
    comm = world() if comm is None else comm
    ours = adopted(comm)
    lengths = of_all(comm, lambda: _num_bytes(shape, dtype))
    if len(hosts := set(ours.hosts)) > 1:
        found, hint = f"ranks are on {len(hosts)} hosts", "plain arrays, which every call takes"
        raise common(EnvironmentFault("only ranks of one host share arrays", found=found, hint=hint))
    region = _native.Region.of(_memory(comm, _native.Region.num_bytes(lengths)), ours.rank, lengths)
    if isinstance(ours.calls, SharedCalls):
        region.lend(ours.bound.address)
    if ours.bound.neighbours is not None:
        region.add_to(ours.bound.neighbours)
    made: Array = region.part(ours.rank).view(dtype).reshape(shape)
    return made


def share(array: Any, comm: Any = None) -> Array:
    """Return a copy of `array` in memory that all ranks of `comm` map: see `empty`. All ranks call this together."""
    given = np.asarray(array)
    made = empty(given.shape, given.dtype, comm)
    made[...] = given
    return made


def _num_bytes(shape: Any, dtype: Any) -> int:
    try:
        kind = np.dtype(dtype)
        sides: list[int] = np.atleast_1d(np.asarray(shape, np.int64)).tolist()
    except (TypeError, ValueError, OverflowError) as error:
        raise OperatorError("no array with this shape and dtype can be shared", found=str(error)) from error
    if kind.hasobject or not kind.itemsize or any(side < 0 for side in sides):
        raise OperatorError("no array with this shape and dtype can be shared", found=f"shape {shape}, dtype {kind}")
    num_bytes: int = prod(sides) * kind.itemsize
    return num_bytes


def may_stay(program: Program) -> bool:
    """Return whether a message of the program may stay with its sender until it has been read.

    It may if it is part of a collective, if it is added to what its receiver has, or if it lands in scratch memory that
    nothing else writes. Otherwise plain memory is better: the kernel maps long arrays in huge pages there.

    >>> from dovetail.ir.shapes import ring_all_reduce
    >>> may_stay(ring_all_reduce(2, 1))
    True
    """
    columns = program.columns
    if is_one_of(columns["kind"], {Kind.collective, *RECVS} - {Kind.recv, Kind.recv_copy_send}).any():
        return True
    kind, written = np.repeat(columns["kind"], np.diff(columns["write_start"])), columns["write_buffer"]
    scratch = {row for row, buffer in enumerate(program.buffers) if buffer.role == "scratch"}
    return bool(scratch & set(written[kind == Kind.recv].tolist()) - set(written[kind != Kind.recv].tolist()))


def lent_memory(world: World, num_bytes: int) -> Array | None:
    """Return `num_bytes` of this rank, which the other ranks of `world` read where they lie. Collective.

    None on all ranks where messages do not lie there, or where there is no such memory.
    """
    lengths = world.allgather(num_bytes) if world.lends else []
    if not any(lengths):
        return None
    try:
        memory = _memory(world, _native.Region.num_bytes(lengths))
    except EnvironmentFault:
        return None
    region = _native.Region.of(memory, world.rank, lengths)
    world.lend(region)
    made: Array = region.part(world.rank)
    return made


def _memory(ranks: Any, num_bytes: int) -> _native.Segment:
    """Return memory that all ranks have mapped: without a name, or if that fails, with one until all have mapped it."""
    faults: list[str] = []
    for named in (False, True):
        memory, name, fault = None, "", ""
        try:
            if ranks.rank == 0:
                memory = _native.Segment.make(num_bytes, named)
                name = memory.name
        except RuntimeError as error:
            fault = str(error)
        name = ranks.allgather(name)[0]
        try:
            memory = _native.Segment.open(name) if name and ranks.rank else memory
        except RuntimeError as error:
            fault = str(error)
        faults = [f"rank {rank}: {text}" for rank, text in enumerate(ranks.allgather(fault)) if text]
        if memory is not None:
            memory.hide()
        if memory is not None and not faults:
            return memory
    raise common(EnvironmentFault(f"the ranks cannot share {num_bytes} bytes", found="; ".join(faults)))
