"""Frames are as large as the rate allows, and `testbed check` prints what traffic costs the hosts' cores."""

from __future__ import annotations

import json
import subprocess
import sys

import needs
import pytest

TESTBED = needs.ROOT / "tools" / "testbed" / "testbed"


def check(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, TESTBED, "check", "--env-dir", sys.prefix, *words]
    return subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=120, check=False)


def default_mtu(rate: str) -> int:
    code = f"import links; print(links.default_mtu({rate!r}))"
    return int(subprocess.run([sys.executable, "-c", code], cwd=TESTBED.parent, capture_output=True, check=True).stdout)


@pytest.mark.parametrize(
    ("rate", "mtu"), [("10mbit", 1500), ("100mbit", 9000), ("400mbit", 36000), ("1gbit", 65000), ("none", 9000)]
)
def test_a_frame_is_what_the_line_carries_in_720_us(rate, mtu):
    assert default_mtu(rate) == mtu


@pytest.mark.parametrize(
    ("words", "said"),
    [("5", "rate '5' is not understood"), ("--mtu 3", "'3' is not a frame"), ("--env-dir /nowhere", "no virtual env")],
)
def test_check_refuses_what_it_cannot_measure(words, said):
    answer = check(*words.split())
    assert answer.returncode == 2
    assert said in answer.stderr


@pytest.mark.testbed
@pytest.mark.thorough
@pytest.mark.needs("root", "tc")
def test_check_measures_what_frames_cost():
    """Interrupts for each byte, so that a busy neighbour, which slows both, decides nothing."""
    costs = []
    for mtu in (1500, 9000):
        answer = check("100mbit", "--mtu", mtu, "--json")
        assert answer.returncode == 0, answer.stderr
        (cost,) = json.loads(answer.stdout)["costs"]
        assert (cost["rate"], cost["mtu"]) == ("100mbit", mtu)
        assert 0 < cost["bytes_per_s"] < 1.05 * 12.5e6  # no more than the line carries
        assert cost["slowdown"] > 0
        costs.append(cost["interrupts_per_s"] / cost["bytes_per_s"])
    small, large = costs
    assert small > 2 * large
