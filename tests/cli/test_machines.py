"""`dovetail machines` and `dovetail reproduce`: their actions, pages and errors."""

import json
import re

import pytest

from dovetail.core import CostError
from dovetail.cost import CostModel
from dovetail.machine import Machine, load

pytestmark = pytest.mark.usefixtures("own_cache")

HWLOC = '<topology><object type="Package"><object type="Core"/><object type="Core"/></object></topology>'


def test_the_list_has_presets_and_families(document):
    rows = {row["name"]: row for row in document("machines", "list")["machines"]}
    assert rows["dgx1-v100-8"]["ranks"] == 8
    assert rows["torus-AxB[xC…]"]["ranks"] is None


def test_show_and_the_name_alone_are_the_same(call):
    assert call("machines", "show", "opteron-gbe-4") == call("machines", "opteron-gbe-4")
    assert "latency" not in call("machines", "show", "fat-tree-2x2")[2]


def test_plot_has_topology_and_curves(call, tmp_path):
    page = tmp_path / "tree.html"
    assert call("machines", "plot", "fat-tree-2x2", "--plot", page)[0] == 0
    assert "Topology of fat-tree-2x2" in page.read_text()
    assert "p2p:wire" in page.read_text()


def test_import_writes_a_machine(call, document, tmp_path):
    source, out = tmp_path / "box.xml", tmp_path / "box.json"
    source.write_text(HWLOC)
    assert document("machines", "import", source, "--out", out)["ranks"] == 2
    assert json.loads(out.read_text())["name"] == "box"
    assert call("machines", "show", out)[0] == 0


def cells(out, cost):
    """Return the columns from `at most` on of a cost's row."""
    (row,) = [line for line in out.splitlines() if line.startswith(f"{cost} ")]
    return re.split(r"\s{2,}", row.strip())[5:]


@pytest.mark.parametrize(
    ("machine", "cost", "rate"),
    [
        ("mi300x-8", "p2p:xgmi", "64.0 GB/s"),
        ("mi300x-8", "flops:matmul:bfloat16", "1307 TFLOP/s"),
        ("mi300x-8", "cil:net", "–"),
        ("fast-ethernet-16", "p2p:tcp", "11.9 MB/s"),
        ("two-hosts-1gbit", "p2p:tcp", "114 MB/s"),
        ("opteron-gbe-4", "flops:matmul:float64", "20.8 GFLOP/s"),
    ],
)
def test_show_has_the_rate_of_large_sizes(call, machine, cost, rate):
    assert cells(call("machines", "show", machine)[1], cost) == ["–", rate, "–", "–"]


@pytest.mark.parametrize(
    ("segments", "high", "rate"),
    [
        ([[0, 0.0, 1e-9, 0.0], [1000, 1e-6, 5e-10, 0.0]], None, "2.00 GB/s"),
        ([[0, 0.0, 0.0, 5e-13]], 1000, "1.00 GB/s"),
        ([[0, 1e-6, 0.0, 0.0]], None, "–"),
    ],
)
def test_the_rate_is_that_of_the_end_of_a_curve(call, tmp_path, segments, high, rate):
    curve = {"schema": "dovetail.curve/1", "x_unit": "bytes", "segments": segments, "high": high}
    pair = Machine("pair", 2, (0, 0), costs={"p2p:shm": curve}).save(tmp_path / "pair.json")
    assert cells(call("machines", "show", pair)[1], "p2p:shm")[1] == rate


def test_without_costs_nothing_is_assumed_of_them(call, tmp_path):
    source = tmp_path / "box.xml"
    source.write_text(HWLOC)
    code, out, _ = call("machines", "import", source)
    assert code == 0
    assert "No costs: the machine can be shown and plotted" in out
    assert "Assumed" not in out
    assert "median error" not in out


@pytest.mark.parametrize("start", ["", "\ufeff", "\n  "])
@pytest.mark.parametrize("action", ["show", "plot"])
def test_xml_is_to_be_imported_first(call, tmp_path, action, start):
    source = tmp_path / "my box.xml"
    source.write_text(start + HWLOC, encoding="utf-8")
    code, _, err = call("machines", action, source)
    assert code == 2
    assert "XML" in err
    command = f"dovetail machines import '{source}' --out 'my box.json'"
    assert "".join(command.split()) in "".join(err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("machines", "plot"), "needs one machine"),
        (("machines", "list", "mi300x-8"), "takes no name"),
        (("machines", "mi300x-8", "a100-8"), "needs one machine"),
        (("machines", "show", "this"), "dovetail probe links"),
        (("machines", "import", "none.xml"), "cannot read none.xml"),
        (("reproduce", "tsukaba"), "did you mean 'tsukuba'"),
    ],
)
def test_errors_teach(call, words, said):
    code, _, err = call(*words)
    assert code == 2
    assert said in err


def test_reproduce(call, document, tmp_path):
    page = tmp_path / "goumas.html"
    found = document("reproduce", "goumas")
    assert found["counts"]["source_inconsistent"] == 3
    code, out, _ = call("reproduce", "goumas", "--html", page)
    assert code == 0
    assert "3 source inconsistent" in out
    assert "Loop Tiling" in page.read_text()


@pytest.mark.parametrize(
    ("machine", "key", "hint"),
    [
        ("h100-8", "all_reduce:2", "probe the machine, or choose another"),
        ("atlas-a2-8", "all_reduce:2", "all_reduce is known on 8 ranks only. Or probe"),
        ("h100-8", "flops:matmul:float8", "did you mean 'flops:matmul:float"),
        ("h100-8", "p2p:nvlonk", "did you mean 'p2p:nvlink'"),
    ],
)
def test_a_missing_cost_offers_costs_of_its_kind_only(machine, key, hint):
    with pytest.raises(CostError) as caught:
        CostModel.of(load(machine)).curve(key)
    assert hint in caught.value.hint
    assert "'reduce'" not in caught.value.hint
