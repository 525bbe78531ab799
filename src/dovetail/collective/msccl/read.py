"""read: MSCCL XML → Program and header, with faults that no Program can express."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.msccl.header import read_header
from dovetail.collective.msccl.order import Order, fused_counts, order
from dovetail.collective.msccl.parts import FIFO_DEPTHS, Header, MscclFile, Use, check_dialect
from dovetail.collective.msccl.refuse import num_chunks, refusals
from dovetail.collective.msccl.scan import MAX_CELLS, Elements, scan
from dovetail.collective.msccl.steps import KIND, READS, SCRATCH, WRITES, Flags, Steps, overruns, steps_of
from dovetail.collective.spec import spec_of
from dovetail.core import ProgramError
from dovetail.ir import COLUMNS, Buffer, Channel, Kind, Lane, Post, Program
from dovetail.ir.collectives import traits_of
from dovetail.ir.proof.certificate import Fault

Ints = NDArray[np.int64]


def read(source: str | bytes | Path, dialect: str | None = None, *, name: str | None = None) -> MscclFile:
    """Read an MSCCL XML file (a path) or text. `name`: the file name in source lines and errors.

    With a `dialect` (msccl, azure, rccl), that runtime must accept it. Raises ProgramError, with file and line, for
    text that is no MSCCL algorithm. `certify` proves whether it is right.
    """
    is_text = isinstance(source, bytes) or (isinstance(source, str) and ("<" in source or not source.strip()))
    place = name or ("<text>" if is_text else str(source))
    try:
        elements = scan(source if is_text else Path(source), place)  # type: ignore[arg-type]
    except OSError as error:
        raise ProgramError(f"cannot read {place}", found=error.strerror) from error
    return of_elements(elements, dialect)


def of_elements(elements: Elements, dialect: str | None = None, program: Program | None = None) -> MscclFile:
    """Return the file of these elements; see `read`. `program`: their Program, if it is known and they have one use."""
    place = elements.place
    header = read_header(elements, Path(place).stem)
    rows = steps_of(elements, header.ngpus)
    counts, too_fused = fused_counts(rows)
    links, chunks, (scratch, over) = order(rows), num_chunks(header, rows), overruns(rows)
    where = f"{place}:{elements.algo_line}"
    task = _Task(header, rows, where, counts, links, chunks, scratch, False)
    runs = _runs(header)
    known = program if len(runs) == 1 else None
    uses = tuple(Use(in_place, known or _program(task._replace(in_place=in_place))) for in_place in runs)
    refused = refusals(header, elements.algo_line, rows, too_fused)
    if dialect is not None and (no := refused[check_dialect(dialect)]) is not None:
        raise ProgramError(f"{dialect} does not accept this file: {no.why}", where=f"{place}:{no.line}")
    return MscclFile(place, header, uses, refused, _faults(rows, links, over), elements.algo_line)


class _Task(NamedTuple):
    """Everything from which a Program is built."""

    header: Header
    rows: Steps
    where: str
    counts: Ints
    links: Order
    chunks: int
    scratch: Ints
    in_place: bool


class _Home(NamedTuple):
    """The place of a buffer's chunks in the Program: its row of `buffers`, from chunk `rank * shift` on."""

    buffer: int
    shift: int


def _runs(header: Header) -> tuple[bool, ...]:
    """The uses of which to make Programs; `custom` is first taken as out of place, because it does not say."""
    return (False,) + (True,) * header.inplace if header.kind == "custom" else header.runs


def _program(task: _Task) -> Program:
    """The Program of one use. In place, copies of a chunk from i to o become nops if both are the same slots."""
    header, rows = task.header, task.rows
    buffers, homes, posts = _memory(task)
    ops = np.flatnonzero(~rows.is_nop)
    channels, chan_in, chan_out = _channels(rows, ops, FIFO_DEPTHS[header.proto])
    blocks = rows.block[ops]
    source, target = _slots(task, homes, ops, rows.src, rows.srcoff), _slots(task, homes, ops, rows.dst, rows.dstoff)
    same = (source == target).all(axis=0) & (rows.src != rows.dst)[ops] & (KIND[rows.type[ops]] == Kind.copy)
    columns = {
        "kind": np.where(same, Kind.nop, KIND[rows.type[ops]]),
        "rank": rows.rank[ops],
        "lane": blocks - rows.first_block[rows.rank[ops]],
        "chan_in": chan_in,
        "chan_out": chan_out,
        "call": np.full(len(ops), -1),
        "line": np.arange(len(ops)),
        "dep_start": task.links.start,
        "dep": task.links.dep,
        **_regions("read", READS[rows.type[ops]] & ~same, source, task.counts[ops]),
        **_regions("write", WRITES[rows.type[ops]] & ~same, target, task.counts[ops]),
    }
    lanes = tuple(Lane(f"tb{number}", "net") for number in range(int(rows.blocks_of.max(initial=0))))
    lines = tuple([f"{rows.place}:{line}" for line in rows.line[ops].tolist()])
    typed = {name: np.ascontiguousarray(columns[name], dtype=dtype) for name, dtype in COLUMNS.items()}
    for column in typed.values():
        column.flags.writeable = False
    return Program(header.name, rows.num_ranks, buffers, lanes, channels, (), (), posts, lines, typed)


def _memory(task: _Task) -> tuple[tuple[Buffer, ...], list[_Home], Sequence[Post]]:
    """The buffers, the places of i, o and s in them, and the collective's post-conditions."""
    header, rows, kind, n = task.header, task.rows, task.header.kind, task.rows.num_ranks
    traits = traits_of(kind)
    if task.chunks * n > MAX_CELLS:
        what = f"{task.chunks} chunks on each of {n} gpus are more than {MAX_CELLS}"
        raise ProgramError(what, where=task.where, hint="do nchunksperloop, i_chunks and o_chunks agree?")
    part = task.chunks // n if traits.in_parts else task.chunks
    if traits.in_parts and part * n != task.chunks:
        what = f"{task.chunks} chunks cannot be shared among {n} gpus, as {header.coll} does"
        raise ProgramError(what, where=task.where, hint="make nchunksperloop a multiple of ngpus")
    if kind == "custom":
        posts: Sequence[Post] = ()
        sizes = [_sizes(rows.chunks[:, side], task.chunks) for side in (0, 1)]
        both = tuple(max(i, o) for i, o in zip(*sizes, strict=True))
        buffers = [Buffer("input", "input", both if task.in_place else sizes[0])]
        buffers += [] if task.in_place else [Buffer("output", "output", sizes[1])]
    else:
        spec = spec_of(kind, n, chunks=part, in_place=task.in_place, root=_root(task))
        buffers, posts = list(spec.buffers), spec.posts
    shifts = (traits.input_is_part, traits.output_is_part) if task.in_place else (0, 0)
    homes = [_Home(0, shifts[0] * part), _Home(0 if task.in_place else 1, shifts[1] * part), _Home(len(buffers), 0)]
    if task.scratch.any():
        buffers.append(Buffer("scratch", "scratch", tuple(task.scratch.tolist())))
    return tuple(buffers), homes, posts


def _sizes(chunks: Ints, whole: int) -> tuple[int, ...]:
    """Sizes of a custom collective's buffer: the whole on all gpus if each uses the whole or nothing."""
    return tuple(np.full(len(chunks), whole).tolist() if np.isin(chunks, (0, whole)).all() else chunks.tolist())


def _root(task: _Task) -> int:
    """The root of a broadcast or reduce, which headers do not name: the only gpu that never receives, or sends."""
    rows, traits = task.rows, traits_of(task.header.kind)
    if not traits.rooted:
        return 0
    active = rows.receives if traits.from_root else rows.sends
    idle = np.flatnonzero(np.bincount(rows.rank[active], minlength=rows.num_ranks) == 0)
    return int(idle[0]) if len(idle) == 1 else 0


def _channels(rows: Steps, ops: Ints, depth: int) -> tuple[tuple[Channel, ...], Ints, Ints]:
    """The channels in the order of their first use, and for each op the ones that it receives and sends on."""
    rank, block = rows.rank[ops], rows.block[ops]
    ends = np.full((len(ops), 2), -1, dtype=np.int64)
    n, most = rows.num_ranks, int(rows.chan.max(initial=0)) + 1
    for side, active, src, dst in (
        (0, rows.receives[ops], rows.recv[block], rank),
        (1, rows.sends[ops], rank, rows.send[block]),
    ):
        ends[:, side] = np.where(active, (src * n + dst) * most + rows.chan[block], -1)
    used = ends.ravel()[ends.ravel() >= 0]
    keys, first = np.unique(used, return_index=True)
    by_use = np.argsort(first)
    number = np.empty(len(keys) + 1, dtype=np.int64)
    number[by_use], number[-1] = np.arange(len(keys)), -1
    rows_of_ends = np.where(ends >= 0, number[np.searchsorted(keys, ends)], -1) if len(keys) else ends
    pairs = [(*divmod(int(key) // most, n), int(key) % most) for key in keys[by_use]]
    return tuple(Channel(src, dst, chan, depth) for src, dst, chan in pairs), rows_of_ends[:, 0], rows_of_ends[:, 1]


def _slots(task: _Task, homes: list[_Home], ops: Ints, buffer: Ints, offset: Ints) -> Ints:
    """Buffer and first slot of an operand of each op."""
    home, shift = np.array(homes)[buffer[ops]].T
    return np.stack([home, offset[ops] + shift * task.rows.rank[ops]])


def _regions(side: str, used: Flags, slots: Ints, counts: Ints) -> dict[str, Ints]:
    """The columns of the regions that ops read or write."""
    buffer, offset = slots[:, used]
    parts = {"buffer": buffer, "offset": offset, "count": counts[used]}
    parts |= {"stride": np.zeros_like(offset), "blocks": np.ones_like(offset)}
    return {f"{side}_start": np.append(0, np.cumsum(used))} | {f"{side}_{name}": part for name, part in parts.items()}


def _faults(rows: Steps, links: Order, over: int) -> dict[str, Fault]:
    """Faults that no Program can express: scratch beyond s_chunks, endless waits, connections of two threadblocks."""
    faults, ops = {}, np.flatnonzero(~rows.is_nop)
    if over >= 0:
        held, need = rows.chunks[rows.rank[over], SCRATCH], _touched(rows, over)
        what = f"it touches chunk {need - 1} of buffer s, which has {held} chunks on gpu {rows.rank[over]}"
        faults["bounds"] = Fault(what, (int(np.searchsorted(ops, over)),), hint=f"make s_chunks at least {need}")
    if links.hanging is not None:
        faults["deadlock"] = _hanging_fault(rows, ops, *links.hanging)
    for word, active, peer in (("send to", rows.sends, rows.send), ("receive from", rows.receives, rows.recv)):
        blocks = np.unique(rows.block[active])
        owners: dict[tuple[int, ...], int] = {}
        for block in blocks.tolist():
            rank = int(rows.rank[rows.first_step[block]])
            first = owners.setdefault((rank, int(peer[block]), int(rows.chan[block])), block)
            if first != block and "races" not in faults:
                pair = [block - int(rows.first_block[rank]) for block in (first, block)]
                what = (
                    f"threadblocks {pair[0]} and {pair[1]} of gpu {rank} both {word} gpu {peer[block]} on channel "
                    f"{rows.chan[block]}: each counts the connection's messages separately"
                )
                at = [int(np.searchsorted(ops, np.flatnonzero(active & (rows.block == b))[0])) for b in (first, block)]
                faults["races"] = Fault(what, tuple(at), hint="give one of them another channel")
    return faults


def _touched(rows: Steps, row: int) -> int:
    """Chunks of scratch that a step needs."""
    sides = ((READS, rows.src, rows.srcoff), (WRITES, rows.dst, rows.dstoff))
    ends = [
        offset[row] + rows.cnt[row] for used, side, offset in sides if used[rows.type[row]] and side[row] == SCRATCH
    ]
    return int(max(ends))


def _hanging_fault(rows: Steps, ops: Ints, op: int, block: int, step: int, named: int) -> Fault:
    """The fault of an endless wait: the step that waits, and the one that would have to publish."""
    row = int(ops[op])
    target = int(rows.first_block[rows.rank[row]]) + block
    what = f"it waits for step {step} of threadblock {block}, but no step from there on publishes (hasdep=1)"
    held = int(np.count_nonzero(rows.block == target))
    if named < 0:
        last = f"its last step is {held - 1}" if held else "it has no steps"
        return Fault(what, (op,), f"threadblock {block} ends before: {last}", "let deps name a step that publishes")
    hint = f"give step {rows.s[ops[named]]} of threadblock {block} (line {rows.line[ops[named]]}) hasdep=1"
    return Fault(what, (op, named), f"hasdep=0 at {rows.where(ops[named])}", hint)
