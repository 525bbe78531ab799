"""The guard, with a pretended clock: it uses shared memory where the program gets on faster, and nowhere else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import needs
import pytest

from dovetail.core import native_folder

WATCH, RUN, SLOWER, LATER = 0, 3, 4, 5


@pytest.fixture(scope="module")
def guard(tmp_path_factory):
    """Run a case of guard.c: return {bytes: (state, share of calls moved)}, and the program's relative time."""
    needs.need("compiler")
    program = tmp_path_factory.mktemp("guard") / "guard"
    source = Path(__file__).parent / "guard.c"
    flags = ["-O1", "-Wall", "-Werror", "-fsanitize=undefined", f"-I{native_folder('accelerate')}"]
    subprocess.run(["cc", *flags, source, "-o", program], check=True)

    def run(case, *numbers):
        words = [program, case, *map(str, numbers)]
        out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        rows = re.findall(r"(\d+) bytes: state (\d), ([\d.]+) of \d+ moved", out)
        time, spent = re.findall(r"time ([\d.]+), spent ([\d.]+)", out)[0]
        assert case == "later" or float(spent) < 0.006, out  # later: what was lost is charged, too
        return {int(size): (int(state), float(moved)) for size, state, moved in rows}, float(time)

    return run


def test_calls_are_replaced_where_the_program_is_faster(guard):
    rows, time = guard("faster")
    assert rows[8][0] == RUN
    assert rows[8][1] > 0.7
    assert 0.84 < time < 0.9  # 600 of 4000 ns are saved


def test_calls_that_are_slower_are_left_to_the_library(guard):
    rows, time = guard("slower")
    assert rows[16][0] in (WATCH, SLOWER)
    assert time < 1.006


def test_what_a_call_saves_may_be_lost_after_it(guard):
    """The call takes 0.4 of the library's time, and the program 1.075 of its own."""
    rows, time = guard("hidden")
    assert rows[32][0] == SLOWER
    assert time < 1.006


def test_two_kinds_of_call_that_alternate_are_told_apart(guard):
    rows, time = guard("both")
    assert (rows[8][0], rows[16][0]) == (RUN, SLOWER)
    assert 0.8 < time < 0.9


def test_too_few_calls_are_left_alone(guard):
    """A saving of 0.03 % cannot be seen among computation that varies by 5 %."""
    rows, time = guard("seldom")
    assert 0.995 < time < 1.005
    assert rows[8][0] != LATER


def test_a_kind_that_is_called_no_more_blocks_no_other(guard):
    rows, _ = guard("phases")
    assert rows[8][0] == RUN
    assert rows[8][1] > 0.5


def test_what_becomes_slower_goes_back_to_the_library(guard):
    rows, time = guard("later")
    assert rows[8][0] == LATER
    assert time < 1


def test_what_an_earlier_run_has_shown_is_replaced_from_the_start(guard):
    rows, _ = guard("known")
    assert rows[8][0] == RUN
    assert rows[8][1] > 0.97


@pytest.mark.parametrize("calls", [3000, 30000, 300000])
@pytest.mark.parametrize("computed_ns", [0, 3000, 100000])
@pytest.mark.parametrize("slower", [1.05, 1.5, 3, 10, 100, 1000])
def test_a_lever_planted_to_be_slower_costs_less_than_the_budget(guard, calls, computed_ns, slower):
    """However slow it is, and whatever the program does between its calls: 0.5 % of the time at most."""
    rows, time = guard("planted", calls, 1000, int(1000 * slower), computed_ns)
    assert time < 1.005
    assert rows[8][0] != RUN
