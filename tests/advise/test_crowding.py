"""More ranks than cores: said first, and what a rank lost while it did not run is no imbalance."""

from __future__ import annotations

import json
import random

import pytest
from late_ranks import Program
from trace_calls import MS, trace_of
from trace_files import write_process

from dovetail.advise.advise import advise
from dovetail.advise.causes import causes
from dovetail.advise.crowding import crowding, settled
from dovetail.advise.remedy import gap_s
from dovetail.cli.trace import stats as show_stats
from dovetail.report.advice import advice_text
from dovetail.trace import Trace
from dovetail.trace.analysis.model_of_trace import model_of

STEPS, STEP_MS, SLICE_MS = 300, 2, 4


def run(folder, works_ms: tuple[float, ...], cpus: int, off: float, calls: int = 1) -> Trace:
    """Ranks that work and add up (`calls` times) in each step.

    With probability `off`, one of them does not run for a time slice. Two readings of the
    kernel's counters say how long each rank waited for a core.
    """
    chance, program, lost = random.Random(7), Program(len(works_ms)), [0.0] * len(works_ms)
    for _ in range(STEPS):
        late = chance.randrange(len(works_ms)) if chance.random() < off else -1
        for rank, work_ms in enumerate(works_ms):
            lost[rank] += SLICE_MS * (rank == late)
            program.work(rank, work_ms + SLICE_MS * (rank == late))
        for _ in range(calls):
            program.all_reduce()
    end = max(program.clock)
    for rank, events in enumerate(program.events):
        ticks = round(cpus * end / 10)
        last = [round(end * MS), round((end - lost[rank]) * MS), round(lost[rank] * MS), ticks, 0, 0, 0, 0]
        place = {"booted_ns": 10**18, "cpus": list(range(cpus))}
        notes = [place, {"load": [0] * 8}, {"load": last}, {"io": True}]
        write_process(folder, rank, {1: events}, num_ranks=len(works_ms), notes=notes)
    return trace_of(folder)


def test_ranks_that_share_cores_are_not_called_uneven(tmp_path):
    trace = run(tmp_path, (STEP_MS,) * 3, 2, 0.5)
    found = advise(trace)
    assert found.crowded == ("3 ranks share 2 cores, for which a rank waits up to 19% of the time",)
    assert [it.kind for it in found.findings] == []
    assert advice_text(found).startswith("3 ranks share 2 cores")
    assert "Replays leave out what the ranks waited for a core" in advice_text(found)
    assert found.to_json()["crowded"] == list(found.crowded)


def test_statistics_of_ranks_that_share_cores_say_so_first(tmp_path, capsys):
    found = advise(run(tmp_path, (STEP_MS,) * 3, 2, 0.5))
    show_stats(tmp_path)
    assert capsys.readouterr().out.startswith(f"{found.crowded[0]}. Start fewer ranks")
    show_stats(tmp_path, json=True)
    assert json.loads(capsys.readouterr().out)["crowded"] == list(found.crowded)


@pytest.mark.parametrize("is_noted", [True, False])
def test_work_that_differs_stays_where_the_kernel_says_when_ranks_waited(tmp_path, is_noted):
    """By turns a rank has three times the work; each time slice that a rank lost is noted, or only their sum."""
    chance, program = random.Random(5), Program(3)
    waits: list[list[dict]] = [[{"waits": [1, 0, 0]}] for _ in range(3)]
    for step in range(STEPS):
        late = chance.randrange(3) if chance.random() < 0.5 else -1
        for rank in range(3):
            program.work(rank, STEP_MS * (3 if step % 3 == rank else 1) + SLICE_MS * (rank == late))
        if late >= 0:
            waits[late].append({"waits": [1, round(program.clock[late] * MS), SLICE_MS * MS]})
        program.all_reduce()
    end = round(max(program.clock) * MS)
    for rank, events in enumerate(program.events):
        lost = sum(note["waits"][2] for note in waits[rank])
        counted = [{"load": [0] * 8}, {"load": [end, end - lost, lost, end // (5 * MS), 0, 0, 0, 0]}, {"io": True}]
        notes = [{"booted_ns": 10**18, "cpus": [0, 1]}, *counted, *(waits[rank] if is_noted else [])]
        write_process(tmp_path, rank, {1: events}, num_ranks=3, notes=notes)
    trace = trace_of(tmp_path)
    model, _ = settled(model_of(trace), crowding(trace.meta, 3), lambda row: "")
    works_ms = sorted(gap_s(step) * 1e3 for step in model.steps[0] if step.kind == "join")[3:-3]
    assert works_ms[0] == pytest.approx(STEP_MS, rel=0.05)
    assert (works_ms[-1] == pytest.approx(3 * STEP_MS, rel=0.05)) == is_noted


def late_and_crowded(folder) -> Trace:
    """Rank 1 of three on two cores works three times as long, and waits twice as long for a core during that work.

    The others wait for a core within MPI, where they wait for rank 1. Other programs use the cores, too.
    """
    program, waits, lost_ms = Program(3), [{"waits": [1, 0, 0]}], 12 * STEP_MS
    for step in range(STEPS):
        for rank in range(3):
            program.work(rank, 3 * STEP_MS + lost_ms * (step % 2) if rank == 1 else STEP_MS)
        if step % 2:
            waits.append({"waits": [1, round(program.clock[1] * MS), lost_ms * MS]})
        program.all_reduce()
    end = round(max(program.clock) * MS)
    for rank, events in enumerate(program.events):
        used = end // 3 if rank == 1 else 7 * end // 12
        counted = [{"load": [0] * 8}, {"load": [end, used, end - used, end // (5 * MS), 0, 0, 0, 0]}, {"io": True}]
        notes = [{"booted_ns": 10**18, "cpus": [0, 1]}, *counted, *(waits if rank == 1 else waits[:1])]
        write_process(folder, rank, {1: events}, num_ranks=3, notes=notes)
    return trace_of(folder)


def test_work_is_the_cause_of_what_is_saved_without_waits_for_cores(tmp_path):
    """Savings are those of a replay in which rank 1 does not wait for a core."""
    trace = late_and_crowded(tmp_path)
    advice = advise(trace)
    first = advice.findings[0]
    assert advice.load.foreign == pytest.approx(0.3, abs=0.05)
    assert first.kind == "slow_rank"
    assert first.saves_s == pytest.approx(STEPS * 2 * STEP_MS * 1e-3, rel=0.05)
    assert (first.cause, first.root) == ("work", (1, "MPI_Allreduce to MPI_Allreduce"))
    assert not first.is_disturbed
    assert first.confidence != "low"
    assert "Others took" not in advice_text(advice)
    assert causes(trace).causes[0].activity.kind in ("stolen", "crowded"), "the trace has these waits"


def test_the_same_times_are_an_imbalance_if_every_rank_ran(tmp_path):
    """The check of the test above: the kernel says that nobody waited for a core."""
    trace = run(tmp_path, (STEP_MS,) * 3, 2, 0.5)
    for about in trace.meta["ranks"]:
        about["load"]["waited_s"] = [0.0, 0.0]
    assert "imbalance" in {it.kind for it in advise(trace).findings}


def test_uneven_work_of_ranks_that_share_cores_is_found(tmp_path):
    found = advise(run(tmp_path, (2 * STEP_MS, STEP_MS, STEP_MS), 2, 0.5)).findings
    assert found[0].kind in ("imbalance", "slow_rank")
    assert found[0].saves_s == pytest.approx(STEPS * 2 / 3 * STEP_MS * 1e-3, rel=0.6)


def test_what_did_not_run_is_a_cause_of_waits(tmp_path):
    found = causes(run(tmp_path, (STEP_MS,) * 3, 2, 0.5))
    assert found.causes[0].activity.kind == "crowded"
    assert found.crowded == ("3 ranks share 2 cores, for which a rank waits up to 19% of the time",)


def test_work_after_a_loop_of_calls_stays(tmp_path):
    """Of many calls at one place, few follow work: that is no time in which the rank did not run."""
    trace = run(tmp_path, (STEP_MS,) * 3, 2, 0.5, calls=20)
    model = model_of(trace)
    work_s = STEPS * STEP_MS * 1e-3
    calm = settled(model, crowding(trace.meta, 3), lambda row: "sum").model
    assert all(sum(map(gap_s, steps)) == pytest.approx(work_s, rel=0.1) for steps in calm.steps)
    assert all(sum(map(gap_s, steps)) > 1.2 * work_s for steps in model.steps)


def test_a_run_with_a_core_for_each_rank_is_replayed_as_it_was(tmp_path):
    trace = run(tmp_path, (STEP_MS,) * 2, 2, 0.0)
    model, found = model_of(trace), crowding(trace.meta, 2)
    assert found is not None
    assert not found.is_crowded
    assert settled(model, found, lambda row: "").model is model
    assert advise(trace).crowded == ()
    assert "Replays leave out" not in advice_text(advise(trace))
