"""assign_lanes: give every op a lane of its rank and a place in it, and every message its channel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.ir import Channel, Lane, Program
from dovetail.passes.columns import Array, OpColumns, moved, ranked
from dovetail.passes.hints import Hints
from dovetail.passes.lanes import share_lanes
from dovetail.passes.order import in_order
from dovetail.passes.transfers import messages


def assign_lanes(program: Program, hints: Hints, forward: Array) -> tuple[Program, Hints, Array] | None:
    """Assign lanes to a trace with channels so that it can run. Also return which receives the next op forwards.

    A lane sends to at most one peer, receives from at most one, and has one channel. All messages of a rank with one
    peer, in one direction, on one channel are on one lane. Flows decide which peers share a lane, then the author's
    lanes; then each sending lane is merged with a receiving one, of the same peer if possible. Copies and reduces join
    a lane whose data they use or produce. `in_order` orders the ops; if it returns None, so does this function.

    >>> from dovetail.ir import parse, to_text
    >>> from dovetail.passes.depend import depend
    >>> from dovetail.passes.hints import no_hints
    >>> before = depend(parse('''
    ... program exchange ranks 2
    ... buffer x input 2
    ... buffer t scratch 2
    ... lane net net
    ... channel 0->1 0 depth 2
    ... channel 1->0 0 depth 2
    ... rank 0 lane net
    ...   send x[0:1] to 1
    ... rank 1 lane net
    ...   recv from 0 -> t[0:1]
    ...   send x[0:1] to 0
    ...   reduce t[0:1] -> x[0:1]
    ... rank 0 lane net
    ...   recv from 1 -> t[1:2]
    ... '''))
    >>> hints = no_hints(before)._replace(channel=np.array([0, 0, 0, -1, 0]))
    >>> after, _, _ = assign_lanes(before, hints, np.full(5, -1))
    >>> print(to_text(after).split("scratch 2")[1].strip())
    lane tb0 net
    channel 0->1 0 depth 2
    channel 1->0 0 depth 2
    rank 0 lane tb0
      send x[0:1] to 1
      recv from 1 -> t[1:2]
    rank 1 lane tb0
      send x[0:1] to 0
      recv from 0 -> t[0:1]
      reduce t[0:1] -> x[0:1] after tb0.0 tb0.1
    """
    depth = min((channel.depth for channel in program.channels), default=1)
    send, receive = messages(program)
    rank, lanes = program.columns["rank"], share_lanes(program, hints, forward)
    ends = np.stack([rank[send], rank[receive], hints.channel[send]]).astype(np.int64)
    width = int(ends.max(initial=0)) + 1
    keys, channel = ranked((ends[0] * width + ends[1]) * width + ends[2])
    found = in_order(program, lanes.of, channel, lanes.forward, depth)
    if found is None:
        return None
    rows, place = OpColumns.of(program), np.empty(program.num_ops, np.int64)
    place[found[0]] = np.arange(program.num_ops)
    rows.op["lane"] = lanes.of - lanes.first[rank]
    rows.op["chan_out"][send] = rows.op["chan_in"][receive] = channel
    parts = (*np.divmod(keys // width, width), keys % width)
    sources, targets, ids = (part.tolist() for part in parts)
    table = tuple(Channel(*entry, depth) for entry in zip(sources, targets, ids, strict=True))
    names = tuple(Lane(f"tb{lane}", "net") for lane in range(int(rows.op["lane"].max(initial=-1)) + 1))
    tables = replace(program, lanes=names, channels=table)
    return rows.take(found[0]).into(tables, *moved(program, place)), hints.of(found[0]), found[1]
