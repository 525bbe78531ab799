"""MSCCL XML for tests: small files written in a few words, the corpus and its verdicts, what collectives leave."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from needs import SHARED

CORPUS = SHARED / "corpus" / "msccl"
Steps = Mapping[tuple[int, int], Sequence[str]]


def index() -> list[dict[str, str]]:
    """Rows of the corpus's INDEX.tsv that are XML; empty where there is no corpus."""
    place = CORPUS / "INDEX.tsv"
    if not place.exists():
        return []
    with place.open() as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if row["file"].endswith(".xml")]


def verdict(row: dict[str, str]) -> str:
    """One word for a row: valid, unreadable, deadlock, races, result."""
    text = row["validity (independent checker)"]
    words = {"valid only with": "deadlock", "rejected": "unreadable", "INVALID: RACE": "races"}
    words |= {"INVALID: POST": "result", "INVALID: DEADLOCK": "deadlock", "valid": "valid"}
    return next(word for start, word in words.items() if text.startswith(start))


def xml(
    steps: Steps,
    coll: str = "allreduce",
    ranks: int = 2,
    chunks: int = 1,
    *,
    io: tuple[int, int] | None = None,
    scratch: int = 0,
    head: str = 'inplace="1"',
    proto: str = "Simple",
    channels: int = 1,
) -> str:
    """A file: `steps[rank, tb]` are lines `send recv chan` and then `type src dst cnt [depid.deps] [!]`.

    An operand is `i3`, or `-`; `!` is hasdep=1. One line of the text for each element, so that lines can be counted.
    """
    i, o = io if io is not None else (chunks, 0)
    facts = f'name="t" proto="{proto}" nchannels="{channels}" nchunksperloop="{chunks}" ngpus="{ranks}" coll="{coll}"'
    lines = [f"<algo {facts} {head}>"]
    for rank in range(ranks):
        lines.append(f'<gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{scratch}">')
        for (owner, tb), (ends, *rest) in steps.items():
            if owner == rank:
                send, recv, chan = ends.split()
                lines.append(f'<tb id="{tb}" send="{send}" recv="{recv}" chan="{chan}">')
                lines += [_step(number, text) for number, text in enumerate(rest)]
                lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _step(number: int, text: str) -> str:
    word, src, dst, cnt, *more = text.split()
    places = [("i", -1) if p == "-" else (p[0], int(p[1:])) for p in (src, dst)]
    wait = next((w for w in more if w != "!"), "-1.-1").split(".")
    return (
        f'<step s="{number}" type="{word}" srcbuf="{places[0][0]}" srcoff="{places[0][1]}" dstbuf="{places[1][0]}" '
        f'dstoff="{places[1][1]}" cnt="{cnt}" depid="{wait[0]}" deps="{wait[1]}" hasdep="{int("!" in more)}"/>'
    )


def expected(kind: str, inputs: Sequence[np.ndarray], in_place: bool) -> list[np.ndarray]:
    """What a collective leaves on each rank, by its definition; arrays have slots on axis 0 (all of them in place)."""
    n, total = len(inputs), np.sum(inputs, axis=0)
    part = len(inputs[0]) // n

    def own(rank: int) -> slice:
        return slice(rank * part, (rank + 1) * part)

    if kind == "all_reduce":
        return [total] * n
    if kind == "all_gather":
        return [np.concatenate([x[own(r)] if in_place else x for r, x in enumerate(inputs)])] * n
    if kind == "reduce_scatter":
        return [total[own(r)] for r in range(n)]
    if kind == "all_to_all":
        return [np.concatenate([x[own(r)] for x in inputs]) for r in range(n)]
    raise AssertionError(kind)


def path(row: dict[str, str]) -> Path:
    return CORPUS / row["file"]
