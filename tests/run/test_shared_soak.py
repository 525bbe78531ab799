"""Ranks without MPI under strain: random calls, ranks that die at random moments, strange places, and what is left behind."""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import needs
import pytest
from shared_ranks import run_shared

from dovetail.run.shared.launch import Ranks

NAMED = re.compile(r"rank (\d+) learns: .*rank (\d+) has (?:died|ended|failed)")


@pytest.mark.parametrize("ranks", [2, 3])
def test_random_calls_are_right(ranks):
    code, said = run_shared(ranks, "shared_soak.py", ranks, 400)
    assert code == 0, said[-3000:]
    assert said.count("calls right") == ranks


def survivors(said, dead, ranks):
    """Assert that every other rank learns of one that is gone, and one at least of `dead`."""
    found = dict(map(int, pair) for pair in NAMED.findall(said)) if False else NAMED.findall(said)
    heard = {int(rank) for rank, _ in found}
    assert heard == set(range(ranks)) - {dead}, said[-3000:]


@pytest.mark.parametrize(("how", "words"), [("kill", "has died"), ("exit", "has ended"), ("raise", "has ended")])
def test_every_other_rank_learns_that_one_has_gone(how, words):
    code, said = run_shared(3, "shared_soak.py", 5, 10**6, 1, how, 120, limit_s=60)
    assert code == {"kill": -signal.SIGKILL, "exit": 3, "raise": 1}[how], said[-3000:]
    survivors(said, 1, 3)
    assert words in said
