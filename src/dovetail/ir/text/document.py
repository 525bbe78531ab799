"""document: write the JSON text of a Program column by column, without building the whole document in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dovetail.ir.posts import Posts
from dovetail.ir.program import Program
from dovetail.ir.types import COLUMNS, Post


def json_text(program: Program) -> str:
    """Return `json.dumps(program.to_json())`.

    >>> from dovetail.ir import parse
    >>> one = parse("program one ranks 1\\nlane net net\\nrank 0 lane net\\n  nop\\n")
    >>> json_text(one) == json.dumps(one.to_json())
    True
    """
    return "".join(_pieces(program))


def _pieces(program: Program) -> Iterator[str]:
    for number, (key, value) in enumerate(program.tables_json([]).items()):
        yield f'{", " if number else "{"}"{key}": '
        yield f"[{', '.join(_posts(program.posts))}]" if key == "posts" else json.dumps(value)
    yield ', "columns": {'
    for number, name in enumerate(COLUMNS):
        yield f'{", " if number else ""}"{name}": '
        yield json.dumps(program.columns[name].tolist())
    yield "}}"


def _posts(posts: Sequence[Post]) -> list[str]:
    """Return the JSON text of each post-condition."""
    bulk = Posts.of(posts)
    col = bulk.columns
    ranks, kernels = list(map(str, col["post_rank"].tolist())), [json.dumps(name) for name in (*bulk.kernels, None)]
    owners = zip(col["arg_rank"].tolist(), _regions(bulk, "arg"), strict=True)
    args = [f"[{rank}, {region}]" for rank, region in owners]
    terms = bulk.fold(args.__getitem__, lambda kernel, own: f"[{kernels[kernel]}, [{', '.join(own)}]]")
    rows = zip(_regions(bulk, "post"), pairwise(col["post_rank_start"].tolist()), terms, strict=True)
    return [
        f'{{"ranks": [{", ".join(ranks[a:b])}], "region": {region}, "terms": [{", ".join(own)}]}}'
        for region, (a, b), own in rows
    ]


def _regions(posts: Posts, side: str) -> list[str]:
    names = [json.dumps(name) for name in posts.buffers]
    parts = (posts.columns[f"{side}_{part}"].tolist() for part in ("buffer", "offset", "count", "stride", "blocks"))
    return [f"[{names[row]}, {o}, {c}, {s}, {b}]" for row, o, c, s, b in zip(*parts, strict=True)]
