"""Other programs on the ranks' cores: advice says first how much they took, and marks what they may have caused."""

from __future__ import annotations

import json

import pytest
from late_ranks import Program
from trace_calls import MS, trace_of
from trace_files import write_process

from dovetail.advise.advise import advise
from dovetail.advise.causes import causes
from dovetail.advise.disturbance import disturbance
from dovetail.cli.trace import stats as show_stats
from dovetail.report.advice import advice_text, disturbed_text
from dovetail.trace import Trace

STEPS, STEP_MS, LATE_MS = 300, 4, 2
PLACE = {"booted_ns": 10**18, "cpus": [0, 1]}


def readings(rank: int, busy: tuple[float, float], taken: float, *, steal: float = 0.0) -> list[dict[str, list[int]]]:
    """Return a note of the kernel's counters each 200 ms of 2 s, on two CPUs that two ranks share.

    Between `busy` ms, others use `taken` of CPU 0, and rank 0 waits as long; the hypervisor takes `steal` of it.
    """
    found, waited, others, stolen = [], 0.0, 0.0, 0.0
    for i in range(11):
        now = 200.0 * i
        is_busy = busy[0] < now <= busy[1]
        waited += 200 * taken * (is_busy and rank == 0)
        others += 200 * taken * is_busy
        stolen += 200 * steal * is_busy
        used = now - waited
        programs = 2 * now - stolen  # the ranks spin: their CPUs are busy, with them or with others
        ticks = [round(ms / 10) for ms in (programs, 0, stolen)]
        found.append({"load": [round(now * MS), round(used * MS), round(waited * MS), *ticks, 0, 0]})
    return found


def late_rank(folder, busy: tuple[float, float] = (0, 0), taken: float = 0.0, counters: bool = True, **more) -> Trace:
    """Rank 0 is late by 2 ms in each step of 4 ms, up to 1.8 s."""
    program = Program(2)
    for _ in range(STEPS):
        program.work(0, STEP_MS + LATE_MS)
        program.work(1, STEP_MS)
        program.all_reduce()
    for rank, events in enumerate(program.events):
        notes = [PLACE, *readings(rank, busy, taken, **more)] if counters else []
        write_process(folder, rank, {1: events}, notes=[*notes, {"io": True}])
    return trace_of(folder)


def test_a_quiet_run_is_not_disturbed(tmp_path):
    trace = late_rank(tmp_path)
    found = advise(trace)
    assert (found.load.foreign, found.load.steal, found.disturbed) == (0.0, 0.0, ())
    assert all(it.disturbed_s == 0.0 for it in found.findings)
    assert "disturbed" not in advice_text(found)
    assert causes(trace).causes[0].activity.kind == "work"


def test_what_others_took_is_said_first_and_put_down_to_them(tmp_path):
    """Others take 60 % of rank 0's core all the time, more than rank 0 is late."""
    trace = late_rank(tmp_path, (0, 2000), 0.6)
    found = advise(trace)
    assert found.load.foreign == pytest.approx(0.6, abs=0.05)
    assert found.to_json()["foreign_load"] == found.load.foreign
    text = advice_text(found)
    assert text.startswith("This run was disturbed. Other programs used 5")
    assert "throughout" in text.splitlines()[0]
    assert found.findings
    assert all(it.is_disturbed and it.confidence == "low" for it in found.findings)
    assert "Others took as much of the ranks' cores" in text
    assert "Nothing to change" not in text
    (cause, *_) = causes(trace).causes
    assert (cause.activity.kind, cause.rank) == ("stolen", 0)


def test_statistics_of_a_disturbed_run_begin_with_what_others_took(tmp_path, capsys):
    found = advise(late_rank(tmp_path, (0, 2000), 0.6))
    show_stats(tmp_path)
    assert capsys.readouterr().out.startswith(disturbed_text(found.disturbed)[0] + "\n\n")
    show_stats(tmp_path, json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["foreign_load"], shown["steal"]) == (found.load.foreign, found.load.steal)
    late_rank(tmp_path / "quiet")
    show_stats(tmp_path / "quiet")
    assert capsys.readouterr().out.startswith("call")


def test_findings_outside_the_disturbed_part_of_a_run_stand(tmp_path):
    """Others take 60 % of the core in a fifth of the run: they can have caused at most a fifth of the lateness."""
    found = advise(late_rank(tmp_path, (400, 800), 0.6))
    first = found.findings[0]
    assert 0.1 * first.saves_s < first.disturbed_s < 0.35 * first.saves_s
    assert not first.is_disturbed
    assert "mostly from 0.4 s to 0.8 s" in advice_text(found).splitlines()[0]


def test_the_hypervisor_counts_too(tmp_path):
    found = advise(late_rank(tmp_path, (0, 2000), 0.0, steal=0.5))
    assert found.load.steal == pytest.approx(0.25, abs=0.03)
    assert "The hypervisor used" in advice_text(found).splitlines()[0]
    assert all(it.is_disturbed for it in found.findings)


def test_a_trace_without_counters_does_not_claim_a_quiet_run(tmp_path):
    trace = late_rank(tmp_path, counters=False)
    assert disturbance(trace.meta, 2) is None
    found = advise(trace)
    assert found.to_json()["foreign_load"] is None
    assert all(it.disturbed_s == 0.0 for it in found.findings)


def test_a_trace_without_io_says_that_it_is_unknown(tmp_path):
    program = Program(2)
    program.all_reduce()
    assert "Time in read, write and fsync is unknown" in advice_text(advise(program.trace(tmp_path)))
    assert "unknown" not in advice_text(advise(late_rank(tmp_path / "with")))
