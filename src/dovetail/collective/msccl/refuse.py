"""refuse: find reasons, other than the schedule, why a runtime would not read a file or never select it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.collective.msccl.parts import DIALECTS, MEANINGS, WORDS, Header, Refusal
from dovetail.collective.msccl.steps import Steps
from dovetail.ir import TARGETS
from dovetail.ir.collectives import traits_of

_MOST_NODES = 4095  # elements that the readers can store: algo, gpus, and one gpu's threadblocks and steps
_MOST_NAMED = 127  # threadblocks that a wait can name: ids are kept in 8 bits


def num_chunks(header: Header, rows: Steps) -> int:
    """Return the number of chunks of the whole buffer: nchunksperloop, unless all gpus agree on another number."""
    stated = {declared for _, declared in _declared(header, rows)}
    return (
        stated.pop() if len(stated) == 1 else max([header.nchunksperloop, *stated]) if stated else header.nchunksperloop
    )


def refusals(header: Header, line: int, rows: Steps, too_fused: int) -> dict[str, Refusal | None]:
    """Return for each dialect the first reason why its runtime refuses the file or never selects it; None if none.

    `line`: the header's line.
    """
    shared = next(_shared(header, line, rows, too_fused), None)
    found: dict[str, Refusal | None] = {}
    for name in DIALECTS:
        own = next(_own(header, name), None)
        found[name] = Refusal(own, line) if own else _too_high_step(rows, name) or shared
    return found


def _declared(header: Header, rows: Steps) -> Iterator[tuple[str, int]]:
    """Yield each number of chunks of the whole buffer that i_chunks or o_chunks implies, after the attribute's text."""
    traits = traits_of(header.kind)
    is_part = traits.input_is_part, traits.output_is_part
    for word, is_share, chunks in zip("io", is_part, rows.chunks.T, strict=False):
        for held in np.unique(chunks[chunks > 0]).tolist():
            yield f"{word}_chunks={held}", held * (header.ngpus if is_share else 1)


def _own(header: Header, dialect: str) -> Iterator[str]:
    """Yield faults of the header in this dialect only."""
    known, most = WORDS[dialect].values(), TARGETS[dialect].channels
    if header.nchannels > most:
        yield f"nchannels={header.nchannels}; {dialect} has {most} channels"
    if header.coll not in known and not (dialect != "msccl" and MEANINGS[header.coll] == "custom" != header.coll):
        yield f"{dialect} has no collective '{header.coll}': {', '.join(known)}"
    if dialect == "msccl":
        yield from _own_of_msccl(header)
        return
    given = {"minBytes": header.min_bytes, "maxBytes": header.max_bytes, "outofplace": header.outofplace}
    yield from (f"the algo has no {word}" for word, value in given.items() if value is None)
    if not header.inplace and not header.outofplace:
        yield "neither inplace nor outofplace is 1, so it is never selected"
    least, end = header.min_bytes or 0, header.max_bytes or 0
    if 0 < end < least:
        yield f"minBytes={least} and maxBytes={end}: no size is within both"


def _own_of_msccl(header: Header) -> Iterator[str]:
    least, most = header.min_bytes or 0, header.max_bytes
    if most is not None and most <= least:
        yield f"minBytes={least} and maxBytes={most}: no size is at least minBytes and less than maxBytes"
    if header.nthreads is not None and header.nthreads % 32:
        yield f"nthreads={header.nthreads} is no multiple of 32"


def _too_high_step(rows: Steps, dialect: str) -> Refusal | None:
    """The refusal of a step whose number is too large for the runtime."""
    most = TARGETS[dialect].steps
    over = np.flatnonzero(rows.s >= most)
    if not len(over):
        return None
    why = f"step s={rows.s[over[0]]} of a threadblock; the steps of {dialect} are 0 to {most - 1}"
    return Refusal(why, int(rows.line[over[0]]))


def _shared(header: Header, line: int, rows: Steps, too_fused: int) -> Iterator[Refusal]:
    """Yield refusals, or defects with the same effect, that all runtimes share."""
    for text, declared in _declared(header, rows):
        if declared != header.nchunksperloop:
            why = f"{text} does not agree with nchunksperloop={header.nchunksperloop} for {header.coll}"
            yield Refusal(why, line)
    used = np.flatnonzero(rows.sends | rows.receives)
    over = rows.block[used[rows.chan[rows.block[used]] >= header.nchannels]]
    if len(over):
        why = f"a threadblock uses channel {rows.chan[over[0]]}, but nchannels={header.nchannels}"
        yield Refusal(why, int(rows.block_line[over[0]]))
    if (rows.chan < 0).any():
        where = int(rows.block_line[np.argmax(rows.chan < 0)])
        yield Refusal(f"the threadblock on line {where} has chan=-1; channels are 0 and up", where)
    steps = np.bincount(rows.rank, minlength=rows.num_ranks)
    nodes = 1 + rows.num_ranks + rows.blocks_of + steps
    if nodes.max() > _MOST_NODES:
        gpu = int(nodes.argmax())
        yield Refusal(f"gpu {gpu} makes {nodes[gpu]} elements; the readers store at most {_MOST_NODES}", line)
    named = int(rows.depid.max(initial=-1))
    if named > _MOST_NAMED:
        why = f"a step waits for threadblock {named}; threadblocks 0 to {_MOST_NAMED} can be waited for"
        yield Refusal(why, int(rows.line[np.argmax(rows.depid)]))
    if too_fused >= 0:
        where = int(rows.line[too_fused])
        yield Refusal(f"line {where} is the 17th of a row of reductions that are fused into one; 16 fit", where)
