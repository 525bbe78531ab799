"""sim on random programs: the C++ twin equals the reference; never under the critical path; monotone; deterministic."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dovetail.cost.prices import FLOATS, Prices
from dovetail.ir import RECVS, SENDS, Builder, Kind, Program
from dovetail.sim import reference
from dovetail.sim.simulate import run
from dovetail.sim.tables import State, Tables

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
    return Prices.plain(program, rendezvous=rng.random(n) < 0.3, **columns)


def without(program: Program, op: int) -> Program:
    """The program with op `op` made a nop: whoever counted on it is stuck."""
    kind = program.columns["kind"].copy()
    kind[op] = Kind.nop
    return Program(**{**vars(program), "columns": {**program.columns, "kind": kind}})


def critical_path_s(program: Program, prices: Prices) -> float:
    """The longest path over queues, dependencies, messages, signals and collectives, with links and places free."""
    end: NDArray[np.float64] = np.zeros(program.num_ops)
    last: dict[tuple[int, int], float] = {}
    flying: dict[tuple[int, bool], list[float]] = {}
    meeting: dict[int, list[int]] = {}
    begin = np.zeros(program.num_ops)
    for op in program.ops():  # rows are in an order that could happen
        i, kind = op.index, op.kind
        begin[i] = max([last.get((op.rank, op.lane), 0.0), *(end[d] for d in op.after)])
        if kind in RECVS or kind == Kind.wait:
            begin[i] = max(begin[i], flying[op.chan_in, kind == Kind.wait].pop(0))
        end[i] = begin[i] + (prices.work_s[i] if kind not in (Kind.send, Kind.put, Kind.signal) else 0.0)
        if kind in SENDS or kind == Kind.put:
            end[i] += prices.wire_s[i]
        arrival = end[i] + prices.latency_s[i]
        if kind in SENDS or kind == Kind.signal:
            flying.setdefault((op.chan_out, kind == Kind.signal), []).append(arrival)
        if kind == Kind.put:
            end[i] = arrival
        if kind == Kind.collective:
            members = meeting.setdefault(op.call, [])
            members.append(i)
            if len(members) == len(program.collectives[op.call].group):
                end[members] = begin[members].max() + prices.work_s[members].max()
                last |= {(int(program.columns["rank"][m]), op.lane): end[m] for m in members}
                meeting[op.call] = []
        last[op.rank, op.lane] = end[i]
    return float(end.max()) if program.num_ops else 0.0


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_native_equals_reference(data: st.DataObject) -> None:
    program = data.draw(programs())
    tables = Tables.of(program, data.draw(prices_of(program)))
    want, got = reference.run(tables), run(tables)
    assert np.all(want.state == State.ended)
    for ours, theirs in zip(got, want, strict=True):
        assert np.array_equal(ours, theirs)  # to the last bit: both take the same steps


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_native_equals_reference_where_stuck(data: st.DataObject) -> None:
    program = data.draw(programs().filter(lambda p: p.num_ops > 0))
    program = without(program, data.draw(st.integers(0, program.num_ops - 1)))
    tables = Tables.of(program, data.draw(prices_of(program)))
    for ours, theirs in zip(run(tables), reference.run(tables), strict=True):
        assert np.array_equal(ours, theirs, equal_nan=ours.dtype == np.float64)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_never_under_the_critical_path(data: st.DataObject) -> None:
    program = data.draw(programs())
    prices = data.draw(prices_of(program))
    makespan = run(Tables.of(program, prices)).end_s.max(initial=0.0)
    assert makespan >= critical_path_s(program, prices) * (1 - 1e-12)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_equals_the_critical_path_where_nothing_is_shared(data: st.DataObject) -> None:
    program = data.draw(programs()).with_depth(1000)
    prices = data.draw(prices_of(program, shared_links=False, contention=False))
    prices = prices.with_columns(rendezvous=np.zeros(program.num_ops, bool))
    makespan = run(Tables.of(program, prices)).end_s.max(initial=0.0)
    assert abs(makespan - critical_path_s(program, prices)) <= 1e-12 * makespan


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_monotone_without_contention(data: st.DataObject) -> None:
    program = data.draw(programs().filter(lambda p: p.num_ops > 0))
    prices = data.draw(prices_of(program, shared_links=False, contention=False))
    name, op = data.draw(st.sampled_from(FLOATS[:3])), data.draw(st.integers(0, program.num_ops - 1))
    slower = getattr(prices, name).copy()
    slower[op] += 1.0
    before = run(Tables.of(program, prices)).end_s
    after = run(Tables.of(program, prices.with_columns(**{name: slower}))).end_s
    assert np.all(after >= before * (1 - 1e-12))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_deterministic(data: st.DataObject) -> None:
    program = data.draw(programs())
    tables = Tables.of(program, data.draw(prices_of(program)))
    first, second = run(tables), run(tables)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
