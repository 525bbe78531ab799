"""Choosers judged on machines with known costs, and the smaller programs that stand for schedules in predictions."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dovetail.cli import main
from dovetail.ir import Schedule
from dovetail.matmul import (
    AllGatherColumnsMatmul,
    AllGatherMatmul,
    AllToAllMatmul,
    MatmulAllReduce,
    MatmulAllToAll,
    MatmulReduceScatter,
    ficco,
    gather,
    gathering,
)
from dovetail.planner import plan
from dovetail.planner.costs import Costs
from dovetail.planner.search import ranked_schedules
from dovetail.tuner.choices import OURS, TRUTH, Compared, Pick, compare, score_of
from dovetail.tuner.scenarios import TOPOLOGIES, Scenario, drawn, published

KINDS = [
    AllGatherMatmul,
    AllGatherColumnsMatmul,
    AllToAllMatmul,
    MatmulAllReduce,
    MatmulReduceScatter,
    MatmulAllToAll,
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_prediction_model_takes_as_long_as_the_schedule(kind):
    scenario = next(iter(drawn(kind, 1, seed=5)))
    costs, _ = Costs.of(scenario.operator, scenario.machine, scenario.ranks, extrapolate=True)
    ranked = ranked_schedules(costs)
    for each in ranked:
        whole = costs.exactly(each, scenario.operator.program(each.schedule, scenario.ranks))
        assert whole.predicted_s == pytest.approx(each.predicted_s, rel=1e-9), each.schedule
    assert sum(each.program.posts == () for each in ranked) > len(ranked) / 2  # most schedules had a smaller model


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_a_model_of_an_all_reduce_is_exact_for_any_tiles(ranks):
    """Chunks with unequal rows, tiles with fewer rows than ranks, sliced messages."""
    scenario = next(each for each in drawn(MatmulAllReduce, 9, seed=77) if each.ranks >= ranks)
    operator = replace(scenario.operator, m=1499)
    costs, _ = Costs.of(operator, scenario.machine, ranks, extrapolate=True)
    for by, most, tiles in product(("ring", "exchange"), (None, 33), ((1499,), (800, 497, 200, 2), (5, 1494))):
        found = costs.scored(Schedule.of("optimal", tiles=tiles, by=by, rows_per_message=most))
        whole = costs.exactly(found, operator.program(found.schedule, ranks))
        assert found.program is not whole.program
        assert found.program.num_ops == whole.program.num_ops
        assert whole.predicted_s == pytest.approx(found.predicted_s, rel=1e-9), found.schedule


def test_a_model_with_one_message_less_is_noticed(monkeypatch):
    """Planted fault: rank 0's last message is not counted."""
    monkeypatch.setattr(gather.Gather, "hops", property(lambda self: (self.ranks - 2, 0)))
    scenario = next(iter(drawn(AllGatherMatmul, 1, seed=5)))
    costs, _ = Costs.of(scenario.operator, scenario.machine, scenario.ranks, extrapolate=True)
    ring = Schedule.of(
        "shard-ring", tiles=(scenario.operator.blocks(scenario.ranks).longest,), by="ring", own_block="first"
    )
    short = costs.scored(ring)
    monkeypatch.undo()
    whole = costs.exactly(short, scenario.operator.program(ring, scenario.ranks))
    assert whole.program.num_ops > short.program.num_ops
    assert whole.predicted_s > short.predicted_s


def test_messages_are_cut_equally_on_every_rank():
    operator, tiles = AllGatherMatmul(64, 8, 8), (10, 6)
    for by in ("messages", "ring", "two_rings"):
        whole = operator.program(Schedule.of("uniform", tiles=tiles, by=by, own_block="first", fused=False), 4)
        about = {"by": by, "own_block": "first", "fused": False, "rows_per_message": 4}
        cut = operator.program(Schedule.of("uniform", tiles=tiles, **about), 4)
        sends = [int((each.chan_out >= 0).sum()) for each in (whole, cut)]
        assert sends[1] * 2 == sends[0] * 5  # 10 rows need 3 messages, 6 rows need 2
        assert max(op.reads[0].num_slots for op in cut.ops() if op.chan_out >= 0) == 4


def test_scenarios_have_all_topologies_and_depend_on_the_seed_only():
    some = list(drawn(AllGatherMatmul, 3, seed=7))
    assert [each.topology for each in some] == list(TOPOLOGIES)
    assert some == list(drawn(AllGatherMatmul, 3, seed=7))
    assert some[0].machine != next(iter(drawn(AllGatherMatmul, 1, seed=8))).machine


def test_a_machine_without_a_balanced_operator_is_drawn_again(monkeypatch):
    """The eleventh draw of this seed has speeds for which no operator is balanced."""
    operators, most = iter(range(1000)), AllToAllMatmul.drawn
    monkeypatch.setattr(AllToAllMatmul, "drawn", lambda *args: (next(operators), most(*args))[1])
    assert len(list(drawn(AllToAllMatmul, 11, seed=23))) == 11


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seed", "number"),
    [
        (AllToAllMatmul, 22, 3),
        (MatmulAllToAll, 23, 3),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in ((AllToAllMatmul, 23, 0), (MatmulReduceScatter, 21, 7))
        ),
    ],
)
def test_the_local_search_finds_what_the_judge_finds(kind, seed, number):
    """Two tiles multiplied together, where neither two tiles nor together alone gains; messages of two rows, which many
    ops stand for; tiles of which every second cut loses."""
    scenario = list(drawn(kind, number + 1, seed))[number]
    found = compare(scenario, seed=seed)
    assert next(pick for pick in found.picks if pick.chooser == OURS).regret < 0.01


@pytest.mark.slow
def test_choosers_are_judged_by_the_true_machine():
    scenario = next(iter(drawn(AllGatherMatmul, 1, seed=9)))
    found = compare(scenario, seed=9)
    assert {OURS, TRUTH, "MC²", "FiCCO, literal"} <= {pick.chooser for pick in found.picks}
    assert all(pick.regret >= 0 for pick in found.picks if pick.schedule)
    assert (found.best.chooser, found.best.regret) == (TRUTH, 0)
    assert min(found.families.values()) == found.best.true_s


def test_a_score_counts_ties_misses_and_missing_picks():
    picks = [
        Pick("x", "a", Schedule.of("a"), 1.0, 1.0, "a", 1.0),
        Pick("x", "b", Schedule.of("b"), 1.005, 1.0, "a", 1.0),
        Pick("x", "b", Schedule.of("b"), 1.21, 1.0, "a", 1.1),
        Pick("x", why_not="says nothing"),
    ]
    score = score_of("x", picks)
    assert (score.count, score.silent) == (3, 1)
    assert (score.right, score.tied) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert score.miss_loss == pytest.approx(0.21)
    assert score.own == pytest.approx(2 / 3)


@pytest.mark.parametrize("kind", [AllGatherMatmul, pytest.param(AllToAllMatmul, marks=pytest.mark.thorough)])
def test_the_rule_of_ficco_is_fitted_to_the_machine(kind, monkeypatch):
    """On products that it was not fitted on, its picks take no longer than by the literal threshold, by memory, or by
    one that is never reached; of the two machines, each wants another."""
    drawn_one = next(iter(drawn(kind, 1, seed=5)))
    published_one = next(iter(published(kind)))
    found_s = [fitted_well(each, monkeypatch) for each in (drawn_one, published_one)]
    assert max(found_s) > 10 * min(found_s)


def fitted_well(scenario: Scenario, monkeypatch) -> float:
    costs = Costs.of(scenario.operator, scenario.machine, scenario.ranks, extrapolate=True)[0]
    fitted_s = costs.operator.fitted_s(costs)
    about = {"ranks": scenario.ranks, "extrapolate": True}
    assert (
        plan(scenario.operator, scenario.machine, schedule=ficco.RULE, **about).schedule.steps["threshold_s"]
        == fitted_s
    )
    monkeypatch.setattr(gathering, "FITTED_DEPTHS", (96, 384, 1536, 6144))
    monkeypatch.setattr(gathering, "FITTED_ASPECTS", (4, 16))
    monkeypatch.setattr(
        gathering, "best_threshold", lambda found: found[:8]
    )  # the other shapes have the operator's k and n
    unseen = costs.operator.fitted_s(costs)
    monkeypatch.undo()
    lost = {t: log_s_of_picks(unseen, t) for t in (fitted_s, ficco.LITERAL_S, ficco.MEMORY_S, 1e-9)}
    assert len({each.sizes[1] for each in unseen}) == 4
    assert lost[fitted_s] <= min(lost.values()) + 0.01 * len(unseen)
    assert max(lost.values()) > lost[fitted_s] + 0.05 * len(unseen)  # the threshold matters
    return fitted_s


def log_s_of_picks(found: list[ficco.Outcome], threshold_s: float) -> float:
    return sum(np.log(each.families[ficco.ficco_rule(*each.sizes, threshold_s).family]) for each in found)


@pytest.mark.slow
def test_the_command_line_compares_and_names_what_is_missing(capsys):
    sizes = ["--m", "2048", "--k", "512", "--n", "512"]
    argv = ["plan", "all_gather_matmul", *sizes, "--machine", "mi300x-8", "--compare-heuristics", "--seed", "1"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("FiCCO, fitted", "FiCCO, literal", "MC²", "simulation", "exhaustive"))
    assert main(["plan", "matmul_all_reduce", "--compare-heuristics"]) == 2
    assert "no scenarios of matmul_all_reduce are published" in capsys.readouterr().err


@pytest.mark.slow
def test_compared_json_has_the_rules_reasons():
    scenario = next(iter(drawn(MatmulAllReduce, 1, seed=3)))
    found: Compared = compare(scenario, seed=3)
    silent = [pick for pick in found.to_json()["picks"] if "why_not" in pick]
    assert silent == [{"chooser": "FiCCO", "why_not": "applies to operators that communicate before they multiply"}]


FOUND = [  # found by a longer search only: an uneven tile, few long pieces
    (
        AllToAllMatmul,
        93,
        4,
        Schedule.of("optimal", tiles=(906, 330), by="messages", own_block="first", fused=False, in_turn=True),
    ),
    (MatmulAllReduce, 92, 4, Schedule.of("mc2", tiles=(640, *(6656,) * 3), by="ring", rows_per_message=512)),
    (MatmulAllReduce, 93, 1, Schedule.of("optimal", tiles=(3584,) * 11 + (2432,), by="ring", rows_per_message=128)),
]


@pytest.mark.parametrize(("kind", "seed", "place", "known"), FOUND)
def test_a_plan_is_no_slower_than_what_a_longer_search_found(kind, seed, place, known):
    scenario = next(each for each in drawn(kind, 11, seed) if each.name.endswith(f"-{place}"))
    costs, _ = Costs.of(scenario.operator, scenario.machine, scenario.ranks, extrapolate=True)
    found = plan(scenario.operator, scenario.machine, ranks=scenario.ranks, extrapolate=True)
    assert found.predicted_s <= 1.025 * costs.scored(known).predicted_s
