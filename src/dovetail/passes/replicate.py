"""replicate: split every slot into several, and let parallel instances of the ops share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import lcm
from typing import Any, Literal, get_args

import numpy as np

from dovetail.core import OperatorError, ProgramError
from dovetail.ir import Buffer, Lane, Post, Program, Region
from dovetail.ir.proof.terms import leaves, mapped
from dovetail.passes.columns import BLOCKS, BUFFER, COUNT, NONE, OFFSET, STRIDE, Array, OpColumns, ranked, spread
from dovetail.passes.depend import depend
from dovetail.passes.hints import Hints

How = Literal["interleaved", "batched"]


def replicate(program: Program, hints: Hints, instances: int = 1, how: How = "interleaved") -> Program:
    """Run `instances` of a program in parallel, each on its share of every slot; ops of n `copies` are n ops in each.

    Every slot becomes r slots; r is the least number that divides into all shares. Copy j of an op works on share j of
    each slot of its regions, on separate lanes, and on channel id + j x (the highest id + 1). Ops that are not
    copied work on all shares. Dependencies are recomputed.

    `interleaved`: the slots of slot s are s·r to s·r + r - 1; if all regions start and end at multiples of g slots, g
    slots are replicated as one, so that regions of g slots stay whole. `batched`: slot s becomes s, s + n, s + 2n, … in
    a buffer of n slots; this keeps the result only if all slots of a buffer have the same post-condition. Raises
    ProgramError if they differ, and OperatorError for another `how`.

    >>> from dovetail.ir import parse, to_text
    >>> from dovetail.passes.hints import no_hints
    >>> before = parse('''
    ... program next ranks 2
    ... buffer input input 2
    ... buffer output output 2
    ... lane tb0 net
    ... channel 0->1 0 depth 2
    ... post 1 output[0:2] = input@0[0:2]
    ... rank 0 lane tb0
    ...   send input[0:1] to 1
    ...   send input[1:2] to 1
    ... rank 1 lane tb0
    ...   recv from 0 -> output[0:1]
    ...   recv from 0 -> output[1:2]
    ... ''')
    >>> hints = no_hints(before)._replace(copies=np.array([2, 1, 2, 1]))
    >>> print(to_text(replicate(before, hints)), end="")
    program next ranks 2
    buffer input input 4
    buffer output output 4
    lane tb0 net
    lane tb1 net
    channel 0->1 0 depth 2
    channel 0->1 1 depth 2
    post 1 output[0:4] = input@0[0:4]
    rank 0 lane tb0
      send input[0:1] to 1
      send input[2:4] to 1
    rank 0 lane tb1
      send input[1:2] to 1:1
    rank 1 lane tb0
      recv from 0 -> output[0:1]
      recv from 0 -> output[2:4]
    rank 1 lane tb1
      recv from 0:1 -> output[1:2]
    """
    if how not in get_args(How):
        raise OperatorError(f"no way to replicate called '{how}'", hint=f"one of {', '.join(get_args(How))}")
    copies = hints.copies.astype(np.int64)
    parts = instances * lcm(*set(copies.tolist()))
    if parts == 1:
        return program
    old = np.repeat(np.arange(program.num_ops), copies * instances)
    share = spread(copies * instances)  # the share of each copy: by instance, then fragment
    instance, fragment = np.divmod(share, copies[old])
    width = parts // (instances * copies[old])
    rows = OpColumns.of(program).take(old)
    slots = _Batched(program, parts) if how == "batched" else _Interleaved(program, parts)
    for side in (rows.read, rows.write):
        mine = side[:, BUFFER] >= 0
        low = (share * width)[mine]
        side[mine] = slots.share(side[mine], rows.op["rank"][mine], low, width[mine])
    tables = replace(
        program,
        buffers=tuple(Buffer(b.name, b.role, tuple(n * parts for n in b.slots)) for b in program.buffers),
        posts=tuple(slots.post(post) for post in program.posts),
        **_resources(program, rows, instance + instances * fragment),
    )
    return depend(rows.into(tables, NONE, NONE))


def _resources(program: Program, rows: OpColumns, copy: Array) -> dict[str, Any]:
    """Return the tables of lanes and channels for all copies, and write each op's into `rows`. Lanes have no gaps."""
    op, num_lanes = rows.op, len(program.lanes)
    width = num_lanes * (int(copy.max(initial=0)) + 1)
    used, lane = ranked(op["rank"].astype(np.int64) * width + op["lane"] + num_lanes * copy)
    op["lane"] = lane - np.searchsorted(used, op["rank"].astype(np.int64) * width)
    width = int(copy.max(initial=0)) + 1
    keys = [np.where(op[side] >= 0, op[side].astype(np.int64) * width + copy, -1) for side in ("chan_in", "chan_out")]
    used, number = ranked(np.concatenate([[-1], *keys]))
    op["chan_in"], op["chan_out"] = np.split(number[1:] - 1, 2)
    step = max((channel.id for channel in program.channels), default=0) + 1
    old = [(program.channels[row], number) for row, number in zip(*map(list, np.divmod(used[1:], width)), strict=True)]
    return {
        "lanes": tuple(Lane(f"tb{lane}", "net") for lane in range(int(op["lane"].max(initial=-1)) + 1)),
        "channels": tuple(channel._replace(id=channel.id + step * int(number)) for channel, number in old),
    }


class _Interleaved:
    """Slot s becomes slots g r (s // g) + i g + s % g, i from 0 to r - 1; g slots are replicated as one."""

    def __init__(self, program: Program, parts: int) -> None:
        self._parts = parts
        rows = OpColumns.of(program)
        posted = [region for post in program.posts for region in _regions(post)]
        regions = [side[side[:, BUFFER] >= 0, OFFSET:] for side in (rows.read, rows.write)]
        regions.append(np.array([region[1:] for region in posted], np.int64).reshape(-1, 4))
        numbers = [side[:, :2] for side in regions] + [side[side[:, 3] > 1, 2:3] for side in regions]
        self._grain = max(int(np.gcd.reduce([int(np.gcd.reduce(part, axis=None)) for part in numbers])), 1)

    def share(self, region: Array, rank: Array, low: Array, width: Array) -> Array:
        """Return regions with parts `low` to `low + width` of each of their slots, which is cut into r parts."""
        grain, parts = self._grain, self._parts
        units, new = region[:, COUNT] // grain, region * [1, parts, parts, parts, 1]
        some = width < parts
        if np.any(some & (region[:, BLOCKS] > 1) & (units > 1)):
            raise ProgramError("ops on strided regions of several slots a block cannot be cut into instances")
        new[some, OFFSET] += low[some] * grain
        new[some, COUNT] = width[some] * grain
        run = some & (region[:, BLOCKS] == 1)
        new[run, BLOCKS] = units[run]
        new[run, STRIDE] = np.where(units[run] > 1, grain * parts, 0)
        return new

    def post(self, post: Post) -> Post:
        return _mapped(post, lambda r: _scaled(r, self._parts))


class _Batched:
    """Slot s of a buffer of n slots becomes slots i n + s, i from 0 to r - 1."""

    def __init__(self, program: Program, parts: int) -> None:
        self._parts, self._slots = parts, {buffer.name: buffer.slots for buffer in program.buffers}
        self._sizes = np.array([buffer.slots for buffer in program.buffers], np.int64)
        asked: dict[tuple[int, str], set[tuple[tuple[int, str], ...]]] = {}
        count: Counter[tuple[int, str]] = Counter()
        for post in program.posts:
            terms = tuple(sorted((rank, region.buffer) for term in post.terms for rank, region in leaves(term)))
            for rank in post.ranks:
                asked.setdefault((rank, post.region.buffer), set()).add(terms)
                count[rank, post.region.buffer] += post.region.num_slots
            if not self._slotwise(post):
                raise _unlike(program)
        whole = all(n == self._slots[buffer][rank] for (rank, buffer), n in count.items())
        if not whole or any(len(terms) > 1 for terms in asked.values()):
            raise _unlike(program)

    def share(self, region: Array, rank: Array, low: Array, width: Array) -> Array:
        """Return regions with parts `low` to `low + width` of each of their slots, which is cut into r parts."""
        size, new = self._sizes[region[:, BUFFER], rank], region.copy()
        several = (width > 1) & (region[:, COUNT] < size)
        if np.any(several & (region[:, BLOCKS] > 1)):
            raise ProgramError("strided regions cannot be cut into batched instances", hint="use interleaved")
        new[:, OFFSET] += low * size
        new[several, STRIDE], new[several, BLOCKS] = size[several], width[several]
        whole = (width > 1) & ~several
        new[whole, COUNT] *= width[whole]
        return new

    def post(self, post: Post) -> Post:
        size = self._slots[post.region.buffer][post.ranks[0]]
        if post.region.count == size:
            return _mapped(post, lambda r: r._replace(count=size * self._parts))
        return _mapped(post, lambda r: r._replace(stride=size, blocks=self._parts))

    def _slotwise(self, post: Post) -> bool:
        """Whether the post-condition of slot j names slots j of buffers of the same length only."""
        named = [(rank, post.region) for rank in post.ranks] + [arg for term in post.terms for arg in leaves(term)]
        alike = all(region[1:] == post.region[1:] for _, region in named) and post.region.blocks == 1
        sizes = {self._slots[region.buffer][rank] for rank, region in named}
        return alike and len(sizes) == 1 and all(term.kernel is None for term in post.terms)


def _unlike(program: Program) -> ProgramError:
    return ProgramError(
        f"batched instances would change what '{program.name}' computes: its slots have different post-conditions",
        hint="use interleaved instances",
    )


def _regions(post: Post) -> list[Region]:
    return [post.region, *(region for term in post.terms for _, region in leaves(term))]


def _scaled(region: Region, parts: int) -> Region:
    buffer, offset, count, stride, blocks = region
    return Region(buffer, offset * parts, count * parts, stride * parts, blocks)


def _mapped(post: Post, change: Callable[[Region], Region]) -> Post:
    return Post(post.ranks, change(post.region), tuple(mapped(term, change) for term in post.terms))
