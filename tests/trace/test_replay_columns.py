"""The quick replay of a model has the makespan of the simulated Program, also where ranks wait without end."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np
import pytest
from replay_models import DELAYS, US, ModelBuilder

from dovetail.core import ProgramError
from dovetail.sim import simulate
from dovetail.trace.analysis.replay_model import FROM_ROOT, SYNCHRONOUS, TO_ROOT, ReplayModel
from dovetail.trace.replay_columns import replayed_s
from dovetail.trace.to_program import to_program

RANKS = 4


def drawn(seed: int) -> ReplayModel:
    """A model of random calls, which may wait for one another without end."""
    rng = np.random.default_rng(seed)
    builder, begun = ModelBuilder(RANKS), [[] for _ in range(RANKS)]
    for _ in range(60):
        for rank in range(RANKS):
            builder.work(rank, float(rng.choice([0.0, 10.0, 300.0])) * US)
        kind = int(rng.integers(6))
        if kind == 0:
            builder.all_reduce("meet", blocking=bool(rng.integers(2)), before=[US * 50 * r for r in range(RANKS)])
            way = str(rng.choice([SYNCHRONOUS, SYNCHRONOUS, FROM_ROOT, TO_ROOT]))
            root = -1 if way == SYNCHRONOUS else int(rng.integers(RANKS))
            stalls = way == SYNCHRONOUS and not rng.integers(3)
            builder.collectives[-1] = replace(builder.collectives[-1], way=way, root=root, stalls=bool(stalls))
            continue
        src, dst = map(int, rng.choice(RANKS, 2, replace=False))
        flags = {name: bool(not rng.integers(4)) for name in ("rendezvous", "stalls", "held")}
        delay_s = None if rng.integers(5) == 0 else float(DELAYS(1000)) * float(rng.uniform(0.5, 2))
        gap_s = float(rng.choice([20.0, 200.0])) * US  # less, or more, than the message takes
        number = builder.message(src, dst, int(rng.choice([8, 1000])), delay_s=delay_s, gap_s=gap_s, **flags)
        sides = [(src, ("send", "sent")), (dst, ("recv", "received"))]
        for rank, names in sides:
            if kind < 3:
                builder.call(rank, "at once", *((name, number) for name in names))
            else:
                builder.call(rank, "begin", (names[0], number))
                begun[rank].append((names[1], number))
        for rank, waits in enumerate(begun):
            if waits and rng.integers(3) == 0:
                builder.call(rank, "wait", *waits)
                waits.clear()
    for rank, waits in enumerate(begun):
        builder.call(rank, "wait", *waits)
    for rank in range(RANKS):
        builder.step(rank, -1, "end", -1)
    steps = tuple(map(tuple, builder.steps))
    return ReplayModel(steps, tuple(builder.messages), tuple(builder.collectives), DELAYS, 0.0, ())


def simulated_s(model: ReplayModel) -> float:
    try:
        return simulate(*to_program(model)).makespan_s
    except ProgramError:
        return float("nan")


@pytest.mark.parametrize("part", range(4))
def test_both_have_the_same_makespan(part):
    stuck = 0
    for seed in range(part * 40, part * 40 + 40):
        model = drawn(seed)
        expected = simulated_s(model)
        assert replayed_s(model) == pytest.approx(expected, rel=1e-12, nan_ok=True), seed
        stuck += isnan(expected)
    assert stuck < 30, "most end"


def test_models_that_differ_by_messages_have_columns_of_their_own():
    model = drawn(3)
    slower = replace(model, messages=tuple(replace(it, delay_s=1.0) for it in model.messages))
    assert replayed_s(slower) == pytest.approx(simulated_s(slower), nan_ok=True)
    assert replayed_s(model) == pytest.approx(simulated_s(model), nan_ok=True)


def test_a_step_of_no_message_is_refused():
    model = drawn(3)
    with pytest.raises(IndexError, match="no message"):
        replayed_s(replace(model, messages=()))
