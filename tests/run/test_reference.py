"""The reference executor: every op kind, every legal interleaving, errors for stalls and misuse; check of results."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matmul_programs import program
from thorough import some

from dovetail.core import EnvironmentFault, RunError
from dovetail.ir import Builder, Kind, Slot, Workload, dtype_bytes, parse, verify
from dovetail.matmul import DTYPES, MatmulAllReduce
from dovetail.run import check_outputs, execute, fresh_inputs, numpy_dtype
from dovetail.run.check import check_rank, raise_if_bad

PATIENT = settings(max_examples=some(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(text: str, seed: int | None = None, **inputs: list[list[int]]) -> dict[str, list[list[float]]]:
    """Execute a program on slots that are single integers; buffers x, y, z, and what z holds then on each rank."""
    prog = parse(text)
    workload = Workload({b.name: (Slot((), "int64"),) * prog.num_ranks for b in prog.buffers})
    arrays = {name: [np.array(values, dtype=np.int64) for values in ranks] for name, ranks in inputs.items()}
    outputs = execute(prog, arrays, seed=seed, workload=workload).outputs
    return {name: [array.tolist() for array in ranks] for name, ranks in outputs.items()}


HEAD = """
program kinds ranks 3
buffer x input 4
buffer y scratch 4
buffer z output 4
lane net net
lane copy copy
channel 0->1 0 depth 1
channel 1->2 0 depth 1
"""
X = [[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400]]
LOST = np.iinfo(np.int64).min  # what poison looks like in integers


@pytest.mark.parametrize(
    ("middle", "rank_1", "rank_2"),
    [
        ("recv from 0 -> z[0:4]\n  send z[0:4] to 2", [1, 2, 3, 4], [1, 2, 3, 4]),
        ("recv_copy_send from 0 -> z[0:4] to 2", [1, 2, 3, 4], [1, 2, 3, 4]),
        ("recv_reduce from 0 x[0:4] -> z[0:4]\n  send x[0:4] to 2", [11, 22, 33, 44], [10, 20, 30, 40]),
        ("recv_reduce_send from 0 x[0:4] to 2", [LOST] * 4, [11, 22, 33, 44]),
        ("recv_reduce_copy_send from 0 x[0:4] -> z[0:4] to 2", [11, 22, 33, 44], [11, 22, 33, 44]),
        ("recv from 0 -> z[0:4]\n  reduce x[0:4] -> z[0:4]\n  send z[0:4] to 2", [11, 22, 33, 44], [11, 22, 33, 44]),
        ("recv from 0 -> z[0:2; 2 x 2]\n  send z[0:4] to 2", [1, 2, 3, 4], [1, 2, 3, 4]),
        ("recv from 0 -> y[0:4]\n  copy y[1:2; 2 x 2] -> z[0:2]\n  send y[0:4] to 2", [2, 4, LOST, LOST], [1, 2, 3, 4]),
    ],
)
def test_each_kind_of_op_does_what_program_says(middle, rank_1, rank_2):
    ends = "rank 0 lane net\n  send x[0:4] to 1\nrank 2 lane net\n  recv from 1 -> z[0:4]\n"
    text = f"{HEAD}{ends}rank 1 lane net\n  {middle}\n"
    assert verify(parse(text)).ok
    for seed in (None, 0, 1):
        assert run(text, seed, x=X)["z"] == [[LOST] * 4, rank_1, rank_2]


def test_put_writes_on_the_other_rank_before_its_signal_arrives():
    text = (
        HEAD
        + """
rank 0 lane copy
  put x[0:2] -> z[2:4] to 1
  signal to 1
rank 1 lane net
  wait from 0
  copy z[2:4] -> z[0:2]
"""
    )
    for seed in (None, 0, 1, 2):
        assert run(text, seed, x=X)["z"][1] == [1, 2, 1, 2]


def test_get_reads_from_the_other_rank_what_its_signal_promises():
    text = (
        HEAD
        + """
rank 0 lane copy
  copy x[0:2] -> z[2:4]
  signal to 1
rank 1 lane net
  wait from 0
  get from 0 z[2:4] -> z[0:2]
"""
    )
    for seed in (None, 0, 1, 2):
        assert run(text, seed, x=X)["z"][1] == [1, 2, LOST, LOST]


@pytest.mark.parametrize(
    ("call", "z"),
    [
        ("all_reduce x[0:2] -> z[0:2]", [[111, 222], [111, 222], [111, 222]]),
        ("all_gather x[0:1] -> z[0:3]", [[1, 10, 100]] * 3),
        ("reduce_scatter x[0:3] -> z[0:1]", [[111], [222], [333]]),
        ("all_to_all x[0:3] -> z[0:3]", [[1, 10, 100], [2, 20, 200], [3, 30, 300]]),
        ("broadcast x[1:3] -> z[0:2]", [[2, 3]] * 3),
    ],
)
def test_collectives_do_what_the_library_does(call, z):
    text = f"{HEAD}collective {call.split()[0]} 0 1 2\n"
    for rank in "012":
        text += f"rank {rank} lane net\n  collective {call} group 0 1 2\n"
    for seed in (None, 0, 1):
        found = run(text, seed, x=X)["z"]
        assert [values[: len(want)] for values, want in zip(found, z, strict=True)] == z


@st.composite
def schedules(draw):
    m, ranks, how = draw(st.integers(1, 9)), draw(st.integers(1, 4)), draw(st.sampled_from(["exchange", "ring"]))
    first = draw(st.integers(1, m))
    operator = MatmulAllReduce(m, draw(st.integers(0, 5)), draw(st.integers(1, 3)), draw(st.sampled_from(DTYPES)))
    tiles = [first, m - first] if first < m else [m]
    return operator, program(operator, ranks, tiles, how, draw(st.integers(1, 4))).with_depth(draw(st.integers(1, 3)))


@PATIENT
@given(schedules(), st.integers(0, 1 << 30))
def test_interleavings_agree_and_can_be_replayed(schedule, seed):
    """A proved program gives the same bits in any order; one seed is one order; a recorded order runs again."""
    operator, prog = schedule
    workload = operator.workload(prog, operator.serial(prog.num_ranks))
    inputs = fresh_inputs(prog, workload, seed=5)
    plain = execute(prog, inputs, workload=workload)
    mixed = execute(prog, inputs, seed=seed, workload=workload)
    np.testing.assert_equal(mixed.outputs, plain.outputs)
    assert np.array_equal(mixed.interleaving, execute(prog, inputs, seed=seed, workload=workload).interleaving)
    again = execute(prog, inputs, workload=workload, interleaving=mixed.interleaving)
    np.testing.assert_equal(again.outputs, plain.outputs)
    assert np.array_equal(again.interleaving, mixed.interleaving)


def test_the_seed_changes_the_order():
    operator = MatmulAllReduce(8, 4, 2)
    prog = program(operator, 3, [4, 4], "ring")
    workload = operator.workload(prog, operator.serial(prog.num_ranks))
    inputs = fresh_inputs(prog, workload, seed=5)
    orders = {tuple(execute(prog, inputs, seed=seed, workload=workload).interleaving) for seed in range(8)}
    assert len(orders) == 8


def test_an_order_that_is_not_legal_is_refused():
    operator = MatmulAllReduce(8, 4, 2)
    prog = program(operator, 2, [8], "exchange")
    workload = operator.workload(prog, operator.serial(prog.num_ranks))
    inputs = fresh_inputs(prog, workload, seed=5)
    order = execute(prog, inputs, workload=workload).interleaving
    with pytest.raises(RunError, match="cannot run at this place"):
        execute(prog, inputs, workload=workload, interleaving=order[::-1])
    with pytest.raises(RunError, match="stalls"):
        execute(prog, inputs, workload=workload, interleaving=order[:-1])


def test_a_missing_dependency_shows_in_some_interleaving():
    """The send does not wait for its tile: verify refuses, and poison or old values are seen to leave."""
    operator = MatmulAllReduce(4, 4, 2)
    prog = program(operator, 2, [4], "exchange")
    workload = operator.workload(prog, operator.serial(prog.num_ranks))
    b = Builder("hasty", 2)
    for buffer in prog.buffers:
        b.buffer(*buffer)
    for kernel in prog.kernels:
        b.kernel(*kernel)
    for op in prog.ops():
        chans = [b.channel(*prog.channels[row]) if row >= 0 else -1 for row in (op.chan_in, op.chan_out)]
        after = op.after if op.kind != Kind.send else ()
        lane = b.lane(*prog.lanes[op.lane])
        places = {"reads": op.reads, "writes": op.writes, "chan_in": chans[0], "chan_out": chans[1]}
        b.add(op.kind, op.rank, lane, **places, call=op.call, after=after)
    hasty = b.build()
    assert not verify(hasty).checks["races"].ok
    inputs = fresh_inputs(prog, workload, seed=5)
    found = [execute(hasty, inputs, seed=seed, workload=workload).outputs["C"] for seed in range(20)]
    assert any(np.isnan(c).any() for rank in found for c in rank)


def test_a_stall_names_what_each_lane_waits_for():
    text = (
        HEAD
        + """
collective all_reduce 1 2
rank 0 lane net
  send x[0:1] to 1
  send x[1:2] to 1 at "schedule.py:7"
rank 1 lane net
  collective all_reduce x[0:1] -> z[0:1] group 1 2
rank 1 lane copy
  copy x[0:1] -> y[0:1] after net.0
rank 2 lane net
  recv from 1 -> z[0:1]
"""
    )
    with pytest.raises(RunError) as caught:
        run(text, x=X)
    message = str(caught.value)
    assert "op 1 'send' on rank 0 (lane net) waits for a place on channel 0->1 0" in message
    assert "op 2 'collective' on rank 1 (lane net) waits for ranks 2" in message
    assert "op 3 'copy' on rank 1 (lane copy) waits for op 2 'collective' on rank 1" in message
    assert "op 4 'recv' on rank 2 (lane net) waits for a message on channel 1->2 0" in message
    assert "schedule.py:7" in message
    assert not verify(parse(text)).checks["deadlock"].ok


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        ("rank 0 lane net\n  copy x[0:4] -> z[2:6]\n", "op 0 'copy' on rank 0 leaves its buffer"),
        ("rank 0 lane net\n  copy x[0:4] -> z[0:2]\n", "op 0 'copy' on rank 0: data and destination differ in shape"),
        (
            "rank 0 lane net\n  send x[0:2] to 1\nrank 1 lane net\n  recv from 0 -> z[0:3]\n",
            "op 1 'recv' .* differ in shape",
        ),
        (
            "rank 0 lane net\n  send x[0:2] to 1\nrank 1 lane net\n  recv_reduce from 0 x[0:1] -> z[0:1]\n",
            "op 1 'recv_reduce' on rank 1: the message has another size",
        ),
    ],
)
def test_misfits_are_named(ops, why):
    with pytest.raises(RunError, match=why):
        run(HEAD + ops, x=X)


def test_missing_arrays_and_kernels_are_named():
    operator = MatmulAllReduce(4, 4, 2)
    prog = program(operator, 2, [4])
    workload = operator.workload(prog, operator.serial(prog.num_ranks))
    inputs = fresh_inputs(prog, workload, seed=5)
    with pytest.raises(RunError, match="no array for input buffer 'B'"):
        execute(prog, {"A": inputs["A"]}, workload=workload)
    with pytest.raises(RunError, match="no array for scratch buffer 'P'"):
        execute(prog, inputs)
    with pytest.raises(RunError, match="no buffer 'D'"):
        execute(prog, inputs | {"D": []}, workload=workload)
    with pytest.raises(RunError, match=r"'A' needs one array for each rank, of \[4, 4\] slots"):
        execute(prog, inputs | {"A": inputs["A"][:1]}, workload=workload)
    head = "program p ranks 1\nbuffer x input 1\nlane c compute\nkernel f each\n"
    text = f"{head}rank 0 lane c\n  compute f x[0:1] -> x[0:1]\n"
    with pytest.raises(RunError, match=r"no kernel 'f'(.|\n)*none"):
        run(text, x=[[1]])


def test_kernels_accumulate_where_the_program_says_so_and_cannot_write_their_reads():
    text = """
program twice ranks 1
buffer x input 2
buffer z output 2
lane c compute
kernel double each
kernel double each accumulate
rank 0 lane c
  compute double#0 x[0:2] -> z[0:2]
  compute double#1 x[0:2] -> z[0:2]
"""
    prog = parse(text)
    assert [kernel.accumulate for kernel in prog.kernels] == [False, True]

    def double(reads, writes):
        with pytest.raises(ValueError, match="read-only"):
            reads[0][...] = 0
        writes[0][...] = 2 * reads[0]

    given_arrays = {"x": [np.array([1.0, 2.0])], "z": [np.zeros(2)]}
    outputs = execute(prog, given_arrays, {"double": double}).outputs
    assert outputs["z"][0].tolist() == [4.0, 8.0]
    assert given_arrays["z"][0].tolist() == [0.0, 0.0], "the caller's arrays are left alone"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 64, 2000])
@pytest.mark.parametrize("how", ["library", "ring"])
def test_the_check_accepts_right_results_and_finds_one_wrong_element(dtype, k, how):
    """Right by a wide margin; wrong by one lost product of a rank, one swapped pair of rows, one NaN."""
    operator = MatmulAllReduce(6, k, 5, dtype)
    prog = program(operator, 3, [2, 4], how)
    workload = operator.workload(prog, operator.serial(prog.num_ranks))
    inputs = fresh_inputs(prog, workload, seed=k)
    outputs = execute(prog, inputs, workload=workload).outputs
    agreement = check_outputs(prog, workload, inputs, outputs)
    assert agreement.ok, agreement
    assert agreement.max_rel_error <= agreement.tolerance
    raise_if_bad(agreement)
    for plant in (_lose_a_rank(inputs), _swap_rows, _make_nan):
        wrong = {"C": [c.copy() for c in outputs["C"]]}
        plant(wrong["C"])
        found = check_outputs(prog, workload, inputs, wrong)
        assert not found.ok
        assert "on rank 1" in found.worst
        with pytest.raises(RunError, match="disagree with the float64 reference"):
            raise_if_bad(found)
        by_rank = [check_rank(prog, workload, r, {"C": wrong["C"][r]}, lambda b, at: inputs[b][at]) for r in range(3)]
        assert [each.ok for each in by_rank] == [True, False, True]


def _lose_a_rank(inputs):
    a, b = (inputs[name][0].astype(np.float64) for name in "AB")

    def plant(c):
        lost = a[4] @ b[0][:, 3]
        c[1][4, 3] = (c[1][4, 3].astype(np.float64) - lost).astype(c[1].dtype)

    return plant


def _swap_rows(c):
    c[1][[0, 5]] = c[1][[5, 0]]


def _make_nan(c):
    c[1][2, 2] = np.nan


def test_the_check_leaves_out_ranks_that_are_elsewhere_and_empty_results():
    operator = MatmulAllReduce(4, 8, 2)
    prog = program(operator, 2, [4])
    workload = operator.workload(prog, operator.serial(prog.num_ranks))
    inputs = fresh_inputs(prog, workload, seed=1)
    outputs = execute(prog, inputs, workload=workload).outputs
    assert check_outputs(prog, workload, inputs, {"C": [outputs["C"][0], None]}).ok
    for m, k, n in ((0, 3, 2), (3, 0, 2), (3, 2, 0)):
        operator = MatmulAllReduce(m, k, n)
        prog = program(operator, 2, [m] if m else [])
        workload = operator.workload(prog, operator.serial(prog.num_ranks))
        inputs = fresh_inputs(prog, workload, seed=1)
        agreement = check_outputs(prog, workload, inputs, execute(prog, inputs, workload=workload).outputs)
        assert agreement.ok
        assert agreement.max_rel_error == 0


def test_integers_must_agree_exactly():
    text = HEAD + "post 0 z[0:4] = x@0[0:4]\nrank 0 lane net\n  copy x[0:4] -> z[0:4]\n"
    prog = parse(text)
    workload = Workload({name: (Slot((), "int32"),) * 3 for name in "xyz"})
    inputs = fresh_inputs(prog, workload, seed=1)
    outputs = execute(prog, inputs, workload=workload).outputs
    assert check_outputs(prog, workload, inputs, outputs).ok
    outputs["z"][0][3] += 1
    assert not check_outputs(prog, workload, inputs, outputs).ok


def test_fresh_inputs_repeat_with_their_seed_and_only_with_it():
    operator = MatmulAllReduce(4, 8, 2, "float16")
    prog = program(operator, 2, [4])
    workload = operator.workload(prog, operator.serial(prog.num_ranks))
    once, again, other = (fresh_inputs(prog, workload, seed) for seed in (1, 1, 2))
    np.testing.assert_equal(once, again)
    assert not np.array_equal(once["A"][0], other["A"][0])
    assert not np.array_equal(once["A"][0], once["A"][1])


@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "uint8", "int64"])
def test_dtypes_have_the_size_that_workloads_say(dtype):
    assert numpy_dtype(dtype).itemsize == dtype_bytes(dtype)


def test_a_missing_bfloat16_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(EnvironmentFault, match="ml_dtypes"):
        numpy_dtype("bfloat16")
