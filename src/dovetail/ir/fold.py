"""fold: a Program as a Folded, after an exact check that each rank's ops are the images of those of rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir.folded import Folded, Requirement
from dovetail.ir.op_lists import name_op
from dovetail.ir.program import Program
from dovetail.ir.symmetry import Layout, Symmetry
from dovetail.ir.types import Buffer, Channel

Ints = NDArray[np.int64]
_ALIKE = ("kind", "call")


def fold(
    program: Program, axes: Sequence[int], layouts: Mapping[str, Layout], collective: str, count: int = 1
) -> Folded:
    """Return `program` folded to the ops of rank 0, if its ranks are the images of rank 0 under a Symmetry.

    Every op of every rank is compared, so the time is linear in the ops of the whole program. Lanes may be named
    otherwise on each rank; the folded program names them as rank 0 does.

    Parameters
    ----------
    program : Program
        The program.
    axes, layouts
        The Symmetry that it is claimed to have.
    collective : str
        The standard collective that its post-conditions require, with parts of `count` slots.

    Raises
    ------
    ProgramError
        If it does not have this symmetry. The error names the first rank and op that differ.
    """
    symmetry = Symmetry(tuple(axes), dict(layouts))
    if symmetry.num_ranks != program.num_ranks:
        found = f"axes {tuple(axes)}"
        raise ProgramError(f"program '{program.name}' has {program.num_ranks} ranks", found=found)
    rows = _rows_by_rank(program)
    folded = _first_rank(program, symmetry, rows[0], Requirement(collective, count))
    _check_images(program, folded, rows)
    if folded.posts() != program.posts:
        raise ProgramError(f"the post-conditions of '{program.name}' are not those of {collective}")
    return folded


def _rows_by_rank(program: Program) -> Ints:
    """Return the rows of each rank's ops, as an array of shape (ranks, ops)."""
    counts = np.bincount(program.rank, minlength=program.num_ranks)
    if len(set(counts.tolist())) > 1:
        rank = int(np.flatnonzero(counts != counts[0])[0])
        raise _refusal(program, rank, f"rank 0 has {counts[0]} ops, rank {rank} has {counts[rank]}")
    return np.argsort(program.rank, kind="stable").astype(np.int64).reshape(program.num_ranks, -1)


def _refusal(program: Program, rank: int, found: str, line: str | None = None) -> ProgramError:
    what = f"rank {rank} of program '{program.name}' does not do what rank 0 does"
    return ProgramError(what, where=line, found=found, hint="keep the program expanded, or claim another symmetry")


def _first_rank(program: Program, symmetry: Symmetry, rows: Ints, requirement: Requirement) -> Folded:
    """Return the Folded of the ops of rank 0, whose other ranks are still to be compared."""
    for buffer in program.buffers:
        if len(set(buffer.slots)) > 1:
            raise ProgramError(f"buffer '{buffer.name}' differs in size among ranks", hint="keep the program expanded")
    col, place = program.columns, np.full(program.num_ops, -1, np.int64)
    place[rows] = np.arange(len(rows))
    columns: dict[str, Any] = {name: col[name][rows] for name in ("kind", "lane", "call", "line")}
    columns["rank"] = np.zeros(len(rows))
    for side in ("read", "write", "dep"):
        picked, columns[f"{side}_start"] = _entries(col[f"{side}_start"], rows)
        parts = ("dep",) if side == "dep" else [f"{side}_{part}" for part in _PARTS]
        columns |= {part: col[part][picked] for part in parts}
    columns["dep"] = place[columns["dep"]]
    keys: dict[tuple[int, int], int] = {}  # (how far a channel leads, its id) -> its depth
    for way in ("out", "in"):
        columns[f"chan_{way}"] = [_key_row(keys, symmetry, program, int(c)) for c in col[f"chan_{way}"][rows]]
    channels = tuple(Channel(0, 0, number, depth) for number, depth in enumerate(keys.values()))
    buffers = tuple(Buffer(b.name, b.role, b.slots[:1]) for b in program.buffers)
    tables = (buffers, program.lanes, channels, program.kernels, program.collectives)
    one = Program(program.name, 1, *tables, (), program.lines, {})
    one = one.with_columns({name: np.asarray(column) for name, column in columns.items()})
    offsets, ids = tuple(key[0] for key in keys), tuple(key[1] for key in keys)
    return Folded(symmetry, one, offsets, ids, requirement)


_PARTS = ("buffer", "offset", "count", "stride", "blocks")


def _entries(start: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the entries of some rows of a CSR table, and where each row's entries start among them."""
    counts = (start[1:] - start[:-1])[rows]
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return np.repeat(start[rows] - ends[:-1], counts) + np.arange(ends[-1]), ends


def _key_row(keys: dict[tuple[int, int], int], symmetry: Symmetry, program: Program, channel: int) -> int:
    """Return the row in `keys` of a channel that rank 0 uses; add it at first use. -1 for no channel."""
    if channel < 0:
        return -1
    src, dst, number, depth = program.channels[channel]
    key = int(symmetry.plus(dst, src, -1)), number
    if keys.setdefault(key, depth) != depth:
        raise _refusal(program, src, f"channel {src}->{dst} has depth {depth}, the image of it {keys[key]}")
    return list(keys).index(key)


def _check_images(program: Program, folded: Folded, rows: Ints) -> None:
    """Raise ProgramError unless each rank's ops are the images of those of `folded`."""
    col, one, ranks = program.columns, folded.one.columns, np.arange(program.num_ranks)
    for name in _ALIKE:
        _compare(program, rows, col[name][rows], one[name], name)
    _check_lanes(program, rows)
    table = program.channel_table()
    peers = np.array([*folded.offsets, 0], np.int64)
    for way, end, sign in (("out", 1, 1), ("in", 0, -1)):
        row, own = col[f"chan_{way}"][rows], one[f"chan_{way}"]
        _compare(program, rows, row >= 0, own >= 0, "channels")
        if not len(table) or not np.any(own >= 0):
            continue
        want = folded.symmetry.plus(ranks[:, None], peers[own][None, :], sign)
        used = np.array([[*key] for key in zip(folded.ids, (c.depth for c in folded.one.channels), strict=True)])
        for name, got, wanted in (
            (f"the own end of chan_{way}", table[row, 1 - end], ranks[:, None]),
            (f"the other end of chan_{way}", table[row, end], want),
            ("a channel's id", table[row, 2], used[own, 0]),
            ("a channel's depth", table[row, 3], used[own, 1]),
        ):
            _compare(program, rows, np.where(own >= 0, got, 0), np.where(own >= 0, wanted, 0), name)
    for side in ("read", "write", "dep"):
        _check_side(program, folded, rows, side)


def _check_lanes(program: Program, rows: Ints) -> None:
    """Raise ProgramError unless each rank's lanes are those of rank 0, renamed: a bijection that keeps engines."""
    lanes, engines = program.lane[rows].astype(np.int64), [lane.engine for lane in program.lanes]
    for rank, own in enumerate(lanes):
        pairs = np.unique(lanes[0] * len(engines) + own)
        first, other = np.divmod(pairs, len(engines))
        kept = all(engines[a] == engines[b] for a, b in zip(first.tolist(), other.tolist(), strict=True))
        if not kept or not len(pairs) == len(np.unique(first)) == len(np.unique(other)):
            raise _refusal(program, rank, "its ops are spread over its lanes in another way than those of rank 0")


def _check_side(program: Program, folded: Folded, rows: Ints, side: str) -> None:
    """Compare the regions that ops read or write, or their dependencies."""
    col, one, ranks = program.columns, folded.one.columns, np.arange(program.num_ranks)
    start = col[f"{side}_start"]
    _compare(program, rows, (start[1:] - start[:-1])[rows], np.diff(one[f"{side}_start"]), f"number of {side} entries")
    picked = np.stack([_entries(start, own)[0] for own in rows])
    owner = np.repeat(np.arange(rows.shape[1]), np.diff(one[f"{side}_start"]))
    entries = rows[:, owner]
    if side == "dep":
        place = np.empty(program.num_ops, np.int64)
        place[rows] = np.arange(rows.shape[1])[None, :]
        _compare(program, entries, program.rank[col["dep"][picked]], ranks[:, None], "rank that it waits for")
        _compare(program, entries, place[col["dep"][picked]], one["dep"], "op that it waits for")
        return
    for part in ("buffer", "count", "stride", "blocks"):
        _compare(program, entries, col[f"{side}_{part}"][picked], one[f"{side}_{part}"], f"{side}_{part}")
    offsets = folded.image_offsets(side, ranks)
    _compare(program, entries, col[f"{side}_offset"][picked], offsets, f"{side}_offset")


def _compare(program: Program, rows: Ints, found: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
    """Raise ProgramError at the first difference. All arrays broadcast to (ranks, entries); `rows`: their ops."""
    bad = np.argwhere(found != np.broadcast_to(wanted, found.shape))
    if len(bad):
        rank, place = bad[0].tolist()
        row = int(rows[rank, place])
        want = np.broadcast_to(wanted, found.shape)[rank, place]
        text = f"{name_op(program, row)}: {what} is {found[rank, place]}, the image of rank 0's is {want}"
        raise _refusal(program, rank, text, program.op(row).line)
