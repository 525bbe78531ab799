"""layout: convert a Program into the elements of an MSCCL XML file, and these into text."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.msccl.header import header_attributes
from dovetail.collective.msccl.order import MOST_FUSED
from dovetail.collective.msccl.parts import BUFFERS, KINDS, NOP, Header
from dovetail.collective.msccl.scan import COLUMNS, Block, Elements, Gpu
from dovetail.ir import Kind, Program

Ints = NDArray[np.int64]
_WORDS = list(KINDS)
_TYPE_OF_KIND = np.array([next((n for n, k in enumerate(KINDS.values()) if k == kind), -1) for kind in Kind])


class Places(NamedTuple):
    """Places of a program's slots and lanes in the file.

    `letters`, `bases`: letter and first chunk [buffer, rank] of each buffer; `chunks`: chunks of i, o and s of each
    gpu; `whole`: chunks of the whole buffer; `blocks`: threadblock [rank, lane] of each lane (-1: none).
    """

    program: Program
    letters: tuple[str, ...]
    bases: Ints
    chunks: Ints
    whole: int
    blocks: Ints
    in_place: bool


def elements_of(places: Places, header: Header, dialect: str) -> Elements:
    """Return the elements of the file with line numbers. Dependencies of an op beyond its first become nops."""
    n = places.program.num_ranks
    blocks_of = places.blocks.max(axis=1, initial=-1) + 1
    first_block = np.cumsum(blocks_of) - blocks_of
    steps = _steps(places, first_block)
    tb = steps["tb"]
    steps_of = np.bincount(tb, minlength=int(blocks_of.sum()))
    before = np.append(0, np.cumsum(steps_of))  # steps before each threadblock
    gpu_of = np.repeat(np.arange(n), blocks_of)
    gpu_line = 2 + 2 * np.arange(n) + 2 * first_block + before[first_block]
    block_line = 3 + 2 * gpu_of + 2 * np.arange(len(gpu_of)) + before[:-1]
    steps["line"] = block_line[tb] + 1 + np.arange(len(tb)) - before[tb]
    ends = _ends(places, first_block, len(gpu_of))
    number = np.arange(len(gpu_of)) - first_block[gpu_of]
    blocks = map(Block, *(column.tolist() for column in (block_line, gpu_of, number, *ends)))
    return Elements(
        f"{header.name}.xml",
        dict(header_attributes(header, dialect)),
        1,
        list(map(Gpu, gpu_line.tolist(), range(n), *places.chunks.T.tolist())),
        list(blocks),
        np.stack([steps.pop(name) for name in COLUMNS], axis=1, dtype=np.int32, casting="same_kind"),
    )


def to_xml(elements: Elements) -> str:
    """Return the text of elements. They must be in the order of their numbers."""
    return "".join(_pieces(elements))


def _pieces(elements: Elements) -> Iterator[str]:
    """The text in pieces, one per gpu."""
    attributes = " ".join(f'{word}="{escape(value)}"' for word, value in elements.algo.items())
    yield f"<algo {attributes}>\n"
    table = np.asarray(elements.steps).reshape(-1, len(COLUMNS))
    first = np.searchsorted(table[:, 1], np.arange(len(elements.blocks) + 1)).tolist()
    block = 0
    for number, gpu in enumerate(elements.gpus):
        lines = [f'  <gpu id="{gpu.id}" i_chunks="{gpu.i_chunks}" o_chunks="{gpu.o_chunks}" s_chunks="{gpu.s_chunks}">']
        start = first[block]
        own = elements.blocks[block:]
        last = block + next((i for i, b in enumerate(own) if b.gpu != number), len(own))
        steps = _step_lines(table[start : first[last]])
        for row in range(block, last):
            tb = elements.blocks[row]
            lines.append(f'    <tb id="{tb.id}" send="{tb.send}" recv="{tb.recv}" chan="{tb.chan}">')
            lines += steps[first[row] - start : first[row + 1] - start]
            lines.append("    </tb>")
        block = last
        yield "\n".join([*lines, "  </gpu>\n"])
    yield "</algo>\n"


def _step_lines(table: NDArray[Any]) -> list[str]:
    return [
        f'      <step s="{s}" type="{_WORDS[word]}" srcbuf="{BUFFERS[src]}" srcoff="{srcoff}" dstbuf="{BUFFERS[dst]}" '
        f'dstoff="{dstoff}" cnt="{cnt}" depid="{depid}" deps="{deps}" hasdep="{hasdep}"/>'
        for s, word, src, srcoff, dst, dstoff, cnt, depid, deps, hasdep in table[:, 2:].tolist()
    ]


def _steps(places: Places, first_block: Ints) -> dict[str, Ints]:
    """The columns of all steps except their lines, in the order of threadblocks."""
    program, col = places.program, places.program.columns
    waits = np.diff(col["dep_start"])
    taken = np.maximum(waits, 1)
    queue = col["rank"].astype(np.int64) * len(program.lanes) + col["lane"]
    before = np.cumsum(taken) - taken
    number = before - before[np.searchsorted(queue, queue)] + taken - 1  # rows are sorted by rank and lane
    op = np.repeat(np.arange(program.num_ops), taken)
    left = taken[op] - 1 - (np.arange(len(op)) - before[op])  # steps of the op after this one
    is_op, block = left == 0, places.blocks[col["rank"], col["lane"]].astype(np.int64)
    found = {"tb": (first_block[col["rank"]] + block)[op], "s": number[op] - left}
    found["type"] = np.where(is_op, _TYPE_OF_KIND[col["kind"]][op], _WORDS.index(NOP))
    nop = {"src": BUFFERS.index("i"), "srcoff": -1, "dst": BUFFERS.index("o"), "dstoff": -1, "cnt": 0}
    for name, column in _operands(places).items():
        found[name] = np.where(is_op, column[op], nop[name])
    has = waits[op] > 0
    dep = np.zeros(len(op), dtype=np.int64)
    dep[has] = col["dep"]
    for name, column in (("depid", block), ("deps", number)):
        found[name] = np.where(has, column[dep], -1) if len(col["dep"]) else np.full(len(op), -1)
    found["hasdep"] = np.where(is_op, _publishing(places)[op], 0)
    return found


def _ends(places: Places, first_block: Ints, num_blocks: int) -> tuple[Ints, Ints, Ints]:
    """For each threadblock the peers that it sends to and receives from (-1: none), and its channel."""
    program, col = places.program, places.program.columns
    channels = np.array([c[:3] for c in program.channels], dtype=np.int64).reshape(-1, 3)
    block = first_block[col["rank"]] + places.blocks[col["rank"], col["lane"]]
    peers, channel = [], np.zeros(num_blocks, dtype=np.int64)
    for end, other in (("chan_out", 1), ("chan_in", 0)):
        rows = np.flatnonzero(col[end] >= 0)
        peer = np.full(num_blocks, -1, dtype=np.int64)
        peer[block[rows]] = channels[col[end][rows], other]
        channel[block[rows]] = channels[col[end][rows], 2]
        peers.append(peer)
    return peers[0], peers[1], channel


def _operands(places: Places) -> dict[str, Ints]:
    """Source, destination and count of each op; if an op has only one of the two, it is both."""
    col = places.program.columns
    letter = np.array([BUFFERS.index(letter) for letter in places.letters], dtype=np.int64)
    sides = []
    for side in ("read", "write"):
        has = np.diff(col[f"{side}_start"]) > 0
        at = col[f"{side}_start"][:-1][has]
        found = np.zeros((3, len(has)), dtype=np.int64)
        buffer = col[f"{side}_buffer"][at]
        offset = col[f"{side}_offset"][at] + places.bases[buffer, col["rank"][has]]
        found[:, has] = letter[buffer], offset, col[f"{side}_count"][at]
        sides.append((has, found))
    (reads, read), (writes, written) = sides
    source, target = np.where(reads, read, written), np.where(writes, written, read)
    return {"src": source[0], "srcoff": source[1], "dst": target[0], "dstoff": target[1], "cnt": source[2]}


def _publishing(places: Places) -> Ints:
    """1 for ops that others wait for, and for reductions that the interpreter must not fuse with the next one.

    The interpreter fuses up to 16 adjacent reductions of one destination and one source buffer, and gives all of them
    the count of the last one.
    """
    col = places.program.columns
    publishes = np.zeros(places.program.num_ops, dtype=np.int64)
    publishes[col["dep"]] = 1
    adds = np.flatnonzero(col["kind"] == Kind.reduce)
    source, target = col["read_start"][adds], col["write_start"][adds]
    letter = np.array([BUFFERS.index(letter) for letter in places.letters], dtype=np.int64)
    facts = [col["rank"][adds], col["lane"][adds], col["write_buffer"][target], col["write_offset"][target]]
    key, count = np.stack([*facts, letter[col["read_buffer"][source]]]), col["write_count"][target].tolist()
    follows = (np.diff(adds) == 1) & (key[:, 1:] == key[:, :-1]).all(axis=0) & (publishes[adds[:-1]] == 0)
    chain, more = 1, list[int]()
    for k, joins in enumerate(follows.tolist(), 1):
        chain = chain + 1 if joins else 1
        if chain > 1 and (count[k] != count[k - 1] or chain == MOST_FUSED):
            more.append(k - 1)
            chain = 1
    publishes[adds[more]] = 1
    return publishes
