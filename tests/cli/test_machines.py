"""`dovetail machines` and `dovetail reproduce`: their actions, pages and errors."""

import json

import pytest

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
