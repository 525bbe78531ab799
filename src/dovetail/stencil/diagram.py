"""diagram: a picture of a stencil's iteration space around a boundary between two ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from dovetail.ir import Piece, Space
from dovetail.stencil.halo_depth import Key
from dovetail.stencil.stencil_program import Computed, pieces_of
from dovetail.stencil.storage import Decomposition
from dovetail.stencil.sweeps import Stencil, events

LEAST_ROWS, TILES, BLOCKS = 8, 4, 2  # rows (or, if more, tiles) shown on either side of the border; blocks of steps


def space_of(stencil: Stencil, how: Decomposition) -> Space:
    """Return the picture: rows of the first axis to the right; upwards steps, or sweeps if a step has several."""
    per_step = len(stencil.sweeps)
    steps = min(how.steps, max(BLOCKS * (how.sweeps // per_step), BLOCKS))
    ends = sorted({box[0][1] for box in how.owned})
    width = max(LEAST_ROWS, TILES * how.tile, how.sweeps + 2)
    middle = ends[0] if len(ends) > 1 else width
    low, high = max(middle - width, 0), min(middle + width, how.rows[0])
    short = replace(how, steps=steps, test=0, priced=False)
    number = {(e.sweep.name, e.version): place for place, e in enumerate(events(stencil, steps), 1)}
    pieces = [
        each for each in _pieces(pieces_of(stencil, short), number, how.tile > 0) if each.low < high and each.high > low
    ]
    seen = tuple(each._replace(low=max(each.low, low), high=min(each.high, high)) for each in pieces)
    return Space("rows", low, high, tuple(end for end in ends[:-1] if low < end < high), seen)


def _pieces(found: list[Computed], number: dict[Key, int], tiled: bool) -> Iterator[Piece]:
    """Yield the boxes computed by parts at the lower end of the other axes, split at the border of what each part owns.

    If the schedule has tiles, each tile is a turn; else each sweep is.
    """
    turns, steps = Counter[int](), Counter[int]()
    for part, event, box in found:
        if any(part.place[1:]):
            continue
        step = number[event.sweep.name, event.version]
        turns[part.rank] += not tiled or step <= steps[part.rank]
        steps[part.rank] = step
        (low, high), (first, last) = box[0], part.own[0]
        about = part.rank, turns[part.rank], step
        for begin, end, beyond in ((low, first, True), (max(low, first), min(high, last), False), (last, high, True)):
            if max(begin, low) < min(end, high):
                yield Piece(*about, max(begin, low), min(end, high), beyond)
