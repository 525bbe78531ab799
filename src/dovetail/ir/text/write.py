"""write: the text form of a Program. Ops are grouped by rank and lane, in the order in which they run.

    program swap ranks 2
    buffer x input 1
    buffer y output 1
    lane net net
    channel 0->1 0 depth 8
    channel 1->0 0 depth 8
    post 0 y[0:1] = x@1[0:1]
    rank 0 lane net
      send x[0:1] to 1
      recv from 1 -> y[0:1] after net.0 at swap.py:7

A post-condition may contain results of kernels, `f(x@0[0:4], g(x@1[0:4]) + y@1[0:4])`: a kernel's operands are regions,
results of kernels, and sums.

A peer is `1`, `1:2` if the channel's id is not 0, or `0->1:2` in full. A region is `x[start:end]`, or
`x[start:end; blocks x stride]`, where start and end are those of the first block. `after net.0` is a dependency on
op 0 of lane `net` of the same rank; `at` gives the source line. Names that are not plain words are quoted as in JSON.
`#` starts a comment.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir.program import Program
from dovetail.ir.text.lines import called, kernel_text, op_lines, post_lines, quote
from dovetail.ir.types import Kind, Op, Region


def to_text(program: Program) -> str:
    """Return the text of a program; `parse` of it returns `canonical(program)`.

    Raises ProgramError if an op calls no kernel or collective although its kind needs one.
    """
    return "\n".join([*_header(program), *post_lines(program.posts), *_body(program), ""])


def canonical(program: Program) -> Program:
    """Return the program with its ops ordered by rank and lane, as in its text, and source lines in order of use."""
    order = np.concatenate([np.zeros(0, dtype=np.int64), *program.queues().values()])
    place = np.empty(program.num_ops, dtype=np.int64)
    place[order] = np.arange(program.num_ops)
    col = program.columns
    new = {name: col[name][order] for name in ("kind", "rank", "lane", "chan_in", "chan_out", "call")}
    lines, new["line"] = _used_lines(program, col["line"][order])
    for side, parts in (("read", True), ("write", True), ("dep", False)):
        counts = np.diff(col[f"{side}_start"])[order]
        new[f"{side}_start"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        first = np.repeat(col[f"{side}_start"][:-1][order] - new[f"{side}_start"][:-1], counts)
        rows = first + np.arange(int(counts.sum()), dtype=np.int64)
        for part in ("buffer", "offset", "count", "stride", "blocks") if parts else ():
            new[f"{side}_{part}"] = col[f"{side}_{part}"][rows]
        if not parts:
            new["dep"] = place[col["dep"][rows]] if len(rows) else col["dep"]
    return program.with_columns(new, lines)


def _used_lines(program: Program, column: NDArray[np.int32]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return source lines in the order of their first use, and the column that refers to them."""
    used, first = np.unique(column[column >= 0], return_index=True)
    used = used[np.argsort(first)]
    numbers = np.full(len(program.lines) + 1, -1, dtype=np.int32)
    numbers[used] = np.arange(len(used))
    return tuple(program.lines[int(row)] for row in used), numbers[column]


def op_text(program: Program, row: int) -> str:
    """Return an op's line of the text, without `after` and `at`, for error messages."""
    return " ".join(_op_words(program, program.op(row)))


def _region_text(region: Region) -> str:
    text = f"{quote(region.buffer)}[{region.offset}:{region.offset + region.count}"
    return f"{text}]" if (region.stride, region.blocks) == (0, 1) else f"{text}; {region.blocks} x {region.stride}]"


def _header(program: Program) -> Iterable[str]:
    yield f"program {quote(program.name)} ranks {program.num_ranks}"
    for name, role, counts in program.buffers:
        same = len(set(counts)) == 1
        yield f"buffer {quote(name)} {role} {counts[0] if same else ','.join(map(str, counts))}"
    for lane in program.lanes:
        yield f"lane {quote(lane.name)} {lane.engine}"
    for c in program.channels:
        yield f"channel {c.src}->{c.dst} {c.id} depth {c.depth}"
    for kernel in program.kernels:
        yield " ".join(["kernel", quote(kernel.name), *kernel.modes] + ["accumulate"] * kernel.accumulate)
    for collective in program.collectives:
        yield f"collective {quote(collective.kind)} {' '.join(map(str, collective.group))}"


def _body(program: Program) -> list[str]:
    col, found = program.columns, list[str]()
    for kind, size in ((Kind.compute, len(program.kernels)), (Kind.collective, len(program.collectives))):
        nameless = np.flatnonzero((col["kind"] == kind) & (called(program, kind, size) < 0))
        if len(nameless):
            op_text(program, int(nameless[0]))  # raises
    lines = op_lines(program)
    for (rank, lane), rows in program.queues().items():
        found.append(f"rank {rank} lane {quote(program.lanes[lane].name)}")
        found += [f"  {lines[row]}" for row in rows.tolist()]
    return found


def _op_words(program: Program, op: Op) -> Iterable[str]:
    yield op.kind.name
    table = {Kind.compute: program.kernels, Kind.collective: program.collectives}.get(op.kind)
    if table is not None and not 0 <= op.call < len(table):
        raise ProgramError(f"op {op.index} is a {op.kind.name} that calls nothing: it cannot be written as text")
    if op.kind == Kind.compute:
        yield kernel_text(program.kernels, op.call)
    if op.kind == Kind.collective:
        yield quote(program.collectives[op.call].kind)
    if op.chan_in >= 0:
        yield f"from {_peer_text(program, op.chan_in, op.rank, incoming=True)}"
    yield from map(_region_text, op.reads)
    if op.writes:
        yield "-> " + " ".join(map(_region_text, op.writes))
    if op.chan_out >= 0:
        yield f"to {_peer_text(program, op.chan_out, op.rank, incoming=False)}"
    if op.kind == Kind.collective:
        yield f"group {' '.join(map(str, program.collectives[op.call].group))}"


def _peer_text(program: Program, row: int, rank: int, incoming: bool) -> str:
    channel = program.channels[row]
    own, peer = (channel.dst, channel.src) if incoming else (channel.src, channel.dst)
    tail = f":{channel.id}" if channel.id else ""
    return f"{peer}{tail}" if own == rank else f"{channel.src}->{channel.dst}{tail}"
