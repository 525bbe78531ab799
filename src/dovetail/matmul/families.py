"""families: tilings worth simulating, of products whose tiles are computed and communicated one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Schedule
from dovetail.ir.operator import Costs
from dovetail.matmul.optimum import optimal
from dovetail.matmul.tiles import ALIGN, Reading, Seconds, Tiling, mc2, serial, uniform
from dovetail.matmul.variations import MANY_PARTS, round_up

COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16)  # numbers of uniform tiles to try
POINTS = 33  # boundaries between tiles among which the search for the optimum chooses at a time
SAMPLES = 10  # sizes at which our own messages are simulated, to interpolate their times
MESSAGES = (64 << 10, 256 << 10, 1 << 20)  # bytes of a slice of one of our own messages
PARTS = (4, MANY_PARTS)  # numbers of parts that a message of any size is cut into
SLICES = 64  # most slices that a tile's messages are cut into
SLICED = 3  # numbers of tiles (the best, for each of our own ways) that are tried with sliced messages


@dataclass(frozen=True)
class Pipeline:
    """Tiles of `rows` rows, each computed, then communicated while the next is computed.

    `compute_s`, `comm_s`: seconds of a tile, by its rows; `k`, `n`: sizes of one rank's product; `floor`: least rows of
    a tile; `align`: tile lengths are multiples of it; `stretch`: factors by which compute and communication are slowed
    if they overlap.
    """

    rows: int
    k: int
    n: int
    compute_s: Seconds
    comm_s: Seconds
    floor: int
    align: int
    stretch: tuple[float, float] = (1.0, 1.0)

    def tilings(self, costs: Costs) -> Iterator[Tiling]:
        """Yield tilings: serial, uniform, MC² by both readings, and the optimum with and without contention."""
        most = costs.options["max_tiles"]
        yield serial(self.rows)
        for count in COUNTS:
            if count <= -(-self.rows // self.align) and (most is None or count <= most):
                yield uniform(self.rows, count, self.align)
        for rule in self.rules(costs.options["reading"]):
            if most is None or len(rule.tiles) <= most:
                yield rule
        for compute, comm in dict.fromkeys(((1.0, 1.0), self.stretch)):
            yield optimal(
                self.rows,
                self.compute_s,
                self.comm_s,
                align=self.align,
                floor=self.floor,
                max_count=most,
                compute_factor=compute,
                comm_factor=comm,
                max_points=POINTS,
            )

    def rules(self, reading: Reading) -> list[Tiling]:
        """Return MC²'s tiling by the requested reading, and by the other reading as a separate family if it differs."""
        readings: tuple[Reading, ...] = ("max", "min") if reading == "max" else ("min", "max")
        one, other = (mc2(self.rows, self.k, self.n, self.compute_s, self.comm_s, reading=each) for each in readings)
        return [one] if one.tiles == other.tiles else [one, other.renamed(f"mc2 ({readings[1]} reading)")]


def usual_align(m: int) -> int:
    """Return the usual multiple for tile lengths: 128 rows as in the seed, less if m is below 32 · 128.

    >>> usual_align(4096), usual_align(1000), usual_align(20)
    (128, 16, 1)
    """
    blocks = max(m // 32, 1)
    return int(min(ALIGN, 1 << (blocks.bit_length() - 1)))


def learned(alone_s: Callable[[int], float], least: int, most: int) -> Seconds:
    """Return seconds by rows, interpolated from simulations at a few sizes."""
    known = np.unique(np.geomspace(max(least, 1), max(most, least, 1), SAMPLES).round().astype(np.int64))
    seconds = np.array([alone_s(int(rows)) for rows in known])

    def curve(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.interp(rows, known.astype(np.float64), seconds)
        return found

    return curve


def scheduled(tiling: Tiling, by: str, rows_per_message: int | None = None) -> Schedule:
    """Return the schedule of a tiling whose tiles are communicated by the library or by our own messages."""
    made = Schedule.of(tiling.family, tiles=tiling.tiles, by=by, rows_per_message=rows_per_message)
    return Schedule(made.family, made.parameters, steps=tiling.steps, notes=tiling.notes)


def sliced(ranked: Sequence[Schedule], row_bytes: int, kinds: Sequence[str], messages: int = 1) -> Iterator[Schedule]:
    """Yield, for each of our own ways to communicate, its best tilings with sliced messages (`messages` per tile).

    The best tiling of each number of tiles counts.
    """
    for kind in kinds:
        best_of: dict[int, Schedule] = {}
        for each in ranked:
            if each["by"] == kind:
                best_of.setdefault(len(each.tiles), each)
        for best in list(best_of.values())[:SLICED]:
            longest = -(-max(best.tiles, default=0) // messages)
            lengths = [max(1, size // row_bytes) for size in MESSAGES] + [-(-longest // parts) for parts in PARTS]
            for rows in dict.fromkeys(map(round_up, lengths)):
                if rows < longest <= rows * SLICES:
                    yield best.with_parameters(rows_per_message=rows)
