"""characterise: on simulated machines it finds the losses that were set, and writes them to files."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sim_executor import SimExecutor, line, two_hosts

from dovetail.cli import app
from dovetail.core import EnvironmentFault, OperatorError
from dovetail.cost import CostModel
from dovetail.ir import Builder, verify
from dovetail.machine import Machine
from dovetail.matmul import AllGatherMatmul, ProductAlone
from dovetail.passes.regions import split
from dovetail.planner import plan
from dovetail.prober import Characteristics, Ratio, characterise
from dovetail.prober.operator_costs import CONTENTION_BYTES
from dovetail.report import Provenance, characteristics_text, write_characteristics
from dovetail.report.characteristics import figure
from dovetail.run import fresh_inputs
from dovetail.run.load import Load
from dovetail.run.local import execute_local

START_S, FLOPS = 2e-3, 1e9
CIL = {"cil:compute": 1.3, "cil:net": 1.2, "cil:compute:library": 1.7, "cil:net:library": 2.0}
SHAPES = "512x64x48, 64x512x48"


def true_machine() -> Machine:
    """Two ranks on one host, with all costs given here."""
    costs = {"p2p:shm": line(1e-4, 1e-9), "exchange:shm": line(1e-4, 1e-9), "reduce": line(1e-6, 2e-10)}
    costs |= {f"{kind}:2": line(3e-4, 2e-9) for kind in ("all_reduce", "all_gather")}
    costs |= {"flops:matmul:float32": line(START_S, 1 / FLOPS, "flop")} | {k: line(v, 0.0) for k, v in CIL.items()}
    return replace(two_hosts(), nodes=(0, 0), links=(), costs=costs, facts={})


@pytest.fixture(scope="module")
def characterised() -> tuple[Machine, Characteristics]:
    true = true_machine()
    bare = replace(true, costs={key: cost for key, cost in true.costs.items() if key[:4] not in ("flop", "cil:")})
    return characterise(SimExecutor(true), bare, ProductAlone.points(shapes=SHAPES), 2)


def test_the_cost_of_cutting_is_found(characterised):
    _, found = characterised
    assert [each.title for each in found.found] == ["512 × 64 × 48", "64 × 512 × 48"]
    for each in found.found:
        at_peak_s = 2 * 512 * 64 * 48 / FLOPS
        assert each.whole.median == pytest.approx(START_S + at_peak_s, rel=1e-3)
        assert each.intensity == pytest.approx(2 * 512 * 64 * 48 / 4 / (512 * 64 + 48 * (512 + 64)), rel=1e-6)
        pieces = {(cut.way, cut.pieces): cut.dil for cut in each.cuts}
        assert set(pieces) == {(way, count) for way in ("rows", "columns", "K") for count in (8, 64)} - {
            ("columns", 64)
        }
        for (_, count), dil in pieces.items():
            assert dil.median == pytest.approx((count * START_S + at_peak_s) / (START_S + at_peak_s), rel=0.01)
            assert dil.low <= dil.median <= dil.high


def test_the_slowdowns_by_contention_are_found(characterised):
    machine, found = characterised
    model = CostModel.of(machine)
    for traffic, ending in (("messages", ""), ("all_gather", ":library")):
        for size in CONTENTION_BYTES:
            for each in found.found:
                beside = each.cil(traffic, size)
                assert beside.compute.median == pytest.approx(CIL[f"cil:compute{ending}"], rel=0.1)
                assert beside.net.median == pytest.approx(CIL[f"cil:net{ending}"], rel=0.25)
            for side in ("compute", "net"):
                assert model.factor(f"cil:{side}{ending}", size) == pytest.approx(CIL[f"cil:{side}{ending}"], rel=0.25)


def test_a_plan_uses_the_characterised_machine(characterised):
    """A measured shape uses its own curves, also for slices; other shapes use the FLOP rate."""
    machine, _ = characterised
    machine = Machine.from_json(json.loads(json.dumps(machine.to_json())))
    operator = AllGatherMatmul(512, 64, 2 * 48)
    sliced = plan(operator, machine, schedule="uniform-fused-2D", by="messages")
    model = CostModel.of(machine)
    for key, rows in (("k=64:n=48", 512), ("k=32:n=48", 512), ("k=32:n=48", 256)):
        name = f"matmul:{key}:float32"
        assert model.kernel_curve(name) == f"kernel:{name}"
        depth = int(key[2:4])
        expected_s = START_S + 2 * rows * depth * 48 / FLOPS
        assert model.kernel_seconds(name, rows, 0.0) == pytest.approx(expected_s, rel=0.02)
    slices_s = 2 * CIL["cil:compute"] * (START_S + 2 * 512 * 32 * 48 / FLOPS)
    assert 0.5 * slices_s < sliced.predicted_s < 2.5 * slices_s
    other = plan(AllGatherMatmul(256, 96, 2 * 32), machine, schedule="serial")
    assert model.kernel_curve("matmul:k=96:n=32:float32") == "flops:matmul:float32"
    assert other.predicted_s > START_S


def test_one_rank_has_no_traffic():
    machine, found = characterise(
        SimExecutor(true_machine()), true_machine(), ProductAlone.points(shapes="64x64x64"), 1
    )
    assert found.traffics() == []
    assert [cut.pieces for cut in found.found[0].cuts if cut.way == "K"] == [8, 64]
    assert "CIL" not in characteristics_text(found)
    assert len(figure(found).layout.annotations) == 0
    assert "kernel:matmul:k=64:n=64:float32" in machine.costs


class Disturbed(SimExecutor):
    """Other processes disturbed two rounds of each job, and used a third of the cores."""

    def execute(self, job):
        load = Load(0.33, 0.0, "core 1", "core 1")
        return replace(super().execute(job), rounds=job.rounds, disturbed=2, load=load)


def test_disturbed_rounds_are_reported():
    _, found = characterise(
        Disturbed(true_machine(), noise=0.05), true_machine(), ProductAlone.points(shapes="64x64x64"), 2
    )
    text = characteristics_text(found)
    assert "5 rounds of each, 4 disturbed." in text
    assert "Other programs used 33 % of core 1" in text
    assert "copy engines was not measured" in text
    assert re.search(r"± [1-9]", text)
    assert found.to_json()["load"]["foreign_load"] == 0.33


def test_the_document_holds_what_was_measured(characterised):
    _, found = characterised
    document = json.loads(json.dumps(found.to_json()))
    assert (document["schema"], document["label"]) == ("dovetail.characteristics/1", "measured")
    first = document["characteristics"][0]
    assert first["sizes"] == {"m": 512, "k": 64, "n": 48, "dtype": "float32"}
    assert first["whole_s"]["median"] == found.found[0].whole.median
    assert {"way", "pieces", "dil", "flops", "num_bytes"} == set(first["cuts"][0])
    assert set(first["beside"][0]["net"]) == {"median", "low", "high"}


def test_curves_are_drawn_over_ratio_traffic_and_shape(characterised, tmp_path):
    _, found = characterised
    drawn = figure(found)
    titles = {axis.title.text for axis in drawn.select_xaxes()} | {axis.title.text for axis in drawn.select_yaxes()}
    assert titles >= {
        "op-to-byte ratio, FLOP/B",
        "memory traffic, MB",
        "M / K",
        "DIL",
        "CIL of computing",
        "CIL of traffic",
    }
    dots = [trace for trace in drawn.data if trace.mode == "markers" and trace.name == "rows / 8"]
    assert [list(trace.x) for trace in dots] == [
        [each.intensity for each in found.found],
        [each.num_bytes / 1e6 for each in found.found],
        [8.0, 0.125],
    ]
    for trace in dots:
        assert list(trace.y) == [each.dil("rows", 8).median for each in found.found]
    path = write_characteristics(tmp_path / "plots", found, Provenance("dovetail probe matmul", "here"))
    assert path == tmp_path / "plots" / "matmul.html"
    assert "512 × 64 × 48" in path.read_text(encoding="utf-8")


def cannot_draw(self, *args, **options):
    raise ValueError("Image export requires kaleido\nmore")


def test_a_plot_that_cannot_be_drawn_names_what_is_missing(characterised, tmp_path, monkeypatch):
    monkeypatch.setattr("plotly.graph_objects.Figure.write_image", cannot_draw)
    with pytest.raises(EnvironmentFault, match="cannot draw") as caught:
        write_characteristics(tmp_path / "x.png", characterised[1], Provenance())
    assert "dovetail[export]" in caught.value.hint


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cuts_are_proved_and_compute_the_product(dtype):
    point, rng = ProductAlone(10, 7, 5, dtype), 3
    for sample in (*point.ways(), *point.samples(2)):
        b = Builder("pieces", 2)
        sample.add(b, 2, split(sample.most, 3) * 2)
        program = b.build()
        assert verify(program).ok
        workload = point.workload(program)
        inputs = fresh_inputs(program, workload, rng)
        outputs, _ = execute_local(program, workload, inputs)
        if sample.label == "K":
            a, rows = inputs["AK"][1].reshape(-1), inputs["BK"][1]
            starts = np.cumsum([0, *split(7, 3)])
            blocks = [a[10 * s : 10 * e].reshape(10, e - s) @ rows[s:e] for s, e in pairwise(starts)]
            assert outputs["P"][1] == pytest.approx(sum(blocks), rel=1e-4, abs=1e-5)
        if sample.label == "rows":
            assert outputs["P"][1] == pytest.approx(inputs["A"][1] @ inputs["B"][1][0], rel=1e-4, abs=1e-5)


def test_shapes_come_from_a_file_too(tmp_path):
    (tmp_path / "shapes.txt").write_text("# of one layer\n8x4x2, 4×4×4\n\n16x8x4  # wide\n")
    assert [each.title for each in ProductAlone.points(shapes=str(tmp_path / "shapes.txt"))] == [
        "8 × 4 × 2",
        "4 × 4 × 4",
        "16 × 8 × 4",
    ]
    assert len(ProductAlone.points()) == 9
    for bad in ("8x4", "8x4x2,x", "", "nofile.txt", "8x0x2"):
        with pytest.raises(OperatorError):
            ProductAlone.points(shapes=bad or ",")


def test_the_command_measures_and_writes(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("dovetail.run.executor.executor_on", lambda *_, **options: SimExecutor(true_machine()))
    monkeypatch.setattr("dovetail.tuner.machines.machine_of", lambda executor, ranks, **options: executor.machine)
    words = [
        "probe",
        "matmul",
        "--shapes",
        "64x64x64",
        "-o",
        str(tmp_path / "m.json"),
        "--plot",
        str(tmp_path / "p.html"),
    ]
    assert app.main(words) == 0
    out, err = capsys.readouterr()
    assert "rows / 64" in out
    assert "p.html" in out
    assert "1 size of matmul on 2 ranks" in err
    assert "cil:net:library" in Machine.from_json(json.loads((tmp_path / "m.json").read_text())).costs
    assert app.main([*words[:4], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "dovetail.characteristics/1"
    monkeypatch.setattr("plotly.graph_objects.Figure.write_image", cannot_draw)
    assert app.main([*words[:4], "--plot", str(tmp_path / "p.png")]) == 2
    out, err = capsys.readouterr()
    assert "rows / 64" in out  # the measurements are printed nevertheless
    assert "cannot draw" in err


def test_ratios_keep_their_quartiles():
    assert Ratio.of([1.0, 2.0, 3.0, 4.0, 5.0]) == (3.0, 2.0, 4.0)
