"""arrays: the arrays that a user passes to an operator, and how each becomes a buffer of a Program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError
from dovetail.ir.slots import Slot

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Shape = tuple[int, ...]
Box = tuple[slice, ...]
ON_HOST = (1, 3, 11)  # DLPack device types whose memory the CPU can read: CPU, memory pinned by CUDA, and by ROCm
_UNCHANGED = (np.ndarray, np.generic, str, bytes)  # types that `borrowed` returns unchanged
_MAX_WORK = 1 << 16  # `max_work` of np.shares_memory: how long it searches for a shared element


@dataclass(frozen=True)
class ArraySpec:
    """An array that every rank passes to, or gets from, a call of an operator.

    Parameters
    ----------
    buffer : str
        The Program's buffer that holds the array.
    dtype : str
        Type of the elements.
    shapes : tuple of tuple of int
        Shape of each rank's array, as the user holds it.
    within : int
        Number of trailing axes that lie within one slot. The axes before them count slots.
    axis : int
        The axis of the user's array that is the buffer's first axis.
    slots : tuple of tuple of int
        Shape of each rank's buffer, if it does not follow from `shapes`, `within` and `axis`.
    boxes : tuple of tuple of slice
        Where each rank's array lies in the whole array. Empty if the arrays are no parts of a whole.
    label : str
        The array's name in errors. Default: the buffer's name.
    any_shape : bool
        Whether any array with the right number of elements is accepted.
    finish : callable
        Converts the buffer to the result. Such a result cannot be written to `out`.
    """

    buffer: str
    dtype: str
    shapes: tuple[Shape, ...]
    within: int = 1
    axis: int = 0
    slots: tuple[Shape, ...] = ()
    boxes: tuple[Box, ...] = ()
    label: str = ""
    any_shape: bool = False
    finish: Callable[[Array], Array] | None = None

    @staticmethod
    def of_blocks(
        name: str, dtype: str, whole: Shape, boxes: Sequence[Box], *, within: int = 1, axis: int = 0, suffix: str = ""
    ) -> ArraySpec:
        """Return the spec of an array of shape `whole`, of which each rank has the block in its box.

        >>> ArraySpec.of_blocks("u", "float32", (5, 3), [(slice(0, 3),), (slice(3, 5),)]).shapes
        ((3, 3), (2, 3))
        """
        full = [(*box, *[slice(None)] * (len(whole) - len(box))) for box in boxes]
        shapes = tuple(
            tuple(len(range(*side.indices(size))) for side, size in zip(box, whole, strict=True)) for box in full
        )
        return ArraySpec(f"{name}{suffix}", dtype, shapes, within, axis, boxes=tuple(full), label=name)

    @property
    def name(self) -> str:
        return self.label or self.buffer

    @cached_property
    def buffer_shapes(self) -> tuple[Shape, ...]:
        """Shape of each rank's buffer, slots first.

        >>> ArraySpec("B", "float32", ((4, 3),), within=2).buffer_shapes
        ((1, 4, 3),)
        """
        moved = [self._axis_first(rank) for rank in range(len(self.shapes))]
        outer = len(moved[0]) - self.within
        return self.slots or tuple((prod(shape[:outer]), *shape[outer:]) for shape in moved)

    def to_slots(self, array: Array, rank: int) -> Array:
        """Return a rank's array in the shape of its buffer: a view if the strides allow it, else a copy."""
        moved, shape = np.moveaxis(array, self.axis, 0) if self.axis else array, self.buffer_shapes[rank]
        return moved if moved.shape == shape else moved.reshape(shape)

    def from_slots(self, held: Array, rank: int) -> Array:
        """Return a view of a rank's buffer in the shape of the user's array."""
        found = held.reshape(self._axis_first(rank))
        return np.moveaxis(found, 0, self.axis) if self.axis else found

    def _axis_first(self, rank: int) -> Shape:
        shape, axis = self.shapes[rank], self.axis
        return (shape[axis], *shape[:axis], *shape[axis + 1 :]) if axis else shape

    def takes(self, array: Array, rank: int) -> bool:
        """Return whether the shape of a rank's array is valid."""
        shape = self.shapes[rank]
        return array.shape == shape or (self.any_shape and array.size == prod(shape))


def slots_of(specs: Sequence[ArraySpec]) -> dict[str, tuple[Slot, ...]]:
    """Return the Slot of each array's buffer on each rank, for a Workload."""
    return {spec.buffer: tuple(Slot(shape[1:], spec.dtype) for shape in spec.buffer_shapes) for spec in specs}


def borrowed(given: Any, name: str = "an argument") -> Any:
    """Return the array that an object lends without a copy: by the buffer protocol, `__array_interface__`, or DLPack.

    NumPy arrays, and objects without memory to lend (lists, numbers), are returned unchanged. A PyTorch tensor lends
    its memory by DLPack; PyTorch is not imported.

    Raises
    ------
    OperatorError
        If the memory is on a device, or the object refuses to lend it (a bfloat16 tensor does).

    >>> from array import array
    >>> borrowed(array("d", [1.0, 2.0]))
    array([1., 2.])
    """
    if isinstance(given, _UNCHANGED):
        return given
    kind = type(given)
    if hasattr(kind, "__dlpack_device__") and (device := given.__dlpack_device__())[0] not in ON_HOST:
        found = f"{kind.__name__} on DLPack device {int(device[0])}, number {int(device[1])}"
        raise OperatorError(f"{name} is not in the CPU's memory", found=found, hint="pass a copy: x.cpu()")
    if hasattr(kind, "__array_interface__"):
        return np.asarray(given)
    try:
        return np.asarray(memoryview(given))
    except TypeError:
        return _by_dlpack(given, name) if hasattr(kind, "__dlpack__") else given


def _by_dlpack(given: Any, name: str) -> Array:
    """Return the array that an object lends by DLPack. It is writable if DLPack or `__array__` makes it so."""
    try:
        found = np.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        what = f"{name} cannot be taken from {type(given).__name__} without a copy"
        hint = "x.detach() drops gradients; for bfloat16, x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)"
        raise OperatorError(what, found=f"{getattr(given, 'dtype', 'no dtype')}: {error}", hint=hint) from error
    if not found.flags.writeable and hasattr(type(given), "__array__"):  # DLPack < 1.0 cannot mark arrays writable
        other = np.asarray(given)
        if other.__array_interface__ | {"data": None} == found.__array_interface__ | {"data": None}:
            return other if other.ctypes.data == found.ctypes.data else found
    return found


def array_of(given: Any, dtype: str) -> Array:
    """Return a caller's argument as an array: with its own dtype, or with `dtype` if it has none (a list, a number)."""
    given = borrowed(given)
    check_unmasked("an argument", given)
    return np.asarray(given if hasattr(given, "dtype") else np.asarray(given, None if dtype == "bfloat16" else dtype))


def check_plain(name: str, given: Any) -> None:
    """Raise OperatorError if an argument is no NumPy array, is masked, or has bytes in another machine's order."""
    if not isinstance(given, np.ndarray):
        raise OperatorError(f"{name} must be a NumPy array", found=type(given).__name__)
    check_unmasked(name, given)
    if not given.dtype.isnative:
        hint = f"astype('{given.dtype.name}')"
        raise OperatorError(f"{name} has bytes in the order of another machine", found=given.dtype.str, hint=hint)


def check_unmasked(name: str, given: Any) -> None:
    """Raise OperatorError for a masked array, whose mask would be lost."""
    if isinstance(given, np.ma.MaskedArray):
        hint = "pass x.filled(…), or x.data if no element is masked"
        raise OperatorError(f"{name} is a masked array: masked elements would be computed, too", hint=hint)


def check_apart(inputs: Arrays, outs: Arrays) -> None:
    """Raise OperatorError if an array for a result is read-only, or shares elements with itself or another array."""
    for name, each in outs.items():
        if not each.flags.writeable:
            raise OperatorError(f"`out` for {name} is read-only", hint="pass an array that can be written")
        for other, held in inputs.items():
            if _share(each, held):
                raise OperatorError(f"`out` for {name} shares memory with {other}", hint="pass a separate array")
        if any(stride == 0 and size > 1 for stride, size in zip(each.strides, each.shape, strict=True)):
            raise OperatorError(f"`out` for {name} has elements that share memory", hint="pass an array without them")
    for (one, first), (two, second) in combinations(outs.items(), 2):
        if _share(first, second):
            what = f"`out` for {two} shares memory with that for {one}"
            raise OperatorError(what, hint="pass a separate array for each")


def _share(one: Array, other: Array) -> bool:
    """Whether two arrays share an element. True also if NumPy's search gives up."""
    try:
        return np.shares_memory(one, other, max_work=_MAX_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
