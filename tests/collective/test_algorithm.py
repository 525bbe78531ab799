"""The language of chunks: what it records, its errors and their lines, and what it compiles to."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
from chunk_programs import SLOTS, models, play
from collective_data import check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.collective import PROTOCOLS, Algorithm, build, custom, spec_of
from dovetail.core import OperatorError, ProgramError
from dovetail.ir import Program, Slot, Workload, verify
from dovetail.run import execute

DEEP = 1 << 20


def proved(p: Algorithm) -> Program:
    """Return the recorded Program after proving it with deep channels."""
    program, hints = p.trace()
    certificate = verify(program.with_depth(DEEP))
    certificate.raise_if_bad()
    assert {len(column) for column in hints} == {program.num_ops}
    return program


def pair(**settings) -> Algorithm:
    """A collective on two ranks without post-conditions."""
    return Algorithm("pair", custom(2, 4, 4, lambda rank, slot: []), **settings)


# What is recorded


def test_a_copy_between_ranks_is_a_send_and_a_recv() -> None:
    p = Algorithm("swap", custom(2, 1, 1, lambda rank, slot: [(1 - rank, slot)]))
    p.chunk(0, "input", 0).copy(1, "output", 0, ch=3, send_lane=1, recv_lane=2)
    p.chunk(1, "input", 0).copy(0, "output", 0)
    program, hints = p.trace()
    assert [lane[:2] for lane in program.lanes] == [("trace", "net")]
    assert [c[:3] for c in program.channels] == [(0, 1, 3), (1, 0, 0)]
    assert [op.kind.name for op in program.ops()] == ["send", "recv", "send", "recv"]
    assert [op.rank for op in program.ops()] == [0, 1, 1, 0]
    assert hints.channel.tolist() == [3, 3, -1, -1]
    assert hints.lane.tolist() == [1, 2, -1, -1]
    line = inspect.getsourcelines(test_a_copy_between_ranks_is_a_send_and_a_recv)[1] + 2
    assert program.op(0).line == f"tests/collective/test_algorithm.py:{line}"
    verify(program).raise_if_bad()


def test_a_copy_onto_itself_does_nothing() -> None:
    p = Algorithm("still", "all_gather", 2, in_place=True)
    own = p.chunk(1, "input", 0)
    assert own.copy(1, "output", 1) is own
    assert own.copy(1) is own
    assert p.trace()[0].num_ops == 0
    assert (own.buffer, own.index) == ("output", 1), "in place, a chunk belongs to the output, which is the whole array"
    assert own.copy(1, own.buffer, own.index) is own


def test_scratch_is_appended_to_and_grows() -> None:
    p = pair()
    first, second = p.chunk(0, "input", 0, 2).copy(1, "tmp"), p.chunk(1, "input", 0).copy(1, "tmp")
    assert (first.index, second.index) == (0, 2)
    assert first.group(second).count == 3
    p.chunk(0, "input", 0).copy(0, "tmp", 5)
    assert {b.name: b.slots for b in p.trace()[0].buffers}["tmp"] == (6, 3)
    proved(p)


def test_groups_and_splits() -> None:
    p = pair()
    low, high = p.chunk(0, "input", 0, 2), p.chunk(0, "input", 2, 2)
    whole = high.group(low)
    assert repr(whole) == "Ref(input[0:4] of rank 0)"
    assert [(ref.index, ref.count) for ref in whole.split(2)] == [(0, 2), (2, 2)]


@pytest.mark.parametrize("same_rank", [True, False])
@pytest.mark.parametrize("place", [None, ("output", 3), ("tmp", 2), ("tmp", None)])
def test_a_sum_may_be_written_anywhere(same_rank: bool, place: tuple | None) -> None:
    """Sources and destination with unequal indices, which the compiler of seed 002 gets wrong between ranks."""
    source = 1 if same_rank else 0
    p = Algorithm(
        "sum",
        custom(2, 4, 4, lambda rank, slot: [(source, 2), (1, 1)] * (rank == 1 and slot == 0)),
        overwrite_input=True,
    )
    here = p.chunk(1, "input", 1)
    total = here.reduce(p.chunk(source, "input", 2), *(place or ()))
    assert (total is here) == (place is None)
    total.copy(1, "output", 0)
    proved(p)


def test_fragments_multiply() -> None:
    p = pair()
    chunk = p.chunk(0, "input", 0)
    with p.parallelize(2):
        chunk.copy(1, "output", 0)
        with p.parallelize(3):
            chunk.copy(1, "output", 1)
    chunk.copy(0, "output", 0)
    assert p.trace()[1].copies.tolist() == [2, 2, 6, 6, 1]


@pytest.mark.slow
@settings(max_examples=some(150), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(models())
def test_random_algorithms_give_the_models_result(model) -> None:
    proved(play(model))


@settings(max_examples=some(60), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(models(), st.data())
def test_a_wrong_model_is_noticed(model, data) -> None:
    outputs = [place for place in sorted(model.held) if place[1] == "output"]
    if outputs:
        model.held[data.draw(st.sampled_from(outputs))][0, 0] += 1
        assert not verify(play(model).trace()[0].with_depth(DEEP)).checks["result"].ok


# Errors: each fault is on the line marked `fault`


def _never_written(p: Algorithm) -> None:
    p.chunk(1, "output", 2)  # fault


def _partly_written(p: Algorithm) -> None:
    p.chunk(0, "input", 0).copy(1, "tmp", 3)
    p.chunk(1, "tmp", 2, 2)  # fault


def _stale(p: Algorithm) -> None:
    chunk = p.chunk(0, "input", 0).copy(1, "tmp")
    p.chunk(0, "input", 1).copy(1, "tmp", 0)
    chunk.copy(0, "output", 0)  # fault


def _stale_sum(p: Algorithm) -> None:
    old, same = p.chunk(0, "input", 0).copy(1, "tmp"), p.chunk(1, "tmp", 0)
    old.reduce(p.chunk(0, "input", 1))
    old.copy(0, "output", 0)
    same.split(1)  # fault


def _no_rank(p: Algorithm) -> None:
    p.chunk(0, "input", 0).copy(2, "output", 0)  # fault


def _negative_rank(p: Algorithm) -> None:
    p.chunk(-1, "input", 0)  # fault


def _outside(p: Algorithm) -> None:
    p.chunk(0, "input", 3, 2)  # fault


def _outside_output(p: Algorithm) -> None:
    p.chunk(0, "input", 0).copy(1, "output", 4)  # fault


def _no_buffer(p: Algorithm) -> None:
    p.chunk(0, "outptu", 0)  # fault


def _half_a_slot(p: Algorithm) -> None:
    p.chunk(0, "input", 0.5)  # type: ignore[arg-type]  # fault


def _no_slots(p: Algorithm) -> None:
    p.chunk(0, "input", 0, 0)  # fault


def _unequal(p: Algorithm) -> None:
    p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0, 2), "tmp")  # fault


def _onto_input(p: Algorithm) -> None:
    p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0))  # fault


def _overlap(p: Algorithm) -> None:
    whole = p.chunk(0, "input", 0, 2).copy(0, "tmp", 0)
    whole.copy(0, "tmp", 1)  # fault


def _to_itself(p: Algorithm) -> None:
    chunk = p.chunk(0, "input", 0)
    chunk.reduce(chunk, "tmp")  # fault


def _apart(p: Algorithm) -> None:
    p.chunk(0, "input", 0).group(p.chunk(0, "input", 2))  # fault


def _two_ranks(p: Algorithm) -> None:
    p.chunk(0, "input", 0).group(p.chunk(1, "input", 1))  # fault


def _uneven(p: Algorithm) -> None:
    p.chunk(0, "input", 0, 3).split(2)  # fault


def _channel(p: Algorithm) -> None:
    p.chunk(0, "input", 0).copy(1, "output", 0, ch=-1)  # fault


def _high_channel(p: Algorithm) -> None:
    p.chunk(0, "input", 0).copy(1, "output", 0, ch=1 << 40)  # fault


def _lane(p: Algorithm) -> None:
    p.chunk(0, "input", 0).copy(1, "output", 0, send_lane=-2)  # fault


def _other_algorithm(p: Algorithm) -> None:
    p.chunk(0, "input", 0).reduce(pair().chunk(1, "input", 0), "tmp")  # fault


def _no_chunk(p: Algorithm) -> None:
    p.chunk(0, "input", 0).reduce(None, "tmp")  # type: ignore[arg-type]  # fault


def _no_name(p: Algorithm) -> None:
    p.chunk(0, "input", 0).copy(1, 3)  # type: ignore[arg-type]  # fault


def _vast(p: Algorithm) -> None:
    p.chunk(0, "input", 0).copy(1, "tmp", 1 << 40)  # fault


FAULTS = {
    _never_written: "output[2] of rank 1 holds nothing yet",
    _partly_written: "tmp[2] of rank 1 holds nothing yet",
    _stale: "tmp[0] of rank 1 no longer holds this chunk",
    _stale_sum: "tmp[0] of rank 1 no longer holds this chunk",
    _no_rank: "rank 2 does not exist",
    _negative_rank: "rank -1 does not exist",
    _outside: "outside buffer input of rank 0",
    _outside_output: "outside buffer output of rank 1",
    _no_buffer: "no buffer 'outptu'",
    _half_a_slot: "the index is 0.5",
    _no_slots: "the count is 0",
    _unequal: "2 slots cannot be added to 1",
    _onto_input: "this writes input[0] of rank 0, which is the caller's data",
    _overlap: "source and destination overlap",
    _to_itself: "source and destination overlap",
    _apart: "only adjacent chunks can be grouped",
    _two_ranks: "only adjacent chunks can be grouped",
    _uneven: "3 slots do not split into 2 equal parts",
    _channel: "channel is -1",
    _high_channel: "channel is 1099511627776",
    _lane: "send_lane is -2",
    _other_algorithm: "is no chunk of this algorithm",
    _no_chunk: "None is no chunk of this algorithm",
    _no_name: "a buffer's name must be a text, not 3",
    _vast: "scratch tmp[1099511627776] on rank 1",
}


@pytest.mark.parametrize("write", FAULTS, ids=lambda write: write.__name__[1:])
def test_a_fault_is_reported_with_its_line(write: Callable[[Algorithm], None]) -> None:
    with pytest.raises(ProgramError) as caught:
        write(pair())
    source, first = inspect.getsourcelines(write)
    fault = next(number for number, line in enumerate(source) if line.rstrip().endswith("# fault"))
    assert caught.value.where == f"tests/collective/test_algorithm.py:{first + fault}"
    assert FAULTS[write] in caught.value.what


def test_a_stale_chunk_names_the_line_that_overwrote_it() -> None:
    with pytest.raises(ProgramError) as caught:
        _stale(pair())
    assert (
        caught.value.found
        == f"written since at tests/collective/test_algorithm.py:{inspect.getsourcelines(_stale)[1] + 2}"
    )


def test_an_in_place_index_counts_within_the_ranks_own_part() -> None:
    p = Algorithm("gather", "all_gather", 3, chunks=2, in_place=True)
    assert p.chunk(1, "input", 1).index == 3
    with pytest.raises(ProgramError, match="2 slots, asked for 2 to 2"):
        p.chunk(1, "input", 2)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Algorithm("a", "all_reduce"), "needs a number of ranks"),
        (lambda: Algorithm("a", "all_reduc", 2), "no collective"),
        (lambda: Algorithm("a", spec_of("broadcast", 3), 2), "2 ranks"),
        (lambda: Algorithm("a", "all_reduce", 2, protocol="Fancy"), "no protocol 'Fancy'"),
        (lambda: Algorithm("a", "all_reduce", 2, instances=0), "0 instances"),
        (lambda: Algorithm("a", "all_reduce", 2, chunks=1 << 30), "slots"),
        (lambda: pair().compile(1 << 30), "1073741824 instances"),
        (lambda: pair().parallelize(1 << 30).__enter__(), "parallelize"),
        (lambda: pair().parallelize(0).__enter__(), "parallelize"),
        (lambda: pair().parallelize(1.5).__enter__(), "copies must be a whole number"),
        (lambda: pair().compile(2.0), "instances must be a whole number"),
        (lambda: pair().compile(lanes="mine"), "no lanes 'mine'"),
        (lambda: build("ring_all_reduc", 2), "no algorithm 'ring_all_reduc'"),
        (lambda: build("double_tree_all_reduce", 2, channels=2), "double_tree_all_reduce has no channels"),
        (lambda: build("hierarchical_all_reduce", 8, nodes=3), "8 ranks on 3 nodes"),
        (lambda: build("sccl_122_all_gather", 4), "sccl_122_all_gather on 4 ranks"),
        (lambda: build("bruck_all_to_all", 4, in_place=True), "bruck_all_to_all has no in_place"),
    ],
)
def test_invalid_collectives_raise(make: Callable[[], object], what: str) -> None:
    with pytest.raises(OperatorError, match=what):
        make()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Algorithm("a", "all_reduce", 1 << 40), "1099511627776 ranks"),
        (lambda: Algorithm("a", "all_reduce", "2"), "num_ranks must be a whole number"),
        (lambda: Algorithm("a", "all_reduce", 2, chunks=1.5), "chunks must be a whole number"),
        (lambda: Algorithm("a", "broadcast", 2, root=2), "root 2 does not exist"),
        (lambda: spec_of("all_gather", 2, chunks=1.5), "chunks must be a whole number"),
        (lambda: spec_of("all_gather", 1 << 40), "1099511627776 ranks"),
        (lambda: Algorithm("a", spec_of("broadcast", 3), chunks=2), "a Spec defines chunks"),
        (lambda: custom(2, 1, 1, lambda rank, slot: [3]), r"want\(0, 0\) names no input slot"),
        (lambda: custom(2, 1, 1, lambda rank, slot: [(99, 0)]), r"found +\(99, 0\)"),
        (lambda: custom(2, 1, 1, lambda rank, slot: [(1 - rank, 1)]), r"found +\(1, 1\)"),
        (lambda: build("ring_all_reduce", 64, instances=1 << 10), "ops in 1024 instances"),
        (lambda: build("ring_all_reduce", 1 << 13), "all_reduce of 67108864 slots"),
    ],
)
def test_collectives_with_impossible_ranks_or_sizes_raise(make: Callable[[], object], what: str) -> None:
    with pytest.raises(OperatorError, match=what):
        make()


def test_too_many_operations_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.collective.recorder.MOST_OPS", 5)
    with pytest.raises(OperatorError, match="more than 5 operations"):
        build("ring_all_gather", 4)


def test_a_wrong_result_raises_with_a_line() -> None:
    p = Algorithm("half", "all_reduce", 2, in_place=True)
    p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0))
    with pytest.raises(ProgramError, match="fails the result check") as caught:
        p.compile()
    assert "missing" in caught.value.found
    assert str(caught.value.where).startswith("tests/collective/test_algorithm.py:")  # the line that made the Algorithm
    p = Algorithm("twice", "all_reduce", 2, in_place=True)
    total = p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0))
    total.copy(1, "tmp").copy(1, "input", 0)
    p.chunk(0, "input", 0).reduce(p.chunk(1, "tmp", 0))
    with pytest.raises(ProgramError, match="fails the result check") as caught:
        p.compile()
    assert str(caught.value.where).startswith("tests/collective/test_algorithm.py:")


# What is compiled


@pytest.mark.slow
@settings(max_examples=some(100), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(models(), st.integers(1, 3), st.booleans(), st.sampled_from(["Simple", "LL"]), st.integers(0, 99))
def test_random_algorithms_compile_to_the_models_result(model, instances, fuse, protocol, seed) -> None:
    program = play(model, protocol=protocol).compile(instances, fuse=fuse)
    rng = np.random.default_rng(seed)
    many = program.slots_of("input", 0) // SLOTS["input"]
    inputs = [rng.integers(-99, 99, (SLOTS["input"] * many, 2)) for _ in range(model.num_ranks)]
    slots = (Slot((2,), "int64"),) * model.num_ranks
    workload = Workload({buffer.name: slots for buffer in program.buffers})
    outputs = execute(program, {"input": inputs}, seed=seed, workload=workload).outputs["output"]
    for (rank, buffer, slot), terms in model.held.items():
        if buffer == "output":
            parts = [inputs[r][i * many : (i + 1) * many] * times for (r, i), times in terms.items()]
            np.testing.assert_array_equal(outputs[rank][slot * many : (slot + 1) * many], sum(parts))


def test_mixed_counts_are_replicated_right() -> None:
    """Interleaved instances of ops with unequal counts, which the compiler of seed 002 gets wrong."""
    p = Algorithm("mixed", "all_reduce", 2, chunks=4, in_place=True)
    total = p.chunk(0, "input", 0, 4).reduce(p.chunk(1, "input", 0, 4))
    for part in total.split(4):
        part.copy(1)
    check(p.spec, p.compile(3), np.random.default_rng(0))


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_more_messages_than_a_channel_holds_are_ordered_without_deadlock(protocol: str) -> None:
    """Nine swaps on one threadblock each, which deadlock at 8 slots in the order of the compiler of seed 002."""
    p = Algorithm("nine", custom(2, 9, 9, lambda rank, slot: [(1 - rank, slot)]), protocol=protocol)
    for source in (0, 1):
        for i in range(9):
            p.chunk(source, "input", i).copy(1 - source, "output", i, ch=0, send_lane=0, recv_lane=0)
    program = p.compile(lanes="manual")
    assert [lane.name for lane in program.lanes] == ["tb0"]
    assert verify(program).min_fifo_depth <= PROTOCOLS[protocol]


def test_manual_lanes_must_all_be_named() -> None:
    p = Algorithm("swap", custom(2, 1, 1, lambda rank, slot: [(1 - rank, slot)]))
    p.chunk(0, "input", 0).copy(1, "output", 0, send_lane=0, recv_lane=0)
    p.chunk(1, "input", 0).copy(0, "output", 0, send_lane=1)
    with pytest.raises(ProgramError, match="this recv on rank 0 names no lane") as caught:
        p.compile(lanes="manual")
    assert str(caught.value.where).startswith("tests/collective/test_algorithm.py:")
    assert len(p.compile().lanes) == 2, "auto keeps the lanes that were asked for"
