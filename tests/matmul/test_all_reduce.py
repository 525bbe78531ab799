"""matmul_all_reduce: operators are checked, and every schedule computes the product."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matmul_programs import program
from sim_executor import line, two_hosts

from dovetail.core import DovetailError, OperatorError, PlanError
from dovetail.cost.prices import Prices
from dovetail.ir import Kind, Program, to_text, verify
from dovetail.ir.registry import BUILT_IN
from dovetail.machine import load
from dovetail.matmul import DTYPES, MatmulAllReduce, Product, shard
from dovetail.planner import operator_class, plan
from dovetail.planner.costs import Costs
from dovetail.run import execute, fresh_inputs
from dovetail.sim import simulate


@st.composite
def tilings(draw, m):
    """Draw positive tiles that add up to m."""
    cuts = draw(st.lists(st.integers(1, m - 1), unique=True, max_size=5)) if m > 1 else []
    edges = [0, *sorted(cuts), m]
    return [stop - start for start, stop in pairwise(edges)] if m else []


@st.composite
def schedules(draw, dtypes=DTYPES):
    """Draw an operator and a program of it, with any sizes, ranks, tiles, all-reduce and messages."""
    m, k, n = draw(st.tuples(st.integers(0, 12), st.integers(0, 9), st.integers(0, 4)))
    operator, ranks = MatmulAllReduce(m, k, n, draw(st.sampled_from(dtypes))), draw(st.integers(1, 5))
    how = draw(st.sampled_from(["library", "exchange", "ring"]))
    rows = None if how == "library" else draw(st.none() | st.integers(1, 4))
    return operator, program(operator, ranks, draw(tilings(m)), how, rows)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules(), st.none() | st.integers(0, 3))
def test_every_schedule_computes_the_product_on_every_rank(schedule, seed):
    operator, prog = schedule
    workload = operator.workload(prog, operator.serial(prog.num_ranks))
    inputs = fresh_inputs(prog, workload, seed=7)
    c = execute(prog, inputs, seed=seed, workload=workload).outputs["C"]
    a = np.concatenate([part.astype(np.float64) for part in inputs["A"]], axis=1)
    b = np.concatenate([part[0].astype(np.float64) for part in inputs["B"]], axis=0)
    unit = {"float64": 1e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[operator.dtype]
    for rank in range(prog.num_ranks):
        np.testing.assert_allclose(c[rank].astype(np.float64), a @ b, rtol=0, atol=unit * 20 * prog.num_ranks)
        np.testing.assert_array_equal(c[rank], c[0], err_msg="ranks disagree in some bits")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules(), st.booleans())
def test_every_schedule_is_proved_and_completes_in_any_protocol(schedule, rendezvous):
    """Also with channels of depth 1, and if every message waits for its receive to be posted."""
    _, prog = schedule
    assert verify(prog).ok
    shallow = prog.with_depth(1)
    assert verify(shallow).ok
    prices = Prices.plain(shallow, work_s=1.0, wire_s=1.0, latency_s=0.5, rendezvous=rendezvous)
    assert simulate(shallow, prices).num_spans >= shallow.num_ops


def test_tiles_overlap_with_the_messages_of_the_tiles_before():
    """Four tiles of 1 s on two ranks; each tile's messages take 1 s, and all but those of the last tile are hidden."""
    prog = program(MatmulAllReduce(4, 2, 2), 2, [1, 1, 1, 1], "exchange")
    send = prog.kind == Kind.send
    prices = Prices.plain(prog, work_s=np.where(prog.kind == Kind.compute, 1.0, 0.0), wire_s=np.where(send, 1.0, 0.0))
    assert simulate(prog, prices).makespan_s == pytest.approx(5.0)


def test_forwarding_pipelines_when_messages_are_short():
    """In a ring of four ranks, each slice hides the latency and the addition of the slice before."""
    operator, ranks = MatmulAllReduce(64, 2, 2), 4
    spans = {}
    for rows in (16, 4):
        prog = program(operator, ranks, [64], "ring", rows)
        size = np.array([sum(r.num_slots for r in (*op.reads, *op.writes)) for op in prog.ops()])
        send, add = prog.kind == Kind.send, prog.kind == Kind.recv_reduce
        work_s, wire_s = np.where(add, size / 2, 0.0), np.where(send, size, 0.0)
        spans[rows] = simulate(prog, Prices.plain(prog, work_s, wire_s, latency_s=4.0)).makespan_s
    assert spans[4] < 0.8 * spans[16]


EXCHANGE = """\
program matmul_all_reduce ranks 2
buffer A input 6
buffer B input 1
buffer P scratch 6
buffer C output 6
lane compute compute
lane send net
lane recv net
channel 0->1 0 depth 32
channel 1->0 0 depth 32
kernel matmul each all
post 0 1 C[0:6] = matmul(A@0[0:6], B@0[0:1]) + matmul(A@1[0:6], B@1[0:1])
rank 0 lane compute
  compute matmul A[0:4] B[0:1] -> P[0:4] at "tile 1 of 2 (4 rows)"
  compute matmul A[4:6] B[0:1] -> P[4:6] at "tile 2 of 2 (2 rows)"
rank 0 lane send
  send P[0:2] to 1 after compute.0 at "tile 1 of 2 (4 rows)"
  send P[2:4] to 1 at "tile 1 of 2 (4 rows)"
  send P[4:6] to 1 after compute.1 at "tile 2 of 2 (2 rows)"
rank 0 lane recv
  recv_reduce from 1 P[0:2] -> C[0:2] after compute.0 at "tile 1 of 2 (4 rows)"
  recv_reduce from 1 P[2:4] -> C[2:4] at "tile 1 of 2 (4 rows)"
  recv_reduce from 1 P[4:6] -> C[4:6] after compute.1 at "tile 2 of 2 (2 rows)"
rank 1 lane compute
  compute matmul A[0:4] B[0:1] -> P[0:4] at "tile 1 of 2 (4 rows)"
  compute matmul A[4:6] B[0:1] -> P[4:6] at "tile 2 of 2 (2 rows)"
rank 1 lane send
  send P[0:2] to 0 after compute.0 at "tile 1 of 2 (4 rows)"
  send P[2:4] to 0 at "tile 1 of 2 (4 rows)"
  send P[4:6] to 0 after compute.1 at "tile 2 of 2 (2 rows)"
rank 1 lane recv
  recv_reduce from 0 P[0:2] -> C[0:2] after compute.0 at "tile 1 of 2 (4 rows)"
  recv_reduce from 0 P[2:4] -> C[2:4] at "tile 1 of 2 (4 rows)"
  recv_reduce from 0 P[4:6] -> C[4:6] after compute.1 at "tile 2 of 2 (2 rows)"
"""


def test_the_text_of_the_exchange():
    operator = MatmulAllReduce(6, 4, 4)
    assert to_text(program(operator, 2, [4, 2], "exchange", rows=2)) == EXCHANGE


def test_shards_differ_by_one_column_at_most():
    assert shard(3072, 2) == (1536, 1536)
    assert shard(2, 3) == (1, 1, 0)
    with pytest.raises(OperatorError, match="ranks must be at least 1"):
        shard(4, 0)


@pytest.mark.parametrize("sizes", [(-1, 1, 1), (1, 1.5, 1), (1, 1, True), ("4", 1, 1)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(OperatorError, match="must be"):
        MatmulAllReduce(*sizes)


def test_unknown_dtypes_are_refused_with_a_list_of_known_ones():
    with pytest.raises(OperatorError, match="bfloat16"):
        MatmulAllReduce(1, 1, 1, "int8")


def test_an_operator_survives_json():
    operator = MatmulAllReduce(np.int64(5), 3, 2, "bfloat16")
    assert MatmulAllReduce.from_json(operator.to_json()) == operator
    with pytest.raises(OperatorError, match="'n' is missing"):
        MatmulAllReduce.from_json({"schema": operator.to_json()["schema"], "m": 1, "k": 1})
    with pytest.raises(DovetailError, match="schema"):
        MatmulAllReduce.from_json({})


def test_the_workload_describes_slots():
    operator = MatmulAllReduce(4096, 3072, 8192, "float16")
    workload = operator.workload(program(operator, 2, [4096]), operator.serial(2))
    assert workload.slot_bytes("A", 0) == 1536 * 2
    assert workload.slot_bytes("B", 1) == 1536 * 8192 * 2
    assert workload.slot_bytes("P", 1) == workload.slot_bytes("C", 0) == 8192 * 2
    assert operator.works(2)[0][:3] == ("matmul:k=1536:n=8192:float16", 1, 2.0 * 1536 * 8192)
    assert operator.works(2)[0][3:] == (2 * (1536 + 8192), 2 * 1536 * 8192)


@pytest.mark.parametrize("tiles", [[4, 4], [], [11], [10, 0], [12, -2]])
def test_tiles_must_be_positive_and_add_up(tiles):
    with pytest.raises((PlanError, OperatorError), match=r"do not add up to m = 10|a tile must be"):
        program(MatmulAllReduce(10, 4, 4), 2, tiles)


def test_unknown_choices_are_refused():
    operator = MatmulAllReduce(10, 4, 4)
    with pytest.raises(PlanError, match="no all-reduce 'tree'"):
        program(operator, 2, [10], "tree")
    with pytest.raises(PlanError, match="its own messages"):
        program(operator, 2, [10], "library", rows=2)
    with pytest.raises(OperatorError, match="at least one slot"):
        program(operator, 2, [10], "ring", rows=0)


def test_the_line_of_every_op_names_its_tile():
    prog = program(MatmulAllReduce(4096, 64, 8), 2, [512, 896, 896, 896, 896], "exchange", 128)
    lines = {op.line for op in prog.ops()}
    assert lines == {f"tile {tile} of 5 ({512 if tile == 1 else 896} rows)" for tile in range(1, 6)}


def sizes(prog: Program, kind: Kind) -> set[int]:
    return {region.num_slots for op in prog.ops() if op.kind == kind for region in op.reads}


def test_messages_are_no_longer_than_asked():
    prog = program(MatmulAllReduce(100, 8, 8), 4, [40, 60], "ring", 7)
    assert max(sizes(prog, Kind.send)) <= 7
    assert sizes(prog, Kind.compute) == {40, 60, 1}


@pytest.mark.parametrize("kind", [kind for kind in map(operator_class, BUILT_IN) if issubclass(kind, Product)])
def test_all_neighbours_of_a_proposed_schedule_can_be_run(kind):
    """Tuning measures neighbours: one without a program would end it with an error."""
    operator = kind(96, 24, 16, "bfloat16")
    costs, _ = Costs.of(operator, load("mi300x-8"), 2, extrapolate=True)
    proposed = {schedule.family: schedule for schedule in operator.schedules(costs)}
    beside = {near for schedule in proposed.values() for near in operator.neighbours(schedule)}
    assert len(proposed) >= 4
    assert len(beside) > len(proposed)
    assert all(verify(operator.program(near, 2)).ok for near in beside)


@pytest.mark.parametrize("floor", [200, 300])
def test_no_tile_of_the_optimum_is_shorter_than_its_floor(floor):
    """Local search starts from uniform tiles, too, which know no floor: 512 rows in 3 tiles are shorter than 200."""
    measured = {"kernel:matmul:k=4096:n=512:float32": line(5e-6, 9e-6, "rows")}
    machine = two_hosts().with_costs(measured)
    found = plan(MatmulAllReduce(512, 8192, 512), machine, ranks=2, schedule="optimal", floor=floor)
    rivals = [rival.schedule for rival in found.rivals if rival.schedule.family == "optimal"]
    assert found.family == "optimal"
    assert min(min(each.tiles) for each in [found.schedule, *rivals]) >= floor


@pytest.mark.parametrize("kind", [kind for kind in map(operator_class, BUILT_IN) if issubclass(kind, Product)])
def test_no_neighbour_of_an_optimum_is_shorter_than_its_floor(kind):
    """Tuning measures neighbours, which are called optimal as well."""
    floor = 12
    costs, _ = Costs.of(kind(96, 24, 16, "bfloat16"), load("mi300x-8"), 2, {"floor": floor}, extrapolate=True)
    optima = [each for each in costs.operator.schedules(costs) if each.family == "optimal"]
    pairs = [(each, near) for each in optima for near in costs.operator.neighbours(each)]
    assert any(near.tiles != each.tiles for each, near in pairs)
    assert min(min(near.tiles) for _, near in pairs) >= floor
    counted = {costs.operator.counted_as(each, near).steps["floor"] for each, near in pairs}
    assert counted == {floor}
