"""closed_code: standalone C programs for nests whose steps are a sweep followed by single elements.

The program runs sweep after sweep. Between two sweeps every rank computes the single elements redundantly, from values
that their owners broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dovetail.loops.affine import Affine
from dovetail.loops.analysis.dependences import flows
from dovetail.loops.analysis.sweeps import axes_of
from dovetail.loops.expressions import Read
from dovetail.loops.levels import levels_of
from dovetail.loops.matrices import Vector
from dovetail.loops.recording import Code, Loop, Recording, Statement
from dovetail.tiling.nest_analysis import Analysis
from dovetail.tiling.nest_text import NestText


@dataclass(frozen=True)
class Closed:
    """A nest of sweeps. `steps`: the loop over them; `sweep`: the nest of one; `closing`: the statements after it."""

    steps: Loop
    sweep: Recording
    closing: tuple[Statement, ...]

    def num_sweeps(self, sizes: Mapping[str, int]) -> int:
        return max(0, self.steps.high.at(sizes) - self.steps.low.at(sizes))


def closed_of(nest: Recording) -> Closed | None:
    """Return a nest as Closed. None unless a step passes on only elements that are written after its sweep."""
    if levels_of(nest) or len(nest.body) != 1 or not isinstance(steps := nest.body[0], Loop):
        return None
    swept, *rest = steps.body
    closing = tuple(each for each in rest if isinstance(each, Statement))
    statement = nest.statements[0]
    if not closing or len(closing) < len(rest) or len(nest.statements) != 1 + len(closing):
        return None
    if not isinstance(swept, Loop) or _uses(steps.index, statement) or not all(map(_is_single, closing)):
        return None
    if any(each.target.array != statement.target.array for each in closing):
        return None
    if any(each.distance[0] for each in flows(nest) if each.source is each.sink is statement):
        return None
    return Closed(steps, _one_sweep(nest, statement), closing)


def _uses(index: str, statement: Statement) -> bool:
    """Whether loop bounds or subscripts of a statement depend on an index."""
    ends = [end for loop in statement.loops[1:] for end in (loop.low, loop.high)]
    places = [at for each in (*statement.reads, statement.target) for at in each.at]
    return any(index in each.names for each in (*ends, *places))


def _is_single(statement: Statement) -> bool:
    """Whether a statement accesses the same elements after every sweep."""
    return not _uses(statement.loops[0].index, statement)


def _one_sweep(nest: Recording, statement: Statement) -> Recording:
    loops = [replace(loop, body=[]) for loop in statement.loops[1:]]
    own = replace(statement, loops=tuple(loops))
    inside: list[Loop | Statement] = [*loops[1:], own]
    for outer, inner in zip(loops, inside, strict=True):
        outer.body.append(inner)
    code = Code(nest.arrays, [*nest.code.symbols])
    code.body, code.statements = [loops[0]], [own]
    return replace(nest, code=code)


class ClosingText(NestText):
    """Writes the C of the statements after a sweep. Their elements lie in the array of the sweep's values."""

    def __init__(self, found: Analysis, dtype: str) -> None:
        super().__init__(found, dtype)
        self.fetched = dict[Vector, None]()
        self.held = found.field(0, self).ranges

    def line(self, statement: Statement) -> str:
        value = self.expression(statement.value, self.dtypes[statement.target.array])
        return f"    V0({_words(self._at(statement.target))}) = {value};"

    def element(self, read: Read) -> str:
        if read.array != self.statement.target.array:
            return self._given(read)
        at = self._at(read)
        self.fetched[at] = None  # a dict: each once, in order
        return f"V0({_words(at)})"

    def _at(self, read: Read) -> Vector:
        """The iteration of the sweep that writes an element, or that would if the space were larger."""
        loops, target = self.statement.loops, self.statement.target
        axes = axes_of(self.nest, target, loops)
        if not axes:
            raise self.found.refused(str(target), "one index for each loop", self.statement)
        ends = [(axes[loop.index], target.at[axes[loop.index]], loop.index) for loop in loops]
        back = (at.factor(index) * (read.at[axis] - at.put(index, Affine())) for axis, at, index in ends)
        at = tuple(each.at(self.found.sizes) for each in back)
        if any(not low <= p <= high for p, (low, high) in zip(at, self.held, strict=True)):
            raise self.found.refused(f"{read}, which the sweep neither writes nor reads", "another element")
        return at


def closing_text(closed: Closed, found: Analysis, dtype: str) -> tuple[str, str, str]:
    """Return C that fetches values, C of the closing statements, and the serial loops of all steps. Raises
    OperatorError if a closing statement accesses elements that the sweep does not hold."""
    text = ClosingText(found, dtype)
    close = "\n".join(map(text.line, closed.closing))
    fetch = "\n".join(f"    fetch(0, (const int64_t[]){{{_words(at)}}});" for at in text.fetched)
    body = "\n".join(f"    {line}" for line in f"{text.plain()}\n{close}".splitlines())
    plain = f"    for (int sweep = 0; sweep < {closed.num_sweeps(found.sizes)}; sweep++) {{\n{body}\n    }}"
    return fetch, close, plain


def _words(at: Vector) -> str:
    return ", ".join(map(str, at))
