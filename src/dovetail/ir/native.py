"""native: gives the C++ twin of verify a Program as flat arrays, and takes back what it found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.collectives import OP_COLLECTIVES
from dovetail.ir.posts import COLUMNS, Posts
from dovetail.ir.program import Program

Array = NDArray[Any]


def judge(program: Program, post_sets: Sequence[Posts]) -> dict[str, Any]:
    """What native/ir/verify.hpp calls a Verdict, as a dictionary. The program must pass check_columns and posts_fault.

    `post_sets`: the program's own post-conditions first, then others to be judged apart; none: neither races nor
    results are looked at. The key of the hashes is drawn afresh for every call.
    """
    from dovetail._native import verify  # here, so that importing dovetail.ir needs nothing compiled

    tables = _tables(program) | _post_tables(program, post_sets or [Posts.of(())])
    columns = {name: np.ascontiguousarray(column) for name, column in program.columns.items()}
    keys = (int.from_bytes(os.urandom(8)), int.from_bytes(os.urandom(8)))
    verdict: dict[str, Any] = verify(columns, tables, program.num_ranks, len(post_sets), *keys)
    return verdict


def _tables(program: Program) -> dict[str, Any]:
    names: dict[str, int] = {}
    numbers = {kind: number for number, kind in enumerate(OP_COLLECTIVES)}
    channels, kernels, collectives = program.channel_table(), program.kernels, program.collectives
    return {
        "num_lanes": len(program.lanes),
        "buffer_slots": _array("i8", (n for b in program.buffers for n in b.slots)),
        "buffer_is_input": _array("u1", (b.role == "input" for b in program.buffers)),
        "chan_src": channels[:, 0].astype("i4"),
        "chan_dst": channels[:, 1].astype("i4"),
        "chan_depth": channels[:, 3].copy(),
        "mode_start": _starts(k.modes for k in kernels),
        "mode_each": _array("u1", (mode == "each" for k in kernels for mode in k.modes)),
        "accumulate": _array("u1", (k.accumulate for k in kernels)),
        "kernel_name": _array("i4", (names.setdefault(k.name, len(names)) for k in kernels)),
        "collective": _array("u1", (numbers.get(c.kind, len(numbers)) for c in collectives)),
        "group_start": _starts(c.group for c in collectives),
        "group": _array("i4", (rank for c in collectives for rank in c.group)),
    }


def _post_tables(program: Program, post_sets: Sequence[Posts]) -> dict[str, Array]:
    """The columns of all sets one after the other, buffers and kernels numbered as the program's rows."""
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
    return tables | {"post_set": np.repeat(np.arange(len(post_sets), dtype="i4"), sizes)}


def _joined(parts: Sequence[Array], *, is_start: bool) -> Array:
    """Columns end to end; of starts, each goes on where the one before it ended."""
    if not is_start:
        return np.concatenate(parts)
    shifts = accumulate((part[-1] for part in parts), initial=0)
    return np.concatenate([[0], *(part[1:] + shift for part, shift in zip(parts, shifts, strict=False))])


def _array(dtype: str, values: Any) -> Array:
    return np.fromiter(values, dtype=dtype)


def _starts(lists: Any) -> Array:
    return np.fromiter(accumulate((len(entry) for entry in lists), initial=0), dtype="i8")
