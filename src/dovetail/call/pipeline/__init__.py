"""pipeline: ranks that need one another's results position by position, on the C library in native/call/pipeline."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import EnvironmentFault, OperatorError, RunError, compile_c, find_tool, native_folder
from dovetail.run.mpi.together import of_all, words_of

FOLDER = native_folder("call/pipeline")  # of dovetail_pipeline.h and its sources
Array = NDArray[Any]
Faces = Iterable[tuple[int, Array]]  # (rank, its array: positions first)


class Choice(NamedTuple):
    """How a pass is cut: positions at once, tiles, and how many steps later sends are waited for, 0: at once.

    `waits`: whether a send of this size waits for its receiver on some link; `progresses`: whether it travels while
    ranks compute. Seconds are predicted from what was measured: of this choice, of the best with blocking and with
    overlapped sends, and of one tile a rank. `tried`: trials by which passes have measured this one and
    its neighbours; `measured_s`: its median, 0 before there is one; `settled`: no more are made.
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
    """See `pipeline`. Called, it makes one pass; every rank calls it, as often as it likes."""

    def __init__(
        self, comm: Any, length: int, tile: Callable[[int, int], Any], receives: Faces, sends: Faces, grain: int | None
    ) -> None:
        self._pipeline, fortran = None, comm.py2f()
        self._library = _library_on_all(comm)
        try:
            length, grain = index(length), None if grain is None else _checked_grain(grain)
            faces = [_faces(each, length, what) for each, what in ((receives, "from"), (sends, "to"))]
            self._held = faces  # the arrays live as long
            sides = (*_counted(faces[0][0]), *_counted(faces[1][0]))
            self._tile, self._failure = tile, list[BaseException]()
            self._kernel = _TILE(self._compute)
        except BaseException as error:  # of any kind: the other ranks must be notified, for they would wait
            self._library.dovetail_pipeline_refuse_fortran(fortran, words_of(error).encode())
            if type(error) in (TypeError, ValueError):  # the other ranks raise an OperatorError
                raise OperatorError(f"no pipeline: {words_of(error)}") from error
            raise
        made = self._library.dovetail_pipeline_open_fortran(fortran, length, *sides)
        if not made:
            raise OperatorError(f"no pipeline: {self._library.dovetail_pipeline_error().decode(errors='replace')}")
        self._pipeline = ctypes.c_void_p(made)
        if grain is not None:
            self._library.dovetail_pipeline_fix(self._pipeline, grain, 0)

    def __call__(self) -> None:
        """One pass. What `tile` raises is raised here, after the pass: the others are not kept waiting."""
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
        """Positions at once from now on, the same on every rank; 0 has it chosen again. Sends are waited for at once
        or `overlapped` steps later: 1 or 2.
        """
        self._library.dovetail_pipeline_fix(self._open(), _checked_grain(grain), overlapped)

    @property
    def choice(self) -> Choice:
        """What is done from now on: chosen in the first two passes, then measured by those that follow."""
        found = self._library.dovetail_pipeline_choice(self._open())
        return Choice(*(kind(getattr(found, name)) for (name, _), kind in zip(found._fields_, _KINDS, strict=True)))

    def explain(self) -> str:
        """The choice, and why, in a few sentences."""
        return str(self._library.dovetail_pipeline_explain(self._open()).decode())

    def close(self) -> None:
        """Ends it, on every rank: before MPI ends."""
        if self._pipeline is not None:
            self._library.dovetail_pipeline_close(self._pipeline)
            self._pipeline = None

    def _open(self) -> ctypes.c_void_p:
        if self._pipeline is None:
            raise RunError("this pipeline is closed", hint="make another one")
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
    """A pipeline on the ranks of an mpi4py communicator, all of which call this together.

    Along one axis of the caller's arrays each rank computes positions 0 to length - 1 in order: `tile(low, high)`
    computes those from `low` up to `high`, in place. `receives`: pairs of a rank and the array that its results go to;
    `sends`: of a rank and the array whose contents it needs: views of any strides, of the same number of bytes at both
    ends, positions first. How many positions are computed and sent at once is chosen from measured costs, unless a
    `grain` is given. OperatorError, on every rank, where the faces of some do not fit together.
    """
    return Pipeline(comm, length, tile, receives, sends, grain)


def _library_on_all(comm: Any) -> Any:
    """The C library, once every rank has it; where one cannot compile it, all raise."""
    of_all(comm, lambda: library() and None)
    return library()


def _checked_grain(grain: int) -> int:
    if index(grain) < 0:
        raise OperatorError("a grain is a number of positions", found=str(grain), hint="0 has it chosen")
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
    """The C library, compiled with the mpicc at hand, or found in the cache."""
    mpicc = find_tool("mpicc")
    if mpicc is None:
        what = "no MPI found: there is no mpicc beside this Python or on PATH"
        raise EnvironmentFault(what, hint="pip install 'dovetail[mpi]'")
    sources = sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")])
    found = ctypes.CDLL(os.fspath(compile_c(mpicc, sources, "pipeline", "the pipelines", about="-show")))
    sides = (ctypes.c_void_p, ctypes.c_int)
    found.dovetail_pipeline_open_fortran.argtypes = [ctypes.c_int, ctypes.c_int64, *sides, *sides]
    found.dovetail_pipeline_open_fortran.restype = ctypes.c_void_p
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
    """All faces, and the arrays that they are views of."""
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
    """As few faces as hold all of each position: rows of what lies together."""
    together, axes = array.itemsize, list(range(1, array.ndim))
    while axes and array.strides[axes[-1]] == together:
        together *= array.shape[axes.pop()]
    rows = axes.pop() if axes else None
    count, apart = (array.shape[rows], array.strides[rows]) if rows is not None else (1, 0)
    places = np.ndindex(*(array.shape[axis] for axis in axes))
    strides = [array.strides[axis] for axis in axes]
    starts = (array.ctypes.data + sum(map(int.__mul__, place, strides)) for place in places)
    return [_Face(rank, start, together, array.strides[0], count, apart) for start in starts]
