"""Replay on a machine: messages and collectives take the times of its curves, whatever the trace has."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path

import needs
import pytest
from trace_calls import call, sent, taken, trace_of
from trace_files import event, pair, write_process
from trace_tale import Tale

from dovetail.advise.replay import makespan_s, on_machine, replay
from dovetail.cli import main
from dovetail.core import MachineError, RunError, save_json
from dovetail.cost import CostModel, Curve
from dovetail.ir import Kind
from dovetail.machine import Machine
from dovetail.prober import probe_calls
from dovetail.run.mpi.executor import default_launch
from dovetail.trace.analysis.story import story_of
from dovetail.trace.to_program import to_program

US, MS = 1e-6, 1e-3
LARGE = 1 << 16


def machine(ranks: int = 2, **costs: Curve) -> Machine:
    """One way 10 us and 100 MB/s, larger than 1000 bytes only once they are waited for."""
    curves = {"p2p:shm": Curve.through([0, 1e6], [10 * US, 10 * US + 10 * MS])}
    curves |= {key.replace("_of_", ":"): curve for key, curve in costs.items()}
    reported = {key: curve.to_json() for key, curve in curves.items()}
    return Machine("pretended", ranks, (0,) * ranks, costs=reported, facts={"eager_limit_bytes": 1000})


def took_s(tale: Tale, **costs: Curve) -> float:
    return makespan_s(on_machine(tale.story(), machine(len(tale.steps), **costs)))


def one_message(num_bytes: int, **about) -> Tale:
    """Rank 0 sends, then works for 5 ms; rank 1 works for 1 ms, then takes the message."""
    tale = Tale(2)
    number = tale.message(0, 1, num_bytes, delay_s=0.5, **about)
    tale.call(0, "isend", ("send", number))
    tale.work(0, 5 * MS)
    tale.call(0, "wait", ("sent", number))
    tale.work(1, 1 * MS)
    tale.call(1, "recv", ("recv", number), ("taken", number))
    tale.work(1, 10 * MS)
    return tale


def test_a_message_takes_what_the_machine_says():
    assert took_s(one_message(8)) == pytest.approx(11 * MS, abs=US)
    waits_s = 10 * US + LARGE * 10 * MS / 1e6
    assert took_s(one_message(LARGE)) == pytest.approx(11 * MS + waits_s, abs=US)


def test_one_that_needed_its_sender_sets_out_when_that_is_back():
    waits_s = 10 * US + LARGE * 10 * MS / 1e6
    assert took_s(one_message(LARGE, came_back=True)) == pytest.approx(15 * MS + waits_s, abs=US)
    assert took_s(one_message(8, came_back=True)) == pytest.approx(11 * MS, abs=US), "a small one goes at once"


def test_messages_of_one_channel_keep_their_order():
    """A held one, then a small one by the same call."""
    tale = Tale(2)
    numbers = [tale.message(0, 1, LARGE, came_back=True), tale.message(0, 1, 8)]
    tale.call(0, "startall", *(("send", number) for number in numbers))
    tale.call(0, "waitall", ("sent", numbers[0]))
    tale.call(1, "waitall", *(("recv", number) for number in numbers), *(("taken", number) for number in numbers))
    program, prices = to_program(on_machine(tale.story(), machine()))
    for kind in (Kind.send, Kind.recv):
        assert prices.num_bytes[program.columns["kind"] == kind].tolist() == [LARGE, 8]


def test_many_at_once_come_as_in_a_stream():
    tale = Tale(2)
    numbers = [tale.message(0, 1, 8) for _ in range(100)]
    for number in numbers:
        tale.call(0, "isend", ("send", number))
    tale.call(1, "waitall", *(("recv", number) for number in numbers), *(("taken", number) for number in numbers))
    assert took_s(tale) == pytest.approx(10 * US, abs=US)
    streamed = Curve.through([0, 1e6], [4 * US, 10 * MS])
    assert took_s(tale, exchange_of_shm=streamed) == pytest.approx(100 * 2 * US + 8 * US, rel=0.05)
    back = tale.message(1, 0, 8)
    tale.call(1, "send", ("send", back))
    assert took_s(tale, exchange_of_shm=streamed) == pytest.approx(100 * 4 * US + 6 * US, rel=0.05)


def test_a_message_goes_as_programs_send_it_and_as_both_ways_do_while_one_comes_back():
    tale = Tale(2)
    for src, crossed in ((0, False), (0, True), (1, True)):
        tale.message(src, 1 - src, 8, crossed=crossed)
    story, flat = tale.story(), lambda us: Curve.through([0, 1e6], [us * US, us * US])

    def delays(**costs):
        return [message.delay_s / US for message in on_machine(story, machine(**costs)).messages]

    assert delays() == pytest.approx([10, 10, 10], rel=0.01)
    assert delays(call_of_Send_of_shm=flat(20)) == pytest.approx([20, 20, 20])
    costs = {"call_of_Send_of_shm": flat(20), "call_of_Sendrecv_of_shm": flat(30)}
    assert delays(**costs) == pytest.approx([20, 30, 30])


@pytest.mark.parametrize(("back_ms", "crossed"), [(1, True), (4, False)])
def test_messages_cross_where_both_ranks_send_before_they_take(tmp_path, back_ms, crossed):
    """Rank 1 sends at 1 ms, before it takes what rank 0 sent at 1 ms, or at 4 ms, after that."""
    write_process(tmp_path, 0, {1: [*call(1, 1, 1.1, sent(1)), *call(2, 1.5, 6, *taken(1))]})
    both = [call(1, back_ms, back_ms + 0.1, sent(0)), call(2, 2, 3, *taken(0))]
    write_process(tmp_path, 1, {1: [each for events in sorted(both, key=lambda c: c[0][0]) for each in events]})
    assert [message.crossed for message in story_of(trace_of(tmp_path)).messages] == [crossed] * 2


def test_what_many_messages_of_one_call_take_is_shared_out(tmp_path):
    """100 messages, one each 10 us, all waited for in one call: each alone is not on its way for all that time."""
    sends = [event for i in range(100) for event in call(1, 1 + i * 0.01, 1.002 + i * 0.01, sent(1))]
    write_process(tmp_path, 0, {1: sends})
    posts = [each for i in range(100) for each in call(5, 0.1, 0.1, event("recv", pair(0, 1), 0, 8), made=70 + i)]
    waits = [each for i in range(100) for each in (event("request", 70 + i, 0), event("done", pair(0, 1), 0, 8))]
    write_process(tmp_path, 1, {1: [*posts, *call(6, 0.5, 3, *waits)]})
    story = story_of(trace_of(tmp_path))
    assert story.delays.latency_s == pytest.approx(0.02 * MS), "2 ms for all"
    assert replay(trace_of(tmp_path)).off == pytest.approx(0, abs=0.02)


def test_collectives_go_by_their_curve_where_it_was_measured_and_else_by_a_tree():
    def of(num_bytes: int) -> float:
        tale = Tale(4)
        tale.all_reduce("sum", num_bytes)
        return took_s(tale, all_reduce_of_4=Curve.through([1000, 2000], [1 * MS, 2 * MS]))

    assert of(1500) == pytest.approx(1.5 * MS)
    tale = Tale(4)
    tale.all_reduce("sum", 1500)
    both = {"all_reduce_of_4": Curve.through([1000, 2000], [1 * MS, 2 * MS])}
    both |= {"call_of_Allreduce_of_4": Curve.through([0, 2000], [0, 4 * MS])}
    assert took_s(tale, **both) == pytest.approx(3 * MS), "as programs call it, not as our engine does"
    tale.gatherings[0] = replace(tale.gatherings[0], name="MPI_Iallreduce")
    assert took_s(tale, **both) == pytest.approx(1.5 * MS)
    assert of(0) == pytest.approx(2 * 10 * US, rel=0.01), "two rounds of four ranks"


def test_of_a_collective_a_ranks_own_part_is_not_sent_and_both_ways_are_busy():
    def of(name: str, **costs: Curve) -> float:
        tale = Tale(4)
        tale.all_reduce("all", 4000)
        tale.gatherings[0] = replace(tale.gatherings[0], name=name)
        return took_s(tale, **costs)

    latency, both = 2 * 10 * US, Curve.through([0, 1e6], [10 * US, 30 * MS])
    assert of("MPI_Bcast") == pytest.approx(latency + 40 * US, rel=0.01)
    assert of("MPI_Gatherv") == pytest.approx(latency + 30 * US, rel=0.01)
    assert of("MPI_Ialltoallv_c") == pytest.approx(latency + 30 * US, rel=0.01)
    assert of("MPI_Ialltoallv_c", exchange_of_shm=both) == pytest.approx(latency + 90 * US, rel=0.01)
    assert of("MPI_Gatherv", exchange_of_shm=both) == pytest.approx(latency + 30 * US, rel=0.01)


def test_what_a_broadcast_takes_is_no_work_of_those_who_come_after_its_root(tmp_path):
    """Rank 1 comes 10 us after the root, and gets its data in 1 ms; the machine takes 10 us for that."""
    reported = [event("root", 0), event("collective", 8, 0, 8)]
    write_process(tmp_path, 0, {1: call(12, 1, 1.1, *reported)})
    write_process(tmp_path, 1, {1: [*call(12, 1.01, 2.01, *reported), *call(1, 3, 3)]})
    trace = trace_of(tmp_path)
    assert replay(trace).off == pytest.approx(0, abs=0.01)
    assert replay(trace, machine()).replayed_s == pytest.approx((3 - 2.01 + 0.02) * MS, rel=0.01)


def test_a_root_that_stays_need_not_wait_between_two_calls(tmp_path):
    """Rank 0 is the root twice, then rank 1, then rank 0: only the second call goes by the curve of such calls."""
    for rank in (0, 1):
        reported = [[event("root", root), event("collective", 8, 0, 8)] for root in (0, 0, 1, 0)]
        calls = [call(12, 10 * i + 1, 10 * i + 2, *events) for i, events in enumerate(reported)]
        write_process(tmp_path, rank, {1: [each for events in calls for each in events]})
    here = machine(call_of_Bcast_of_2=Curve.through([0, 8], [MS, MS]))
    costs = {"call:Bcast_again:2": Curve.through([0, 8], [0.25 * MS, 0.25 * MS]).to_json()}
    story = story_of(trace_of(tmp_path))
    for on, second in ((here, 1.0), (here.with_costs(costs), 0.25)):
        seconds = {it.meeting: it.seconds / MS for it in on_machine(story, on).gatherings}
        assert [seconds[i] for i in sorted(seconds)] == pytest.approx([1.0, second, 1.0, 1.0])


@pytest.mark.mpi
def test_a_probe_measures_what_the_library_itself_takes():
    needs.need("mpich")
    bare = machine()
    found = probe_calls(bare, default_launch(), most_bytes=64)
    added = {key: CostModel.of(found).seconds(key, 64) for key in set(found.costs) - set(bare.costs)}
    assert len(added) == 17 + 6 + 2
    assert {"call:Send:shm", "call:Sendrecv:shm"} <= set(added)
    assert {"call:Bcast_again:2", "call:Scatterv_again:2"} <= set(added)
    assert {"call:Barrier:2", "call:Allreduce:2", "call:Alltoallv:2"} <= set(added)
    assert all(seconds > 0 for seconds in added.values())


def test_a_probe_that_hangs_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    """Planted: a launcher that reports one call, then waits for a child of its own for ever."""
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


def test_a_machine_of_fewer_ranks_is_refused():
    with pytest.raises(MachineError, match="fewer ranks"):
        on_machine(Tale(3).story(), machine(2))


def large_message(folder, taken_ms: float):
    """Rank 0 sends at once, works, and waits at 5 ms; rank 1 takes the message by `taken_ms`."""
    wait = [event("request", 70, 0), event("done", pair(1, 1), 0, LARGE)]
    first = [*call(4, 0, 0.01, sent(1, LARGE), made=70), *call(6, 5, 5.5, *wait)]
    for rank, events in enumerate((first, call(2, 1, taken_ms, *taken(0, LARGE)))):
        write_process(folder, rank, {1: events}, num_ranks=2)
    return trace_of(folder)


def test_a_trace_tells_whether_a_message_needed_its_sender(tmp_path):
    for taken_ms, needed in ((5.6, True), (3, False)):
        trace = large_message(tmp_path / str(taken_ms), taken_ms)
        (message,) = story_of(trace).messages
        assert message.came_back == needed
        assert replay(trace).off == pytest.approx(0, abs=0.02)
        least_ms = 5 if needed else 1
        assert replay(trace, machine()).replayed_s >= (least_ms + 0.6) * MS


def test_the_command_tells_how_far_off_a_replay_is(tmp_path, capsys):
    large_message(tmp_path / "trace", 5.6)
    place = save_json(tmp_path / "machine.json", machine().to_json())
    assert main(["trace", "replay", str(tmp_path / "trace"), "--machine", str(place), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["machine"]) == ("dovetail.replay/1", "pretended")
    assert found["off"] == pytest.approx(found["replayed_s"] / found["traced_s"] - 1)
    assert main(["trace", "replay", str(tmp_path / "trace")]) == 0
    assert "Replayed unchanged, the program takes" in capsys.readouterr().out
