"""One line of text for each op of a Program, as its text form writes it, for tooltips and traces."""

from __future__ import annotations

from typing import Any

from dovetail.ir import Kind, Program
from dovetail.ir.text import kernel_text, quote


def op_texts(program: Program) -> list[str]:
    """A line for each op, as `ir.to_text` writes it but for the source line; a million takes seconds.

    Never refuses: an op without the channel or kernel that its kind needs is told without it.

    >>> from dovetail.ir import Builder, Region
    >>> b = Builder("one", 2)
    >>> a, net = b.buffer("a", "input", 8), b.lane("net", "net")
    >>> first = b.add(Kind.send, 0, net, reads=[Region("a", 0, 4)], chan_out=b.channel(0, 1))
    >>> _ = b.add(Kind.send, 0, net, reads=[Region("a", 4, 4)], chan_out=b.channel(0, 1, 2), after=[first])
    >>> op_texts(b.build())
    ['send a[0:4] to 1', 'send a[4:8] to 1:2 after net.0']
    """
    col = {name: column.tolist() for name, column in program.columns.items()}
    calls, tails, sources, targets = _tables(program)
    reads, writes, deps = _regions(program, col, "read"), _regions(program, col, "write"), _deps(program, col)
    texts = []
    for i, kind in enumerate(col["kind"]):
        words = [calls.get((kind, col["call"][i]), _KINDS[kind])]
        if col["chan_in"][i] >= 0:
            words.append(sources[col["chan_in"][i]][col["rank"][i]])
        words += reads[col["read_start"][i] : col["read_start"][i + 1]]
        if written := writes[col["write_start"][i] : col["write_start"][i + 1]]:
            words += ["->", *written]
        if col["chan_out"][i] >= 0:
            words.append(targets[col["chan_out"][i]][col["rank"][i]])
        if kind == Kind.collective:
            words += tails[col["call"][i] : col["call"][i] + 1]
        if after := deps[col["dep_start"][i] : col["dep_start"][i + 1]]:
            words += ["after", *after]
        texts.append(" ".join(words))
    return texts


_KINDS = [kind.name for kind in Kind]


class _Peers(dict[int, str]):
    """How an op on each rank names the other end of a channel: in full where it stands at neither end."""

    def __init__(self, word: str, own: int, other: int, src: int, dst: int, id: int) -> None:
        tail = f":{id}" if id else ""
        super().__init__({own: f"{word} {other}{tail}"})
        self.full = f"{word} {src}->{dst}{tail}"

    def __missing__(self, rank: int) -> str:
        return self.full


def _tables(program: Program) -> tuple[dict[tuple[int, int], str], list[str], list[_Peers], list[_Peers]]:
    """First words by (kind, call), the group of each collective, how each channel is named at both of its ends."""
    calls: dict[tuple[int, int], str] = {}
    for row in range(len(program.kernels)):
        calls[Kind.compute, row] = f"compute {kernel_text(program.kernels, row)}"
    for row, collective in enumerate(program.collectives):
        calls[Kind.collective, row] = f"collective {quote(collective.kind)}"
    tails = [f"group {' '.join(map(str, c.group))}" for c in program.collectives]
    sources = [_Peers("from", c.dst, c.src, c.src, c.dst, c.id) for c in program.channels]
    targets = [_Peers("to", c.src, c.dst, c.src, c.dst, c.id) for c in program.channels]
    return calls, tails, sources, targets


def _regions(program: Program, col: dict[str, Any], side: str) -> list[str]:
    """The text of every region read (or written), in the order of the columns."""
    names = [quote(buffer.name) for buffer in program.buffers]
    parts = (col[f"{side}_{part}"] for part in ("buffer", "offset", "count", "stride", "blocks"))
    return [
        f"{names[b]}[{offset}:{offset + count}]"
        if blocks == 1 and stride == 0
        else f"{names[b]}[{offset}:{offset + count}; {blocks} x {stride}]"
        for b, offset, count, stride, blocks in zip(*parts, strict=True)
    ]


def _deps(program: Program, col: dict[str, Any]) -> list[str]:
    """The text of every dependency, in the order of the columns: lane and index, with the rank where it differs."""
    lanes, position = [quote(lane.name) for lane in program.lanes], program.positions().tolist()
    owner = program.columns["rank"].repeat(program.columns["dep_start"][1:] - program.columns["dep_start"][:-1])
    return [
        f"{'' if col['rank'][d] == rank else str(col['rank'][d]) + '/'}{lanes[col['lane'][d]]}.{position[d]}"
        for d, rank in zip(col["dep"], owner.tolist(), strict=True)
    ]
