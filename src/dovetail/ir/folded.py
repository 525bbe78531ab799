"""folded: a Program whose ranks do the same, up to a renumbering of ranks and slots, stored as the ops of rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir.op_lists import name_op
from dovetail.ir.posts import Posts
from dovetail.ir.program import Program, check_columns
from dovetail.ir.standard import standard_posts
from dovetail.ir.symmetry import Shape, Symmetry
from dovetail.ir.types import COLUMNS, Buffer, Channel, Kind, Post, Region

Columns = dict[str, NDArray[Any]]
_MOVED = (*range(Kind.copy, Kind.put), Kind.nop)  # kinds of ops that touch the memory of their own rank only


class Requirement(NamedTuple):
    """What a folded program must compute: a standard collective whose parts have `slots` slots."""

    collective: str
    slots: int


@dataclass(frozen=True, eq=False)
class Folded:
    """A Program given by the ops of rank 0 and a Symmetry: the ops of rank g are their images under element g.

    Attributes
    ----------
    symmetry : Symmetry
        The renumberings: one for each rank.
    one : Program
        The ops of rank 0, with one rank only: its channel c stands for the channel from rank 0 to rank `offsets[c]`,
        where a receive on it stands for one from the rank that has rank 0 there.
    offsets, ids : tuple of int
        For each channel of `one`: the rank that rank 0 sends to, and the channel's id.
    requirement : Requirement
        The collective that it must compute.

    Raises
    ------
    ProgramError
        If an op has no image on other ranks, or tables do not fit together.
    """

    symmetry: Symmetry
    one: Program
    offsets: tuple[int, ...]
    ids: tuple[int, ...]
    requirement: Requirement

    def __post_init__(self) -> None:
        check_columns(self.one)
        _check_tables(self)
        _check_ops(self)

    def __repr__(self) -> str:
        return f"<Folded '{self.name}': {self.num_ranks} ranks, {self.one.num_ops} ops each>"

    @property
    def name(self) -> str:
        return self.one.name

    @property
    def num_ranks(self) -> int:
        return self.symmetry.num_ranks

    def shape(self, region: Region) -> Shape:
        """Return the Shape of a region of an op; the constructor has checked that it has one."""
        found = self.symmetry.shape(region)
        assert found is not None, region
        return found

    def expand(self) -> Program:
        """Return the Program of all ranks, with the collective's post-conditions."""
        return self.quotient(self.num_ranks)

    def quotient(self, period: int) -> Program:
        """Return the Program of ranks 0 to period - 1, in which rank r stands for all ranks r + k * period.

        A message to rank d goes to rank d mod `period`, possibly the sender itself: only the simulator takes such a
        program. Row r * ops + i is op i of rank r; row c * period + r of the channels is channel c of rank r.

        Raises
        ------
        ProgramError
            If the ranks that differ by multiples of `period` are not those that some subgroup maps to each other.
        """
        self._check_period(period)
        one, ranks = self.one, np.arange(period)
        whole = period == self.num_ranks
        columns = _repeated(one.columns, ranks)
        columns |= self._channel_columns(ranks) | self._offset_columns(ranks)
        there = self._peers(ranks).tolist()
        channels = tuple(
            Channel(rank, there[c][rank] % period, self.ids[c] if whole else c, one.channels[c].depth)
            for c in range(len(self.offsets))
            for rank in range(period)
        )
        buffers = tuple(Buffer(b.name, b.role, b.slots * period) for b in one.buffers)
        posts: Sequence[Post] = self.posts() if whole else ()
        made = Program(one.name, period, buffers, one.lanes, channels, (), (), posts, one.lines, columns)
        return made.with_columns(columns)

    def posts(self) -> Posts:
        """Return the post-conditions of all ranks."""
        kind, count = self.requirement
        names: dict[str, str] = {buffer.role: buffer.name for buffer in self.one.buffers}
        source, target = names["input"], names.get("output", names["input"])
        in_place = self.one.in_place
        return standard_posts(kind, self.num_ranks, count, in_place=in_place, source=source, target=target)

    def _peers(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for each channel and rank, the rank that it sends to there."""
        offsets = np.array(self.offsets, np.int64).reshape(-1, 1)
        return self.symmetry.plus(ranks[None, :], offsets) if len(offsets) else np.zeros((0, len(ranks)), np.int64)

    def _channel_columns(self, ranks: NDArray[np.int64]) -> Columns:
        """Return the columns of channels: those of `one`, as rows of the channels of a quotient."""
        period, col = len(ranks), self.one.columns
        out, into = (col[f"chan_{way}"].astype(np.int64)[None, :] for way in ("out", "in"))
        offsets = np.array([*self.offsets, 0], np.int64)  # row -1: no channel
        sources = self.symmetry.plus(ranks[:, None], offsets[into], -1) % period
        return {
            "chan_out": np.where(out < 0, -1, out * period + ranks[:, None]).ravel(),
            "chan_in": np.where(into < 0, -1, into * period + sources).ravel(),
        }

    def _offset_columns(self, ranks: NDArray[np.int64]) -> Columns:
        return {f"{side}_offset": self.image_offsets(side, ranks).ravel() for side in ("read", "write")}

    def image_offsets(self, side: str, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first slot of the image of each region of `one` (columns) on each rank (rows).

        `side`: "read" or "write".
        """
        col = self.one.columns
        regions = list(zip(*(col[f"{side}_{part}"].tolist() for part in _PARTS), strict=True))
        found = np.empty((len(ranks), len(regions)), np.int64)
        groups: dict[tuple[int, tuple[bool, ...]], list[int]] = {}
        for number, (buffer, *rest) in enumerate(regions):
            shape = self.shape(Region(self.one.buffers[buffer].name, *rest))
            groups.setdefault((buffer, shape.single), []).append(number)
        for (buffer, single), rows in groups.items():
            name, starts = self.one.buffers[buffer].name, col[f"{side}_offset"][rows]
            found[:, rows] = self.symmetry.image(name, starts[None, :], ranks[:, None], single)
        return found

    def _check_period(self, period: int) -> None:
        """The elements whose rank is a multiple of `period` form a subgroup, whose orbits are the residues, if `period`
        is a divisor of one axis times all axes after it."""
        sizes = [prod(self.symmetry.axes[place:]) for place in range(len(self.symmetry.axes) + 1)]
        for whole, inner in pairwise(sizes):
            if inner <= period <= whole and whole % period == period % inner == 0:
                return
        hint = f"a divisor of an axis of {self.symmetry.axes} times all axes after it"
        raise ProgramError(f"the ranks of '{self.name}' do not repeat after {period}", hint=hint)


_PARTS = ("buffer", "offset", "count", "stride", "blocks")


def _repeated(col: Columns, ranks: NDArray[np.int64]) -> Columns:
    """Return the columns of `one` once for each rank, with deps and starts as rows of the whole."""
    times, ops = len(ranks), len(col["kind"])
    found = {name: np.tile(col[name], times) for name in COLUMNS}
    found["rank"] = np.repeat(ranks, ops)
    found["dep"] = (ranks[:, None] * ops + col["dep"][None, :]).ravel()
    for side in ("read", "write", "dep"):
        start = col[f"{side}_start"]
        found[f"{side}_start"] = np.append((ranks[:, None] * start[-1] + start[None, :-1]).ravel(), times * start[-1])
    return found


def _check_tables(folded: Folded) -> None:
    """Raise ProgramError unless channels, buffers and layouts fit together."""
    one, symmetry = folded.one, folded.symmetry
    where = f"folded program '{folded.name}'"
    keys = list(zip(folded.offsets, folded.ids, strict=True))
    if one.num_ranks != 1 or len(keys) != len(one.channels) or len(set(keys)) != len(keys):
        raise ProgramError(f"{where}: it needs one rank, and a rank and an id for each channel, without repetition")
    for offset in folded.offsets:
        if not 0 < offset < folded.num_ranks:
            found = f"rank 0 sends to rank {offset} of {folded.num_ranks}"
            raise ProgramError(f"{where}: a channel must lead to another rank", found=found)
    for buffer in one.buffers:
        if buffer.name not in symmetry.layouts or symmetry.slots(buffer.name) != buffer.slots[0]:
            found = f"{buffer.slots[0]} slots, layout {symmetry.layouts.get(buffer.name)}"
            raise ProgramError(f"{where}: the layout of buffer '{buffer.name}' does not fit it", found=found)


def _check_ops(folded: Folded) -> None:
    """Raise ProgramError for an op without an image on every rank.

    Its regions must have a Shape. Those that it pairs slot by slot must vary in the same digits, so that a renumbering
    permutes both alike; the two ends of a message are compared by the proof.
    """
    for op in folded.one.ops():
        name = name_op(folded.one, op.index)
        if op.kind not in _MOVED:
            what = f"{name}: an op that touches other ranks or calls something cannot be folded"
            raise ProgramError(what, where=op.line, hint="expand the program")
        shapes = [folded.symmetry.shape(region) for region in (*op.reads, *op.writes)]
        if None in shapes or len({shape.varying for shape in shapes if shape}) > 1:
            found = " and ".join(map(str, (*op.reads, *op.writes)))
            raise ProgramError(f"{name}: its slots have no image on other ranks", where=op.line, found=found)
