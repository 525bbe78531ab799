"""nest_code: the space, data and statements of a nest, in the C of a standalone MPI program of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from dovetail.core import OperatorError
from dovetail.loops.analysis.checks import check_bounds
from dovetail.loops.matrices import Matrix, Vector
from dovetail.loops.recording import Recording
from dovetail.loops.taken import check_untaken
from dovetail.loops.types import check_types
from dovetail.tiling.closed_code import closed_of, closing_text
from dovetail.tiling.nest_analysis import Analysis, Field
from dovetail.tiling.nest_text import NestText
from dovetail.tiling.spaces import Space

MUCH = 1 << 30  # bytes; programs that need more get a note


@dataclass(frozen=True)
class NestCode:
    """The parts of a nest's C. `space`: the points that are computed; `folded`: by loop, the length of a folded axis or
    0; `macros` of the data and statements; `plain`: the original loops; `notes` for the reader. `sweeps`: how many
    times the program runs the space; between two: `fetch` broadcasts values, then `close` computes with them."""

    space: Space
    fields: tuple[Field, ...]
    folded: Vector
    macros: str
    plain: str
    notes: tuple[str, ...] = ()
    sweeps: int = 1
    fetch: str = ""
    close: str = ""

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """All distances between different points, each once."""
        return tuple(sorted({each for field in self.fields for each in field.vectors if any(each)}))

    @property
    def deps(self) -> Matrix:
        """D: one column for each of `vectors`."""
        return tuple(zip(*self.vectors, strict=True))

    @property
    def num_bytes(self) -> int:
        """The bytes that a rank stores."""
        sizes = ((field.dtype, (high - low + 1 for low, high in field.ranges)) for field in self.fields)
        return sum(np.dtype(dtype).itemsize * prod(lengths) for dtype, lengths in sizes)

    @property
    def num_points(self) -> int:
        """How many values are computed."""
        return sum(field.domain.num_points for field in self.fields)


def sizes_of(operator: Any) -> dict[str, int]:
    """Return the sizes of an operator's nest, and its steps."""
    return {**operator.sizes, "steps": operator.steps}


def nest_code(nest: Recording, sizes: Mapping[str, int], dtype: str = "float64") -> NestCode:
    """Return the C of a nest. All statements must be in the same number of loops. `dtype`: of arrays without their own.

    Raises OperatorError for other nests, and for those without dependences.
    """
    check_untaken(nest)
    check_types(nest, {name: array.dtype or dtype for name, array in nest.arrays.items()})
    check_bounds(nest, sizes)
    closed = closed_of(nest)
    found = Analysis(closed.sweep if closed else nest, sizes)
    text = NestText(found, dtype)
    fields = tuple(found.field(number, text) for number in range(len(found.nest.statements)))
    made = NestCode(found.space(), fields, found.folded, text.macros(), text.plain(), tuple(found.notes()))
    if closed:
        fetch, close, plain = closing_text(closed, found, dtype)
        count, after = closed.num_sweeps(sizes), "; ".join(map(str, closed.closing))
        note = f"{count} sweeps, one after the other; after each, every rank computes {after}"
        made = replace(made, plain=plain, notes=(*made.notes, note), sweeps=count, fetch=fetch, close=close)
    if not made.vectors:
        raise OperatorError(f"{nest.name} has no dependences", hint="its points can be computed in any order")
    if made.num_bytes < MUCH:
        return made
    note = f"a rank of the C program needs {made.num_bytes / 2**30:.3g} GiB: it stores every value of every step"
    return replace(made, notes=(*made.notes, note))
