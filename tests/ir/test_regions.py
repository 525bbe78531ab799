"""Races in regions of many slots that are used repeatedly: C++ and engine find the same as the reference."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.ir import Builder, Kind, Region, verify, verify_reference
from dovetail.run.engine import needs_order

SLOTS, LANES, KEPT = 150, 3, 5


def a_region(rng, buffer, count):
    """Return a random region of `count` slots, in one or several blocks."""
    blocks = rng.choice([1, 1, 3])
    stride = count // blocks + rng.randint(0, 3)
    last = SLOTS - (blocks - 1) * stride - count // blocks
    return Region(buffer, rng.randint(0, last), count // blocks, stride if blocks > 1 else 0, blocks)


def program(rng):
    """Return a program of copies between a few regions on several lanes, some ordered and some not."""
    b = Builder("to_and_fro", 1)
    b.buffer("x", "input", SLOTS), b.buffer("y", "scratch", SLOTS)
    lanes = [b.lane(f"lane{number}", "copy") for number in range(LANES)]
    counts = [rng.choice([3, 36, 60]) for _ in range(KEPT)]
    pairs = [tuple(a_region(rng, name, count) for name in rng.sample("xy", 2)) for count in counts]
    latest, ordered = {}, rng.choice([0.9, 1.0])
    for _ in range(rng.randint(2, 30)):
        (source, target), lane = rng.choice(pairs), rng.choice(lanes)
        if source.num_slots == target.num_slots:
            after = [row for other, row in latest.items() if other != lane and rng.random() < ordered]
            latest[lane] = b.add(Kind.copy, 0, lane, reads=[source], writes=[target], after=after)
    return b.build()


@settings(max_examples=some(80), deadline=None)
@given(st.integers(0, 2**32).map(random.Random))
def test_same_races(rng):
    made = program(rng)
    found = verify_reference(made)
    assert verify(made).to_json() == found.to_json()
    assert needs_order(made) == (not found.checks["races"].ok)  # on one rank, no message orders ops


def test_both_verdicts_occur():
    verdicts = [verify(program(random.Random(seed))).checks["races"].ok for seed in range(60)]
    assert 10 < sum(verdicts) < 50
