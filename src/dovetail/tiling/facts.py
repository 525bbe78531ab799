"""facts: the facts of one tiling: its matrices, its communication, the tiles of a space, and their time steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.core import PlanError
from dovetail.tiling.hyperplanes import (
    LinearSchedule,
    best_mapping,
    check_dimension,
    non_overlapping,
    num_processors,
    overlapping,
)
from dovetail.tiling.spaces import Space, TileSet, check_loops, tiles_of
from dovetail.tiling.tile_points import Message, Traffic, messages, tile_dependences, traffic
from dovetail.tiling.tiling import Tiling

SCHEMA = "dovetail.tile/1"


@dataclass(frozen=True)
class Counts:
    """What leaves a tile, counted exactly. `all`: to all neighbours; `mapped[k]`: with dimension k on one processor."""

    dependences: tuple[tuple[int, ...], ...]
    all: Traffic
    mapped: tuple[Traffic, ...]
    messages: tuple[Message, ...]

    @property
    def counted_again(self) -> int:
        """How many pairs the formula counts too often: a pair that leaves by a corner counts at each of its faces."""
        return sum(message.num_pairs * (sum(message.to) - 1) for message in self.messages)


@dataclass(frozen=True)
class Bounded:
    """The tiles of a space and their two schedules. Tiles along dimension `mapped` are on one processor."""

    space: Space
    tiles: TileSet
    mapped: int
    processors: int
    non_overlapping: LinearSchedule
    overlapping: LinearSchedule


@dataclass(frozen=True)
class TileFacts:
    """One tiling, its counts (None: illegal, or too large to be counted) and its space (None: unbounded)."""

    tiling: Tiling
    counts: Counts | None
    bounded: Bounded | None
    mapped: int | None = None
    notes: tuple[str, ...] = ()

    def to_json(self, points: bool = False) -> dict[str, Any]:
        """Return the document `dovetail.tile/1`. With `points`, a message lists its points as offsets in the tile."""
        tiling, counts = self.tiling, self.counts
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "deps": tiling.deps,
            "tile": tiling.sides,
            "h": [[float(entry) for entry in row] for row in tiling.h],
            "hd": [[float(entry) for entry in row] for row in tiling.hd],
            "normals": tiling.normals,
            "legal": tiling.is_legal,
            "broken": tiling.broken(),
            "contains_dependences": tiling.contains_dependences,
            "v_comp": tiling.volume,
            "v_comm_formula": tiling.formula() if tiling.is_legal else None,
            "v_comm_exact": counts.all.pairs if counts else None,
            "values": counts.all.values if counts else None,
            "tile_dependences": counts.dependences if counts else None,
            "messages": [_message(each, points) for each in counts.messages] if counts else None,
            "mapped": [_mapped(tiling, k, each) for k, each in enumerate(counts.mapped)] if counts else None,
            "space": _space(self.bounded) if self.bounded else None,
            "hyperplanes": _hyperplanes(self.bounded) if self.bounded else None,
        }
        return document | {"notes": self.notes}


def tile_facts(tiling: Tiling, space: Space | None = None, mapped: int | None = None) -> TileFacts:
    """Return all facts of a tiling. Messages go to processors if a dimension is mapped, else to tiles.

    In a space, the default of `mapped` is the dimension with the fewest time steps. An illegal tile has its matrices
    only.

    >>> facts = tile_facts(Tiling(((3, 1), (1, 2)), ((4, 0), (0, 5))))
    >>> facts.counts.all.pairs, facts.notes[0]
    (27, 'V_comm by the formula is 32 since it counts a pair at each face that it crosses; 27 pairs leave.')
    """
    if mapped is not None:
        check_dimension(mapped, tiling.num_loops)
    if space is not None:
        check_loops(tiling, space)
        space.need_sizes()
    if not tiling.is_legal:
        return TileFacts(tiling, None, None, mapped)
    try:
        counts, notes = _counts(tiling, mapped), []
    except PlanError as error:
        counts, notes = None, [f"{error.what}: {error.found}."]
    if counts is not None and counts.counted_again and mapped is None:
        notes.append(
            f"V_comm by the formula is {tiling.formula()} since it counts a pair at each face that it crosses; "
            f"{counts.all.pairs} pairs leave."
        )
    if not tiling.contains_dependences:
        notes.append("A dependence is longer than the tile: it reaches beyond the next tile.")
    bounded = None if space is None else _bounded(tiling, space, mapped)
    return TileFacts(tiling, counts, bounded, mapped, tuple(notes))


def _counts(tiling: Tiling, mapped: int | None) -> Counts:
    each = tuple(traffic(tiling, k) for k in range(tiling.num_loops))
    return Counts(tile_dependences(tiling), traffic(tiling), each, tuple(messages(tiling, mapped)))


def _bounded(tiling: Tiling, space: Space, mapped: int | None) -> Bounded:
    chosen = best_mapping(tiling, space) if mapped is None else mapped
    return Bounded(
        space,
        tiles_of(tiling, space),
        chosen,
        num_processors(tiling, space, chosen),
        non_overlapping(tiling, space),
        overlapping(tiling, space, chosen),
    )


def _message(message: Message, points: bool) -> dict[str, Any]:
    counted = {"to": message.to, "values": len(message.points), "pairs": message.num_pairs}
    return counted | ({"points": message.points.tolist()} if points else {})


def _mapped(tiling: Tiling, dim: int, counted: Traffic) -> dict[str, Any]:
    return {"dim": dim, "v_comm_formula": tiling.formula(dim), "v_comm_exact": counted.pairs, "values": counted.values}


def _space(bounded: Bounded) -> dict[str, Any]:
    return {
        "set": bounded.space.text,
        "points": bounded.space.num_points,
        "tiles": bounded.tiles.num_tiles,
        "whole": bounded.tiles.num_whole,
        "cut": bounded.tiles.num_cut,
        "extents": bounded.tiles.extents,
        "mapped": bounded.mapped,
        "processors": bounded.processors,
    }


def _hyperplanes(bounded: Bounded) -> dict[str, Any]:
    two = {"non_overlapping": bounded.non_overlapping, "overlapping": bounded.overlapping}
    found: dict[str, Any] = {name: schedule.steps for name, schedule in two.items()}
    found |= {f"{name}_from_1": schedule.steps_from_1 for name, schedule in two.items()}
    return found | {f"{name}_pi": schedule.pi for name, schedule in two.items()}
