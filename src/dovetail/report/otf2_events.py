"""otf2_events: write OTF2 events through the library's C functions.

The Python package needs 10 µs for each event, and OTF2 has no call that takes many events. So events are columns here,
NumPy sorts them, and each is one call through ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import EnvironmentFault

Array = NDArray[Any]
CHUNK = 1 << 15  # events whose arguments are converted to Python numbers at a time
ENTER, DETAIL, LEAVE = 2, 1, 0  # order at equal times: ends before begins
WITH_ATTRIBUTES = "enter_with"  # an `enter` with attributes after its region; those that are 0 are left out
_U8, _U32, _U64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64
_COLLECTIVE = (_U8, _U32, _U32, _U64, _U64)  # operation, communicator, root, bytes sent, bytes received
_CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "enter": ("Enter", (_U32,)),  # region
    "leave": ("Leave", (_U32,)),
    "send": ("MpiSend", (_U32, _U32, _U32, _U64)),  # rank, communicator, tag, bytes
    "recv": ("MpiRecv", (_U32, _U32, _U32, _U64)),
    "collective_begin": ("MpiCollectiveBegin", ()),
    "collective_end": ("MpiCollectiveEnd", _COLLECTIVE),
    "collective_request": ("NonBlockingCollectiveRequest", (_U64,)),  # request
    "collective_complete": ("NonBlockingCollectiveComplete", (*_COLLECTIVE, _U64)),
    "put": ("RmaPut", (_U32, _U32, _U64, _U64)),  # window, rank, bytes, number of the operation
    "get": ("RmaGet", (_U32, _U32, _U64, _U64)),
    "atomic": ("RmaAtomic", (_U32, _U32, _U8, _U64, _U64, _U64)),  # …, type, bytes put, bytes got, number
}


@dataclass(frozen=True)
class Batch:
    """Events of one kind as columns. A location's events are written in the order of `time_ns`, `order`, `place`, then
    of the batches and their rows."""

    kind: str
    location: Array  # row of the archive's locations
    time_ns: Array
    order: int
    args: tuple[Array, ...]  # arguments of the C function after the time
    place: Array | None = None

    def rows(self, at: Array | slice) -> Batch:
        """Return the events in some rows."""
        place = None if self.place is None else self.place[at]
        return Batch(self.kind, self.location[at], self.time_ns[at], self.order, tuple(c[at] for c in self.args), place)


def by_location(batch: Batch, num_locations: int) -> list[Batch]:
    """Return the events of each location."""
    order = np.argsort(batch.location, kind="stable")
    bounds = np.searchsorted(batch.location[order], np.arange(num_locations + 1)).tolist()
    return [batch.rows(order[bounds[i] : bounds[i + 1]]) for i in range(num_locations)]


class EventWriter:
    """Write events into an open archive. `attributes`: rows of the archive's attributes."""

    def __init__(self, archive: Any, attributes: Sequence[int]) -> None:
        self.archive, self.attributes = archive, attributes
        self.library, self.functions = _library()
        self.values = ctypes.c_void_p(self.library.OTF2_AttributeList_New())
        add = self.library.OTF2_AttributeList_AddInt64
        add.argtypes = (ctypes.c_void_p, _U32, ctypes.c_int64)
        self.functions[WITH_ATTRIBUTES] = self._entered

    def close(self) -> None:
        """Free the attribute list."""
        self.library.OTF2_AttributeList_Delete(self.values)

    def _entered(self, writer: int, _: None, time_ns: int, region: int, *values: int) -> int:
        for attribute, value in zip(self.attributes, values, strict=True):
            if value:
                self.library.OTF2_AttributeList_AddInt64(self.values, attribute, value)
        code: int = self.functions["enter"](writer, self.values, time_ns, region)  # also empties the list
        return code

    def write(self, location: Any, batches: Sequence[Batch]) -> None:
        """Write the events of one location (a definition of the archive's)."""
        writer = self.archive.event_writer_from_location(location)
        handle = ctypes.cast(writer.handle, ctypes.c_void_p).value
        kind, number, time_ns = _in_order(batches)
        for begin in range(0, len(kind), CHUNK):
            part = slice(begin, begin + CHUNK)
            self._write(handle, batches, kind[part], number[part], time_ns[part])
        if len(kind):  # the package's own methods keep these records, too
            self.archive._update_timestamps(int(time_ns[0]))
            self.archive._update_timestamps(int(time_ns[-1]))
            location._number_of_events_written += len(kind)

    def _write(self, handle: Any, batches: Sequence[Batch], kind: Array, number: Array, time_ns: Array) -> None:
        calls = [self.functions[batch.kind] for batch in batches]
        args = [_arguments(batch, number[kind == i]) for i, batch in enumerate(batches)]
        for i, at in zip(kind.tolist(), time_ns.tolist(), strict=True):
            if calls[i](handle, None, at, *next(args[i])):
                raise EnvironmentFault("OTF2 cannot write an event", found=f"{batches[i].kind} at {at} ns")


def _in_order(batches: Sequence[Batch]) -> tuple[Array, Array, Array]:
    """Return the batch, the row and the time of all events, in the order of writing."""
    sizes = [len(batch.time_ns) for batch in batches]
    zero = [np.zeros(size, "i8") for size in sizes]
    kind = np.repeat(np.arange(len(batches), dtype="u1"), sizes)
    number = np.concatenate([np.arange(size, dtype="i4") for size in sizes])
    time_ns = np.concatenate([batch.time_ns for batch in batches])
    order = np.repeat(np.array([batch.order for batch in batches], "i1"), sizes)
    places = (none if b.place is None else b.place for b, none in zip(batches, zero, strict=True))
    at = np.lexsort((np.concatenate([*places]), order, time_ns))
    return kind[at], number[at], time_ns[at]


def _arguments(batch: Batch, rows: Array) -> Iterator[tuple[int, ...]]:
    """Return the arguments of some events as Python numbers."""
    if not batch.args:
        return iter([()] * len(rows))
    return zip(*(column[rows].tolist() for column in batch.args), strict=True)


_ERROR = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, _U64, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p),
    ctypes.c_void_p,  # the message's arguments, a va_list
)


@contextmanager
def library_errors() -> Iterator[list[str]]:
    """Collect the errors that the C library reports meanwhile, as its calls that close files return none."""
    library, _ = _library()
    library.OTF2_Error_GetDescription.restype = ctypes.c_char_p
    library.OTF2_Error_RegisterCallback.restype = ctypes.c_void_p
    library.OTF2_Error_RegisterCallback.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    found: list[str] = []

    def take(_user: Any, _file: Any, _line: Any, _function: Any, code: int, _form: Any, _values: Any) -> int:
        found.append(library.OTF2_Error_GetDescription(code).decode(errors="replace"))
        return code

    callback = _ERROR(take)
    before = library.OTF2_Error_RegisterCallback(ctypes.cast(callback, ctypes.c_void_p), None)
    try:
        yield found
    finally:
        library.OTF2_Error_RegisterCallback(before, None)


def _library() -> tuple[Any, dict[str, Callable[..., int]]]:
    """Return the C library of the package `otf2`, and its functions that write events. The handle is separate from the
    package's, which declares other argument types."""
    try:
        from _otf2.Config import conf

        library = ctypes.CDLL(conf.lib._name)
        functions: dict[str, Any] = {
            kind: getattr(library, f"OTF2_EvtWriter_{name}") for kind, (name, _) in _CALLS.items()
        }
    except (ImportError, AttributeError, OSError) as error:
        hint = "pip install 'otf2>=3,<4'"
        raise EnvironmentFault("this version of the package otf2 is unknown", found=str(error), hint=hint) from error
    for kind, (_, types) in _CALLS.items():
        functions[kind].argtypes = (ctypes.c_void_p, ctypes.c_void_p, _U64, *types)
    library.OTF2_AttributeList_New.restype = ctypes.c_void_p
    return library, functions
