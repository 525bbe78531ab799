"""embedded: run this rank's share of a Program inside the user's own MPI program, one process per rank."""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dovetail import _native
from dovetail.core import OperatorError, RunError
from dovetail.ir import Program, Workload
from dovetail.run.arrays import PAGE, Array, allocate_apart, allocate_buffer, is_float, numpy_dtype, shape_of
from dovetail.run.engine import bind, native_options
from dovetail.run.faults import Door
from dovetail.run.options import Level, RunOptions
from dovetail.run.ranks.comm import world_of
from dovetail.run.ranks.library import Shim, build_shim
from dovetail.run.ranks.together import common, is_common, words_of
from dovetail.run.ranks.world import World
from dovetail.run.shared.arrays import lent_memory, may_stay
from dovetail.run.shared.environment import is_rank
from dovetail.run.shared.world import world

LOCAL_RANKS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "DOVETAIL_LOCAL_RANKS")
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
STALL_S = 600.0  # a rank that is later than this counts as failed


class Embedded:
    """One Program on the ranks of a communicator. Each rank calls it with its own inputs, repeatedly.

    `world`: from `ranks_of`; None only for a Program of one rank, which needs no MPI. Scratch buffers live as long as
    the object. An engine stays bound while calls use the same arrays. `in_order`: see `bind`.
    """

    def __init__(
        self,
        program: Program,
        workload: Workload,
        options: RunOptions,
        world: World | None,
        in_order: bool | None = None,
    ) -> None:
        self.program, self.workload, self.options, self.world = program, workload, options, world
        self._in_order = in_order
        self.rank = self.world.rank if self.world else 0
        if self.world:
            check_size(self.world, program.num_ranks)
            self.options = options.at(self.world.provided)
        self._native_options = native_options(self.options)
        self._hub = _native.LocalHub(1)  # the transport refers to it
        self._transport = self.world.transport if self.world else _native.local_transport(self._hub, 0)
        self._asked = {post.region.buffer for post in program.posts}
        scratch = [buffer.name for buffer in program.buffers if buffer.role == "scratch"]
        self._scratch = self._allocate_scratch({name: shape_of(program, workload, name, self.rank) for name in scratch})
        self._outputs = [buffer.name for buffer in program.buffers if buffer.role == "output"]
        given = [buffer.name for buffer in program.buffers if buffer.role == "input"]
        self._shapes = {name: shape_of(program, workload, name, self.rank) for name in (*given, *self._outputs)}
        self._rows = {buffer.name: row for row, buffer in enumerate(program.buffers)}
        self._bound: tuple[list[int], dict[str, Array], Any] | None = None
        self._ready: tuple[dict[str, Array], ...] | None = None  # the latest result of `bound_to`, while it is bound

    def _allocate_scratch(self, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> dict[str, Array]:
        """Allocate scratch buffers, where other ranks can read them if messages may stay there."""
        ends = [0, *accumulate(math.prod(shape) * dtype.itemsize + PAGE for shape, dtype in shapes.values())]
        lends = self.world and self.world.lends and may_stay(self.program)
        memory = lent_memory(self.world, ends[-1]) if self.world and lends else None
        parts = [None if memory is None else memory[start:end] for start, end in pairwise(ends)]
        places = enumerate(zip(shapes.items(), parts, strict=True))
        return {name: allocate_apart(*about, i, part) for i, ((name, about), part) in places}

    def empty(self, buffer: str) -> Array:
        """Return a new array for a buffer of this rank, slots first."""
        return allocate_buffer(self.program, self.workload, buffer, self.rank)

    def bind(self) -> None:
        """Compile and bind before the first call, so that the call only passes the addresses of its arrays."""
        self._engine({name: np.empty(*about) for name, about in self._shapes.items()})

    def __call__(
        self, inputs: Mapping[str, Array], out: Mapping[str, Array] | None = None, *, allow_nonfinite: bool = False
    ) -> dict[str, Array]:
        """Run on this rank's `inputs` (slots first); every rank must call. Returns the outputs, in `out` if given;
        also inputs, if the Program leaves its results there.

        Shapes, dtypes and finiteness are checked before any transfer. If a rank refuses its arrays, all ranks raise
        OperatorError with its number. Raises RunError if a rank stalls, with what each of its lanes waits for.
        """
        return self.call(lambda: (inputs, out or {}), allow_nonfinite=allow_nonfinite)

    def call(
        self, read: Callable[[], tuple[Mapping[str, Array], Mapping[str, Array]]], *, allow_nonfinite: bool = False
    ) -> dict[str, Array]:
        """Run on the inputs and outputs that `read` returns. An error of any rank is raised on all ranks."""
        if self.world and self.world.freed:
            raise RunError("the communicator was freed", hint="a plan ends with its communicator: run on another one")
        given, results, fault, error = {}, dict[str, Array](), "", None
        with Door(None, self.world.bound if self.world else None):
            try:
                if self.world:
                    self.world.requests.drain()
                inputs, out = read()
                given, results = {name: np.ascontiguousarray(array) for name, array in inputs.items()}, dict(out)
                fault = self.fault(given, results, allow_nonfinite)
                if not fault:
                    results |= {name: self.empty(name) for name in self._outputs if name not in results}
                    self._engine(given | results)
            except BaseException as failure:
                if is_common(failure):
                    raise
                fault, error = words_of(failure), failure
            self.agree(fault, error)
            return self._run(given, results)

    def new_outputs(self) -> dict[str, Array]:
        """Return new arrays for the outputs of this rank, slots first; not poisoned."""
        return {name: np.empty(*self._shapes[name]) for name in self._outputs}

    def bound_to(self, inputs: Mapping[str, Array], out: Mapping[str, Array]) -> tuple[dict[str, Array], ...]:
        """Bind the engine to these arrays, and return those that it uses. Whatever may fail on one rank is here."""
        given = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        results = dict(out) if all(name in out for name in self._outputs) else self.new_outputs() | dict(out)
        self._engine(given | results)
        self._ready = given, results
        return self._ready

    def run_bound(self, held: tuple[dict[str, Array], ...]) -> dict[str, Array]:
        """Run on the result of `bound_to`."""
        given, results = held
        if held is self._ready and self._bound is not None:
            return self._run_engine(self._bound[2], given, results)
        return self._run(given, results)

    def _run(self, given: dict[str, Array], results: dict[str, Array]) -> dict[str, Array]:
        return self._run_engine(self._engine(given | results), given, results)

    def _run_engine(self, engine: Any, given: dict[str, Array], results: dict[str, Array]) -> dict[str, Array]:
        if failure := engine.run(self._native_options):
            self._bound = None  # after a failure the engine cannot run again
            raise RunError(failure if failure.startswith("rank ") else f"rank {self.rank}: {failure}")
        return results | {name: array for name, array in given.items() if name in self._asked}

    def fault(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], allow_nonfinite: bool) -> str:
        """Return a text that tells what is wrong with this rank's arrays; empty if nothing is."""
        roles = {b.name: (b.role, b.slots[self.rank]) for b in self.program.buffers}
        missing = [name for name, (role, _) in roles.items() if role == "input" and name not in inputs]
        if missing:
            return f"no array for '{missing[0]}'"
        for name, array in (*inputs.items(), *outputs.items()):
            if name not in roles:
                return f"the program has no buffer '{name}'"
            slot = self.workload.slots[name][self.rank]
            want = (self.workload.length(name, self.rank, roles[name][1]), *slot.shape)
            if array.shape != want:
                return f"'{name}' has shape {array.shape}, and the plan wants {want}"
            if array.dtype != numpy_dtype(slot.dtype):
                return f"'{name}' is {array.dtype}, and the plan is for {slot.dtype}"
            if name in inputs and not allow_nonfinite and is_float(array.dtype) and not np.isfinite(array).all():
                count = int(np.count_nonzero(~np.isfinite(array)))
                return f"'{name}' holds {count} values that are NaN or infinite (allow_nonfinite=True lets them pass)"
            if name in outputs and not (array.flags.c_contiguous and array.flags.writeable):
                return f"'{name}' must be C-contiguous and writeable"
        return overlap(inputs, outputs)

    def agree(self, fault: str, error: BaseException | None = None) -> None:
        """Continue on all ranks, or raise on all, naming the first rank with a fault.

        On a rank with its own `error`, that is the cause.
        """
        faults = {self.rank: fault} if fault else {}
        if self.world and self.world.sum(np.array([float(bool(fault))]), STALL_S)[0]:
            everyone = self.world.gather(fault)
            faults = self.world.share({rank: text for rank, text in enumerate(everyone) if text})
        if faults:
            rank, text = min(faults.items())
            more = f"{len(faults)} ranks refuse" if len(faults) > 1 else None
            if isinstance(error, KeyboardInterrupt):
                raise common(error)
            raise common(OperatorError(f"rank {rank} cannot run the plan: {text}", found=more)) from error

    def _engine(self, arrays: dict[str, Array]) -> Any:
        """The engine on these arrays: bound once, then given their new addresses, or bound anew if it needs Python."""
        place = _native.addresses(list(arrays.values()))
        if self._bound is not None and self._bound[0] == place:
            return self._bound[2]
        held = arrays | self._scratch
        if self._bound is None or self._bound[2].needs_python:
            order = self._in_order
            engine = bind(self._transport, self.program, self.rank, held, in_order=order, workload=self.workload)
        else:
            engine = self._bound[2]
            for name, address in zip(arrays, place, strict=True):
                engine.rebase(self._rows[name], address)
        self._bound, self._ready = (place, held, engine), None
        return engine


def overlap(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> str:
    """Return a text that names a result which shares memory with an argument or another result; empty if none does.

    >>> whole = np.zeros(8)
    >>> overlap({"A": whole[:4]}, {"C": whole[2:6]}), overlap({"A": whole[:4]}, {"C": whole[4:]})
    ("'C' shares memory with 'A'", '')
    """
    others = dict(inputs)
    for name, array in outputs.items():
        shared = next((other for other, held in others.items() if np.may_share_memory(array, held)), None)
        if shared:
            return f"'{name}' shares memory with '{shared}'"
        others[name] = array
    return ""


def ranks_of(comm: Any = None, *, blas: bool = True, level: Level = "multiple") -> World:
    """Return the ranks of a communicator. Default: all ranks, of `dovetail.world()` if that started them, else of MPI.

    `level`: the thread support to ask MPI for, if it is not initialised.
    """
    if blas:
        _warn_once()
    if comm is None and is_rank():
        comm = world()
    return this_world(level) if comm is None else world_of(comm)


_this: list[World] = []


def this_world(level: Level = "multiple") -> World:
    """Return all ranks of this process's MPI program. Initialises and finalizes MPI unless the program does."""
    if not _this:
        shim = build_shim()
        others = _is_initialized(shim)
        _this.append(World(Shim(shim), level=level))
        if not others:
            atexit.register(_end, _this[0])
    return _this[0]


@cache
def _warn_once() -> None:
    warn_of_threads(os.environ)


def warn_of_threads(environ: Mapping[str, str]) -> None:
    """Warn if several ranks of a host would each use all its cores for BLAS, which is slow.

    >>> warn_of_threads({"MPI_LOCALNRANKS": "2", "OPENBLAS_NUM_THREADS": "1"})
    """
    on_host = next((int(environ[name]) for name in LOCAL_RANKS if environ.get(name, "").isdigit()), 1)
    if on_host > 1 and not any(name in environ for name in BLAS_THREADS):
        cores = max(1, len(os.sched_getaffinity(0)) // on_host)
        text = f"{on_host} ranks of this host each use all its cores for BLAS: set {BLAS_THREADS[0]}={cores}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _is_initialized(shim: Path) -> bool:
    flag = ctypes.c_int()
    ctypes.CDLL(os.fspath(shim), mode=ctypes.RTLD_GLOBAL).MPI_Initialized(ctypes.byref(flag))
    return bool(flag.value)


def _end(world: World) -> None:
    """End MPI with the process. After an uncaught exception end all ranks: the others would wait for this one."""
    if getattr(sys, "last_value", None) is not None:
        sys.stderr.flush()
        time.sleep(0.3)  # so that the launcher forwards the ranks' output before it ends them
        world.abort(1)
    world.finalize()


def check_size(world: World, ranks: int) -> None:
    """Raise OperatorError if a plan is for another number of ranks."""
    if world.size == ranks:
        return
    what = f"the plan is for {ranks} ranks"
    if not world.has_all:
        raise OperatorError(
            what, found=f"the communicator has {world.size}", hint=f"one of {ranks} ranks: comm.Split(…)"
        )
    raise OperatorError(
        what,
        found=f"this program runs on {world.size} ({world.library})",
        hint=f"start {ranks} ranks with the mpiexec of that MPI, or plan for {world.size}",
    )
