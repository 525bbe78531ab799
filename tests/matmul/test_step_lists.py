"""Step lists of every schedule family (messages, products, copies), for 2 to 8 ranks and several orders of lanes. They
are counted by independent code (`step_lists`)."""

from collections import Counter

import numpy as np
import pytest
from product_runs import costs, wrong_in_some
from step_lists import Replay

from dovetail.ir import Kind, verify
from dovetail.matmul import (
    AllGatherColumnsMatmul,
    AllGatherMatmul,
    AllToAllMatmul,
    MatmulAllReduce,
    MatmulAllToAll,
    MatmulReduceScatter,
)

RANKS = range(2, 9)
OPERATORS = (
    AllGatherColumnsMatmul,
    AllGatherMatmul,
    AllToAllMatmul,
    MatmulAllReduce,
    MatmulAllToAll,
    MatmulReduceScatter,
)


def operator_of(kind, ranks, shard):
    """Return an operator whose blocks have `shard` rows each, and whose K is cut evenly."""
    exchanged = kind in (AllToAllMatmul, MatmulAllToAll)
    return kind(shard * ranks * (ranks if exchanged else 1), 2 * ranks, ranks)


def replay(operator, schedule, ranks, seed=0, program=None):
    made = operator.program(schedule, ranks) if program is None else program
    slices = 1 if isinstance(operator, AllGatherColumnsMatmul) else schedule.get("slices", 1)
    return Replay(made, slices).run(seed)


def once(results, ranks, wanted, slices=1):
    """Check that each slot holds exactly the expected contributions, each once."""
    for rank in range(ranks):
        for slot, (held, want) in enumerate(zip(results[rank], wanted(rank), strict=True)):
            assert sorted(held) == sorted((*row, s) for row in want for s in range(slices)), (rank, slot)


def wanted_by(operator, ranks):
    """Return, by rank and row of the result, the rows of A whose products are summed there."""
    blocks = None if isinstance(operator, MatmulAllReduce) else operator.blocks(ranks)
    every = range(ranks)

    def rows(r):
        if blocks is None or isinstance(operator, AllGatherColumnsMatmul):
            return [[(q, row) for q in every] for row in range(operator.m)]
        if isinstance(operator, MatmulReduceScatter):
            first = sum(blocks.counts[0][:r])
            return [[(q, first + row) for q in every] for row in range(blocks.counts[0][r])]
        return [[(q, blocks.starts[q][r] + row)] for q in every for row in range(blocks.counts[q][r])]

    return rows


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [*RANKS[:4], *(pytest.param(each, marks=pytest.mark.thorough) for each in RANKS[4:])])
@pytest.mark.parametrize("kind", OPERATORS)
def test_every_row_is_used_once_and_never_before_it_arrived(kind, ranks):
    operator, seen = operator_of(kind, ranks, ranks), set()
    for seed, schedule in enumerate(operator.schedules(costs(ranks))):
        key = schedule["by"], schedule.parameters
        if key in seen:
            continue
        seen.add(key)
        results = replay(operator, schedule, ranks, seed).results
        name = "C0" if ("C0", 0) in results else "C"
        slices = schedule.get("slices", 1)
        held = [results[name, rank] for rank in range(ranks)]
        once(held, ranks, wanted_by(operator, ranks), slices)
        if slices > 1:  # summed in the order of the slices
            assert all([s for _, _, s in row] == [*range(slices)] for rank in held for row in rank)


def families(kind):
    common = {"serial", "uniform", "mc2", "optimal"}
    shards, rings = {"shard-messages"}, {"shard-ring", "shard-two-rings"}
    rows = {f"{own}-{fused}-1D" for own in ("uniform", "hetero") for fused in ("fused", "unfused")}
    columns = {name.replace("1D", "2D") for name in rows}
    return (
        common
        | {
            AllGatherMatmul: shards | rings | rows | columns,
            AllGatherColumnsMatmul: shards | rings,
            AllToAllMatmul: shards | rows | columns,
            MatmulReduceScatter: shards | rings | rows,
            MatmulAllToAll: shards | rows,
            MatmulAllReduce: set(),
        }[kind]
    )


@pytest.mark.parametrize("kind", OPERATORS)
def test_no_family_is_missing(kind):
    operator = operator_of(kind, 4, 8)
    found = {schedule.family for schedule in operator.schedules(costs(4))}
    assert families(kind) <= found <= {*operator.families}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", OPERATORS)
def test_neighbours_of_proposed_schedules_are_correct_too(kind, ranks):
    operator, seen = operator_of(kind, ranks, 8), set()
    for schedule in operator.schedules(costs(ranks)):
        for each in operator.neighbours(schedule):
            if (key := (each["by"], each.parameters)) not in seen:
                seen.add(key)
                assert verify(operator.program(each, ranks)).ok, each


# FiCCO's step lists for one of n ranks, with blocks of n units of rows: the messages received (rows in units: number),
# the products ((rows, slices of K): number), rows copied together, and rows of results copied apart.
TABLE = {
    "serial": lambda n: ({n: n - 1}, {(n * n, 1): 1}, n, 0),
    "shard-ring": lambda n: ({n: n - 1}, {(n, 1): n}, 0, 0),
    "shard-two-rings": lambda n: ({n: n - 1}, {(n, 1): n}, 0, 0),
    "shard-messages": lambda n: ({n: n - 1}, {(n, 1): n}, 0, 0),
    "uniform-fused-1D": lambda n: ({1: n * (n - 1)}, {(n, 1): n}, n, n * n),
    "uniform-unfused-1D": lambda n: ({1: n * (n - 1)}, {(1, 1): n * n}, 0, 0),
    "hetero-fused-1D": lambda n: ({1: n * (n - 1)}, {(n, 1): 1} | {(n - 1, 1): n}, 0, n * n - n if n > 2 else 0),
    "hetero-unfused-1D": lambda n: ({1: n * (n - 1)}, {(n, 1): 1} | {(1, 1): n * (n - 1)}, 0, 0),
    "uniform-fused-2D": lambda n: ({n: n * (n - 1)}, {(n * n, 1): n}, n * n, 0),
    "uniform-unfused-2D": lambda n: ({n: n * (n - 1)}, {(n, 1): n * n}, 0, 0),
    "hetero-unfused-2D": lambda n: ({n: n * (n - 1)}, {(n, n): 1} | {(n, 1): n * (n - 1)}, 0, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("family", TABLE)
@pytest.mark.parametrize("kind", [AllGatherMatmul, AllToAllMatmul])
def test_step_lists_are_those_of_the_paper(kind, family, ranks):
    if kind is AllToAllMatmul and "ring" in family:
        return
    unit = 2  # rows
    operator = operator_of(kind, ranks, unit * ranks)
    (schedule,) = [s for s in operator.schedules(costs(ranks)) if s.family == family and s["by"] != "library"]
    seen = replay(operator, schedule, ranks)
    messages, products, gathered, scattered = TABLE[family](ranks)
    for rank in range(ranks):
        assert seen.messages[rank] == Counter({unit * rows: count for rows, count in messages.items()})
        found = Counter({(rows // unit, deep): count for (rows, deep), count in seen.products[rank].items()})
        assert found == Counter(products)
        copies = seen.copies[rank]
        assert copies["A", "G"] == unit * gathered
        assert copies["T0", "C0"] == unit * scattered
        assert {*copies} <= {("A", "G"), ("T0", "C0")}


# The same for operators that send results: rows of A copied together before a product, and own results moved.
AWAY = {
    "serial": lambda n: ({n: n - 1}, {(n * n, 1): 1}, 0, n),
    "shard-messages": lambda n: ({n: n - 1}, {(n, 1): n}, 0, 0),
    "shard-ring": lambda n: ({n: n - 1}, {(n, 1): n}, 0, 0),
    "shard-two-rings": lambda n: ({n: n - 1}, {(n, 1): n}, 0, 0),
    "uniform-fused-1D": lambda n: ({1: n * (n - 1)}, {(n, 1): n}, n * n, n),
    "uniform-unfused-1D": lambda n: ({1: n * (n - 1)}, {(1, 1): n * n}, 0, 0),
    "hetero-fused-1D": lambda n: ({1: n * (n - 1)}, {(n, 1): 1} | {(n - 1, 1): n}, None, 0),
    "hetero-unfused-1D": lambda n: ({1: n * (n - 1)}, {(n, 1): 1} | {(1, 1): n * (n - 1)}, 0, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("family", AWAY)
@pytest.mark.parametrize("kind", [MatmulReduceScatter, MatmulAllToAll])
def test_step_lists_of_operators_that_send_results(kind, family, ranks):
    if kind is MatmulAllToAll and "ring" in family:
        return
    unit = 2
    operator = operator_of(kind, ranks, unit * ranks)
    (schedule,) = [s for s in operator.schedules(costs(ranks)) if s.family == family and s["by"] != "library"]
    seen = replay(operator, schedule, ranks)
    messages, products, together, moved = AWAY[family](ranks)
    for rank in range(ranks):
        assert seen.messages[rank] == Counter({unit * rows: count for rows, count in messages.items()})
        found = Counter({(rows // unit, deep): count for (rows, deep), count in seen.products[rank].items()})
        assert found == Counter(products)
        copies = seen.copies[rank]
        assert together is None or copies["A", "G"] == unit * together
        assert copies["P", "C"] == unit * moved


class TestPlantedFaults:
    """The replay of step lists finds the same faults as the certificate."""

    OPERATOR = AllGatherMatmul(32, 8, 8)

    def schedule(self, family):
        return next(s for s in self.OPERATOR.schedules(costs(4)) if s.family == family and s["by"] == "messages")

    def right(self, program, slices=1):
        """Return whether, in all orders of lanes, each row comes exactly once."""
        for seed in range(20):
            try:
                results = Replay(program, slices).run(seed).results
                once([results["C0", rank] for rank in range(4)], 4, wanted_by(self.OPERATOR, 4), slices)
            except AssertionError:
                return False
        return True

    @pytest.mark.parametrize("family", ["uniform-fused-1D", "hetero-unfused-1D", "uniform-fused-2D", "shard-messages"])
    def test_a_lost_dependency_a_misplaced_message_and_a_repeated_block(self, family):
        schedule = self.schedule(family)
        slices = schedule.get("slices", 1)
        program = self.OPERATOR.program(schedule, 4)
        assert self.right(program, slices)
        col, computes = program.columns, program.kind == Kind.compute
        late = np.flatnonzero(computes & (np.diff(col["dep_start"]) > 0))[0]
        recv = np.flatnonzero(program.kind == Kind.recv)[-1]
        reads = col["read_start"][np.flatnonzero(computes)[[0, -1]]]

        def forget(columns):
            first, last = (int(columns["dep_start"][late + i]) for i in (0, 1))
            columns["dep"] = np.delete(columns["dep"], np.s_[first:last])
            columns["dep_start"][late + 1 :] -= last - first

        def misplace(columns):
            columns["write_offset"][col["write_start"][recv]] -= 1

        def again(columns):
            columns["read_offset"][reads[1]] = columns["read_offset"][reads[0]]
            columns["read_buffer"][reads[1]] = columns["read_buffer"][reads[0]]

        for fault in (forget, misplace, again):
            columns = {name: column.copy() for name, column in col.items()}
            fault(columns)
            changed = program.with_columns(columns)
            if changed == program:
                continue
            assert not self.right(changed, slices), fault.__name__
            assert not wrong_in_some(program, fault).ok, fault.__name__
