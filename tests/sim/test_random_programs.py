"""sim on random programs: C++ equals the reference; never below the critical path; monotone; deterministic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_programs import prices_of, programs
from thorough import some

from dovetail.cost.prices import FLOATS, Prices
from dovetail.ir import RECVS, SENDS, Kind, Program
from dovetail.sim import reference
from dovetail.sim.simulate import run
from dovetail.sim.tables import State, Tables


def without(program: Program, op: int) -> Program:
    """Return the program with op `op` replaced by a nop: ops that depend on it are stuck."""
    kind = program.columns["kind"].copy()
    kind[op] = Kind.nop
    return Program(**{**vars(program), "columns": {**program.columns, "kind": kind}})


def critical_path_s(program: Program, prices: Prices) -> float:
    """Return the longest path over queues, dependencies, messages, signals and collectives, without any contention."""
    end: NDArray[np.float64] = np.zeros(program.num_ops)
    last: dict[tuple[int, int], float] = {}
    flying: dict[tuple[int, bool], list[float]] = {}
    meeting: dict[int, list[int]] = {}
    begin = np.zeros(program.num_ops)
    for op in program.ops():  # rows are in a possible order of execution
        i, kind = op.index, op.kind
        begin[i] = max([last.get((op.rank, op.lane), 0.0), *(end[d] for d in op.after)])
        if kind in RECVS or kind == Kind.wait:
            begin[i] = max(begin[i], flying[op.chan_in, kind == Kind.wait].pop(0))
        end[i] = begin[i] + (prices.work_s[i] if kind not in (Kind.send, Kind.put, Kind.get, Kind.signal) else 0.0)
        if kind in SENDS or kind in (Kind.put, Kind.get):
            end[i] += prices.wire_s[i]
        arrival = end[i] + prices.latency_s[i]
        if kind in SENDS or kind == Kind.signal:
            flying.setdefault((op.chan_out, kind == Kind.signal), []).append(arrival)
        if kind in (Kind.put, Kind.get):
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


@pytest.mark.slow
@settings(max_examples=some(400), deadline=None)
@given(st.data())
def test_native_equals_reference(data: st.DataObject) -> None:
    program = data.draw(programs())
    tables = Tables.of(program, data.draw(prices_of(program)))
    want, got = reference.run(tables), run(tables)
    assert np.all(want.state == State.ended)
    for ours, theirs in zip(got, want, strict=True):
        assert np.array_equal(ours, theirs)  # bit by bit: both do the same operations


@pytest.mark.slow
@settings(max_examples=some(200), deadline=None)
@given(st.data())
def test_native_equals_reference_where_stuck(data: st.DataObject) -> None:
    program = data.draw(programs().filter(lambda p: p.num_ops > 0))
    program = without(program, data.draw(st.integers(0, program.num_ops - 1)))
    tables = Tables.of(program, data.draw(prices_of(program)))
    for ours, theirs in zip(run(tables), reference.run(tables), strict=True):
        assert np.array_equal(ours, theirs, equal_nan=ours.dtype == np.float64)


@pytest.mark.slow
@settings(max_examples=some(200), deadline=None)
@given(st.data())
def test_never_under_the_critical_path(data: st.DataObject) -> None:
    program = data.draw(programs())
    prices = data.draw(prices_of(program))
    makespan = run(Tables.of(program, prices)).end_s.max(initial=0.0)
    assert makespan >= critical_path_s(program, prices) * (1 - 1e-12)


@pytest.mark.slow
@settings(max_examples=some(200), deadline=None)
@given(st.data())
def test_equals_the_critical_path_where_nothing_is_shared(data: st.DataObject) -> None:
    program = data.draw(programs()).with_depth(1000)
    prices = data.draw(prices_of(program, shared_links=False, contention=False))
    prices = prices.with_columns(rendezvous=np.zeros(program.num_ops, bool))
    makespan = run(Tables.of(program, prices)).end_s.max(initial=0.0)
    assert abs(makespan - critical_path_s(program, prices)) <= 1e-12 * makespan


@pytest.mark.slow
@settings(max_examples=some(200), deadline=None)
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


@pytest.mark.slow
@settings(max_examples=some(50), deadline=None)
@given(st.data())
def test_deterministic(data: st.DataObject) -> None:
    program = data.draw(programs())
    tables = Tables.of(program, data.draw(prices_of(program)))
    first, second = run(tables), run(tables)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
