"""hyperplanes: linear schedules of tiles: the time steps of Π = [1 … 1] and of the Π that overlaps messages with tiles.

Source: seed 003, "Linear Schedule" to "Mapping along the non-maximal dimension"; the overlapping Π is the optimum for
grids of unit execution and unit communication time (Andronikos et al., IPPS 1997).
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core import OperatorError
from dovetail.loops.matrices import Vector, dot
from dovetail.tiling.spaces import Space, tile_set
from dovetail.tiling.tiling import Tiling


@dataclass(frozen=True)
class LinearSchedule:
    """Tile t is executed in time step Π·t. `steps`: how many there are from the first to the last.

    `steps_from_1` is the count of seed 003: the number Π·t of the last step if tile coordinates begin at 1.
    """

    pi: Vector
    steps: int

    @property
    def steps_from_1(self) -> int:
        return self.steps - 1 + sum(self.pi)


def non_overlapping(tiling: Tiling, space: Space) -> LinearSchedule:
    """Π = [1 … 1]: each step receives, computes and sends.

    >>> tiling = Tiling(((1, 0, 0), (0, 1, 0), (0, 0, 1)), ((4, 0, 0), (0, 4, 0), (0, 0, 444)))
    >>> non_overlapping(tiling, Space.parse("16x16x16384"))
    LinearSchedule(pi=(1, 1, 1), steps=43)
    """
    return _counted((1,) * tiling.num_loops, tiling, space)


def overlapping(tiling: Tiling, space: Space, mapped: int) -> LinearSchedule:
    """Π with 1 along the dimension that is mapped to one processor and 2 elsewhere: each step computes a tile
    while it sends the results of the previous one and receives the operands of the next one.

    >>> tiling = Tiling(((1, 0, 0), (0, 1, 0), (0, 0, 1)), ((4, 0, 0), (0, 4, 0), (0, 0, 444)))
    >>> found = overlapping(tiling, Space.parse("16x16x16384"), mapped=2)
    >>> found, found.steps_from_1
    (LinearSchedule(pi=(2, 2, 1), steps=49), 53)
    """
    check_dimension(mapped, tiling.num_loops)
    return _counted(tuple(1 if k == mapped else 2 for k in range(tiling.num_loops)), tiling, space)


def best_mapping(tiling: Tiling, space: Space) -> int:
    """Return the dimension to map for the fewest steps of the overlapping schedule: in a box, that with most tiles."""
    return min(range(tiling.num_loops), key=lambda k: overlapping(tiling, space, k).steps)


def num_processors(tiling: Tiling, space: Space, mapped: int) -> int:
    """Return the number of chains of tiles along the mapped dimension. Each chain has one processor."""
    import islpy as isl

    space.need_sizes()
    chains = tile_set(tiling, space).project_out(isl.dim_type.set, mapped, 1)
    return int(chains.count_val().to_python())


def step_of(pi: Vector, tile: Vector) -> int:
    """Return the time step of a tile, counted from that of tile 0."""
    return dot(pi, tile)


def check_dimension(mapped: int, num_loops: int) -> None:
    """Raise OperatorError if there is no such dimension."""
    if not 0 <= mapped < num_loops:
        raise OperatorError(
            f"there is no dimension {mapped} to map", found=f"{num_loops} dimensions", hint=f"0 to {num_loops - 1}"
        )


def _counted(pi: Vector, tiling: Tiling, space: Space) -> LinearSchedule:
    """The steps from the first tile that has a point in the space to the last."""
    import islpy as isl

    tiling.check_legal()
    space.need_sizes()
    tiles = tile_set(tiling, space)
    step = isl.Aff.zero_on_domain_space(tiles.get_space())
    for k, factor in enumerate(pi):
        step = step.set_coefficient_val(isl.dim_type.in_, k, factor)
    return LinearSchedule(pi, int(tiles.max_val(step).to_python()) - int(tiles.min_val(step).to_python()) + 1)
