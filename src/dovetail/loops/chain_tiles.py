"""What a tile of a chain computes: its kernels' reference, and how whole arrays are cut for ranks and put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import KernelForm, Operand, Work, Workload
from dovetail.loops.chains import Chains, kernel_name, linked
from dovetail.loops.matrices import Vector

Array = NDArray[Any]
Compute = Callable[[Array], None]
"""Computes the points of a tile in place. Its array has the mapped loop first; in each loop as many points before the
tile's own as dependences reach."""


def workload(chains: Chains, compute: Compute, dtype: str, key: str = "tile") -> Workload:
    """Slots and kernels of the Programs of chains."""
    forms = {}
    for rank in range(chains.num_ranks):
        comes, goes = (tuple(f for f, _ in linked(chains, rank, way)) for way in (-1, 1))
        name = kernel_name(comes, goes)
        call = partial(_call, chains, compute, comes, goes)
        forms[name] = KernelForm(name, call, partial(_work, key))
    slots = chains.slots(dtype)
    return Workload(slots | _plain_slots(chains, slots), tuple(forms.values()))


def _plain_slots(chains: Chains, slots: dict[str, Any]) -> dict[str, Any]:
    """Those of the plain program: the parts of all ranks on rank 0."""
    found = {}
    for rank in range(chains.num_ranks):
        for name in ("given", "made"):
            found[f"{name}{rank}"] = (slots[name][rank],) * chains.num_ranks
        for name in (name for name in slots if name.startswith("to_")):
            found[f"{name}_of{rank}"] = (slots[name][rank],) * chains.num_ranks
    return found


def _call(
    chains: Chains,
    compute: Compute,
    comes: Sequence[Vector],
    goes: Sequence[Vector],
    reads: Sequence[Array],
    writes: Sequence[Array],
) -> None:
    """What is given of a tile, with the positions before it and the faces that came; computed; results and faces."""
    own, rest = reads[0], list(reads[1:])
    before = rest.pop(0) if chains.back else own[:0]
    work = np.concatenate([before, own])
    for offset, face in zip(comes, rest, strict=True):
        sides = (slice(0, reach) if on else slice(reach, None) for on, reach in zip(offset, chains.reach, strict=True))
        work[(slice(chains.back, None), *sides)] = face
    compute(work)
    made = work[chains.back :]
    writes[0][...] = made
    for offset, face in zip(goes, writes[1:], strict=True):
        last = zip(offset, chains.reach, made.shape[1:], strict=True)
        face[...] = made[(slice(None), *(slice(n - reach if on else reach, None) for on, reach, n in last))]


def _work(key: str, reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
    """Points, on the curve of this kernel for so many points of each position."""
    across = writes[0].elements // max(writes[0].slots, 1)
    num_bytes = sum(operand.slots * operand.slot.num_bytes for operand in (*reads, *writes))
    return Work(f"{key}:{across}:{writes[0].slot.dtype}", writes[0].slots, float(writes[0].elements), num_bytes)


def given(chains: Chains, whole: Array, rank: int) -> Array:
    """A rank's part of an array that has, in each loop, as many points before the first as dependences reach."""
    first = np.moveaxis(whole, chains.axis, 0)
    sides = zip(chains.box(rank), chains.reach, strict=True)
    return np.ascontiguousarray(first[(slice(None), *(slice(low, high + reach) for (low, high), reach in sides))])


def joined(chains: Chains, made: Sequence[Array]) -> Array:
    """All points that were computed, from every rank's part."""
    found = np.empty((chains.length, *chains.across), made[0].dtype)
    for rank, part in enumerate(made):
        own = part[(slice(None), *(slice(reach, None) for reach in chains.reach))]
        found[(slice(None), *(slice(low, high) for low, high in chains.box(rank)))] = own
    return np.moveaxis(found, 0, chains.axis)
