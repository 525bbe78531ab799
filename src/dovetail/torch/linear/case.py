"""case: the shapes of one call of an operator, and the schedules that may carry it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from itertools import product
from typing import Any, NamedTuple

from dovetail.core import ProgramError
from dovetail.ir import Program, Schedule, verify
from dovetail.matmul.all_gather import AllGatherMatmul
from dovetail.matmul.all_gather_columns import AllGatherColumnsMatmul
from dovetail.matmul.all_reduce import MatmulAllReduce
from dovetail.matmul.families import usual_align
from dovetail.matmul.gather import even_tiles
from dovetail.matmul.optimum import optimal
from dovetail.matmul.reduce_scatter import MatmulReduceScatter
from dovetail.matmul.tiles import Seconds
from dovetail.torch.linear.kinds import COLUMNS, GATHER, GATHERS, REDUCE, SCATTER

TILES = (1, 2, 3, 4, 6, 8, 12, 16)  # numbers of equal tiles that are considered
EXCHANGED = TILES[:6]  # of those, where ranks exchange parts: products of other ranks' rows and of the own ones
ACROSS = "across"  # the parameter of schedules whose tiles cut columns


class Case(NamedTuple):
    """A call's shapes, on this rank.

    `kind`: the collective. `rows`: of this rank's input, all leading axes joined. `depths`: k of each product.
    `widths`: n of each product. `gathered`: whether the gathered input is a result. `later`: products of weight
    gradients, each of the shapes of one product, which may be computed while the last messages travel: of a gather,
    only the parts that need this rank's rows.
    """

    kind: str
    ranks: int
    rows: int
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    dtype: str
    op: str = "sum"
    gathered: bool = False
    later: bool = False

    @property
    def tiled_rows(self) -> int:
        """The rows that tiles cut: of a rank's part, where the collective moves parts."""
        return self.rows // self.ranks if self.kind == SCATTER else self.rows

    @property
    def title(self) -> str:
        """The shapes in words."""
        depths, widths = ("+".join(map(str, each)) for each in (self.depths, self.widths))
        more = " and weight gradients" if self.later else ""
        return f"{self.kind} of {self.rows} × {depths} by {widths} columns{more}, {self.dtype}, {self.ranks} ranks"

    @property
    def number(self) -> int:
        """A hash that is equal on ranks whose calls fit: each rank may have other columns, or other slices of k."""
        shared = self._replace(widths=()) if self.kind in GATHERS else self._replace(depths=())
        return int.from_bytes(sha256(repr(shared).encode()).digest()[:8], "little", signed=True)

    def schedules(self) -> Iterator[Schedule]:
        """Yield schedules with tiles of equal length: of the product, each overlapped with the collective of another.

        The first is serial: each collective is waited for at once. Reductions are also cut along the columns of their
        products: tiles of rows read the weight once each, tiles of columns the input.
        """
        serial = Schedule.of(
            "serial", tiles=(self.tiled_rows,), by="library", own_block="together", fused=self.kind != COLUMNS
        )
        yield replace(serial, blocking=True)
        if self.later and self.kind not in GATHERS:
            yield serial
        for count in TILES[0 if self.kind in GATHERS else 1 :]:
            if count <= self.tiled_rows:
                yield self.tiled("uniform", even_tiles(self.tiled_rows, count))
        for count in TILES[1:] if self.kind in (REDUCE, SCATTER) else ():
            if count <= self.widths[0]:
                yield self.tiled("uniform", even_tiles(self.widths[0], count), across=True)
        for across, count in product((False, True), EXCHANGED) if self.kind == SCATTER else ():
            length = self.widths[0] if across else self.tiled_rows
            if across < count <= length:
                yield self.tiled("uniform", even_tiles(length, count), across=across, by="messages")

    def tiled(self, family: str, tiles: Sequence[int], *, across: bool = False, by: str = "library") -> Schedule:
        """Return the schedule with these tiles, each multiplied while the collective of another is under way.

        `across`: tiles cut the columns of the products, not the rows. `by`: "messages", if ranks exchange the parts of
        a reduce-scatter themselves, and so multiply their own rows last.
        """
        own = "first" if self.kind in GATHERS else "last"
        more = {ACROSS: "columns"} if across else {}
        return Schedule.of(family, tiles=tuple(tiles), by=by, own_block=own, fused=False, **more)

    def best_tiled(
        self, product_s: Seconds, wire_s: Callable[[Any], Any], least: int, slowed: tuple[float, float], *, across: bool
    ) -> Schedule:
        """Return the schedule whose tiles, of any lengths from `least` on, are best by these costs.

        Parameters
        ----------
        product_s, wire_s : callable
            Seconds of one product of n rows, and of a collective of n rows of what a rank gives. `across`: of n
            columns, those of all ranks' parts counted.
        least : int
            Rows of the shortest product.
        slowed : tuple of float
            How many times as long a product and a collective take beside each other.
        across : bool
            Whether tiles cut columns.
        """
        length = self.widths[0] if across else self.tiled_rows
        each = len(self.widths) * (self.ranks - 1 if self.kind in GATHERS else 1)
        given = self.ranks if self.kind == SCATTER else 1
        compute: Seconds = lambda rows: each * product_s(rows * given)  # noqa: E731
        scale = self.rows / (length * given)
        comm: Seconds = lambda rows: wire_s(rows * given * scale)  # noqa: E731
        lanes = [(compute, slowed[0]), (comm, slowed[1])]
        (first, stretch), (second, other) = reversed(lanes) if self.kind in GATHERS else lanes
        about: Any = {"align": usual_align(length), "floor": -(-least // given), "max_count": TILES[-1]}
        found = optimal(length, first, second, compute_factor=stretch, comm_factor=other, **about)
        return self.tiled("optimal", found.tiles, across=across)

    def program(self, schedule: Schedule) -> Program:
        """Return the proved Program of a schedule. Raises ProgramError if the proof fails."""
        length = self.widths[0] if is_across(schedule) else self.tiled_rows
        return _proved(self.kind, self.ranks, length, len(self.widths), self.gathered, schedule)


def is_across(schedule: Schedule) -> bool:
    """Return whether the tiles of a schedule cut the columns of the products."""
    return schedule.get(ACROSS) is not None


def is_exchanged(schedule: Schedule) -> bool:
    """Return whether ranks send each other the parts of a reduce-scatter, and add them up themselves."""
    return bool(schedule["by"] == "messages")


@lru_cache(maxsize=512)
def _proved(kind: str, ranks: int, rows: int, several: int, gathered: bool, schedule: Schedule) -> Program:
    """The other axis and k are arbitrary here: no op of the Program depends on them. Tiles of columns are proved as
    tiles of rows: of the transposed product for an all-reduce; of as many rows for each rank for a reduce-scatter."""
    operator: Any = MatmulAllReduce(rows, ranks, 1)
    if kind == GATHER:
        operator = AllGatherMatmul(rows * ranks, 1, ranks, several=several, gathered=gathered)
    elif kind == COLUMNS:
        operator = AllGatherColumnsMatmul(rows, ranks, 1, several=several, gathered=gathered)
    elif kind == SCATTER:
        operator = MatmulReduceScatter(rows * ranks, ranks, 1)
    made: Program = operator.program(schedule, ranks)
    proof = verify(made)
    if not proof.ok:
        raise ProgramError(f"{operator.title}: the schedule {schedule} cannot be proved", found=str(proof))
    return made
