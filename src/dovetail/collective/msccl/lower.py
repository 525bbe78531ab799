"""lower: a Program as steps of an interpreter can say it: without nops, and every region one short run of slots."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Builder, Kind, Op, Program, Region
from dovetail.passes.pieces import origins

Ints = NDArray[np.int64]


def lower(program: Program, most: int) -> Program:
    """Cut ops into steps of one run of at most `most` slots; let what follows a nop wait for what the nop waited for.

    A message is cut alike at both ends, and all along its way. The first piece of an op waits for what the op waited
    for, and who waited for the op waits for its last piece: pieces of one lane run in turn. Channels keep their depths,
    unlike those of `passes.slice_messages`: what a runtime's FIFO holds is given, and each piece takes a place.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program columns ranks 2
    ... buffer input input 4
    ... buffer scratch scratch 4
    ... lane a net
    ... lane b net
    ... channel 0->1 0 depth 2
    ... rank 0 lane a
    ...   send input[0:1; 2 x 2] to 1
    ... rank 1 lane a
    ...   recv from 0 -> scratch[0:2]
    ... rank 1 lane b
    ...   nop after a.0
    ...   copy scratch[0:2] -> scratch[2:4]
    ... ''')
    >>> print(to_text(lower(before, 71)), end="")
    program columns ranks 2
    buffer input input 4
    buffer scratch scratch 4
    lane a net
    lane b net
    channel 0->1 0 depth 2
    rank 0 lane a
      send input[0:1] to 1
      send input[2:3] to 1
    rank 1 lane a
      recv from 0 -> scratch[0:1]
      recv from 0 -> scratch[1:2]
    rank 1 lane b
      copy scratch[0:2] -> scratch[2:4] after a.1
    """
    if not _needs(program, most):
        return program
    ops = list(program.ops())
    cuts, after = _cuts(program, ops, most), _without_nops(program, ops)
    row, start = 0, {}  # of each op: its first new row
    for op in ops:
        start[op.index] = row
        row += 0 if op.kind == Kind.nop else len(cuts[op.index]) - 1
    builder = _tables(program)
    for op in ops:
        if op.kind == Kind.nop:
            continue
        places = cuts[op.index]
        waits = [start[dep] + len(cuts[dep]) - 2 for dep in after[op.index]]
        for piece, ends in enumerate(pairwise(places)):
            builder.add(
                op.kind,
                op.rank,
                op.lane,
                reads=[_cut(region, *ends) for region in op.reads],
                writes=[_cut(region, *ends) for region in op.writes],
                chan_in=op.chan_in,
                chan_out=op.chan_out,
                after=waits if piece == 0 else (),
                line=op.line,
            )
    return builder.build()


def in_pieces(program: Program, most: int) -> Program:
    """`lower(program, most)` of a program of single runs, in bulk; nops stay, and nothing is asked.

    >>> from dovetail.ir import parse, to_text
    >>> whole = parse('''
    ... program two ranks 1
    ... buffer x input 3
    ... buffer y output 3
    ... lane a net
    ... lane b net
    ... rank 0 lane a
    ...   copy x[0:3] -> y[0:3]
    ... rank 0 lane b
    ...   nop after a.0
    ... ''')
    >>> print("\\n".join(to_text(in_pieces(whole, 2)).splitlines()[-5:]))
    rank 0 lane a
      copy x[0:2] -> y[0:2]
      copy x[2:3] -> y[2:3]
    rank 0 lane b
      nop after a.1
    """
    col, new = program.columns, dict[str, Ints]()
    pieces = np.ones(program.num_ops, dtype=np.int64)
    for side in ("read", "write"):
        pieces[np.diff(col[f"{side}_start"]) > 0] = np.maximum(-(-col[f"{side}_count"] // most), 1)
    last = np.cumsum(pieces) - 1
    number = np.arange(pieces.sum()) - np.repeat(last - pieces + 1, pieces)
    for name in ("kind", "rank", "lane", "chan_in", "chan_out", "call", "line"):
        new[name] = np.repeat(col[name], pieces)
    for side in ("read", "write"):
        has = np.repeat(np.diff(col[f"{side}_start"]), pieces)
        new[f"{side}_start"] = np.append(0, np.cumsum(has))
        own = pieces[np.diff(col[f"{side}_start"]) > 0]
        for part in ("buffer", "offset", "count", "stride", "blocks"):
            new[f"{side}_{part}"] = np.repeat(col[f"{side}_{part}"], own)
        done = number[has > 0] * most
        new[f"{side}_offset"] += done
        new[f"{side}_count"] = np.minimum(new[f"{side}_count"] - done, most)
    waits = np.where(number == 0, np.repeat(np.diff(col["dep_start"]), pieces), 0)
    new |= {"dep_start": np.append(0, np.cumsum(waits)), "dep": last[col["dep"]]}
    return replace(program, posts=()).with_columns(new)


def _needs(program: Program, most: int) -> bool:
    col = program.columns
    long = any(((col[f"{side}_blocks"] != 1) | (col[f"{side}_count"] > most)).any() for side in ("read", "write"))
    return long or bool((col["kind"] == Kind.nop).any())


def _tables(program: Program) -> Builder:
    """A builder with the tables of `program`, and no ops."""
    builder = Builder(program.name, program.num_ranks)
    for buffer in program.buffers:
        builder.buffer(*buffer)
    for lane in program.lanes:
        builder.lane(*lane)
    for channel in program.channels:
        builder.channel(*channel)
    for post in program.posts:
        builder.post(*post)
    return builder


def _without_nops(program: Program, ops: list[Op]) -> list[list[int]]:
    """What each op waits for when nops are gone: what a nop stood for is handed to the next op of its lane."""
    stands_for: dict[int, list[int]] = {}  # of each nop
    after: list[list[int]] = [[] for _ in ops]
    for rows in program.queues().values():
        last, pending = list[int](), list[int]()
        for row in rows.tolist():
            if ops[row].kind == Kind.nop:
                pending += ops[row].after
                stands_for[row] = [*last, *pending]
            else:
                after[row] = [*pending, *ops[row].after]
                last, pending = [row], []
    return [_resolved(waits, stands_for) for waits in after]


def _resolved(waits: list[int], stands_for: dict[int, list[int]]) -> list[int]:
    found, todo, seen = dict[int, None](), waits[::-1], set[int]()
    while todo:
        row = todo.pop()
        if row not in stands_for:
            found[row] = None
        elif row not in seen:
            seen.add(row)
            todo += reversed(stands_for[row])
    return list(found)


def _cuts(program: Program, ops: list[Op], most: int) -> list[list[int]]:
    """Where each op is cut, both ends included."""
    places, paths = [[0, 1] for _ in ops], dict[int, list[int]]()
    for row, origin in enumerate(origins(program).tolist()):
        paths.setdefault(origin, []).append(row)
    for path in paths.values():
        regions = [region for row in path for region in (*ops[row].reads, *ops[row].writes)]
        if not regions:
            continue
        marks = {0, regions[0].num_slots}
        for region in regions:
            marks |= set(range(0, region.num_slots, region.count)) if region.blocks > 1 else set()
        whole = sorted(marks)
        cut = [at for low, high in pairwise(whole) for at in range(low, high, most)] + whole[-1:]
        for row in path:
            places[row] = cut
    return places


def _cut(region: Region, start: int, stop: int) -> Region:
    """Slots `start` to `stop` of a region, which lie in one of its blocks."""
    block, inside = divmod(start, region.count) if region.blocks > 1 else (0, start)
    return Region(region.buffer, region.offset + block * region.stride + inside, stop - start)
