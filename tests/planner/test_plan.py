"""plan: the example of seed 000, the fallback to serial, losses that add up, and plans that survive a file."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.cli.files import timeline_of
from dovetail.core import CostError, DovetailError, FileError, OperatorError, PlanError, ProgramError
from dovetail.cost import Curve, Segment, price
from dovetail.ir import Program, Schedule
from dovetail.ir.proof import certificate
from dovetail.ir.registry import BUILT_IN, operator_class
from dovetail.machine import Link, Machine, load, presets
from dovetail.matmul import AllGatherMatmul, MatmulAllReduce, pipeline_s
from dovetail.planner import Plan, plan, search
from dovetail.planner.costs import Costs
from dovetail.planner.explain import explain
from dovetail.planner.rival import Rival, distinct
from dovetail.sim import simulate

SEED = MatmulAllReduce(4096, 3072, 8192, "float16")
KEYS = ["schema", "schedule", "tiles", "steps", "predicted_s", "serial_s", "ideal_s", "losses", "rivals", "machine"]


def us(seconds):
    return round(seconds * 1e6)


def line(start_s, slope, unit="bytes", low=0.0, high=float("inf")):
    return Curve(unit, (Segment(0.0, start_s, slope),), low=low, high=high, label="preset").to_json()


def pair(ranks=2, comm=(20e-6, 1e-9), flops=1e-10, cil=(1.0, 1.0), start_s=0.0, **costs):
    """Return a full mesh of hosts: an all-reduce takes comm[0] + comm[1] * bytes seconds, a FLOP `flops` seconds;
    slow-downs are constant."""
    known = {
        f"all_reduce:{ranks}": line(*comm),
        "p2p:tcp": line(comm[0] / 2, comm[1] / 2),
        "flops:matmul:float32": line(start_s, flops, "flop"),
        "reduce": line(0.0, 1e-11),
        "cil:compute": line(cil[0], 0.0),
        "cil:net": line(cil[1], 0.0),
    }
    links = tuple(Link(a, b, "tcp") for a in range(ranks) for b in range(ranks) if a != b)
    return Machine("made", ranks, tuple(range(ranks)), links, {**known, **costs}, {"eager_limit_bytes": 0})


def test_a_saved_plan_and_program_come_back_and_errors_name_the_file(tmp_path):
    made = plan(MatmulAllReduce(64, 64, 64), "shared-memory-2", extrapolate=True)
    place = made.save(tmp_path / "plan.json")
    assert Plan.load(place).to_json() == Plan.load(tmp_path).to_json() == made.to_json()
    assert Program.load(made.program.save(tmp_path / "program.json")) == made.program
    with pytest.raises(DovetailError, match=r"plan .*/program\.json: expected a document of schema 'dovetail.plan/2'"):
        Plan.load(tmp_path / "program.json")
    with pytest.raises(DovetailError, match=r"program .*/plan\.json: expected"):
        Program.load(place)


class TestSeed:
    def test_worked_example(self):
        made = plan(SEED, "atlas-a2-8", schedule="mc2", contention=1.0)
        assert made.tiles == (512, 896, 896, 896, 896)
        assert {key: made.schedule.steps[key] for key in ("m0", "m1", "count")} == {"m0": 384, "m1": 768, "count": 4}
        assert us(made.predicted_s) == pytest.approx(1283, abs=2)
        assert us(made.serial_s) == 1734
        assert us(made.ideal_s) == 931
        assert made.certificate.ok

    def test_k_of_the_preset_is_per_rank(self):
        made = plan(SEED, load("atlas-a2-8"), schedule="serial")
        assert made.operator.k == 8 * 3072
        assert {slot.shape for slot in made.operator.workload(made.program, made.schedule).slots["A"]} == {(3072,)}
        assert "counts per rank" in made.notes[0]

    def test_the_formula_of_the_text(self):
        made = plan(SEED, "atlas-a2-8", schedule="mc2", reading="min")
        assert made.tiles == (256, *[384] * 10)
        assert us(made.predicted_s) == 1580
        assert any(rival.label == "mc2 (max reading)" for rival in made.rivals)

    def test_optimal_is_faster_than_mc2(self):
        made = plan(SEED, "atlas-a2-8", schedule="optimal", floor=384)
        assert us(made.predicted_s) <= 1218
        assert min(made.tiles) >= 384
        best = plan(SEED, "atlas-a2-8")
        assert best.family == "optimal"
        assert best.predicted_s <= made.predicted_s

    def test_the_factor_of_the_text(self):
        made = plan(SEED, "atlas-a2-8", schedule="mc2", contention=1.15)
        assert us(made.predicted_s) == 1454
        assert us(made.serial_s) == 1874
        assert us(made.ideal_s) == 931  # alone, without contention
        assert made.losses["cil"] == pytest.approx(0.15 * 1177e-6, rel=0.01)

    def test_both_readings_of_the_published_gain(self):
        text = explain(plan(SEED, "atlas-a2-8"))
        assert "32.7 % of 1874 µs" in text
        assert "27.2 % of 1734 µs" in text
        assert "published" in text.lower()
        other = plan(MatmulAllReduce(2048, 3072, 8192, "float16"), "atlas-a2-8")
        assert other.published == {}


class TestFallbackToSerial:
    def test_serial_if_overlap_only_hurts(self):
        made = plan(MatmulAllReduce(512, 512, 512), pair(cil=(4.0, 4.0)), by="library")
        assert made.family == "serial"
        assert made.tiles == (512,)
        assert not made.overlaps
        assert "Serial is kept" in explain(made)
        assert all(rival.predicted_s >= made.predicted_s * (1 - 1e-9) for rival in made.rivals)

    def test_a_gain_within_the_noise_is_refused(self):
        operator, machine = MatmulAllReduce(512, 512, 512), pair()
        best = plan(operator, machine, by="library")
        gain = 1 - best.predicted_s / best.serial_s
        assert best.family != "serial"
        assert plan(operator, machine, by="library", noise=gain * 0.9).family == best.family
        kept = plan(operator, machine, by="library", noise=gain * 1.1)
        assert kept.family == "serial"
        assert "within the noise" in kept.rivals[0].why_not

    def test_a_family_asked_for_by_name_is_given_and_reported_to_be_slower(self):
        made = plan(MatmulAllReduce(512, 512, 512), pair(cil=(4.0, 4.0)), schedule="uniform", by="library")
        assert made.family == "uniform"
        assert made.predicted_s > made.serial_s
        assert not made.overlaps
        assert "slower than serial" in explain(made)
        assert "asked for" in made.rivals[0].why_not

    def test_planted_fault_without_the_fallback_is_noticed(self, monkeypatch):
        monkeypatch.setattr(search, "_gains", lambda task, each, serial: True)
        made = plan(MatmulAllReduce(512, 512, 512), pair(), noise=0.9)
        assert made.family != "serial"
        assert not made.overlaps

    def test_a_schedule_that_cannot_be_proved_is_not_chosen(self, monkeypatch):
        operator, machine = MatmulAllReduce(512, 512, 512), pair()
        best, real = plan(operator, machine), search.prove

        def doubtful(operator, schedule, program):
            if program == best.program:
                checks = {name: certificate.Check(name != "races", "planted") for name in certificate.CHECKS}
                return certificate.Certificate(program.name, checks)
            return real(operator, schedule, program)

        monkeypatch.setattr(search, "prove", doubtful)
        second = plan(operator, machine)
        assert second.program != best.program
        assert second.certificate.ok
        assert any("refused by its certificate: planted" in note for note in second.notes)

    def test_it_is_an_error_if_no_schedule_can_be_proved(self, monkeypatch):
        bad = {name: certificate.Check(False, "planted") for name in certificate.CHECKS}
        monkeypatch.setattr(search, "prove", lambda _operator, _schedule, made: certificate.Certificate(made.name, bad))
        with pytest.raises(ProgramError, match="planted"):
            plan(MatmulAllReduce(64, 8, 8), pair())
        with pytest.raises(PlanError, match="no uniform schedule"):
            plan(MatmulAllReduce(64, 8, 8), pair(), schedule="uniform")


machines = st.builds(
    pair,
    ranks=st.sampled_from([1, 2, 3]),
    comm=st.tuples(st.floats(0, 1e-4), st.floats(1e-11, 1e-8)),
    flops=st.floats(1e-13, 1e-9),
    cil=st.tuples(st.floats(1, 3), st.floats(1, 3)),
    start_s=st.floats(0, 1e-4),
)
operators = st.builds(MatmulAllReduce, st.integers(0, 700), st.integers(0, 300), st.integers(0, 300))


@pytest.mark.slow
@settings(max_examples=some(40), deadline=None)
@given(
    operator=operators,
    machine=machines,
    noise=st.sampled_from([0.0, 0.05]),
    contention=st.sampled_from([None, 1.0, 1.3]),
    by=st.sampled_from(["auto", "library"]),
)
def test_every_plan_is_consistent(operator, machine, noise, contention, by):
    made = plan(operator, machine, noise=noise, contention=contention, by=by)
    assert sum(made.tiles) == operator.m
    assert made.certificate.ok
    serials = [rival.predicted_s for rival in made.rivals if rival.family == "serial"]
    assert made.predicted_s <= made.serial_s * (1 + 1e-9)
    assert made.family == "serial" or made.predicted_s < min(serials) * (1 - noise)
    assert sum(made.losses.values()) == pytest.approx(made.predicted_s - made.ideal_s, abs=1e-15)
    if contention is None:
        again = price(made.program, machine, made.operator.workload(made.program, made.schedule))
        assert simulate(made.program, again).makespan_s == made.predicted_s
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))).to_json() == made.to_json()


@settings(max_examples=some(40), deadline=None)
@given(
    rows=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    comm=st.tuples(st.floats(0, 1e-4), st.floats(1e-11, 1e-8)),
    cil=st.tuples(st.floats(1, 3), st.floats(1, 3)),
)
def test_the_searched_model_equals_the_simulation(rows, comm, cil):
    operator, machine = MatmulAllReduce(sum(rows), 64, 200), pair(comm=comm, cil=cil)
    costs, _ = Costs.of(operator, machine, None)
    found = costs.predicted_s(Schedule.of("given", tiles=tuple(rows), by="library"))
    pipeline = operator._pipeline(costs, "library")
    assert pipeline.stretch == cil
    assert pipeline_s(rows, pipeline.compute_s, pipeline.comm_s, *cil) == pytest.approx(found, rel=1e-9)


class TestReasons:
    def test_json_keys(self):
        made = plan(MatmulAllReduce(600, 256, 256), pair())
        document = made.to_json()
        assert next(iter(document)) == "schema"
        assert document["schema"] == "dovetail.plan/2"
        assert set(KEYS) <= set(document)
        assert document["tiles"] == list(made.tiles)
        assert all({"schedule", "predicted_s", "why_not"} <= set(rival) for rival in document["rivals"])
        assert json.loads(json.dumps(document))["predicted"]["label"] == "predicted"

    def test_rivals_are_sorted_and_hold_serial_and_every_family(self):
        made = plan(MatmulAllReduce(4096, 512, 512), pair())
        times = [rival.predicted_s for rival in made.rivals]
        assert times == sorted(times)
        assert {rival.family for rival in made.rivals} | {made.family} == {"serial", "uniform", "mc2", "optimal"}
        assert {rival.schedule["by"] for rival in made.rivals if rival.family == "serial"} == {
            "library",
            "exchange",
            "ring",
        }
        for rival in made.rivals:
            program = made.operator.program(rival.schedule, made.ranks)
            prices = price(program, pair(), made.operator.workload(program, rival.schedule))
            assert simulate(program, prices).makespan_s == pytest.approx(rival.predicted_s)

    def test_why_not_names_the_loss_that_grew(self):
        made = plan(SEED, "atlas-a2-8", floor=384)
        why = {rival.label: rival.why_not for rival in made.rivals}
        assert "more head" in why["serial"]
        assert "more dil" in why["mc2 (min reading)"]

    def test_a_schedule_of_several_families_is_listed_once(self):
        tiles = (("deeper", 4), ("deep", 4), ("deeper", 4), ("mc2", 8))
        found = [Rival(name, Schedule.of(name, tiles=(tile,)), 1.0, "no faster") for name, tile in tiles]
        listed = [(it.label, it.schedule["tiles"]) for it in distinct(found)]
        assert listed == [("deeper, also deep", (4,)), ("mc2", (8,))]

    def test_explain_says_what_is_predicted(self):
        text = explain(plan(SEED, "atlas-a2-8"))
        assert "Predicted 1214 µs; serial 1734 µs, ideal 931 µs" in text
        assert "of the ideal gain" in text
        assert "not measured here" in text
        assert "measured 5.00 ms" not in text

    def test_measured_rivals_are_reported(self):
        found = plan(SEED, "atlas-a2-8")
        (serial,) = [rival.schedule for rival in found.rivals if rival.family == "serial"]
        made = found.with_measured({serial: 1.9e-3, serial.with_parameters(tiles=(1, 4095)): 1.0})
        assert "measured 1900 µs" in explain(made)
        assert [rival.get("measured_s") for rival in made.to_json()["rivals"]].count(1.9e-3) == 1
        assert "1.000 s" not in explain(made)  # no rival took exactly that long

    @pytest.mark.parametrize("contention", [None, 1.3])
    def test_other_choices_are_proved_and_predicted_anew(self, contention):
        operator, machine = MatmulAllReduce(600, 256, 256), pair(cil=(1.2, 1.1))
        made = plan(operator, machine, contention=contention)
        rival = next(rival for rival in made.rivals if rival.family == "uniform")
        costs, _ = Costs.of(operator, machine, None, contention=contention)
        other = search.with_schedule(made, rival.schedule, costs)
        assert other.predicted_s == pytest.approx(rival.predicted_s)
        assert sum(other.losses.values()) == pytest.approx(other.predicted_s - other.ideal_s)
        assert other.losses == pytest.approx(plan(operator, machine, schedule="uniform", contention=contention).losses)
        assert other.certificate.ok
        assert other.rivals[0].schedule == made.schedule


class TestOptions:
    @pytest.mark.parametrize("name", ["optimum", "uniforms", "mc3", "seriall"])
    def test_unknown_schedule_names_the_nearest(self, name):
        with pytest.raises(PlanError) as error:
            plan(SEED, "atlas-a2-8", schedule=name)
        assert "did you mean" in str(error.value)
        assert "auto, serial, uniform, mc2, optimal" in str(error.value)

    @pytest.mark.parametrize(
        ("options", "error", "what"),
        [
            ({"reading": "median"}, PlanError, "has no reading 'median'"),
            ({"by": "tree"}, PlanError, "has no by 'tree'"),
            ({"noise": 1.5}, PlanError, "noise is a share"),
            ({"noise": -0.1}, PlanError, "noise is a share"),
            ({"floor": 0}, OperatorError, "floor"),
            ({"align": 1.5}, OperatorError, "align"),
            ({"ranks": 9}, OperatorError, "9 ranks"),
            ({"ranks": 4}, CostError, "all_reduce over 4 ranks"),
            ({"by": "ring"}, CostError, "all_reduce over 8 ranks"),
            ({"contention": -1.0}, CostError, "contention"),
        ],
    )
    def test_invalid_arguments_are_reported(self, options, error, what):
        with pytest.raises(error, match=what):
            plan(SEED, "atlas-a2-8", **options)
        assert issubclass(error, DovetailError)

    def test_the_error_for_an_unknown_dtype_lists_the_known_ones(self):
        with pytest.raises(CostError, match="flops:matmul"):
            plan(MatmulAllReduce(64, 64, 64, "float32"), "atlas-a2-8")

    def test_sizes_that_were_not_measured_are_left_out(self):
        key = "kernel:matmul:k=32:n=64:float32"
        machine = pair(**{key: line(1e-6, 1e-8, "rows", low=100, high=600)})
        made = plan(MatmulAllReduce(500, 64, 64), machine, align=1)
        assert min(made.tiles) >= 100
        assert all(min(rival.schedule.tiles) >= 100 for rival in made.rivals)
        with pytest.raises(CostError, match="known from 100 to 600 rows"):
            plan(MatmulAllReduce(700, 64, 64), machine)
        assert plan(MatmulAllReduce(700, 64, 64), machine, extrapolate=True).tiles

    def test_max_tiles_and_messages(self):
        made = plan(MatmulAllReduce(2048, 64, 64), pair(), max_tiles=2, by="ring", rows_per_message=100)
        assert len(made.tiles) <= 2
        assert made.schedule["rows_per_message"] == 100
        assert made.schedule["by"] == "ring"
        assert all(len(rival.schedule.tiles) <= 2 for rival in made.rivals)

    def test_our_own_messages_are_chosen_where_they_are_faster(self):
        slow_library = {"all_reduce:2": line(1e-3, 1e-6)}
        made = plan(MatmulAllReduce(1024, 256, 256), pair(**slow_library))
        assert made.schedule["by"] in ("exchange", "ring")
        assert made.serial["by"] == "library"

    def test_the_machine_may_say_how_messages_are_driven(self):
        machine = pair().with_costs({}, progress="thread", block_rows=0)
        made = plan(MatmulAllReduce(256, 64, 64), machine)
        assert (made.schedule.progress, made.schedule.block_rows) == ("thread", 0)

    def test_many_ranks_keep_to_the_library_unless_asked(self):
        made = plan(MatmulAllReduce(256, 64, 64), pair(ranks=17))
        assert {rival.schedule["by"] for rival in made.rivals} == {"library"}
        assert any("for at most 16 ranks" in note for note in made.notes)


@pytest.mark.parametrize("m", [1, 5, 128, 4096, 8192])
def test_the_number_of_simulations_is_bounded(m):
    costs, _ = Costs.of(MatmulAllReduce(m, 512, 512), pair(), None)
    found = [each.schedule for each in costs.score(costs.operator.schedules(costs))]
    assert len(found) + len(list(costs.operator.refine(costs, found, 0))) < 200


@pytest.mark.parametrize("edge", [(0, 8, 8), (1, 1, 1), (8, 0, 8), (8, 8, 0)])
def test_edge_cases(edge):
    for ranks in (1, 2, 3):
        made = plan(MatmulAllReduce(*edge), pair(ranks=ranks))
        assert made.certificate.ok
        assert np.isfinite(made.predicted_s)
        assert explain(made)


def test_a_malformed_document_is_reported(tmp_path):
    document = plan(MatmulAllReduce(64, 8, 8), pair()).to_json()
    (tmp_path / "plan.json").write_text(json.dumps({**document, "predicted": None}))
    with pytest.raises(FileError, match="malformed plan document"):
        timeline_of(str(tmp_path / "plan.json"))
    with pytest.raises(DovetailError, match="schema"):
        Plan.from_json({**document, "schema": "dovetail.program/1"})
    with pytest.raises(PlanError, match="malformed plan document"):
        Plan.from_json({key: value for key, value in document.items() if key != "choices"})
    choices = document["choices"]
    wrong = {**document, "choices": {**choices, "parameters": {**choices["parameters"], "tiles": [63]}}}
    with pytest.raises(PlanError, match="do not add up"):
        Plan.from_json(wrong)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if "matmul" in name])
def test_every_family_and_every_way_to_communicate_can_be_chosen(name):
    """There is a plan for every way to communicate that the options offer, and a schedule of every family."""
    wanted = operator_class(name)
    ways = next(option.choices for option in wanted.options if option.name == "by")
    machine = pair(**{f"{kind}:2": line(20e-6, 1e-9) for kind in ("all_gather", "all_to_all", "reduce_scatter")})
    for sizes in ((64, 32, 16), (0, 8, 8)):
        for by in ways:
            assert plan(wanted(*sizes, "float32"), machine, ranks=2, extrapolate=True, by=by).ranks == 2
    costs, _ = Costs.of(wanted(64, 32, 16, "float32"), machine, 2, {}, None, True)
    offered = {each.family for each in costs.operator.schedules(costs)}
    assert offered >= {family for family in wanted.families if family not in ASKED_FOR}


ASKED_FOR = ("ficco-heuristic", "optimal")  # the first exists only on request, the second only if its tiles differ


def test_the_error_for_a_family_without_such_a_schedule_names_the_options():
    about = {"ranks": 2, "extrapolate": True, "schedule": "shard-ring", "by": "messages"}
    with pytest.raises(PlanError, match="no shard-ring schedule fits") as refused:
        plan(AllGatherMatmul(64, 32, 16), "two-hosts-1gbit", **about)
    assert "all_gather_matmul 64 × 32 × 16 float32 on 2 ranks has none with" in str(refused.value)
    assert "by=messages" in str(refused.value)


WITHOUT_PRODUCTS = {"cygnus-4", "fast-ethernet-16", "opteron-gbe-4"}  # their sources have no matrix products


@pytest.mark.parametrize("name", [name for name in presets() if name not in WITHOUT_PRODUCTS | {"atlas-a2-8"}])
def test_presets_plan_every_product_in_every_dtype_that_they_list(name):
    """All presets with costs of products, except the one whose source only gives the cost of all_reduce."""
    machine = load(name)
    listed = {key.rpartition(":")[2] for key in machine.costs if key.startswith("flops:matmul:")}
    assert machine.facts["dtype"] in listed
    for dtype in listed:
        for product in (name for name in BUILT_IN if "matmul" in name):
            operator = operator_class(product)(64, 32, 64, dtype)
            costs, _ = Costs.of(operator, machine, 2, {}, None, True)
            serial = next(each for each in operator.schedules(costs) if each.is_serial)
            assert 0 < costs.predicted_s(serial) < np.inf
