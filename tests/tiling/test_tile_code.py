"""Generated C over tiles of any shape: it visits what the plain Python iteration visits, in the same order."""

import ctypes
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some
from tilings import P2, SEED, boxes, legal_tilings

from dovetail.core import OperatorError, PlanError
from dovetail.tiling.spaces import Space
from dovetail.tiling.tile_code import compiled, nest, source
from dovetail.tiling.tile_loops import tiles
from dovetail.tiling.tiling import Tiling

pytestmark = pytest.mark.needs("compiler")


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOVETAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def visited(text: str, num_loops: int, room: int, *sizes: int) -> list[tuple[int, ...]]:
    """The points in the order in which the C function visits them."""
    keep = " ".join(f"*at++ = p{k};" for k in range(num_loops))
    arguments = ", ".join(f"p{k}" for k in range(num_loops))
    head = "#include <stdint.h>\nstatic int64_t *at;\nint64_t *place(int64_t *to) { if (to) at = to; return at; }\n"
    macro = f"#define POINT({arguments}) do {{ {keep} }} while (0)\n"
    library = compiled(head + macro + text)
    library.place.restype = ctypes.c_void_p
    found = np.full((room + 1, num_loops), -(1 << 40), dtype=np.int64)
    library.place(ctypes.c_void_p(found.ctypes.data))
    library.tiled_nest(*map(ctypes.c_int64, sizes))
    count = (library.place(None) - found.ctypes.data) // (8 * num_loops)
    assert count <= room, "more points than there are"
    return [tuple(point) for point in found[:count].tolist()]


def by_reference(tiling: Tiling, space: Space) -> list[tuple[int, ...]]:
    return [tuple(point) for _, points in tiles(tiling, space) for point in points.tolist()]


@pytest.mark.slow
@settings(max_examples=some(25), deadline=None)
@given(legal_tilings(), st.data())
def test_c_visits_every_point_once_in_the_order_of_the_reference(tiling, data):
    space = data.draw(boxes(tiling.num_loops))
    assert visited(source(tiling, space), tiling.num_loops, space.num_points) == by_reference(tiling, space)


@settings(max_examples=12, deadline=None)
@given(legal_tilings(), st.data())
def test_c_takes_sizes_when_it_is_called(tiling, data):
    """One function serves any size, none too; the space may be cut obliquely."""
    n = tiling.num_loops
    names = [f"i{k}" for k in range(n)]
    skew = data.draw(st.integers(-1, 1)) if n > 1 else 0
    bounds = " and ".join(f"0 <= {name} < N" for name in names) + f" and {names[0]} + {skew}{names[-1]} < 5"
    space = Space.parse(f"[N] -> {{ [{', '.join(names)}] : {bounds} and i0 > -99 }}")
    text = source(tiling, space)
    for size in (-2, 0, 1, 4, 7):
        known = by_reference(tiling, space.with_sizes({"N": size})) if size > 0 else []
        assert visited(text, n, len(known), size) == known


@pytest.mark.parametrize("extents", ["1x2x3", "1x2x4"])
def test_a_space_one_tile_wide(extents):
    """Here isl's own generator of loops left two points out of the first, and stopped at the second."""
    tiling = Tiling(((2,), (0,), (0,)), ((2, 1, 2), (0, -2, 1), (0, -3, 2)))
    space = Space.parse(extents)
    assert visited(source(tiling, space), 3, space.num_points) == by_reference(tiling, space)


def test_triangles_and_unions():
    tiling = Tiling(SEED, P2)
    for text in ("{ [i, j] : 0 <= i <= j < 17 }", "{ [i, j] : 0 <= i < 9 and (0 <= j < 4 or 8 <= j < 12) }"):
        space = Space.parse(text)
        assert visited(source(tiling, space), 2, space.num_points) == by_reference(tiling, space)


def test_the_file_says_what_it_is():
    text = source(Tiling(SEED, P2), Space.parse("[N, M] -> { [i, j] : 0 <= i < N and 0 <= j < M }"), "sweep")
    assert "void sweep(int64_t N, int64_t M)" in text
    for line in ("D         [3 1; 1 2]", "P         [6 2; 2 4]", "H         [1/5 -1/10; -1/10 3/10]"):
        assert line in text
    assert "messages  10 points to (0, 1), 10 points to (1, 0)" in text
    assert '#error "define POINT(p0, p1) first"' in text
    assert "#define POINT(p0, p1) a[p0][p1] += 1" in source(
        Tiling(SEED, P2), Space.parse("4x4"), point="a[p0][p1] += 1"
    )


def test_unset_macro_stops_the_compiler():
    from dovetail.core import EnvironmentFault

    with pytest.raises(EnvironmentFault, match="could not compile a tiled nest"):
        compiled(source(Tiling(SEED, P2), Space.parse("4x4")))


def test_what_cannot_be_generated_is_refused():
    illegal = Tiling(((1, 1), (-1, 0)), ((4, 0), (0, 5)))
    with pytest.raises(PlanError, match="illegal"):
        nest(illegal, Space.parse("9x9"))
    with pytest.raises(OperatorError, match="cannot be called 'p1'"):
        nest(Tiling(SEED, P2), Space.parse("[p1] -> { [i, j] : 0 <= i < p1 and 0 <= j < p1 }"))
    with pytest.raises(OperatorError, match="no name of a C function"):
        source(Tiling(SEED, P2), Space.parse("4x4"), "two words")
    comment = Space.parse("{ [i, j] : 0 <= i < 4 and 0 <= j < 4 } ")
    assert len(re.findall(r"\*/", source(Tiling(SEED, P2), comment))) == 1
