"""Random programs that can finish, and random prices for them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from dovetail.cost.prices import Prices
from dovetail.ir import RECVS, SENDS, Builder, Kind, Program

LANES = (("compute", "compute"), ("net", "net"), ("net2", "net"), ("copy", "copy"))
LOCALS = (Kind.compute, Kind.copy, Kind.reduce, Kind.nop)
FUSED = tuple(sorted(SENDS & RECVS))


class Draw:
    """Appends whole exchanges to a Program in an order in which they could all happen, so that it can finish."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.ranks = draw, draw(st.integers(1, 4))
        self.builder, self.ops = Builder("random", self.ranks), [[] for _ in range(self.ranks)]
        self.lanes = [self.builder.lane(*lane) for lane in LANES]

    def lane(self) -> int:
        return self.draw(st.sampled_from(self.lanes))

    def channel(self, src: int, src_lane: int, dst: int, dst_lane: int) -> int:
        depth = self.draw(st.integers(1, 3))
        return self.builder.channel(src, dst, src_lane * len(self.lanes) + dst_lane, depth)

    def add(self, kind: Kind, rank: int, lane: int, **fields: int) -> None:
        mine = self.ops[rank]
        after = self.draw(st.lists(st.sampled_from(mine), max_size=2)) if mine else []
        mine.append(self.builder.add(kind, rank, lane, after=after, **fields))  # type: ignore[arg-type]

    def path(self, least: int, most: int) -> list[tuple[int, int]]:
        """Distinct ranks, with a lane on each."""
        ranks = self.draw(st.permutations(range(self.ranks)))
        size = self.draw(st.integers(least, min(most, self.ranks)))
        return [(rank, self.lane()) for rank in ranks[:size]]

    def local(self) -> None:
        self.add(self.draw(st.sampled_from(LOCALS)), self.draw(st.integers(0, self.ranks - 1)), self.lane())

    def message(self) -> None:
        path = self.path(2, 4)
        chans = [self.channel(*a, *b) for a, b in pairwise(path)]
        self.add(Kind.send, *path[0], chan_out=chans[0])
        for between, chan_in, chan_out in zip(path[1:-1], chans[:-1], chans[1:], strict=True):
            self.add(self.draw(st.sampled_from(FUSED)), *between, chan_in=chan_in, chan_out=chan_out)
        self.add(Kind.recv_reduce, *path[-1], chan_in=chans[-1])

    def one_sided(self) -> None:
        src, dst = self.path(2, 2)
        channel = self.channel(*src, *dst)
        if self.draw(st.booleans()):
            self.add(Kind.put, *src, chan_out=channel)
        if self.draw(st.booleans()):
            own = self.builder.channel(src[0], dst[0], len(self.lanes) ** 2 + dst[1])  # nobody else's link
            self.add(Kind.get, *dst, chan_in=own)
        self.add(Kind.signal, *src, chan_out=channel)
        self.add(Kind.wait, *dst, chan_in=channel)

    def collective(self) -> None:
        members = self.path(1, 4)
        call = self.builder.collective("all_reduce", sorted(rank for rank, _ in members))
        for rank, _ in members:  # one lane: the library matches calls in the order in which they are made
            self.add(Kind.collective, rank, self.lanes[1], call=call)


@st.composite
def programs(draw: st.DrawFn, max_steps: int = 12) -> Program:
    to = Draw(draw)
    steps = [to.local] if to.ranks == 1 else [to.local, to.message, to.message, to.one_sided, to.collective]
    for step in draw(st.lists(st.sampled_from(steps), max_size=max_steps)):
        step()
    return to.builder.build()


@st.composite
def prices_of(draw: st.DrawFn, program: Program, shared_links: bool = True, contention: bool = True) -> Prices:
    n, channels = program.num_ops, len(program.channels)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ties = draw(st.booleans())  # small whole numbers meet often, real ones almost never
    columns = {name: rng.integers(0, 4, n) if ties else rng.random(n) for name in ("work_s", "wire_s", "latency_s")}
    if contention and draw(st.booleans()):
        columns |= {name: rng.choice([1.0, 1.25, 2.0], n) for name in ("slow_by_net", "slow_by_compute")}
    if shared_links:
        links = draw(st.integers(1, 4))
        sizes = rng.integers(0, min(3, links) + 1, channels)
        routes = [rng.permutation(links)[:size] for size in sizes]
        columns |= {"route_start": np.cumsum([0, *sizes]), "route": np.concatenate([*routes, np.zeros(0, int)])}
        columns |= {"num_links": links}
        if draw(st.booleans()):  # switches that store messages
            columns |= {"uplinks": rng.integers(0, sizes + 1)}
    return Prices.plain(program, rendezvous=rng.random(n) < 0.3, **columns)
