"""The selection table: the algorithm for each size of a collective; its files."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from dovetail.cli import main
from dovetail.collective import build, msccl
from dovetail.collective.operators import AllReduce, AllToAll, ReduceScatter
from dovetail.core import DovetailError, PlanError, ProgramError
from dovetail.report.selections import nccl_tuner_csv, write_for_others, write_msccl
from dovetail.store.selection import (
    LEVELS,
    Choice,
    Point,
    Row,
    Selection,
    recall_selection,
    rows_of,
    save_selection,
)

RING, TREE = Choice("ring_all_reduce", channels=2), Choice("double_tree_all_reduce", slice_bytes=65536)


def table(*picked: tuple[Choice, int], ranks: int = 4) -> Selection:
    found = [(choice, Point(size, 1e-5, 2e-5, 1.5e-5, 0.01)) for choice, size in picked]
    return Selection({"mpi": "X"}, rows_of("all_reduce", ranks, 1, found))


def test_the_break_between_two_of_our_algorithms_is_the_geometric_mean():
    found = table((RING, 4096), (RING, 16384), (TREE, 65536))
    spans = [(row.algorithm, row.min_bytes, row.max_bytes) for row in found.rows]
    assert spans == [("ring_all_reduce", 4096, 32768), ("double_tree_all_reduce", 32768, 65537)]
    assert [len(row.points) for row in found.rows] == [2, 1]


@pytest.mark.parametrize(
    ("num_bytes", "found"),
    [(1023, None), (1024, "library"), (4095, "library"), (4096, RING[0]), (16384, RING[0]), (16385, "library")],
)
def test_sizes_that_were_not_measured_use_the_library(num_bytes, found):
    table_of = table((Choice(), 1024), (RING, 4096), (RING, 16384), (Choice(), 65536))
    row = table_of.lookup("all_reduce", 4, num_bytes)
    assert (row and row.algorithm) == found


def test_rows_of_reductions_serve_only_the_measured_dtype():
    rows = rows_of("all_reduce", 4, 1, [(RING, Point(4096, 1e-5))], "float32")
    found = Selection({}, (*rows, *rows_of("all_gather", 4, 1, [(RING, Point(4096, 1e-5))])))
    assert found.lookup("all_reduce", 4, 4096, dtype="float32") is found.lookup("all_reduce", 4, 4096) is not None
    assert found.lookup("all_reduce", 4, 4096, dtype="float16") is None
    assert found.lookup("all_gather", 4, 4096, dtype="float16") is not None
    assert [kind(64).reduces for kind in (AllReduce, ReduceScatter, AllToAll)] == [True, True, False]


def test_lookup_uses_collective_ranks_and_nodes():
    found = table((RING, 4096)).merged(Selection({}, rows_of("all_reduce", 4, 2, [(TREE, Point(4096, 1e-5))])))
    assert found.lookup("all_reduce", 4, 4096, nodes=2).choice == TREE
    assert found.lookup("all_reduce", 4, 4096, nodes=1).choice == RING
    assert found.lookup("all_reduce", 4, 4096) is not None
    assert found.lookup("all_reduce", 4, 4096, nodes=4) is None
    assert found.lookup("all_reduce", 3, 4096) is found.lookup("all_gather", 4, 4096) is None


def test_rows_serve_programs_of_their_level():
    """Of a program's own level, else of any; a table of any level replaces those of levels."""
    point = Point(4096, 1e-5)
    both = [
        rows_of("all_reduce", 4, 1, [(made, point)], level=at)
        for made, at in ((RING, "serialized"), (TREE, "multiple"))
    ]
    found = Selection({}, (*both[0], *both[1]))
    assert Selection.from_json(found.to_json()) == found
    assert [found.at(level).lookup("all_reduce", 4, 4096).choice for level in LEVELS] == [RING, TREE]
    assert found.lookup("all_reduce", 4, 4096).choice == RING
    anyone = Selection({}, rows_of("all_reduce", 4, 1, [(Choice(), point)]))
    assert found.merged(anyone).rows == anyone.rows
    part = Selection({}, both[0]).merged(Selection({}, both[1]))
    assert part.rows == found.rows
    assert anyone.merged(Selection({}, both[1])).at("serialized").rows == anyone.rows
    with pytest.raises(PlanError, match="no level 'double'"):
        Selection({}, (replace(both[0][0], level="double"),))


def test_newer_rows_replace_all_of_a_group():
    old, new = table((RING, 1024), (TREE, 1 << 20)), table((Choice(), 1024))
    kept = Selection({}, rows_of("all_gather", 4, 1, [(Choice("ring_all_gather"), Point(64, 1e-6))]))
    found = old.merged(kept).merged(new)
    assert [row.algorithm for row in found.rows] == ["ring_all_gather", "library"]


def test_json_round_trip(tmp_path):
    found = table((Choice(), 1024), (RING, 4096), (TREE, 65536))
    assert Selection.load(found.save(tmp_path / "s.json")) == found


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("min_bytes", 1 << 40),
        ("ranks", 0),
        ("channels", "two"),
        ("slice_bytes", -1),
        ("colour", 1),
        ("points", [{"x": 1}]),
        ("points", [{"num_bytes": 4096, "measured_s": float("nan")}]),
        ("points", [{"num_bytes": 4096, "measured_s": "soon"}]),
        ("points", 7),
        ("ranks", True),
        ("ranks", 2.0),
        ("max_bytes", 1 << 80),
        ("collective", "all_reduced"),
        ("collective", []),
        ("algorithm", {}),
        ("algorithm", None),
        ("protocol", []),
        ("protocol", "simple"),
        ("dtype", "bool"),
        ("dtype", None),
    ],
)
def test_broken_documents_are_refused(change, value):
    document = table((RING, 4096)).to_json()
    document["rows"][0][change] = value
    with pytest.raises(PlanError):
        Selection.from_json(document)


@pytest.mark.parametrize(
    "damage",
    [
        {"facts": [{}]},
        {"facts": None},
        {"rows": None},
        {"rows": {}},
        {"rows": [None]},
        {"rows": [[]]},
        {"rows": [{"collective": "all_reduce"}]},
        {"rows": "rows"},
    ],
)
def test_damaged_tables_are_refused_with_their_file(damage, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(table((RING, 4096)).to_json() | damage), encoding="utf-8")
    with pytest.raises(PlanError, match=re.escape(f"selection {path}: ")):
        Selection.load(path)


def test_rows_of_dtypes_without_reductions_are_refused():
    with pytest.raises(PlanError, match="no dtype 'bool'"):
        Selection({}, (replace(table((RING, 4096)).rows[0], dtype="bool"),))


def test_overlapping_rows_are_refused():
    row = table((RING, 4096)).rows[0]
    with pytest.raises(PlanError, match="overlap"):
        Selection({}, (row, replace(row, min_bytes=row.max_bytes - 1, max_bytes=row.max_bytes + 1)))


def test_the_cache_is_keyed_by_library_and_hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path))
    first = save_selection(table((RING, 4096)), "MPICH 5", ["a", "b"])
    assert save_selection(table((TREE, 4096), ranks=2), "MPICH 5", ["a", "b"]) == first
    assert [row.ranks for row in recall_selection("MPICH 5", ["a", "b"]).value.rows] == [2, 4]
    assert recall_selection("MPICH 5", ["b", "a"]) == recall_selection("Open MPI 5", ["a", "b"]) == (None, "")
    first.write_text("{")
    assert "is not used" in recall_selection("MPICH 5", ["a", "b"]).why_not
    save_selection(table((RING, 4096)), "MPICH 5", ["a", "b"])
    assert [row.ranks for row in recall_selection("MPICH 5", ["a", "b"]).value.rows] == [4]


def test_a_file_of_the_users_own(tmp_path, monkeypatch):
    """The file is a plain table without the envelope of cached ones; a broken one causes one warning."""
    monkeypatch.setenv("DOVETAIL_SELECTION", str(tmp_path / "mine.json"))
    assert recall_selection("any", []) == (None, f"DOVETAIL_SELECTION names no file: {tmp_path / 'mine.json'}")
    assert save_selection(table((RING, 4096)), "any", []) == tmp_path / "mine.json"
    assert recall_selection("another", ["a"]).value == Selection.load(tmp_path / "mine.json")
    (tmp_path / "mine.json").write_text("{")
    assert f"DOVETAIL_SELECTION: selection {tmp_path / 'mine.json'}" in recall_selection("any", []).why_not
    monkeypatch.setenv("DOVETAIL_SELECTION", "/proc/mine.json")
    with pytest.warns(RuntimeWarning, match="cannot write"):
        assert save_selection(table((RING, 4096)), "any", []) is None


def test_a_folder_of_the_users_own(tmp_path, monkeypatch):
    """As `tune --out` leaves it: with `selection.json` in it."""
    monkeypatch.setenv("DOVETAIL_SELECTION", str(tmp_path))
    file = tmp_path / "selection.json"
    assert recall_selection("any", []) == (None, f"DOVETAIL_SELECTION names no file: {file}")
    assert save_selection(table((RING, 4096)), "any", []) == file
    assert recall_selection("another", ["a"]).value == Selection.load(file)


@pytest.mark.parametrize("document", [float("inf"), 3, "x", [1], None])
def test_what_is_no_document_is_refused(document):
    with pytest.raises(DovetailError, match="expected a document of schema"):
        Selection.from_json(document)


# Files of other tools


def test_nccl_rows_contain_only_what_nccl_supports():
    rows = [Row("all_reduce", 8, 1, low, low + 64, name) for low, name in ((0, "ring_all_reduce"), (64, "made_up"))]
    rows += [Row("all_to_all", 8, 1, 0, 64, "direct_all_to_all"), Row("all_gather", 8, 2, 0, 9, "ring_all_gather", 4)]
    lines = nccl_tuner_csv(Selection({}, tuple(rows))).splitlines()
    said = [line for line in lines if not line.startswith("#")]
    assert said == ["allgather,0,8,ring,simple,4,2,8,-1,-1", "allreduce,0,63,ring,simple,1,1,8,-1,-1"]
    assert len(lines) == 5
    assert all(len(line) < 256 for line in lines)  # the plugin's line buffer


def test_msccl_files_carry_the_sizes(tmp_path):
    found = table((Choice(), 1024), (Choice("ring_all_reduce"), 4096))
    for dialect, most in (("msccl", 4097), ("rccl", 4096)):
        paths, refused = write_msccl(found, tmp_path, lambda row: build(row.algorithm, row.ranks), dialect)
        assert not refused
        (text,) = [path.read_text() for path in paths]
        assert 'minBytes="4096"' in text
        assert f'maxBytes="{most}"' in text


def test_exported_instances_have_runs_of_chunks(tmp_path):
    """Our Programs use every second slot, which a step of a runtime cannot express."""
    halving = Choice("recursive_halving_doubling_all_reduce", instances=2)
    files, refused = write_for_others(table((halving, 4096), ranks=8), tmp_path)
    assert not refused
    assert [path.name for path in files[1:]] == ["recursive_halving_doubling_all_reduce-8-4096-4096.xml"]
    assert msccl.certify(msccl.read(files[1]), "msccl").ok


def test_rows_that_a_runtime_cannot_run_are_reported(tmp_path):
    def refusing(row):
        raise ProgramError("too many channels")

    assert write_msccl(table((RING, 4096)), tmp_path, refusing)[1] == [
        "No msccl file of ring_all_reduce, 2 channels: too many channels."
    ]


def test_a_selection_can_be_shown(capsys, tmp_path):
    path = table((Choice(), 1024), (RING, 4096), (RING, 16384)).save(tmp_path / "s.json")
    assert main(["show", str(path)]) == 0
    assert "ring_all_reduce, 2 channels  2.00 … 2.00" in capsys.readouterr().out
