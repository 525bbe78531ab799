"""The door to the C++ twin of verify: a Program's tables as flat arrays, and what came back as findings."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.bounds import COLLECTIVES
from dovetail.ir.parts import Post, Region
from dovetail.ir.program import Program

Array = NDArray[Any]


def judge(program: Program, post_sets: Sequence[Sequence[Post]]) -> dict[str, Any]:
    """What native/ir/verify.hpp calls a Verdict, as a dictionary. The program must pass check_columns and posts_fault.

    `post_sets`: the program's own post-conditions first, then others to be judged apart. The key of the hashes is
    drawn afresh for every call.
    """
    from dovetail._native import verify  # here, so that importing dovetail.ir needs nothing compiled

    tables = _tables(program) | _post_tables(program, post_sets)
    columns = {name: np.ascontiguousarray(column) for name, column in program.columns.items()}
    keys = (secrets.randbits(64), secrets.randbits(64))
    verdict: dict[str, Any] = verify(columns, tables, program.num_ranks, len(post_sets), *keys)
    return verdict


def _tables(program: Program) -> dict[str, Any]:
    names: dict[str, int] = {}
    channels, kernels, collectives = program.channels, program.kernels, program.collectives
    return {
        "num_lanes": len(program.lanes),
        "buffer_slots": _array("i8", (n for b in program.buffers for n in b.slots)),
        "buffer_is_input": _array("u1", (b.role == "input" for b in program.buffers)),
        "chan_src": _array("i4", (c.src for c in channels)),
        "chan_dst": _array("i4", (c.dst for c in channels)),
        "chan_depth": _array("i8", (c.depth for c in channels)),
        "mode_start": _starts(k.modes for k in kernels),
        "mode_each": _array("u1", (mode == "each" for k in kernels for mode in k.modes)),
        "accumulate": _array("u1", (k.accumulate for k in kernels)),
        "kernel_name": _array("i4", (names.setdefault(k.name, len(names)) for k in kernels)),
        "collective": _array(
            "u1", (COLLECTIVES.index(c.kind) if c.kind in COLLECTIVES else len(COLLECTIVES) for c in collectives)
        ),
        "group_start": _starts(c.group for c in collectives),
        "group": _array("i4", (rank for c in collectives for rank in c.group)),
    }


def _post_tables(program: Program, post_sets: Sequence[Sequence[Post]]) -> dict[str, Array]:
    posts = [post for posts in post_sets for post in posts]
    terms = [term for post in posts for term in post.terms]
    args = [arg for term in terms for arg in term.args]
    kernels: dict[str | None, int] = {None: -1}
    for row, kernel in enumerate(program.kernels):
        kernels.setdefault(kernel.name, row)
    return {
        "post_set": _array("i4", (number for number, posts in enumerate(post_sets) for _ in posts)),
        "post_rank_start": _starts(post.ranks for post in posts),
        "post_rank": _array("i4", (rank for post in posts for rank in post.ranks)),
        "post_term_start": _starts(post.terms for post in posts),
        "term_kernel": _array("i4", (kernels[term.kernel] for term in terms)),
        "term_arg_start": _starts(term.args for term in terms),
        "arg_rank": _array("i4", (rank for rank, _ in args)),
        **_region_tables(program, "post", [post.region for post in posts]),
        **_region_tables(program, "arg", [region for _, region in args]),
    }


def _region_tables(program: Program, side: str, regions: Sequence[Region]) -> dict[str, Array]:
    rows = {buffer.name: row for row, buffer in enumerate(program.buffers)}
    numbers = _array("i8", chain.from_iterable(region[1:] for region in regions)).reshape(-1, 4).T.copy()
    buffers = _array("i4", (rows[region[0]] for region in regions))
    parts = zip(Region._fields[1:], numbers, strict=True)
    return {f"{side}_buffer": buffers} | {f"{side}_{part}": column for part, column in parts}


def _array(dtype: str, values: Any) -> Array:
    return np.fromiter(values, dtype=dtype)


def _starts(lists: Any) -> Array:
    return np.fromiter(accumulate((len(entry) for entry in lists), initial=0), dtype="i8")
