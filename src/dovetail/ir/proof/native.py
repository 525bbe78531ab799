"""native: pass a Program to the C++ verifier as flat arrays, and return its findings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir.collectives import OP_COLLECTIVES
from dovetail.ir.posts import COLUMNS, Posts
from dovetail.ir.program import Program
from dovetail.ir.proof.symbolic import result_buffers
from dovetail.ir.types import Buffer

Array = NDArray[Any]
MODES = ("all", "each", "sum", "each_sum")  # numbered as in native/ir/program.hpp


def judge(program: Program, post_sets: Sequence[Posts], reference: Program | None = None) -> dict[str, Any]:
    """Verify a program in C++. Return the `Verdict` of native/ir/verify.hpp as a dictionary.

    The program must pass check_columns and posts_fault. `post_sets`: the program's own post-conditions first, then sets
    to be judged separately; if empty, neither races nor results are checked. `reference`: a correct program to compare
    results with. Every call draws a new key for its hashes. Raises ProgramError without
    memory for it.
    """
    from dovetail._native import verify  # here, so that importing dovetail.ir needs nothing compiled

    names: dict[str, int] = {}
    buffers = [*program.buffers, *(b for b in (reference or program).buffers if b not in program.buffers)]
    tables = _tables(program, buffers, names) | _post_tables(program, post_sets or [Posts.of(())])
    other = None if reference is None else (_columns(reference, buffers), _tables(reference, buffers, names))
    columns = _columns(program, buffers)
    try:
        verdict: dict[str, Any] = verify(columns, tables, program.num_ranks, len(post_sets), *_keys(), other)
    except MemoryError:
        raise _too_large(program) from None
    return verdict


def _too_large(program: Program) -> ProgramError:
    largest = max(program.buffers, key=lambda buffer: sum(buffer.slots))
    found = f"buffer '{largest.name}' has {sum(largest.slots)} slots"
    what = f"program '{program.name}' is too large for this machine's memory"
    return ProgramError(what, found=found, hint="cut buffers into fewer slots")


def holding(program: Program, post_sets: Sequence[Posts]) -> list[bool]:
    """Whether each set of post-conditions holds. The program's verdict must have a result."""
    from dovetail._native import ask

    tables = _tables(program, program.buffers, {}) | _post_tables(program, post_sets)
    columns = _columns(program, program.buffers)
    return [wrong is None for wrong in ask(columns, tables, program.num_ranks, len(post_sets), *_keys())]


def compiled_library() -> Path:
    """Return the file of the compiled verifier."""
    from dovetail._native import _core

    return Path(_core.__file__)


def _keys() -> tuple[int, int]:
    return int.from_bytes(os.urandom(8)), int.from_bytes(os.urandom(8))


def _columns(program: Program, buffers: Sequence[Buffer]) -> dict[str, Array]:
    """Return the program's columns, with buffers renumbered by their index in `buffers`."""
    columns = {name: np.ascontiguousarray(column) for name, column in program.columns.items()}
    if [*program.buffers] == [*buffers[: len(program.buffers)]]:
        return columns
    rows = np.array([buffers.index(buffer) for buffer in program.buffers], "i4")
    return columns | {name: rows[columns[name]] for name in ("read_buffer", "write_buffer") if len(columns[name])}


def _tables(program: Program, buffers: Sequence[Buffer], names: dict[str, int]) -> dict[str, Any]:
    """Return all tables except the post-conditions. `names`: number of each kernel name; new names are added to it."""
    numbers = {kind: number for number, kind in enumerate(OP_COLLECTIVES)}
    channels, kernels, collectives = program.channel_table(), program.kernels, program.collectives
    results = result_buffers(program)
    return {
        "num_lanes": len(program.lanes),
        "buffer_slots": _array("i8", (n for b in buffers for n in b.slots)),
        "buffer_is_input": _array("u1", (b.role == "input" for b in buffers)),
        "buffer_is_result": _array("u1", (b.role != "scratch" and b.name in results for b in buffers)),
        "chan_src": channels[:, 0].astype("i4"),
        "chan_dst": channels[:, 1].astype("i4"),
        "chan_depth": channels[:, 3].copy(),
        "mode_start": _starts(k.modes for k in kernels),
        "mode": _array("u1", (MODES.index(mode) for k in kernels for mode in k.modes)),
        "accumulate": _array("u1", (k.accumulate for k in kernels)),
        "kernel_name": _array("i4", (names.setdefault(k.name, len(names)) for k in kernels)),
        "collective": _array("u1", (numbers.get(c.kind, len(numbers)) for c in collectives)),
        "group_start": _starts(c.group for c in collectives),
        "group": _array("i4", (rank for c in collectives for rank in c.group)),
    }


def _post_tables(program: Program, post_sets: Sequence[Posts]) -> dict[str, Array]:
    """Return the joined columns of all sets of post-conditions, with the program's numbers of buffers and kernels."""
    buffers = {buffer.name: row for row, buffer in enumerate(program.buffers)}
    kernels: dict[str, int] = {}
    for row, kernel in enumerate(program.kernels):
        kernels.setdefault(kernel.name, row)
    found: dict[str, list[Array]] = {name: [] for name in COLUMNS}
    for posts in post_sets:
        names = {"post_buffer": [buffers[name] for name in posts.buffers]}
        names |= {"arg_buffer": names["post_buffer"], "term_kernel": [*(kernels[k] for k in posts.kernels), -1]}
        for name, column in posts.columns.items():
            found[name].append(np.array(names[name], "i4")[column] if name in names and len(column) else column)
    sizes = np.array([len(posts) for posts in post_sets])
    tables = {name: _joined(parts, is_start=name.endswith("_start")) for name, parts in found.items()}
    inner = np.zeros(len(tables["term_kernel"]), "u1")
    if tables["arg_term"].any():
        outer = np.repeat(np.arange(len(inner)), np.diff(tables["term_arg_start"]))
        inner[(outer + tables["arg_term"])[tables["arg_term"] > 0]] = 1
    return tables | {"post_set": np.repeat(np.arange(len(post_sets), dtype="i4"), sizes), "term_is_inner": inner}


def _joined(parts: Sequence[Array], *, is_start: bool) -> Array:
    """Concatenate columns. `is_start`: the columns are offsets; each is shifted by the end of the one before."""
    if not is_start:
        return np.concatenate(parts)
    shifts = accumulate((part[-1] for part in parts), initial=0)
    return np.concatenate([[0], *(part[1:] + shift for part, shift in zip(parts, shifts, strict=False))])


def _array(dtype: str, values: Any) -> Array:
    return np.fromiter(values, dtype=dtype)


def _starts(lists: Any) -> Array:
    return np.fromiter(accumulate((len(entry) for entry in lists), initial=0), dtype="i8")
