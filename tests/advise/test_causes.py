"""What made ranks wait: who was late, doing what, and along which chain of waits."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import plain_causes
import pytest
from late_ranks import Program
from trace_calls import MS, call, sent, taken, trace_of
from trace_files import NAMES, event, write_process

from dovetail.advise import causes as causes_module
from dovetail.advise.advise import advise
from dovetail.advise.causes import Causes, causes, causes_of
from dovetail.advise.rank_activity import rank_activity
from dovetail.advise.replay import changed_s, makespan_s
from dovetail.advise.roots import Roots
from dovetail.advise.unexplained import without_cause
from dovetail.cli import main
from dovetail.report.advice import advice_text
from dovetail.trace import Trace
from dovetail.trace.analysis.model_of_trace import model_of
from dovetail.trace.analysis.stats import stats


def by_place(found: Causes) -> dict[tuple[str, str], float]:
    return {(it.activity.kind, it.activity.place): it.seconds * 1e3 for it in found.causes}


def test_a_rank_with_more_work_is_the_cause(tmp_path):
    program = Program(3)
    for _ in range(10):
        for rank in range(3):
            program.work(rank, 5 if rank == 1 else 2)
        program.all_reduce()
    found = causes(program.trace(tmp_path))
    (cause,) = found.causes
    assert (cause.activity.kind, cause.rank) == ("work", 1)
    assert cause.seconds == pytest.approx(10 * 2 * 3e-3, rel=0.05)
    assert found.attributed_s == pytest.approx(found.waited_s, rel=1e-3)
    assert "rank 1 works longer" in cause.pattern.words


def test_what_a_rank_does_beyond_the_others_is_the_cause_not_what_it_did_last(tmp_path):
    """Rank 0 prepares 4 ms; then both work 6 ms, and rank 1 waits while rank 0 does so: the 4 ms are the cause."""
    program = Program(2)
    for _ in range(10):
        program.work(0, 4)
        for rank in range(2):
            program._call(rank, 15, program.clock[rank] + 0.01)
            program.work(rank, 6)
        program.all_reduce()
    (cause, *_) = causes(program.trace(tmp_path)).causes
    assert (cause.activity.place, cause.rank) == ("MPI_Allreduce to MPI_Test", 0)
    assert cause.seconds == pytest.approx(10 * 4e-3, rel=0.05)


def test_work_between_calls_that_are_no_steps_of_a_replay_is_taken_out_of_it(tmp_path):
    """Rank 0 answers after 1, 3 and 1 ms of work, with calls between that exchange with nobody; rank 1 waits for it."""
    program = Program(2)
    for _ in range(40):
        program.work(1, 1)
        program.message(1, 0)
        for ms in (1, 3, 1):
            program.work(0, ms)
            program._call(0, 14, program.clock[0] + 0.01)
        program.message(0, 1)
    trace = program.trace(tmp_path)
    cause = next(it for it in causes(trace).causes if it.activity.place == "MPI_Sendrecv to MPI_Sendrecv")
    model = model_of(trace)
    saves_s = makespan_s(model) - changed_s(without_cause(model, cause, {0}, Roots(trace)))
    assert saves_s == pytest.approx(40 * 4e-3, rel=0.02)  # the work of 3 ms, and that of 1 ms before the last call


def test_work_is_named_by_the_program_s_own_intervals(tmp_path, monkeypatch):
    """Rank 1 spends 4 of 5 ms in `assemble`, which lies in `step`; ranks with little in it do not hide that."""
    monkeypatch.setitem(NAMES, 16, "step")
    monkeypatch.setitem(NAMES, 17, "assemble")
    program = Program(2)
    for _ in range(10):
        for rank in range(2):
            start = program.clock[rank]
            inner = call(17, start + 0.5, start + (4.5 if rank == 1 else 1.0))
            program.events[rank] += [event("begin", round(start * MS), 16), *inner]
            program.work(rank, 5 if rank == 1 else 2)
            program.events[rank].append(event("end", round(program.clock[rank] * MS), 16))
        program.all_reduce()
    (cause,) = causes(program.trace(tmp_path)).causes
    assert cause.activity.place == "MPI_Allreduce to MPI_Allreduce, in assemble"


def test_a_chain_of_waits_leads_to_its_root(tmp_path):
    """Rank 0 is late; 1 waits for 0, 2 for 1, 3 for 2."""
    program = Program(4)
    for _ in range(8):
        program.work(0, 3)
        for rank in range(3):
            program.message(rank, rank + 1)
        program.all_reduce()
    found = causes(program.trace(tmp_path))
    assert found.causes[0].rank == 0
    assert found.causes[0].activity.kind == "work"
    assert found.causes[0].seconds > 0.9 * found.waited_s


def test_work_that_moves_between_ranks_is_one_cause(tmp_path):
    program = Program(3)
    for step in range(12):
        for rank in range(3):
            program.work(rank, 5 if rank == step % 3 else 2)
        program.all_reduce()
    (cause,) = causes(program.trace(tmp_path)).causes
    assert cause.pattern.moves
    assert "not always the same" in cause.pattern.words
    assert max(cause.by_rank_s) < 0.4 * cause.seconds


@pytest.mark.parametrize(("ms_of", "words"), [
    (lambda step: 5 if step % 4 == 3 else 2, "every 4th time"), (lambda step: 2 + 0.2 * step, "more and more"),
])  # fmt: skip
def test_patterns_in_time(tmp_path, ms_of, words):
    program = Program(2)
    for step in range(40):
        program.work(0, ms_of(step))
        program.work(1, 2)
        program.all_reduce()
    assert words in causes(program.trace(tmp_path)).causes[0].pattern.words


@pytest.mark.parametrize("between", ["libc read", "MPI_Comm_rank"])
def test_a_stretch_between_two_calls_that_wait_is_one_time(tmp_path, monkeypatch, between):
    """Rank 0 reads, or makes local calls, 40 times before each sum, and is late: once, or at each of 12 sums."""
    monkeypatch.setitem(NAMES, 16, between)
    for sums in (1, 12):
        program = Program(2)
        for _ in range(sums):
            for _ in range(40):
                program.work(0, 0.2)
                program.io(0, 16, 0.01)
            program.all_reduce()
        words = causes(program.trace(tmp_path / str(sums))).causes[0].pattern.words
        assert words == "rank 0 works longer"


def test_pauses_between_polls_are_no_work(tmp_path):
    """Rank 1 looks for a message every 5 ms, and rank 0 waits for its answer."""
    program = Program(2)
    for _ in range(10):
        begin = program.clock[1]
        program.work(0, 7)
        program._call(0, 1, program.clock[0] + 0.01, sent(1))
        for i in range(3):
            program.clock[1] = begin + 5 * i
            program._call(1, 15, program.clock[1] + 0.01)
        program._call(1, 2, program.clock[1] + 0.01, *taken(0))
        program.message(1, 0)
        program.all_reduce()
    found = by_place(causes(program.trace(tmp_path)))
    assert found["poll", "MPI_Test"] > 10 * 2


def random_program(seed: int, folder) -> Trace:
    rng, n = random.Random(seed), 2 + seed % 3
    program = Program(n)
    for _ in range(25):
        for rank in range(n):
            program.work(rank, rng.choice([0.1, 1, 5]) * rng.random())
        if rng.random() < 0.3:
            program.all_reduce(rng.choice([11, 11, 14]))
        else:
            src, dst = rng.sample(range(n), 2)
            program.message(src, dst)
    return program.trace(folder)


@pytest.mark.parametrize("seed", range(6))
def test_the_fast_analysis_equals_the_reference(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(causes_module, "LEFT_SHARE", 0.0)
    monkeypatch.setattr(causes_module, "LEAST_SHARE", -1.0)
    ranks = rank_activity(random_program(seed, tmp_path))
    assert len(ranks.waits.rank) > 10
    found = np.zeros((ranks.num_ranks, len(ranks.activities)))
    for it in causes_of(ranks).causes:
        found[:, ranks.activities.index(it.activity)] = it.by_rank_s
    expected = np.zeros_like(found)
    for (rank, which), value in plain_causes.costs(ranks).items():
        expected[rank, which] = value
    assert found == pytest.approx(expected, abs=2e-6 * ranks.waited_s)


def test_a_trace_without_waits_has_no_causes(tmp_path):
    write_process(tmp_path, 0, {1: call(8, 1, 2)}, num_ranks=1)
    found = causes(trace_of(tmp_path))
    assert (found.causes, found.waited_s) == ((), 0.0)


def test_a_finding_names_the_root_of_its_waits_and_other_ways_to_the_same_seconds(tmp_path):
    """In turn each of two ranks has more work before a barrier: share the work, or leave the barrier out."""
    program = Program(2)
    for step in range(40):
        for rank in range(2):
            program.work(rank, 3 if (step + rank) % 2 else 1)
        program.all_reduce()
    advice = advise(program.trace(tmp_path))
    first, *others = advice.findings
    assert (first.cause, first.root[1]) == ("work", "MPI_Allreduce to MPI_Allreduce")
    assert {it.instead_of for it in others if it.kind in ("imbalance", "seldom")} == {f"{first.kind} at {first.where}"}
    text = advice_text(advice)
    assert "cause     rank" in text
    assert "   or        " in text


def test_findings_below_the_noise_of_a_run_are_apart(tmp_path):
    program = Program(2)
    for _ in range(20):
        for rank in range(2):
            program.work(rank, 1 + 2 * rank)
        program.all_reduce()
    advice = advise(program.trace(tmp_path))
    loud = replace(advice, spread_s=0.9 * advice.replayed_s)
    assert "Below what two runs differ by" in advice_text(loud)
    assert "Below what two runs differ by" not in advice_text(replace(advice, spread_s=0.0))


def test_a_spread_beyond_the_replayed_time_says_that_the_run_tells_nothing(tmp_path):
    """As of a disturbed run, which takes 1.2 s and replayed without waits for cores 0.06 s."""
    program = Program(2)
    for _ in range(20):
        for rank in range(2):
            program.work(rank, 1 + 2 * rank)
        program.all_reduce()
    advice = replace(advise(program.trace(tmp_path)), spread_s=1.0, traced_s=1.2)
    text = advice_text(replace(advice, disturbed=("Others were there",)))
    assert "This run was too disturbed to tell what helps. Two runs may differ by 1.00 s" in text
    assert "may differ by 1.00 s from the 1.20 s of this trace" in text
    assert "Below what two runs differ by" not in text
    assert "This run was too uneven to tell" in advice_text(advice)


def test_the_ranks_time_is_that_of_stats(tmp_path, monkeypatch):
    """MPI_Init takes 40 ms on rank 0, 5 ms on rank 1; rank 1 reaches MPI_Finalize 3 ms earlier."""
    monkeypatch.setitem(NAMES, 16, "MPI_Init")
    monkeypatch.setitem(NAMES, 17, "MPI_Finalize")
    program = Program(2)
    program.events = [[], []]
    for rank, ms in ((0, 40), (1, 5)):
        program.io(rank, 16, ms)
        program.work(rank, 2)
    for rank, ms in ((0, 3), (1, 0)):
        program.all_reduce()
        program.work(rank, ms)
    for rank in range(2):
        program.io(rank, 17, 7)
    found = causes(program.trace(tmp_path))
    ranks = stats(trace_of(tmp_path)).ranks
    assert found.seconds * found.num_ranks == pytest.approx(sum(rank.seen_s for rank in ranks), rel=1e-3)
    assert found.waited_s == pytest.approx(sum(rank.waited_s for rank in ranks), rel=1e-3)


def test_causes_in_words_and_json(tmp_path, capfd):
    program = Program(2)
    for _ in range(10):
        program.work(0, 5)
        program.work(1, 2)
        program.all_reduce()
    program.trace(tmp_path)
    assert main(["trace", "causes", str(tmp_path)]) == 0
    text = capfd.readouterr().out
    assert "The ranks waited 30.0 ms in all, 30 % of their time." in text
    row = text.splitlines()[-1].split()
    assert (row[0], "rank 0 works longer" in text) == ("100", True)
    assert main(["trace", "causes", str(tmp_path), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["schema"] == "dovetail.causes/1"
    assert found["waited_s"] == pytest.approx(30e-3, rel=0.02)
    (cause,) = found["causes"]
    assert (cause["cause"], cause["root"]["rank"], round(cause["share"], 6)) == ("work", 0, 1.0)


def test_without_waits_nothing_is_listed(tmp_path, capfd):
    write_process(tmp_path, 0, {1: call(8, 1, 2)}, num_ranks=1)
    assert main(["trace", "causes", str(tmp_path)]) == 0
    assert capfd.readouterr().out == "No rank waited for another.\n"
