"""The figures of the sources: every verdict follows its rule, and a wrong printed figure is noticed."""

import importlib

import pytest

from dovetail.core import OperatorError
from dovetail.report.reproductions import reproduction_page, reproduction_text
from dovetail.reproduce import CONFLICT, MISSED, NOT, REPRODUCED, SOURCES, Curves, Reproduction, reproduce
from dovetail.reproduce.goumas import COLUMNS, TILES, point_times
from dovetail.reproduce.goumas import rows as goumas_rows
from dovetail.reproduce.mscclang import crossover, depth, one_node
from dovetail.reproduce.rows import Row, exact, factor, printed, size

QUICK = ("mc2", "goumas", "tsukuba")


@pytest.fixture(scope="module")
def quick():
    return {name: reproduce(name) for name in QUICK}


@pytest.mark.parametrize("source", QUICK)
def test_no_figure_is_missed(quick, source):
    assert [row.item for row in quick[source].rows if row.verdict == MISSED] == []
    assert {row.source for row in quick[source].rows} == {source}
    assert all(row.section and row.why for row in quick[source].rows if row.verdict != REPRODUCED)


@pytest.mark.parametrize(
    ("source", "items"),
    [
        ("goumas", {"V_comm of P2", "ii: P(g)", "iii: g"}),
        (
            "mc2",
            {"m0 of the example", "unit of x", "t of the short block", "rankK in the code", "time of the all_reduce"},
        ),
        ("tsukuba", {"environment 1: 90 % of the peak from", "environment 1: time of one byte"}),
    ],
)
def test_where_the_sources_contradict_themselves(quick, source, items):
    assert {row.item for row in quick[source].rows if row.verdict == CONFLICT} == items


def test_each_benefit_names_its_serial_time_and_is_of_it(quick):
    rows = {row.item: row for row in quick["mc2"].rows}
    printed_row, fitted = rows["benefit, of 1874 µs as printed"], rows["benefit, of 1734 µs by the fits"]
    times = rows["time of the fused operator"]
    assert printed_row.ours == pytest.approx(100 * (1 - times.theirs / 1874), abs=0.01)
    assert printed_row.best is None
    assert (fitted.theirs, fitted.verdict, fitted.basis) == (None, NOT, "predicted")
    assert fitted.ours == pytest.approx(100 * (1 - times.ours / 1734), abs=0.1)
    assert fitted.best == pytest.approx(100 * (1 - times.best / 1734), abs=0.1)
    assert (times.best < times.ours) == (fitted.best > fitted.ours), "the faster one has the greater benefit"
    assert "27.2 %" in fitted.why


def test_every_cell_of_the_table_of_results_has_a_row(quick):
    assert len([row for row in quick["goumas"].rows if row.item.startswith("ii: ")]) == 12


@pytest.mark.parametrize(
    ("column", "field", "wrong", "item"),
    [
        ("i", "g", 7105, "i: g"),
        ("i", "p", 52, "i: P(g)"),
        ("i", "improvement_percent", "39", "i: improvement"),
        ("ii", "difference_percent", "9", "ii: difference"),
    ],
)
def test_a_wrong_figure_is_noticed(column, field, wrong, item):
    planted = COLUMNS | {column: COLUMNS[column]._replace(**{field: wrong})}
    (row,) = [row for row in goumas_rows(columns=planted) if row.item == item]
    assert row.verdict == CONFLICT


def test_a_wrong_count_of_a_tile_is_noticed():
    planted = TILES | {"P1": TILES["P1"]._replace(v_comm=28)}
    (row,) = [row for row in goumas_rows(planted) if row.item == "V_comm of P1"]
    assert row.verdict == CONFLICT


def test_no_time_of_a_point_fits_the_three_columns():
    for fills in range(5):
        times = point_times(COLUMNS, fills)
        assert max(low for low, _ in times) > min(high for _, high in times)
    assert [round(sum(ends) / 2, 3) for ends in point_times(COLUMNS, 2)] == [0.461, 0.602, 0.510]


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (exact("", "", 7, 7, ""), REPRODUCED),
        (exact("", "", 7, 8, ""), MISSED),
        (printed("", "", "0.25", 0.2549, ""), REPRODUCED),
        (printed("", "", "0.25", 0.261, "", otherwise=CONFLICT), CONFLICT),
        (factor("", "", 2.0, 2.29, ""), REPRODUCED),
        (factor("", "", 2.0, 2.31, ""), MISSED),
        (factor("", "", 2.0, 1.0, "", otherwise=NOT), NOT),
        (size("", "", 4096, 2048.0, ""), REPRODUCED),
        (size("", "", 4096, 2047.0, ""), MISSED),
        (size("", "", 4096, None, ""), MISSED),
    ],
)
def test_rules_of_the_verdicts(row, verdict):
    assert row.verdict == verdict


def test_the_document(quick):
    found = quick["mc2"].to_json()
    assert next(iter(found)) == "schema"
    assert sum(found["counts"].values()) == len(found["rows"])
    keys = {"source", "section", "item", "theirs", "ours", "best", "difference", "verdict", "why", "unit", "basis"}
    assert all(set(row) == keys for row in found["rows"])


def test_text_and_page_have_every_row(quick):
    rows = tuple(row for each in quick.values() for row in each.rows)
    curves = Curves("over <plain>", (1024, 4096), {"ours": (1.0, 2.0)}, 1.9, "mc2")
    found = Reproduction(rows, (curves,))
    text, page = reproduction_text(found), reproduction_page(found)
    assert all(row.item in text for row in rows)
    assert page.count("<tr>") == len(rows) + len(quick)
    assert "over &lt;plain&gt;" in page
    assert "<script" not in page


def test_a_script_in_a_row_is_only_text():
    page = reproduction_page(Reproduction((Row("<b>", "<script>x</script>", 1, 1, REPRODUCED, "<i>", source="mc2"),)))
    assert "<script" not in page
    assert "<b>" not in page


def test_an_unknown_source_is_named():
    with pytest.raises(OperatorError, match="no source 'gumas'") as error:
        reproduce("gumas")
    assert "did you mean 'goumas'?" in str(error.value)


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_is_a_file(source):
    assert callable(importlib.import_module(f"dovetail.reproduce.{source}").rows)


def test_depth_counts_messages_in_a_row():
    from dovetail.collective import build

    assert (depth(build("ring_all_reduce", 5)), depth(build("all_pairs_all_reduce", 5))) == (8, 2)
    assert crossover((1, 2, 4), (0.5, 0.9, 0.8)) is None


@pytest.mark.slow
@pytest.mark.thorough
def test_speed_ups_on_one_node_lie_where_they_are_printed():
    rows = {row.item: row for row in one_node() if isinstance(row, Row)}
    for item in ("ring, 32 KB to 3 MB: up to", "all pairs, 1 KB to 1 MB: up to", "ring from 32 MB", "volume of both"):
        assert rows[item].verdict == REPRODUCED, item
    assert rows["ring, in that range: at least"].verdict == MISSED, "a rule of verdicts that lets this pass is too lax"
