"""The committed table of published tiling figures is what the bench counts, and its verdicts notice a wrong figure."""

import copy
import importlib
import json

import needs
import pytest


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(needs.ROOT / "bench")
    return importlib.import_module("tiling")


@pytest.fixture
def published(bench):
    return json.loads(bench.PUBLISHED.read_text())


def test_the_committed_table_is_current(bench, published):
    assert json.loads(bench.RESULT.read_text())["rows"] == json.loads(json.dumps(bench.rows(published)))


def test_verdicts(bench, published):
    verdicts = {row["item"]: row["verdict"] for row in bench.rows(published)}
    assert {item for item, verdict in verdicts.items() if verdict == bench.CONFLICT} == {
        "V_comm of P2",
        "ii: P(g)",
        "iii: g",
    }
    assert bench.MISSED not in verdicts.values()
    assert len([item for item in verdicts if ":" in item]) == 3 * 10, "every cell of the table of results"


@pytest.mark.parametrize(
    ("at", "wrong", "item"),
    [
        (("table", "i", "g"), 7105, "i: g"),
        (("table", "i", "p"), 52, "i: P(g)"),
        (("table", "i", "improvement_percent"), "39", "i: improvement"),
        (("table", "ii", "difference_percent"), "9", "ii: difference"),
        (("tiles", "P1", "v_comm"), 28, "V_comm of P1"),
    ],
)
def test_a_wrong_figure_is_noticed(bench, published, at, wrong, item):
    planted = copy.deepcopy(published)
    place = planted
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = wrong
    (row,) = [row for row in bench.rows(planted) if row["item"] == item]
    assert row["verdict"] == bench.CONFLICT


def test_no_time_of_a_point_fits_the_three_columns(bench, published):
    for fills in range(5):
        times = bench.point_times(published["table"], fills)
        assert max(low for low, _ in times) > min(high for _, high in times)
    assert [round(sum(ends) / 2, 3) for ends in bench.point_times(published["table"], 2)] == [0.461, 0.602, 0.510]
