"""`dovetail tile`: what it prints, draws and writes, and its errors."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import needs
import pytest

from dovetail.cli import main
from dovetail.tiling.tile_code import compiled

SEED = ["--deps", "3,1;1,2"]
P2 = [*SEED, "--tile", "6,2;2,4"]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def _cache(own_cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def call(capsys):
    """Run `dovetail tile …` in this process; return exit code, stdout and stderr."""

    def _call(*words: object) -> tuple[int, str, str]:
        code = main(["tile", *map(str, words)])
        return code, *capsys.readouterr()

    return _call


def test_the_document_of_a_tile(document):
    found = document(*P2)
    assert found["schema"] == "dovetail.tile/1"
    assert (found["deps"], found["tile"]) == ([[3, 1], [1, 2]], [[6, 2], [2, 4]])
    assert (found["h"], found["hd"]) == ([[0.2, -0.1], [-0.1, 0.3]], [[0.5, 0.0], [0.0, 0.5]])
    assert (found["legal"], found["broken"], found["contains_dependences"]) == (True, [], True)
    assert (found["v_comp"], found["v_comm_formula"], found["v_comm_exact"]) == (20, 20, 20)
    assert found["tile_dependences"] == [[0, 1], [1, 0]]
    assert found["messages"] == [{"to": [0, 1], "values": 10, "pairs": 10}, {"to": [1, 0], "values": 10, "pairs": 10}]
    assert (found["space"], found["hyperplanes"], found["search"], found["notes"]) == (None, None, None, [])


def test_messages_list_the_points_of_each_neighbour(document):
    found = document(*SEED, "--tile", "4,0;0,5", "--map", 0, "--points")
    (only,) = found["messages"]
    assert (only["to"], only["values"], only["pairs"]) == ([0, 1], 8, 12)
    assert only["points"] == [[i, j] for i in range(4) for j in (3, 4)]
    assert [each["values"] for each in found["mapped"]] == [8, 15]
    assert "32 since it counts a pair at each face" in document(*SEED, "--tile", "4,0;0,5")["notes"][0]


@pytest.mark.slow
def test_the_best_tile_of_a_volume(document, call):
    found = document(*SEED, "--volume", 20)
    assert found["tile"] == [[6, 2], [2, 4]]
    assert found["search"] == {"by": "formula", "cost": 20, "bound": 20, "proved": True}
    assert "no tile of this volume has less" in call(*SEED, "--volume", 20)[1]
    assert "the least of the tiles tried; none can have less than 1415" in call(*SEED, "--volume", 99991)[1]
    assert "wide across it" in call(*SEED, "--volume", 20, "--map", 0)[1]
    assert document(*SEED, "--volume", 20, "--by", "values")["search"]["cost"] == 20


@pytest.mark.parametrize(
    ("space", "tile", "counts"),
    [
        ("16x16x16384", "4x4x444", (43, 49, 53)),
        ("16x16x32768", "4x4x538", (67, 73, 77)),
        ("32x32x4096", "8x8x164", (31, 37, 41)),
    ],
)
def test_hyperplanes_of_a_space(document, space, tile, counts):
    found = document("--deps", "1,0,0;0,1,0;0,0,1", "--tile", tile, "--space", space)
    planes = found["hyperplanes"]
    assert (planes["non_overlapping"], planes["overlapping"], planes["overlapping_from_1"]) == counts
    assert (planes["non_overlapping_pi"], planes["overlapping_pi"]) == ([1, 1, 1], [2, 2, 1])
    assert (found["space"]["mapped"], found["space"]["processors"]) == (2, 16)
    worse = document("--deps", "1,0,0;0,1,0;0,0,1", "--tile", tile, "--space", space, "--map", 0)["hyperplanes"]
    assert worse["overlapping"] > planes["overlapping"]


def test_text_output(call):
    code, out, err = call(*P2, "--space", "30x20", "--map", 1)
    assert (code, err) == (0, "")
    assert "dependences (3, 1), (1, 2)" in out
    assert "42 tiles (8 x 9), 20 whole and 22 cut by the bounds; 8 processors with the tiles along 1 on one." in out
    assert "overlapping      [2 1]          13              15" in out


def test_an_illegal_tile(call, document):
    code, out, err = call("--deps", "1,1,1;-1,0,1", "--tile", "4x5")
    assert (code, out) == (1, "")
    assert "the dependence (1, -1) goes backwards along its dimension 1" in err
    suggested = err.split('--tile "')[1].split('"')[0]
    assert document("--deps", "1,1,1;-1,0,1", "--tile", suggested)["legal"]
    found = document("--deps", "1,1,1;-1,0,1", "--tile", "4x5", "--space", "9x9", code=1)
    assert (found["legal"], found["broken"], found["v_comm_formula"], found["messages"]) == (
        False,
        [[1, -1]],
        None,
        None,
    )


@pytest.mark.parametrize(
    ("words", "what", "code"),
    [
        ([*SEED, "--tile", "1,2;2,4"], "this tile is flat", 2),
        ([*SEED, "--tile", "1.5,0;0,1"], "not a matrix of whole numbers", 2),
        ([*SEED, "--tile", "6,2"], "as many sides as there are loops", 2),
        ([*SEED, "--tile", "6,2,1;2,4"], "rows of --tile differ in length", 2),
        (["--deps", "0;0", "--tile", "4x4"], "does not point to a later iteration", 2),
        (["--deps", "", "--tile", "4x4"], "not a matrix of whole numbers", 2),
        (SEED, "name either a tile or a volume", 2),
        ([*P2, "--volume", "20"], "name either a tile or a volume", 2),
        ([*P2, "--map", "2"], "there is no dimension 2", 2),
        ([*P2, "--space", "4x4x4"], "differ in their number of loops", 2),
        ([*P2, "--space", "4xq"], "no iteration space", 2),
        ([*P2, "--space", "[N] -> { [i, j] : 0 <= i < N and 0 <= j < 4 }"], "known sizes", 2),
        ([*P2, "--plot", "tile.png"], "drawn as SVG", 2),
        (["--deps", "1,0,0;0,1,0;0,0,1", "--tile", "4x4x4", "--plot", "tile.svg"], "only tiles of two loops", 2),
        ([*P2, "--emit-c", "tile.c"], "loops need bounds", 2),
        ([*SEED, "--volume", "20", "--ranks", "4"], "need a space and a mapped dimension", 2),
        ([*SEED, "--volume", "20", "--by", "pair"], "did you mean 'pairs'", 2),
        ([*SEED, "--volume", "0"], "greater than or equal to 1", 2),
        ([*SEED, "--volume", "400", "--map", "0", "--space", "20x20", "--ranks", "999"], "no legal tile", 1),
    ],
)
def test_invalid_options_raise(call, words, what, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, out, err = call(*words)
    assert (found, out) == (code, "")
    assert what in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir()), "a command that fails writes nothing"


def test_the_picture(call, document, tmp_path):
    path = tmp_path / "tile.svg"
    code, out, _ = call(*P2, "--space", "30x20", "--plot", path)
    assert code == 0
    assert out.endswith(f"{path}\n")
    root = ET.parse(path).getroot()
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"tile (1, 0)", "tile (0, 1)", "(3, 1)", "(1, 2)"} <= set(texts)
    assert any(text.startswith("Π = [1 1], 8 steps") for text in texts)
    dots = [element for element in root.iter(f"{SVG}circle") if element.get("class") == "g0 flat"]
    rings = [element for element in root.iter(f"{SVG}circle") if element.get("style") == "fill:none"]
    assert (len(dots), len(rings)) == (20, 20)
    planes = [element for element in root.iter(f"{SVG}line") if element.get("class") == "plane"]
    counts = document(*P2, "--space", "30x20")["hyperplanes"]
    assert len(planes) == counts["non_overlapping"] + counts["overlapping"]
    assert {*range(counts["overlapping"])} <= {int(text) for text in texts if text.isdigit()}


def test_the_picture_of_the_docs_is_current(call, tmp_path):
    path = tmp_path / "tile.svg"
    call(*P2, "--space", "30x20", "--map", 1, "--plot", path)
    assert path.read_text() == (needs.ROOT / "docs/tile.svg").read_text(), "the command is in docs/loops.md"


@pytest.mark.parametrize(
    "words",
    [
        ["--tile", "400,20;20,400"],
        ["--tile", "6,2;2,4", "--map", "0"],
        ["--tile", "6,2;2,4", "--space", "{ [i, j] : 0 <= i <= j < 40 }"],
        ["--tile", "6,2;2,4", "--space", "400x300"],
    ],
    ids=["large", "mapped", "triangle", "many tiles"],
)
def test_pictures_of_other_tiles(call, words, tmp_path):
    path = tmp_path / "tile.svg"
    assert call(*SEED, *words, "--plot", path)[0] == 0
    root = ET.parse(path).getroot()
    width, height = float(root.get("width")), float(root.get("height"))
    assert len(path.read_text()) < 300_000
    for element in root.iter(f"{SVG}polygon"):
        for corner in element.get("points").split():
            x, y = map(float, corner.split(","))
            assert -1 <= x <= width + 1
            assert -1 <= y <= height + 1


@pytest.mark.needs("compiler")
def test_the_c_file_compiles(call, tmp_path):
    path: Path = tmp_path / "nest.c"
    space = "[N] -> { [i, j] : 0 <= i < N and 0 <= j < N }"
    assert call(*P2, "--space", space, "--emit-c", path)[0] == 0
    library = compiled(
        "static long seen;\n#define POINT(p0, p1) seen++\n" + path.read_text() + "long count(void) { return seen; }"
    )
    library.tiled_nest(50)
    assert library.count() == 2500
