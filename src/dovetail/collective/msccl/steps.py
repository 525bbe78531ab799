"""steps: the steps of a scanned file as columns, by gpu and threadblock, and checks of each number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.msccl.parts import BUFFERS, KINDS, NOP
from dovetail.collective.msccl.scan import COLUMNS, MAX_CELLS, MAX_CHUNKS, Block, Elements, Gpu
from dovetail.core import ProgramError
from dovetail.ir import RECVS, SENDS, Kind

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
KIND = np.array([int(kind) for kind in KINDS.values()])
READS = np.isin(
    KIND, (Kind.send, Kind.recv_reduce_send, Kind.recv_reduce, Kind.recv_reduce_copy_send, Kind.copy, Kind.reduce)
)
WRITES = np.isin(
    KIND, (Kind.recv, Kind.recv_copy_send, Kind.recv_reduce, Kind.recv_reduce_copy_send, Kind.copy, Kind.reduce)
)
_SENDS, _RECVS = np.isin(KIND, tuple(SENDS)), np.isin(KIND, tuple(RECVS))
_NOP = list(KINDS).index(NOP)
SCRATCH = BUFFERS.index("s")


@dataclass(frozen=True)
class Steps:
    """Columns by step; where noted, by threadblock (a step's is `block`) or by gpu."""

    place: str
    line: Ints
    block: Ints
    rank: Ints
    s: Ints
    type: Ints
    src: Ints
    srcoff: Ints
    dst: Ints
    dstoff: Ints
    cnt: Ints
    depid: Ints
    deps: Ints
    hasdep: Ints
    send: Ints  # of each threadblock: peers (-1: none), channel, line, first step
    recv: Ints
    chan: Ints
    block_line: Ints
    first_step: Ints
    first_block: Ints  # of each gpu
    blocks_of: Ints
    chunks: Ints  # of each gpu: chunks of i, o, s

    @property
    def num_ranks(self) -> int:
        return len(self.chunks)

    @property
    def is_nop(self) -> Flags:
        flags: Flags = self.type == _NOP
        return flags

    @property
    def is_reduce(self) -> Flags:
        flags: Flags = KIND[self.type] == Kind.reduce
        return flags

    @property
    def sends(self) -> Flags:
        flags: Flags = _SENDS[self.type]
        return flags

    @property
    def receives(self) -> Flags:
        flags: Flags = _RECVS[self.type]
        return flags

    def where(self, row: int | np.integer) -> str:
        """Return file and line of a step."""
        return f"{self.place}:{self.line[row]}"


def steps_of(elements: Elements, num_ranks: int) -> Steps:
    """Return the steps of a file in running order. Raises ProgramError, with its line, for the first bad element."""
    place = elements.place
    gpus = _gpus(elements, num_ranks)
    blocks = _blocks(elements, num_ranks)
    steps = np.array(elements.steps, dtype=np.int64).reshape(-1, len(COLUMNS))
    order = np.argsort(blocks[steps[:, 1]], kind="stable")
    col = dict(zip(COLUMNS, steps[order].T.copy(), strict=True))
    by_number = [elements.blocks[i] for i in np.argsort(blocks)]
    number = blocks[col.pop("tb")]
    ranks = np.array([elements.gpus[b.gpu].id for b in by_number], dtype=np.int64)
    per_gpu = np.bincount(ranks, minlength=num_ranks).astype(np.int64)
    rows = Steps(
        place,
        block=number,
        rank=ranks[number],
        send=np.array([b.send for b in by_number], dtype=np.int64),
        recv=np.array([b.recv for b in by_number], dtype=np.int64),
        chan=np.array([b.chan for b in by_number], dtype=np.int64),
        block_line=np.array([b.line for b in by_number], dtype=np.int64),
        first_step=np.searchsorted(number, np.arange(len(by_number))),
        first_block=np.cumsum(per_gpu) - per_gpu,
        blocks_of=per_gpu,
        chunks=np.array([gpus[r][2:] for r in range(num_ranks)], dtype=np.int64),
        **col,
    )
    _check_steps(rows)
    return rows


def _gpus(elements: Elements, num_ranks: int) -> dict[int, Gpu]:
    """The gpu of each rank. Checks that each is there exactly once."""
    gpus: dict[int, Gpu] = {}
    for gpu in elements.gpus:
        where = f"{elements.place}:{gpu.line}"
        if not 0 <= gpu.id < num_ranks:
            raise ProgramError(
                f"gpu {gpu.id}, but ngpus={num_ranks}", where=where, hint=f"ids are 0 to {num_ranks - 1}"
            )
        if gpu.id in gpus:
            raise ProgramError(f"gpu {gpu.id} occurs twice", where=where, found=f"first on line {gpus[gpu.id].line}")
        gpus[gpu.id] = gpu
    if len(gpus) < num_ranks:
        absent = next(rank for rank in range(num_ranks) if rank not in gpus)
        what = f"gpu {absent} is missing: ngpus={num_ranks}, and {len(gpus)} are here"
        raise ProgramError(what, where=f"{elements.place}:{elements.algo_line}", hint="is the file whole?")
    cells = sum(sum(gpu[2:]) for gpu in gpus.values())
    if cells > MAX_CELLS:
        what = f"{cells} chunks on all gpus together, more than {MAX_CELLS}"
        raise ProgramError(what, where=f"{elements.place}:{elements.algo_line}")
    return gpus


def _blocks(elements: Elements, num_ranks: int) -> Ints:
    """The number of each <tb>, counted by rank and id. Checks that a gpu's ids run from 0, and peers and channels."""
    seen: dict[tuple[int, int], Block] = {}
    for block in elements.blocks:
        where, rank = f"{elements.place}:{block.line}", elements.gpus[block.gpu].id
        if (rank, block.id) in seen:
            raise ProgramError(f"tb {block.id} of gpu {rank} occurs twice", where=where)
        seen[rank, block.id] = block
        for word, peer in (("send", block.send), ("recv", block.recv)):
            if not -1 <= peer < num_ranks or peer == rank:
                found = "that is itself" if peer == rank else f"ngpus={num_ranks}"
                what = f"{word}={peer} in tb {block.id} of gpu {rank}"
                raise ProgramError(what, where=where, found=found, hint="-1 for none, or another gpu")
        least = -1 if block.send == block.recv == -1 else 0  # local work needs no channel
        if not least <= block.chan < 1 << 16:
            raise ProgramError(f"chan={block.chan} in tb {block.id} of gpu {rank}", where=where, hint="from 0 on")
    for rank, number in seen:
        if number < 0 or (number > 0 and (rank, number - 1) not in seen):
            where = f"{elements.place}:{seen[rank, number].line}"
            what = f"tb {number} of gpu {rank}, but no tb {number - 1}"
            raise ProgramError(what, where=where, hint="threadblocks of a gpu are numbered 0, 1, 2, …")
    place = {key: number for number, key in enumerate(sorted(seen))}
    numbers = [place[elements.gpus[block.gpu].id, block.id] for block in elements.blocks]
    return np.array(numbers, dtype=np.int64)


def _check_steps(rows: Steps) -> None:
    """Check numbers of steps, flags, counts, peers and offsets."""
    s, same = rows.s, np.diff(rows.block) == 0
    _refuse(
        rows,
        np.append(False, same & (np.diff(s) <= 0)) | (s < 0),
        lambda i: f"step s={s[i]} is out of order",
        "steps run in the order of the file: number them 0, 1, 2, …",
    )
    _refuse(rows, (rows.hasdep != 0) & (rows.hasdep != 1), lambda i: f"hasdep={rows.hasdep[i]}", "0 or 1")
    for word, offsets in (("srcoff", rows.srcoff), ("dstoff", rows.dstoff)):
        _refuse(rows, offsets < -1, lambda i, w=word, o=offsets: f"{w}={o[i]}", "offsets count chunks from 0")
    working = ~rows.is_nop
    _refuse(rows, working & (rows.cnt < 1), lambda i: f"cnt={rows.cnt[i]}", "at least 1 chunk")
    for verb, word, active, peer in (
        ("sends", "send", rows.sends, rows.send),
        ("receives", "recv", rows.receives, rows.recv),
    ):
        _refuse(
            rows,
            active & (peer[rows.block] < 0),
            lambda i, v=verb, w=word: f"it {v}, and its threadblock has {w}=-1",
            f"name the peer in {word}",
        )
    for word, used, buffer, offset in (
        ("srcoff", READS[rows.type], rows.src, rows.srcoff),
        ("dstoff", WRITES[rows.type], rows.dst, rows.dstoff),
    ):
        held = np.where(buffer == SCRATCH, MAX_CHUNKS, rows.chunks[rows.rank, buffer])  # scratch: see `overruns`
        _refuse(
            rows,
            used & ((offset < 0) | (offset + rows.cnt > held)),
            lambda i, w=word, b=buffer, o=offset, h=held: (
                f"{w}={o[i]} with cnt={rows.cnt[i]}, but buffer {BUFFERS[b[i]]} has {h[i]} chunks on gpu {rows.rank[i]}"
            ),
            "stay within i_chunks, o_chunks and s_chunks",
        )


def overruns(rows: Steps) -> tuple[Ints, int]:
    """Return the scratch chunks that each gpu needs, and the first step beyond its s_chunks (-1: none)."""
    need, first = rows.chunks[:, SCRATCH].copy(), len(rows.type)
    for used, buffer, offset in (
        (READS[rows.type], rows.src, rows.srcoff),
        (WRITES[rows.type], rows.dst, rows.dstoff),
    ):
        steps = np.flatnonzero(used & (buffer == SCRATCH))
        end = (offset + rows.cnt)[steps]
        over = steps[end > rows.chunks[rows.rank[steps], SCRATCH]]
        first = min([first, *over[:1].tolist()])
        np.maximum.at(need, rows.rank[steps], end)
    return need, first if first < len(rows.type) else -1


def _refuse(rows: Steps, bad: Flags, what: Callable[..., str], hint: str) -> None:
    """Raise ProgramError for the first step that is `bad`."""
    if bad.any():
        row = int(np.argmax(bad))
        raise ProgramError(what(row), where=rows.where(row), hint=hint)
