"""pipeline: ranks that need one another's results position by position (on the C library of native/call/pipeline)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import EnvironmentFault, OperatorError, RunError, compile_c, find_tool, native_folder
from dovetail.run.ranks.together import of_all, words_of
from dovetail.run.shared.world import Comm

FOLDER = native_folder("call/pipeline")  # of dovetail_pipeline.h and its sources
Array = NDArray[Any]
Faces = Iterable[tuple[int, Array]]  # (rank, its array: positions first)


class Choice(NamedTuple):
    """How a pass is cut into tiles, and the predicted and measured seconds of a pass.

    Attributes
    ----------
    grain, tiles : int
        Positions per tile, and tiles per pass.
    overlapped : int
        How many tiles later a send is waited for; 0: at once (blocking).
    waits : bool
        Whether a send of this size waits for its receiver on some link (rendezvous).
    progresses : bool
        Whether a message of this size travels while ranks compute.
    tried : int
        Trials so far: passes have measured this grain and its neighbours.
    settled : bool
        Whether no further trials follow.
    predicted_s, blocking_s, overlapped_s, serial_s : float
        Predicted seconds per pass: of this choice, of the best grain with blocking sends, of the best grain with
        overlapped sends, and of one tile per rank.
    measured_s : float
        Median of the measured passes by this choice; 0 before the first.
    """

    grain: int
    tiles: int
    overlapped: int
    waits: bool
    progresses: bool
    tried: int
    settled: bool
    predicted_s: float
    blocking_s: float
    overlapped_s: float
    serial_s: float
    measured_s: float


class Pipeline:
    """A pipeline on ranks, made by `pipeline`. A call makes one pass; every rank makes the same number of calls."""

    def __init__(
        self, comm: Any, length: int, tile: Callable[[int, int], Any], receives: Faces, sends: Faces, grain: int | None
    ) -> None:
        if isinstance(comm, Comm):
            hint = "from mpi4py import MPI; MPI.COMM_WORLD, under mpiexec"
            raise OperatorError("a pipeline needs an mpi4py communicator", found="dovetail.world()", hint=hint)
        self._pipeline, fortran = None, comm.py2f()
        self._library = _library_on_all(comm)
        try:
            length, grain = index(length), None if grain is None else _checked_grain(grain)
            faces = [_faces(each, length, what) for each, what in ((receives, "from"), (sends, "to"))]
            self._held = faces  # keeps the arrays alive
            sides = (*_counted(faces[0][0]), *_counted(faces[1][0]))
            self._tile, self._failure = tile, list[BaseException]()
            self._kernel = _TILE(self._compute)
        except BaseException as error:  # of any kind: the other ranks wait until they are notified
            self._library.dovetail_pipeline_refuse_fortran(fortran, words_of(error).encode())
            if type(error) in (TypeError, ValueError):  # the other ranks raise an OperatorError
                raise OperatorError(f"no pipeline: {words_of(error)}") from error
            raise
        made = self._library.dovetail_pipeline_open_fixed_fortran(fortran, length, grain or 0, *sides)
        if not made:
            raise OperatorError(f"no pipeline: {self._library.dovetail_pipeline_error().decode(errors='replace')}")
        self._pipeline = ctypes.c_void_p(made)

    def __call__(self) -> None:
        """Make one pass. An error of `tile` is raised after the pass, so that other ranks do not wait for messages."""
        code = self._library.dovetail_pipeline_run(self._open(), self._kernel, None)
        if self._failure:
            raise self._failure.pop()
        if code:
            raise RunError(f"MPI failed in a pipeline with code {code}")

    def _compute(self, _: Any, low: int, high: int) -> None:
        if self._failure:
            return
        try:
            self._tile(low, high)
        except BaseException as error:
            self._failure.append(error)

    def fix(self, grain: int, *, overlapped: int = 0) -> None:
        """Fix the grain of later passes. Every rank calls it.

        Parameters
        ----------
        grain : int
            Positions per tile; 0: the library chooses and measures again.
        overlapped : int
            How many tiles later a send is waited for: 0 (blocking), 1 or 2.

        Raises
        ------
        OperatorError
            On every rank, if the ranks give different numbers, or a negative grain.
        """
        self._open()
        try:
            asked = _checked_grain(grain), index(overlapped)
        except BaseException:
            with suppress(OperatorError):  # the other ranks wait until they are notified
                self._fix(-1, 0)
            raise
        self._fix(*asked)

    def _fix(self, grain: int, overlapped: int) -> None:
        if self._library.dovetail_pipeline_fix(self._open(), grain, overlapped):
            why = self._library.dovetail_pipeline_error().decode(errors="replace")
            raise OperatorError(f"no grain fixed: {why}", hint="the same numbers on every rank, at least 0")

    @property
    def choice(self) -> Choice:
        """Return the choice for later passes. The first two passes choose it; later passes measure and refine it."""
        found = self._library.dovetail_pipeline_choice(self._open())
        return Choice(*(kind(getattr(found, name)) for (name, _), kind in zip(found._fields_, _KINDS, strict=True)))

    def explain(self) -> str:
        """Return the choice and its reasons, in a few sentences."""
        return str(self._library.dovetail_pipeline_explain(self._open()).decode())

    def close(self) -> None:
        """Free the pipeline; every rank calls it before MPI_Finalize."""
        if self._pipeline is not None:
            self._library.dovetail_pipeline_close(self._pipeline)
            self._pipeline = None

    def _open(self) -> ctypes.c_void_p:
        if self._pipeline is None:
            raise RunError("this pipeline is closed", hint="make a new one with dovetail.call.pipeline.pipeline(…)")
        return self._pipeline


def pipeline(
    comm: Any,
    length: int,
    tile: Callable[[int, int], Any],
    *,
    receives: Faces = (),
    sends: Faces = (),
    grain: int | None = None,
) -> Pipeline:
    """Make a pipeline on the ranks of an mpi4py communicator; all ranks call it together.

    Each rank computes positions 0 to `length` - 1, in order, along one axis of the caller's arrays. Before a tile it
    receives the neighbours' results for the tile's positions; after it, it sends its own.

    Parameters
    ----------
    comm : mpi4py communicator
    length : int
        Positions on each rank.
    tile : callable
        `tile(low, high)` computes positions `low` to `high` - 1 in place.
    receives : iterable of (int, array)
        A source rank, and the array (or view with any strides; first axis: positions) that its results are written to.
    sends : iterable of (int, array)
        A destination rank, and the array that it needs. Both ends of a message have the same number of bytes.
    grain : int, optional
        Positions per tile. Default: chosen from measured costs.

    Raises
    ------
    OperatorError
        On every rank, if arguments are invalid, or a send and its receive do not fit together.
    """
    return Pipeline(comm, length, tile, receives, sends, grain)


def _library_on_all(comm: Any) -> Any:
    """Return the C library once every rank has loaded it; all ranks raise if one cannot compile it."""
    of_all(comm, lambda: library() and None)
    return library()


def _checked_grain(grain: int) -> int:
    if index(grain) < 0:
        raise OperatorError("a grain is a number of positions, at least 0", found=str(grain), hint="0: chosen by cost")
    return index(grain)


class _Face(ctypes.Structure):
    _fields_ = [
        *(("peer", ctypes.c_int), ("first", ctypes.c_void_p), ("bytes", ctypes.c_size_t)),
        *(("stride", ctypes.c_ssize_t), ("rows", ctypes.c_int64), ("apart", ctypes.c_ssize_t)),
    ]


class _Choice(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("grain", "tiles")),
        *((name, ctypes.c_int) for name in ("overlapped", "waits", "progresses", "tried", "settled")),
        *((name, ctypes.c_double) for name in ("predicted_s", "blocking_s", "overlapped_s", "serial_s", "measured_s")),
    ]


_KINDS: tuple[type, ...] = (int, int, int, bool, bool, int, bool, float, float, float, float, float)
_TILE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@lru_cache(maxsize=1)
def library() -> Any:
    """Load the C library; compile it with mpicc unless it is in the cache. Raise EnvironmentFault without mpicc."""
    mpicc = find_tool("mpicc")
    if mpicc is None:
        what = "no MPI found: there is no mpicc beside this Python or on PATH"
        raise EnvironmentFault(what, hint="pip install 'dovetail[mpi]'")
    sources = sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")])
    found = ctypes.CDLL(os.fspath(compile_c(mpicc, sources, "pipeline", "the pipelines", about="-show")))
    sides = (ctypes.c_void_p, ctypes.c_int)
    found.dovetail_pipeline_open_fixed_fortran.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, *sides, *sides]
    found.dovetail_pipeline_open_fixed_fortran.restype = ctypes.c_void_p
    found.dovetail_pipeline_refuse_fortran.argtypes = [ctypes.c_int, ctypes.c_char_p]
    found.dovetail_pipeline_refuse_fortran.restype = None
    found.dovetail_pipeline_run.argtypes = [ctypes.c_void_p, _TILE, ctypes.c_void_p]
    found.dovetail_pipeline_fix.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    found.dovetail_pipeline_close.argtypes, found.dovetail_pipeline_close.restype = [ctypes.c_void_p], None
    found.dovetail_pipeline_choice.argtypes = found.dovetail_pipeline_explain.argtypes = [ctypes.c_void_p]
    found.dovetail_pipeline_choice.restype = _Choice
    found.dovetail_pipeline_explain.restype = found.dovetail_pipeline_error.restype = ctypes.c_char_p
    return found


def _counted(faces: list[_Face]) -> tuple[Any, int]:
    return (_Face * len(faces))(*faces), len(faces)


def _faces(sides: Faces, length: int, what: str) -> tuple[list[_Face], list[Array]]:
    """Return the faces of all arrays, and the arrays, which must stay alive."""
    found, held = list[_Face](), list[Array]()
    for rank, array in sides:
        if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) < length:
            shape = getattr(array, "shape", type(array).__name__)
            hint = "give a view of it whose first axis is that of the positions"
            raise OperatorError(
                f"the array {what} rank {rank} has fewer than {length} positions", found=str(shape), hint=hint
            )
        if what == "from" and not array.flags.writeable:
            raise OperatorError(f"the array from rank {rank} is read-only")
        found += _of_array(rank, array)
        held.append(array)
    return found, held


def _of_array(rank: int, array: Array) -> list[_Face]:
    """Return the fewest faces (strided rows of contiguous bytes) that cover all elements of every position."""
    together, axes = array.itemsize, list(range(1, array.ndim))
    while axes and array.strides[axes[-1]] == together:
        together *= array.shape[axes.pop()]
    rows = axes.pop() if axes else None
    count, apart = (array.shape[rows], array.strides[rows]) if rows is not None else (1, 0)
    places = np.ndindex(*(array.shape[axis] for axis in axes))
    strides = [array.strides[axis] for axis in axes]
    starts = (array.ctypes.data + sum(map(int.__mul__, place, strides)) for place in places)
    return [_Face(rank, start, together, array.strides[0], count, apart) for start in starts]
