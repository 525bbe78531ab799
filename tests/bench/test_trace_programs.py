"""The bench of other people's programs: what counts as a result of theirs, and when it has changed."""

from __future__ import annotations

import sys

import needs

BENCH = needs.ROOT / "bench" / "traces"


def compared(*runs: str, times: str = "$^"):
    sys.path.insert(0, str(BENCH))
    from trace_programs import same_results, words_of

    return same_results(*(words_of(run, times) for run in runs))


def test_what_two_runs_print_alike_is_a_result():
    reported = compared("sum 42 in 1.5 s\nend", "sum 42 in 1.7 s\nend", "sum 42 in 2.9 s\nend")
    assert reported == {"results": 1, "changed": []}


def test_another_result_is_reported():
    reported = compared("sum 42 in 1.5 s", "sum 42 in 1.7 s", "sum 43 in 1.5 s")
    assert reported["changed"] == ["sum 43 in 1.5 s"]
    assert compared("a 1", "a 1", "a 1\nb 2")["changed"] == ["2 lines, not 1 or 1"]
    assert compared("a 1", "a 1", "a")["changed"]


def test_ranks_may_print_in_another_order():
    assert compared("0: a 1\n1: b 2", "0: a 1\n1: b 2", "1: b 2\n0: a 1") == {"results": 4, "changed": []}


def test_times_that_happen_to_be_alike_are_no_results():
    assert compared("8 1.25", "8 1.25", "8 1.31", times=r"\d+\.\d+") == {"results": 1, "changed": []}
    assert compared("8 1.25", "8 1.25", "8 1.31")["changed"]
