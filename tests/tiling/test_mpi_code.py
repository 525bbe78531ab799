"""The standalone MPI program of a tiling: tiles, spaces, mappings and ranks, against plain loops in C."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import needs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tile_programs import built
from tilings import P1, P2, SEED, boxes, legal_tilings

from dovetail.core import OperatorError, PlanError
from dovetail.tiling.mpi_code import program
from dovetail.tiling.spaces import Space
from dovetail.tiling.tiling import Tiling

HEAT = Tiling(((1, 1, 1), (-1, 0, 1)), ((5, 5), (-5, 5)))
UNITS = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
CASES = {
    "box": (Tiling(SEED, P1), "30x20", 1),
    "oblique": (Tiling(SEED, P2), "30x20", 0),
    "triangle": (Tiling(SEED, P2), "{ [i, j] : 0 <= i < 40 and 0 <= j <= i }", 1),
    "parts": (Tiling(SEED, P1), "{ [i, j] : 0 <= i < 9 and 0 <= j < 9; [i, j] : 20 <= i < 31 and 3 <= j < 12 }", 1),
    "sheared": (HEAT, "60x100", 0),
    "triple nest": (Tiling(UNITS, ((4, 0, 0), (0, 4, 0), (0, 0, 64))), "16x16x300", 2),
    "turned": (Tiling(((0,), (0,), (1,)), ((0, 0, 1), (0, 1, 0), (1, 0, 1))), "3x1x2", 0),
    "one loop": (Tiling(((1, 2),), ((5,),)), "37", 0),
}


def num_wrong(mpi, ranks: int, path: Path) -> tuple[int, int]:
    """Points that differ from the plain loops, and all points."""
    command = [*mpi.mpiexec(ranks), str(path), "check"]
    done = subprocess.run(command, env=mpi.env, text=True, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong, points = re.search(r"(\d+) of (\d+) points differ", done.stdout).groups()
    return int(wrong), int(points)


@pytest.mark.mpi
@pytest.mark.parametrize("overlapped", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_equals_plain_loops(mpi, name, overlapped, tmp_path):
    tiling, space, mapped = CASES[name]
    path = built(mpi, program(tiling, Space.parse(space), mapped), tmp_path, f"-DOVERLAPPED={overlapped}")
    for ranks in (1, 2, 3):
        assert num_wrong(mpi, ranks, path) == (0, Space.parse(space).num_points)


@pytest.mark.mpi
@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tiles_equal_plain_loops(data, tmp_path):
    mpi = needs.mpi("mpich")
    tiling = data.draw(legal_tilings())
    space, mapped = data.draw(boxes(tiling.num_loops)), data.draw(st.integers(0, tiling.num_loops - 1))
    path = built(mpi, program(tiling, space, mapped), tmp_path, f"-DOVERLAPPED={data.draw(st.integers(0, 1))}")
    assert num_wrong(mpi, data.draw(st.integers(1, 4)), path) == (0, space.num_points)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (buffer && into_array) memcpy(cell(field, p), buffer + bytes, one);", ""),
        (
            "static const int64_t deps[NUM_DEPS][N] = {{3, 1}, {1, 2}}",
            "static const int64_t deps[NUM_DEPS][N] = {{0, 0}, {1, 2}}",
        ),
    ],
    ids=["not received", "another dependence"],
)
def test_planted_faults_are_seen(old, new, tmp_path):
    mpi, text = needs.mpi("mpich"), program(Tiling(SEED, P2), Space.parse("30x20"), 1)
    assert old in text
    assert num_wrong(mpi, 2, built(mpi, text.replace(old, new), tmp_path))[0] > 0


def test_header_says_what_the_tiles_are():
    text = program(Tiling(SEED, P2), Space.parse("30x20"), 1)
    for line in (
        "D         [3 1; 1 2] (columns are dependence vectors)",
        "P         [6 2; 2 4] (columns are the sides of a tile)",
        "H         [1/5 -1/10; -1/10 3/10]",
        "Pi        [1, 1], 8 steps; overlapping [2, 1], 13 steps",
        "to ranks  (1, 0) on: 10 values, of (3, 1), (4, 2), (4, 3), (5, 2)",
    ):
        assert line in text
    assert "/work" not in text


def test_what_cannot_be():
    with pytest.raises(PlanError, match="illegal"):
        program(Tiling(HEAT.deps, P1), Space.parse("9x9"))
    with pytest.raises(OperatorError, match="known sizes"):
        program(Tiling(SEED, P1), Space.parse("[N] -> { [i, j] : 0 <= i, j < N }"))
    with pytest.raises(OperatorError, match="no dimension 2"):
        program(Tiling(SEED, P1), Space.parse("9x9"), 2)
