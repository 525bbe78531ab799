"""Replay on a machine: messages and collectives take the times of its cost curves, not the trace's."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path

import needs
import pytest
from replay_models import DELAYS, ModelBuilder
from trace_calls import call, sent, taken, trace_of
from trace_files import event, pair, write_process

from dovetail.advise.replay import changed_s, makespan_s, on_machine, replay
from dovetail.cli import main
from dovetail.core import MachineError, RunError, save_json
from dovetail.cost import CostModel, Curve
from dovetail.ir import Kind
from dovetail.machine import Machine
from dovetail.prober import probe_calls
from dovetail.run.mpi.executor import default_launch
from dovetail.trace.analysis.model_of_trace import model_of
from dovetail.trace.analysis.replay_model import ReplayModel
from dovetail.trace.to_program import to_program

US, MS = 1e-6, 1e-3
LARGE = 1 << 16


def machine(ranks: int = 2, **costs: Curve) -> Machine:
    """Messages take 10 us plus 100 MB/s; those above 1000 bytes wait for their receive."""
    curves = {"p2p:shm": Curve.through([0, 1e6], [10 * US, 10 * US + 10 * MS])}
    curves |= {key.replace("_of_", ":"): curve for key, curve in costs.items()}
    reported = {key: curve.to_json() for key, curve in curves.items()}
    return Machine("pretended", ranks, (0,) * ranks, costs=reported, facts={"eager_limit_bytes": 1000})


def took_s(builder: ModelBuilder, **costs: Curve) -> float:
    return makespan_s(on_machine(builder.model(), machine(len(builder.steps), **costs)))


def one_message(num_bytes: int, **about) -> ModelBuilder:
    """Rank 0 sends, then works for 5 ms; rank 1 works for 1 ms, then receives the message."""
    builder = ModelBuilder(2)
    number = builder.message(0, 1, num_bytes, delay_s=0.5, **about)
    builder.call(0, "isend", ("send", number))
    builder.work(0, 5 * MS)
    builder.call(0, "wait", ("sent", number))
    builder.work(1, 1 * MS)
    builder.call(1, "recv", ("recv", number), ("received", number))
    builder.work(1, 10 * MS)
    return builder


@pytest.mark.parametrize("rendezvous", [True, False])
def test_a_change_by_which_ranks_wait_for_one_another_never_ends(rendezvous):
    builder = ModelBuilder(2)
    numbers = [builder.message(rank, 1 - rank, LARGE, rendezvous=rendezvous) for rank in (0, 1)]
    for rank in (0, 1):
        builder.call(rank, "send", ("send", numbers[rank]), ("sent", numbers[rank]))
        builder.call(rank, "recv", ("recv", numbers[1 - rank]), ("received", numbers[1 - rank]))
    steps = [builder.steps[0], builder.steps[1]]
    model = ReplayModel(tuple(map(tuple, steps)), tuple(builder.messages), (), DELAYS, 0.0, ())
    assert (changed_s(model) == float("inf")) == rendezvous


def test_a_message_takes_the_machines_time():
    assert took_s(one_message(8)) == pytest.approx(11 * MS, abs=US)
    waits_s = 10 * US + LARGE * 10 * MS / 1e6
    assert took_s(one_message(LARGE)) == pytest.approx(11 * MS + waits_s, abs=US)


def test_a_message_that_needed_its_sender_leaves_at_the_senders_next_call():
    waits_s = 10 * US + LARGE * 10 * MS / 1e6
    assert took_s(one_message(LARGE, came_back=True)) == pytest.approx(15 * MS + waits_s, abs=US)
    assert took_s(one_message(8, came_back=True)) == pytest.approx(11 * MS, abs=US), "a small message leaves at once"


def test_messages_of_one_channel_keep_their_order():
    """A message that waits for its sender, then a small one, sent by the same call."""
    builder = ModelBuilder(2)
    numbers = [builder.message(0, 1, LARGE, came_back=True), builder.message(0, 1, 8)]
    builder.call(0, "startall", *(("send", number) for number in numbers))
    builder.call(0, "waitall", ("sent", numbers[0]))
    builder.call(1, "waitall", *(("recv", number) for number in numbers), *(("received", number) for number in numbers))
    program, prices = to_program(on_machine(builder.model(), machine()))
    for kind in (Kind.send, Kind.recv):
        assert prices.num_bytes[program.columns["kind"] == kind].tolist() == [LARGE, 8]


def test_many_messages_at_once_arrive_as_in_a_stream():
    builder = ModelBuilder(2)
    numbers = [builder.message(0, 1, 8) for _ in range(100)]
    for number in numbers:
        builder.call(0, "isend", ("send", number))
    builder.call(1, "waitall", *(("recv", number) for number in numbers), *(("received", number) for number in numbers))
    assert took_s(builder) == pytest.approx(10 * US, abs=US)
    streamed = Curve.through([0, 1e6], [4 * US, 10 * MS])
    assert took_s(builder, exchange_of_shm=streamed) == pytest.approx(100 * 2 * US + 8 * US, rel=0.05)
    back = builder.message(1, 0, 8)
    builder.call(1, "send", ("send", back))
    assert took_s(builder, exchange_of_shm=streamed) == pytest.approx(100 * 4 * US + 6 * US, rel=0.05)


def test_a_message_costs_a_blocking_send_and_a_crossed_one_a_sendrecv():
    builder = ModelBuilder(2)
    for src, crossed in ((0, False), (0, True), (1, True)):
        builder.message(src, 1 - src, 8, crossed=crossed)
    model, flat = builder.model(), lambda us: Curve.through([0, 1e6], [us * US, us * US])

    def delays(**costs):
        return [message.delay_s / US for message in on_machine(model, machine(**costs)).messages]

    assert delays() == pytest.approx([10, 10, 10], rel=0.01)
    assert delays(call_of_Send_of_shm=flat(20)) == pytest.approx([20, 20, 20])
    costs = {"call_of_Send_of_shm": flat(20), "call_of_Sendrecv_of_shm": flat(30)}
    assert delays(**costs) == pytest.approx([20, 30, 30])


@pytest.mark.parametrize(("back_ms", "crossed"), [(1, True), (4, False)])
def test_messages_cross_if_both_ranks_send_before_they_receive(tmp_path, back_ms, crossed):
    """Rank 1 sends at 1 ms, before it receives the message that rank 0 sent at 1 ms, or at 4 ms, after that."""
    write_process(tmp_path, 0, {1: [*call(1, 1, 1.1, sent(1)), *call(2, 1.5, 6, *taken(1))]})
    both = [call(1, back_ms, back_ms + 0.1, sent(0)), call(2, 2, 3, *taken(0))]
    write_process(tmp_path, 1, {1: [each for events in sorted(both, key=lambda c: c[0][0]) for each in events]})
    assert [message.crossed for message in model_of(trace_of(tmp_path)).messages] == [crossed] * 2


def test_many_messages_of_one_call_share_its_time(tmp_path):
    """100 messages, one every 10 us, all waited for in one call: no message travels for the whole time of the call."""
    sends = [event for i in range(100) for event in call(1, 1 + i * 0.01, 1.002 + i * 0.01, sent(1))]
    write_process(tmp_path, 0, {1: sends})
    posts = [each for i in range(100) for each in call(5, 0.1, 0.1, event("recv", pair(0, 1), 0, 8), made=70 + i)]
    waits = [each for i in range(100) for each in (event("request", 70 + i, 0), event("done", pair(0, 1), 0, 8))]
    write_process(tmp_path, 1, {1: [*posts, *call(6, 0.5, 3, *waits)]})
    model = model_of(trace_of(tmp_path))
    assert model.delays.latency_s == pytest.approx(0.02 * MS), "2 ms for all"
    assert replay(trace_of(tmp_path)).off == pytest.approx(0, abs=0.02)


def test_collectives_take_their_measured_curve_or_else_a_trees_time():
    def of(num_bytes: int) -> float:
        builder = ModelBuilder(4)
        builder.all_reduce("sum", num_bytes)
        return took_s(builder, all_reduce_of_4=Curve.through([1000, 2000], [1 * MS, 2 * MS]))

    assert of(1500) == pytest.approx(1.5 * MS)
    builder = ModelBuilder(4)
    builder.all_reduce("sum", 1500)
    both = {"all_reduce_of_4": Curve.through([1000, 2000], [1 * MS, 2 * MS])}
    both |= {"call_of_Allreduce_of_4": Curve.through([0, 2000], [0, 4 * MS])}
    assert took_s(builder, **both) == pytest.approx(3 * MS), "the curve of blocking calls, not of our engine"
    builder.collectives[0] = replace(builder.collectives[0], name="MPI_Iallreduce")
    assert took_s(builder, **both) == pytest.approx(1.5 * MS)
    assert of(0) == pytest.approx(2 * 10 * US, rel=0.01), "two rounds of four ranks"


def test_a_collective_sends_no_ranks_own_part_and_uses_both_directions():
    def of(name: str, **costs: Curve) -> float:
        builder = ModelBuilder(4)
        builder.all_reduce("all", 4000)
        builder.collectives[0] = replace(builder.collectives[0], name=name)
        return took_s(builder, **costs)

    latency, both = 2 * 10 * US, Curve.through([0, 1e6], [10 * US, 30 * MS])
    assert of("MPI_Bcast") == pytest.approx(latency + 40 * US, rel=0.01)
    assert of("MPI_Gatherv") == pytest.approx(latency + 30 * US, rel=0.01)
    assert of("MPI_Ialltoallv_c") == pytest.approx(latency + 30 * US, rel=0.01)
    assert of("MPI_Ialltoallv_c", exchange_of_shm=both) == pytest.approx(latency + 90 * US, rel=0.01)
    assert of("MPI_Gatherv", exchange_of_shm=both) == pytest.approx(latency + 30 * US, rel=0.01)


def test_a_broadcasts_time_is_no_work_of_ranks_that_come_after_the_root(tmp_path):
    """Rank 1 calls 10 us after the root, and gets its data in 1 ms; on the machine a broadcast takes 10 us."""
    reported = [event("root", 0), event("collective", 8, 0, 8)]
    write_process(tmp_path, 0, {1: call(12, 1, 1.1, *reported)})
    write_process(tmp_path, 1, {1: [*call(12, 1.01, 2.01, *reported), *call(1, 3, 3)]})
    trace = trace_of(tmp_path)
    assert replay(trace).off == pytest.approx(0, abs=0.01)
    assert replay(trace, machine()).replayed_s == pytest.approx((3 - 2.01 + 0.02) * MS, rel=0.01)


def test_an_unchanged_root_need_not_wait_between_two_calls(tmp_path):
    """Rank 0 is the root twice, then rank 1, then rank 0: only the second call has an unchanged root."""
    for rank in (0, 1):
        reported = [[event("root", root), event("collective", 8, 0, 8)] for root in (0, 0, 1, 0)]
        calls = [call(12, 10 * i + 1, 10 * i + 2, *events) for i, events in enumerate(reported)]
        write_process(tmp_path, rank, {1: [each for events in calls for each in events]})
    here = machine(call_of_Bcast_of_2=Curve.through([0, 8], [MS, MS]))
    costs = {"call:Bcast_again:2": Curve.through([0, 8], [0.25 * MS, 0.25 * MS]).to_json()}
    model = model_of(trace_of(tmp_path))
    for on, second in ((here, 1.0), (here.with_costs(costs), 0.25)):
        seconds = {it.collective: it.seconds / MS for it in on_machine(model, on).collectives}
        assert [seconds[i] for i in sorted(seconds)] == pytest.approx([1.0, second, 1.0, 1.0])


@pytest.mark.mpi
def test_a_probe_measures_calls_of_the_library():
    needs.need("mpich")
    bare = machine()
    found = probe_calls(bare, default_launch(), most_bytes=64)
    added = {key: CostModel.of(found).seconds(key, 64) for key in set(found.costs) - set(bare.costs)}
    assert len(added) == 17 + 6 + 2
    assert {"call:Send:shm", "call:Sendrecv:shm"} <= set(added)
    assert {"call:Bcast_again:2", "call:Scatterv_again:2"} <= set(added)
    assert {"call:Barrier:2", "call:Allreduce:2", "call:Alltoallv:2"} <= set(added)
    assert all(seconds > 0 for seconds in added.values())


def test_a_probe_that_hangs_is_ended_with_all_its_processes(tmp_path, monkeypatch):
    """Planted fault: a launcher that reports one call, then waits for a child process for ever."""
    monkeypatch.setattr("dovetail.prober.calls.compiled", lambda source, target: str(target))
    script = "echo Barrier 16 0 1e-6; sleep 1000 & echo $! > " + str(tmp_path / "child") + "; wait"
    with pytest.raises(RunError, match=r"(?s)hangs.* for 0.3 s.*MPI_Barrier of 16 bytes.*sh -c .* hostname"):
        probe_calls(machine(), f"sh -c {shlex.quote(script)} sh", silent_s=0.3)
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    for _ in range(200):
        if not child.exists() or child.read_text().split()[2] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("the launcher's child lives on")


def test_a_machine_with_fewer_ranks_raises():
    with pytest.raises(MachineError, match="fewer ranks"):
        on_machine(ModelBuilder(3).model(), machine(2))


def large_message(folder, taken_ms: float):
    """Rank 0 sends at once, works, and waits at 5 ms; rank 1 receives the message by `taken_ms`."""
    wait = [event("request", 70, 0), event("done", pair(1, 1), 0, LARGE)]
    first = [*call(4, 0, 0.01, sent(1, LARGE), made=70), *call(6, 5, 5.5, *wait)]
    for rank, events in enumerate((first, call(2, 1, taken_ms, *taken(0, LARGE)))):
        write_process(folder, rank, {1: events}, num_ranks=2)
    return trace_of(folder)


def test_a_trace_shows_whether_a_message_needed_its_sender(tmp_path):
    for taken_ms, needed in ((5.6, True), (3, False)):
        trace = large_message(tmp_path / str(taken_ms), taken_ms)
        (message,) = model_of(trace).messages
        assert message.came_back == needed
        assert replay(trace).off == pytest.approx(0, abs=0.02)
        least_ms = 5 if needed else 1
        assert replay(trace, machine()).replayed_s >= (least_ms + 0.6) * MS


def test_the_command_reports_the_error_of_a_replay(tmp_path, capsys):
    large_message(tmp_path / "trace", 5.6)
    place = save_json(tmp_path / "machine.json", machine().to_json())
    assert main(["trace", "replay", str(tmp_path / "trace"), "--machine", str(place), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["machine"]) == ("dovetail.replay/1", "pretended")
    assert found["off"] == pytest.approx(found["replayed_s"] / found["traced_s"] - 1)
    assert main(["trace", "replay", str(tmp_path / "trace")]) == 0
    assert "Replayed unchanged, the program takes" in capsys.readouterr().out
