"""lines: write ops and post-conditions as lines of the text form, a million ops in seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.posts import Posts
from dovetail.ir.program import Program
from dovetail.ir.types import Kernel, Kind, Post

Texts = NDArray[np.object_]
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(?:-[A-Za-z0-9_.]+)*")
_SOURCE = re.compile(r"[^\s#\"]+")
_KINDS = [kind.name for kind in Kind]


def quote(name: str) -> str:
    """Return a name as the text form writes it: in quotes if it is no plain word.

    >>> quote("A_1"), quote("two words")
    ('A_1', '"two words"')
    """
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def kernel_text(kernels: tuple[Kernel, ...], row: int) -> str:
    """Return a kernel's name, followed by `#row` if several kernels have this name."""
    name = kernels[row].name
    return quote(name) + (f"#{row}" if sum(k.name == name for k in kernels) > 1 else "")


def op_lines(program: Program, *, source: bool = True) -> list[str]:
    """Return a line for each op, in the order of the rows; with `at` and the source line only if `source`.

    Raises nothing: an op that lacks the channel or kernel that its kind needs is printed without it.

    >>> from dovetail.ir import Builder, Region
    >>> b = Builder("one", 2)
    >>> a, net = b.buffer("a", "input", 8), b.lane("net", "net")
    >>> first = b.add(Kind.send, 0, net, reads=[Region("a", 0, 4)], chan_out=b.channel(0, 1))
    >>> _ = b.add(Kind.send, 0, net, reads=[Region("a", 4, 4)], chan_out=b.channel(0, 1, 2), after=[first])
    >>> op_lines(b.build())
    ['send a[0:4] to 1', 'send a[4:8] to 1:2 after net.0']
    """
    col = program.columns
    parts = [_calls(program), _peers(program, "chan_in"), _joined(_regions(program, "read"), col["read_start"], "")]
    parts.append(_joined(_regions(program, "write"), col["write_start"], " ->"))
    parts.append(_peers(program, "chan_out"))
    if program.collectives:
        groups = [f" group {' '.join(map(str, c.group))}" for c in program.collectives]
        parts.append(_chosen(groups, called(program, Kind.collective, len(groups))))
    if len(col["dep"]):
        parts.append(_joined(_deps(program), col["dep_start"], " after"))
    if source and (col["line"] >= 0).any():
        lines = [f" at {line if _SOURCE.fullmatch(line) else json.dumps(line)}" for line in program.lines]
        parts.append(_chosen(lines, col["line"]))
    return list(map("".join, zip(*(part.tolist() for part in parts), strict=True)))


def post_lines(posts: Sequence[Post]) -> list[str]:
    """Return a line for each post-condition."""
    bulk = Posts.of(posts)
    col, names = bulk.columns, [quote(name) for name in bulk.buffers]
    kernels = [quote(name) for name in bulk.kernels]
    ranks = list(map(str, col["post_rank"].tolist()))
    regions = _region_texts(names, [col[f"post_{part}"] for part in _REGION])
    args = _region_texts(names, [col[f"arg_{part}"] for part in _REGION], col["arg_rank"])

    def term(kernel: int, operands: list[str]) -> str:
        return " + ".join(operands) if kernel < 0 else f"{kernels[kernel]}({', '.join(operands)})"

    sums = bulk.fold(args.__getitem__, term) if (col["term_kernel"] >= 0).any() else _plain_sums(col, args)
    rows = zip(pairwise(col["post_rank_start"].tolist()), regions, sums, strict=True)
    return [f"post {' '.join(ranks[a:b])} {region} = {' + '.join(own) or '0'}" for (a, b), region, own in rows]


def _plain_sums(col: dict[str, NDArray[Any]], args: list[str]) -> Iterable[list[str]]:
    """Return the operands of each post whose terms are all inputs."""
    ends = col["term_arg_start"][col["post_term_start"]].tolist()
    return (args[a:b] for a, b in pairwise(ends))


_REGION = ("buffer", "offset", "count", "stride", "blocks")


def _region_texts(names: Sequence[str], parts: Sequence[NDArray[Any]], ranks: NDArray[Any] | None = None) -> list[str]:
    """Return `x[0:4]` for each region, or `x@1[0:4]` with ranks."""
    buffer, offset, count, stride, blocks = parts
    heads = [names[row] for row in buffer.tolist()]
    if ranks is not None:
        heads = [f"{head}@{rank}" for head, rank in zip(heads, ranks.tolist(), strict=True)]
    bounds = zip(heads, offset.tolist(), (offset + count).tolist(), strict=True)
    if not ((blocks != 1) | (stride != 0)).any():
        return [f"{head}[{first}:{last}]" for head, first, last in bounds]
    tails = [f"; {b} x {s}]" for b, s in zip(blocks.tolist(), stride.tolist(), strict=True)]
    single = ((blocks == 1) & (stride == 0)).tolist()
    ends = ["]" if one else tail for one, tail in zip(single, tails, strict=True)]
    return [f"{head}[{first}:{last}{end}" for (head, first, last), end in zip(bounds, ends, strict=True)]


def _regions(program: Program, side: str) -> list[str]:
    names = [quote(buffer.name) for buffer in program.buffers]
    return _region_texts(names, [program.columns[f"{side}_{part}"] for part in _REGION])


def _deps(program: Program) -> list[str]:
    """Return each dependency as lane and index, with the rank if it is another one."""
    col = program.columns
    names = np.array([quote(lane.name) for lane in program.lanes], dtype=object)
    heads = names[col["lane"][col["dep"]]]
    rank = col["rank"][col["dep"]]
    far = np.flatnonzero(rank != np.repeat(col["rank"], np.diff(col["dep_start"])))
    for row in far.tolist():
        heads[row] = f"{rank[row]}/{heads[row]}"
    places = program.positions()[col["dep"]].tolist()
    return [f"{head}.{place}" for head, place in zip(heads.tolist(), places, strict=True)]


def _calls(program: Program) -> Texts:
    """Return the first words of each op: its kind, and the kernel or collective that it calls."""
    col = program.columns
    words: Texts = np.array(_KINDS, dtype=object)[col["kind"]]
    tables: tuple[tuple[Kind, int, Callable[[int], str]], ...] = (
        (Kind.compute, len(program.kernels), lambda row: kernel_text(program.kernels, row)),
        (Kind.collective, len(program.collectives), lambda row: quote(program.collectives[row].kind)),
    )
    for kind, size, name in tables:
        rows = np.flatnonzero(called(program, kind, size) >= 0)
        if len(rows):
            words[rows] = np.array([f"{kind.name} {name(row)}" for row in range(size)], dtype=object)[col["call"][rows]]
    return words


def called(program: Program, kind: Kind, size: int) -> NDArray[Any]:
    """Return the kernel or collective that each op of this kind calls; -1 for rows that do not exist, and other ops."""
    col = program.columns
    return np.where((col["kind"] == kind) & (col["call"] >= 0) & (col["call"] < size), col["call"], -1)


def _peers(program: Program, end: str) -> Texts:
    """Return how each op names its channel: by the peer, or in full if its rank is at neither end."""
    col, word = program.columns, "from" if end == "chan_in" else "to"
    tails = [f":{c.id}" if c.id else "" for c in program.channels]
    peers = [c.src if end == "chan_in" else c.dst for c in program.channels]
    texts = _chosen([f" {word} {peer}{tail}" for peer, tail in zip(peers, tails, strict=True)], col[end])
    own = np.array([c.dst if end == "chan_in" else c.src for c in program.channels] or [0])
    for row in np.flatnonzero((col[end] >= 0) & (own[col[end]] != col["rank"])).tolist():
        channel = program.channels[col[end][row]]
        texts[row] = f" {word} {channel.src}->{channel.dst}{tails[col[end][row]]}"
    return texts


def _chosen(texts: Iterable[str], rows: NDArray[Any]) -> Texts:
    """Return the text of each row; "" for row -1."""
    found: Texts = np.array([*texts, ""], dtype=object)[rows]
    return found


def _joined(texts: Sequence[str], start: NDArray[Any], word: str) -> Texts:
    """Return, for each row i, a word and the texts start[i] to start[i + 1] - 1; "" if there are none."""
    count = np.diff(start)
    found = np.full(len(count), "", dtype=object)
    if (count == 1).all() and not word:
        found[:] = [f" {text}" for text in texts]
        return found
    single = np.flatnonzero(count == 1)
    found[single] = [f"{word} {texts[at]}" for at in start[single].tolist()]
    for row in np.flatnonzero(count > 1).tolist():
        found[row] = f"{word} {' '.join(texts[start[row] : start[row + 1]])}"
    return found
