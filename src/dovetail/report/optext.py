"""One line of text for each op of a Program, in the words of its text form, for tooltips and traces."""

from __future__ import annotations

from typing import Any

from dovetail.ir import Kind, Program


def op_texts(program: Program) -> list[str]:
    """A line for each op: kind, kernel or collective, what it reads, `->` what it writes, its peers, what it waits for.

    >>> from dovetail.ir import Builder, Region
    >>> b = Builder("one", 2)
    >>> a, net = b.buffer("a", "input", 8), b.lane("net", "net")
    >>> first = b.add(Kind.send, 0, net, reads=[Region("a", 0, 4)], chan_out=b.channel(0, 1))
    >>> _ = b.add(Kind.send, 0, net, reads=[Region("a", 4, 4)], chan_out=b.channel(0, 1, 2), after=[first])
    >>> op_texts(b.build())
    ['send a[0:4] to 1', 'send a[4:8] to 1:2 after net.0']
    """
    col = {name: column.tolist() for name, column in program.columns.items()}
    kinds = [kind.name for kind in Kind]
    calls = [kernel.name for kernel in program.kernels], [c.kind for c in program.collectives]
    sources = [_peer("from", c.src, c.id) for c in program.channels]
    targets = [_peer("to", c.dst, c.id) for c in program.channels]
    reads, writes = _regions(program, col, "read"), _regions(program, col, "write")
    lanes, positions = [lane.name for lane in program.lanes], program.positions().tolist()
    texts = []
    for i, kind in enumerate(col["kind"]):
        words = [kinds[kind]]
        if col["call"][i] >= 0:
            words.append(calls[kind == Kind.collective][col["call"][i]])
        if col["chan_in"][i] >= 0:
            words.append(sources[col["chan_in"][i]])
        words += reads[col["read_start"][i] : col["read_start"][i + 1]]
        written = writes[col["write_start"][i] : col["write_start"][i + 1]]
        if written:
            words += ["->", *written]
        if col["chan_out"][i] >= 0:
            words.append(targets[col["chan_out"][i]])
        after = col["dep"][col["dep_start"][i] : col["dep_start"][i + 1]]
        if after:
            words.append("after " + " ".join(f"{lanes[col['lane'][d]]}.{positions[d]}" for d in after))
        texts.append(" ".join(words))
    return texts


def _peer(word: str, rank: int, id: int) -> str:
    return f"{word} {rank}:{id}" if id else f"{word} {rank}"


def _regions(program: Program, col: dict[str, Any], side: str) -> list[str]:
    """The text of every region read (or written), in the order of the columns."""
    names = [buffer.name for buffer in program.buffers]
    parts = (col[f"{side}_{part}"] for part in ("buffer", "offset", "count", "stride", "blocks"))
    return [
        f"{names[b]}[{offset}:{offset + count}]"
        if blocks == 1
        else f"{names[b]}[{offset}:{offset + count}; {blocks} x {stride}]"
        for b, offset, count, stride, blocks in zip(*parts, strict=True)
    ]
