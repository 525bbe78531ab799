"""write: Program → MSCCL XML of one dialect, once its certificate holds for that runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.msccl.certify import certify
from dovetail.collective.msccl.header import header_attributes
from dovetail.collective.msccl.lower import lower
from dovetail.collective.msccl.order import MOST_FUSED
from dovetail.collective.msccl.parts import COLLECTIVES, FIFO_DEPTHS, KINDS, NOP, Header, check_dialect
from dovetail.collective.msccl.read import read
from dovetail.collective.spec import spec_of
from dovetail.core import ProgramError
from dovetail.ir import TARGETS, Kind, Program, canonical, verify

Ints = NDArray[np.int64]
_WORDS = {int(kind): word for word, kind in KINDS.items()}
_SHARED = {"all_gather": "o", "reduce_scatter": "i"}  # the buffer that holds everything in place
_MOST_NAME = 63


def write(
    program: Program,
    dialect: str,
    *,
    protocol: str | None = None,
    name: str | None = None,
    collective: str | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
    header: Header | None = None,
) -> str:
    """The XML of `program` for a runtime: "msccl", "azure" (msccl-executor-nccl) or "rccl".

    Its buffers are "input" and, unless it is in place, "output"; all others become scratch. `protocol` is Simple, LL
    or LL128, `min_bytes` and `max_bytes` say for which sizes it is. `collective` (found by itself where it is a
    standard one) goes into the header, and must be what the program proves to do. `header`, of a file that was read,
    gives what is not said here; where it is for both uses, both are proved. ProgramError where the certificate does not
    hold on that runtime: with the FIFO depth of the protocol, its limits, and its words.
    """
    check_dialect(dialect)
    protocol = protocol or (header.proto if header else "Simple")
    if protocol not in FIFO_DEPTHS:
        raise ProgramError(f"no protocol '{protocol}'", hint=f"one of {', '.join(FIFO_DEPTHS)}")
    steps = lower(program, TARGETS[dialect].slots).with_depth(FIFO_DEPTHS[protocol])
    kind = _proved_kind(steps, dialect, collective or (header.kind if header else None))
    places = _places(canonical(steps), kind, keep_lanes=header is not None)
    told = _header(header, places, kind, dialect, steps, protocol)
    given = {"name": name and name[:_MOST_NAME], "min_bytes": min_bytes, "max_bytes": max_bytes}
    told = replace(told, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
    text = "\n".join(_lines(places, told, dialect)) + "\n"
    written = read(text, dialect, name=f"{told.name}.xml")
    if len(written.uses) > 1:
        certify(written, dialect).raise_if_bad()
    return text


class _Places(NamedTuple):
    """Where slots and lanes of a program go: its buffers' letters and first chunks [buffer, rank], chunks of i, o, s of
    each gpu, chunks of the whole; of each rank, the threadblock that each of its lanes is (-1: none)."""

    program: Program
    letters: tuple[str, ...]
    bases: Ints
    chunks: Ints
    whole: int
    blocks: Ints
    in_place: bool


def _proved_kind(program: Program, dialect: str, wanted: str | None) -> str:
    """The collective to head the file with; ProgramError where it is not proved, or the runtime has no word for it."""
    certificate = verify(program, dialect)
    certificate.raise_if_bad()
    found = certificate.collective_found
    kind = wanted or found or "custom"
    if kind not in ("custom", found) and not _does(program, kind):
        what = f"program '{program.name}' is not proved to be {_article(kind)}"
        raise ProgramError(what, found=f"it does {_article(found)}" if found else "no standard collective")
    if kind in COLLECTIVES[dialect]:
        return kind
    if "custom" in COLLECTIVES[dialect]:
        return "custom"
    raise ProgramError(
        f"{dialect} has no word for {_article(kind)}", hint=f"it knows {', '.join(COLLECTIVES[dialect])}"
    )


def _article(kind: str) -> str:
    return "a collective of its own" if kind == "custom" else f"{'an' if kind[0] in 'aeio' else 'a'} {kind}"


def _does(program: Program, kind: str) -> bool:
    """Whether the program leaves what collective `kind` asks, by its own buffers."""
    n = program.num_ranks
    slots = max((max(b.slots) for b in program.buffers if b.role != "scratch"), default=0)
    chunks = slots // n if kind in ("all_gather", "reduce_scatter", "all_to_all") else slots
    if chunks < 1:
        return False
    in_place = all(buffer.role != "output" for buffer in program.buffers)
    spec = spec_of(kind, n, chunks=chunks, in_place=in_place)
    if any(buffer not in program.buffers for buffer in spec.buffers):
        return False
    return program.posts == spec.posts or verify(replace(program, posts=spec.posts)).checks["result"].ok


def _header(header: Header | None, places: _Places, kind: str, dialect: str, program: Program, protocol: str) -> Header:
    """The header for a dialect; one that was read keeps what still holds."""
    told = header or Header(program.name, protocol, "", 1, 1, program.num_ranks, places.in_place)
    both = told.inplace and told.outofplace is True and not places.in_place
    away = told.outofplace if told.outofplace is None else not places.in_place or both
    return replace(
        told,
        name=told.name[:_MOST_NAME],
        proto=protocol,
        coll=COLLECTIVES[dialect][kind],
        nchannels=max([told.nchannels if header else 1, *(channel.id + 1 for channel in program.channels)]),
        nchunksperloop=places.whole,
        ngpus=program.num_ranks,
        inplace=places.in_place or both,
        outofplace=away,
    )


def _places(program: Program, kind: str, keep_lanes: bool) -> _Places:
    n = program.num_ranks
    roles = {buffer.role for buffer in program.buffers}
    in_place = "output" not in roles
    names = {"input": _SHARED.get(kind, "i") if in_place else "i", "output": "o", "scratch": "s"}
    letters = tuple(names[buffer.role] for buffer in program.buffers)
    if letters.count("i") > 1 or letters.count("o") > 1:
        raise ProgramError("a file has one input and one output", found=", ".join(b.name for b in program.buffers))
    chunks, bases = np.zeros((n, 3), dtype=np.int64), np.zeros((len(letters), n), dtype=np.int64)
    for row, (letter, buffer) in enumerate(zip(letters, program.buffers, strict=True)):
        bases[row] = chunks[:, "ios".index(letter)]
        chunks[:, "ios".index(letter)] += np.array(buffer.slots)
    whole = int(chunks[:, :2].max(initial=0))
    lanes = len(program.lanes)
    used = np.zeros((n, lanes), dtype=bool)
    used[program.columns["rank"], program.columns["lane"]] = True
    if keep_lanes:  # gaps stay, as threadblocks without steps
        used = np.maximum.accumulate(used[:, ::-1], axis=1)[:, ::-1]
    blocks = np.where(used, np.cumsum(used, axis=1) - 1, -1)
    return _Places(program, letters, bases, chunks, whole, blocks, in_place)


def _lines(places: _Places, header: Header, dialect: str) -> Iterator[str]:
    attributes = " ".join(f"{word}={_quoted(value)}" for word, value in header_attributes(header, dialect))
    yield f"<algo {attributes}>"
    steps = _steps(places)
    ends = _ends(places)
    for rank, (i, o, s) in enumerate(places.chunks.tolist()):
        yield f'  <gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">'
        for block in range(int(places.blocks[rank].max(initial=-1)) + 1):
            send, recv, chan = ends.get((rank, block), (-1, -1, 0))
            yield f'    <tb id="{block}" send="{send}" recv="{recv}" chan="{chan}">'
            yield from steps.get((rank, block), ())
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def _ends(places: _Places) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Of each threadblock (rank, id): the peers it sends to and receives from (-1: none), and its channel."""
    program, ends = places.program, dict[tuple[int, int], tuple[int, int, int]]()
    col = program.columns
    block = places.blocks[col["rank"], col["lane"]]
    for rank, tb, out, into in zip(
        *(c.tolist() for c in (col["rank"], block, col["chan_out"], col["chan_in"])), strict=True
    ):
        if out >= 0 or into >= 0:
            send, recv, chan = ends.get((rank, tb), (-1, -1, 0))
            if out >= 0:
                send, chan = program.channels[out].dst, program.channels[out].id
            if into >= 0:
                recv, chan = program.channels[into].src, program.channels[into].id
            ends[rank, tb] = send, recv, chan
    return ends


def _steps(places: _Places) -> dict[tuple[int, int], list[str]]:
    """The lines of each threadblock's steps: waits beyond an op's first become nops before it."""
    program, col = places.program, places.program.columns
    taken = np.maximum(np.diff(col["dep_start"]), 1)
    queue = col["rank"].astype(np.int64) * len(program.lanes) + col["lane"]
    before = np.cumsum(taken) - taken
    number = before - before[np.searchsorted(queue, queue)] + taken - 1  # rows stand by rank and lane
    named = list(zip(places.blocks[col["rank"], col["lane"]].tolist(), number.tolist(), strict=True))
    deps, start = col["dep"].tolist(), col["dep_start"].tolist()
    columns = (col["rank"].tolist(), col["kind"].tolist(), _operands(places), _publishing(places).tolist())
    found: dict[tuple[int, int], list[str]] = {}
    for row, (rank, kind, operands, publishes) in enumerate(zip(*columns, strict=True)):
        block, step = named[row]
        lines = found.setdefault((rank, block), [])
        waits = [named[dep] for dep in deps[start[row] : start[row + 1]]] or [(-1, -1)]
        for at, wait in enumerate(waits[:-1], step - len(waits) + 1):
            lines.append(_step(at, NOP, ("i", -1, "o", -1, 0), wait, 0))
        lines.append(_step(step, _WORDS[kind], operands, waits[-1], publishes))
    return found


def _step(
    number: int, word: str, operands: tuple[str, int, str, int, int], wait: tuple[int, int], publishes: int
) -> str:
    srcbuf, srcoff, dstbuf, dstoff, cnt = operands
    return (
        f'      <step s="{number}" type="{word}" srcbuf="{srcbuf}" srcoff="{srcoff}" dstbuf="{dstbuf}" '
        f'dstoff="{dstoff}" cnt="{cnt}" depid="{wait[0]}" deps="{wait[1]}" hasdep="{publishes}"/>'
    )


def _operands(places: _Places) -> list[tuple[str, int, str, int, int]]:
    """Source, destination and count of each op; one that has only one of them says it twice."""
    col = places.program.columns
    sides = []
    for side in ("read", "write"):
        at = np.minimum(col[f"{side}_start"][:-1], max(len(col[f"{side}_buffer"]) - 1, 0))
        has = np.diff(col[f"{side}_start"]) > 0
        buffer = col[f"{side}_buffer"][at] if len(col[f"{side}_buffer"]) else np.zeros(len(at), dtype=np.int64)
        offset = (
            col[f"{side}_offset"][at] + places.bases[buffer, col["rank"]]
            if has.any()
            else np.zeros(len(at), dtype=np.int64)
        )
        count = col[f"{side}_count"][at] if has.any() else np.zeros(len(at), dtype=np.int64)
        sides.append((has, np.array(places.letters, dtype=object)[buffer], offset, count))
    (reads, *read), (_, *written) = sides
    writes = sides[1][0]
    source = [np.where(reads, r, w).tolist() for r, w in zip(read, written, strict=True)]
    target = [np.where(writes, w, r).tolist() for r, w in zip(read, written, strict=True)]
    return list(zip(source[0], source[1], target[0], target[1], source[2], strict=True))


def _publishing(places: _Places) -> Ints:
    """1 for ops that others wait for, and for reductions where the interpreter must not join the next one to them.

    It joins neighbours of one destination and one source buffer, gives all the count of the last, and holds 16.
    """
    col = places.program.columns
    publishes = np.zeros(places.program.num_ops, dtype=np.int64)
    publishes[col["dep"]] = 1
    adds = np.flatnonzero(col["kind"] == Kind.reduce)
    source, target = col["read_start"][adds], col["write_start"][adds]
    facts = [col["rank"][adds], col["lane"][adds]]
    facts += [col["write_buffer"][target], col["write_offset"][target]]
    letter = np.array(["ios".index(letter) for letter in places.letters])
    facts.append(letter[col["read_buffer"][source]] if len(adds) else adds)
    key, count = np.stack(facts), col["write_count"][target]
    chain = 1
    for k in range(1, len(adds)):
        joins = adds[k] == adds[k - 1] + 1 and bool((key[:, k] == key[:, k - 1]).all())
        chain = chain + 1 if joins and not publishes[adds[k - 1]] else 1
        if chain > 1 and (count[k] != count[k - 1] or chain == MOST_FUSED):
            publishes[adds[k - 1]], chain = 1, 1
    return publishes


def _quoted(text: str) -> str:
    """An attribute's value in double quotes, the only ones that the runtimes read."""
    return f'"{escape(text, {chr(34): "&quot;"})}"'
