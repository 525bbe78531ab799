"""names: the names of a pipeline's buffers and kernels, and the operands of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dovetail.ir import Region
from dovetail.ir.types import Mode
from dovetail.loops.analysis.sweeps import Sweep
from dovetail.loops.matrices import Vector
from dovetail.pipeline.decomposition import Cutting
from dovetail.pipeline.skews import Skew
from dovetail.pipeline.sweeps import Single
from dovetail.pipeline.tile_messages import spans


class Names:
    """Names of buffers and kernels. They contain the way of cutting, so that names of different cuts differ."""

    def __init__(self, cutting: Cutting, plain: bool = False) -> None:
        self.cutting, self.plain, self.way = cutting, plain, cutting.way

    def storage(self, array: str, part: int) -> str:
        """The buffer of a part's elements of an array during a run: its input or output, unless they have margins."""
        if self.cutting.is_padded(array, part):
            return self._of(f"{array}_{self.way}", part)
        return self.result(array, part) if array in self.cutting.pipelined.written else self.given(array, part)

    def given(self, array: str, part: int) -> str:
        return f"{array}_in_of{part}" if self.plain else array

    def result(self, array: str, part: int) -> str:
        return f"{array}_out_of{part}" if self.plain else f"{array}_out"

    def received(self, array: str, offset: Vector, part: int) -> str:
        """The buffer of faces received from the part at `offset`."""
        return self._of(f"{array}_from{face_name(offset)}_{self.way}", part)

    def goes(self, array: str, offset: Vector) -> str:
        """The buffer of faces to send to the part that sees this one at `offset`."""
        return f"{array}_to{face_name(offset)}_{self.way}"

    def picked(self, single: Single, number: int) -> str:
        return f"{single.name}_picked{number}_{self.way}"

    def got(self, single: Single, number: int) -> str:
        return f"{single.name}_got{number}_{self.way}"

    def _of(self, name: str, part: int) -> str:
        return f"{name}_of{part}" if self.plain else name

    # Kernels

    def tile(self, sweep: Sweep, part: int, skew: Skew | None = None) -> str:
        """The name of a tile's kernel; names of skewed tiles contain their rows' extents."""
        name = f"{sweep.name}_{self.way}_{part}"
        return name + skew_name(skew) if skew and any(self.cutting.skew(sweep)) else name

    def pack(self, array: str, offset: Vector, part: int) -> str:
        """The kernel that copies a face out of a part's slots, for the part that sees this one at `offset`."""
        return f"{array}_face{face_name(offset)}_{self.way}_{part}"

    def move(self, word: str, array: str, part: int) -> str:
        return f"{word}_{array}_{self.way}_{part}"

    def pick(self, single: Single, number: int) -> str:
        return f"{single.name}_pick{number}_{self.way}"

    def single(self, single: Single) -> str:
        return f"{single.name}_{self.way}"


def face_name(offset: Vector) -> str:
    """An offset as a suffix of names: m is minus, a is plus.

    >>> face_name((0, -1, 1)), face_name((0, -2))
    ('_0ma', '_0m2')
    """
    return "_" + "".join(
        "m0a"[1 + (step > 0) - (step < 0)] + (str(abs(step)) if abs(step) > 1 else "") for step in offset
    )


def skew_name(skew: Skew) -> str:
    """A Skew as a suffix of names; m is minus.

    >>> skew_name(Skew(5, -2, 3))
    '_5_m2_3'
    """
    return "_" + "_".join(f"{'m' * (each < 0)}{abs(each)}" for each in skew)


class Touched(NamedTuple):
    """Operands of a tile: regions of its part that it reads, faces (array, offset, region), regions that it writes."""

    own: list[Region]
    faces: list[tuple[str, Vector, Region]]
    writes: list[Region]


def tile_regions(names: Names, sweep: Sweep, part: int, first: int, skew: Skew) -> Touched:
    """The operands of a tile that begins at a position."""
    cutting, found = names.cutting, Touched([], [], [])
    for array in sweep.reads:
        low, high = cutting.span(sweep, array, (first, first + skew.length))
        found.own.append(Region(names.storage(array, part), low, high - low))
        if array in sweep.targets:
            found.writes.append(Region(names.storage(array, part), first, skew.length))
    for array, offset, (low, high) in spans(cutting, sweep, part, first, skew):
        found.faces.append((array, offset, Region(names.received(array, offset, part), low, high - low)))
    return found


def whole(count: int) -> Sequence[Mode]:
    """Modes of `count` operands of mode "all": every result depends on all of their slots."""
    mode: Mode = "all"
    return (mode,) * count
