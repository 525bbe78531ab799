"""nest_analysis: which iteration writes each value of a nest, and at which point of one space each statement runs.

Every iteration's value has its own memory, so that only flow dependences remain. Statements of different loops run
in one fused loop, shifted so that each reads only values that exist. Periodic axes are folded: i and n - 1 - i are
computed at one point, so that neighbours across the ends are close to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine
from dovetail.loops.analysis.check_counts import set_text
from dovetail.loops.analysis.dependences import Dependence, flows
from dovetail.loops.analysis.lags import least_lags
from dovetail.loops.analysis.sweeps import axes_of, space
from dovetail.loops.matrices import Vector
from dovetail.loops.recording import WRAPS, Recording, Statement
from dovetail.tiling.spaces import Space

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Field:
    """The values of one statement in C. Macros of the statement's indices: `name` computes a value, `values` is its
    place, `start` its initial value. Indices plus `shift` are the point that computes it; `vectors`: distances from
    there to the points that read it. `ranges`: indices that are stored, both ends included."""

    name: str
    values: str
    start: str
    dtype: str
    domain: Space
    ranges: Ranges
    shift: Vector
    vectors: tuple[Vector, ...]


class Source(NamedTuple):
    """The writer of a value that is read: a statement by number, and how many iterations before."""

    number: int
    distance: Vector


class Analysis:
    """The writer of each value, and the shift of each statement against the others."""

    def __init__(self, nest: Recording, sizes: Mapping[str, int]) -> None:
        self.nest, self.sizes = nest, sizes
        self.shared = self._check_loops()
        self.flows = _flows(nest)
        self.sources = [self._sources(statement) for statement in nest.statements]
        self.folded = self._folded()
        self.shifts = self._shifts()
        self._check_order()

    @property
    def num_loops(self) -> int:
        return len(self.nest.statements[0].loops)

    def _check_loops(self) -> int:
        """Return how many outer loops all statements share. Raises OperatorError for nests that cannot be tiled."""
        first, *others = self.nest.statements
        for each in others:
            if len(each.loops) != len(first.loops):
                found = f"{each} in {len(each.loops)} loops, {first} in {len(first.loops)}"
                raise self.refused(found, "put every statement in the same number of loops", each)
        common = 0
        while common < len(first.loops) and all(each.loops[common] is first.loops[common] for each in others):
            common += 1
        for each in self.nest.statements:
            if self.nest.arrays[each.target.array].time and any(
                each.loops[0].index in end.names for inner in each.loops[1:] for end in (inner.low, inner.high)
            ):
                raise self.refused(f"bounds of {each} that change with {each.loops[0].index}", "fixed ones")
        return common

    def _sources(self, statement: Statement) -> dict[str, list[Source]]:
        """The possible writers of each element that is read, the latest first; none if no statement writes it."""
        found: dict[str, list[Source]] = {}
        for each in self.flows:
            if each.sink is statement:
                known = found.setdefault(str(each.sink_access), [])
                source = Source(self.nest.statements.index(each.source), each.distance)
                if source not in known:
                    known.append(source)
        for name, sources in found.items():
            sources.sort(key=self._age)
            if len(sources) > 1:
                self._check_same(statement, name, sources)
        return found

    def _age(self, source: Source) -> tuple[Vector, int, Vector]:
        return source.distance[: self.shared], -source.number, source.distance[self.shared :]

    def _check_same(self, statement: Statement, name: str, sources: Iterable[Source]) -> None:
        """Check that, if a read has several possible writers, they write the same element in every iteration."""
        read = next(each for each in statement.reads if str(each) == name)
        for source in sources:
            writer = self.nest.statements[source.number]
            pairs = zip(writer.loops, statement.loops, source.distance, strict=True)
            back = {own.index: Affine(((loop.index, 1),)) - by for own, loop, by in pairs}
            written = [each.replaced(back).key for each in writer.target.at]
            if written != [each.key for each in read.at]:
                raise self.refused(f"{name} is from several places", "one of them", statement)

    def _folded(self) -> Vector:
        """The length of the periodic axis along each loop; 0 if there is none."""
        found = [0] * self.num_loops
        for statement in self.nest.statements:
            array = self.nest.arrays[statement.target.array]
            for number, axis in self.axes(statement).items():
                loop, size = statement.loops[number], self.size(array.shape[axis])
                at = (loop.low, loop.high, space(self.nest, statement.target)[axis].put(loop.index, Affine()))
                if [each.named(self.sizes) for each in at] != ["0", str(size), "0"]:
                    raise self.refused(f"{statement}, in part of an axis that wraps or mirrors", "u[t + 1, i] = …")
                if array.boundary == "periodic":
                    found[number] = size
        self._check_folds(found)
        return tuple(found)

    def _check_folds(self, folded: Sequence[int]) -> None:
        for statement in self.nest.statements if any(folded) else ():
            for number, loop in enumerate(statement.loops):
                ends = (loop.low, loop.high)
                if any(loop.index in end.names for inner in statement.loops for end in (inner.low, inner.high)):
                    raise self.refused(f"bounds that change with {loop.index}, with periodic axes", "fixed ones")
                whole = (0, folded[number])
                if folded[number] and not all(0 <= end.at(self.sizes) <= whole[1] for end in ends):
                    raise self.refused(f"loop {loop.index} beyond a periodic axis", f"{whole}")

    def axes(self, statement: Statement) -> dict[int, int]:
        """Return the axis along each loop, by the loop's number, if the statement's array wraps or mirrors; else {}."""
        if self.nest.arrays[statement.target.array].boundary not in WRAPS:
            return {}
        inner = statement.loops[1:]
        found = axes_of(self.nest, statement.target, inner)
        if not found or any(at.factor(i) < 0 for at in statement.target.at for i in found):
            raise self.refused(str(statement.target), "one index for each axis", statement)
        return {number: found[loop.index] for number, loop in enumerate(inner, 1)}

    def size(self, axis: str | int) -> int:
        return self.nest.code.symbol(axis).at(self.sizes)

    def _shifts(self) -> list[Vector]:
        """Return shifts so that within a step, along each axis, no value is computed after the point that reads it."""
        order, n = self.nest.statements.index, self.num_loops
        edges = [
            (order(each.source), order(each.sink), vector)
            for each in self.flows
            for vector in self.vectors(each)
            if not any(vector[: self.shared]) and each.source is not each.sink
        ]
        lags = [[0] * len(self.nest.statements)] * self.shared
        for k in range(self.shared, n):
            found = least_lags(len(self.nest.statements), [(source, sink, -by[k]) for source, sink, by in edges])
            if found is None:
                what = "statements of separate loops that need one another within a step"
                raise self.refused(what, "one loop")
            lags.append(found)
        return [tuple(lag[number] for lag in lags) for number in range(len(self.nest.statements))]

    def vectors(self, each: Dependence) -> Iterator[Vector]:
        """Yield a dependence's distance and all others that it may become where axes wrap or mirror."""
        wraps = {
            loop
            for statement in (each.source, each.sink)
            for loop in self.axes(statement)
            if self.nest.arrays[statement.target.array].boundary == "reflecting"
        } | {loop for loop, size in enumerate(self.folded) if size}
        spans = [
            range(-abs(d), abs(d) + 1) if loop in wraps else range(d, d + 1) for loop, d in enumerate(each.distance)
        ]
        yield from product(*spans)

    def shifted(self, each: Dependence) -> Iterator[Vector]:
        """Yield a dependence's distances between the points that compute its two statements."""
        source, sink = (self.shifts[self.nest.statements.index(one)] for one in (each.source, each.sink))
        for vector in self.vectors(each):
            yield tuple(d + b - a for d, a, b in zip(vector, source, sink, strict=True))

    def _check_order(self) -> None:
        """Check that every value is computed before it is read, if points and the statements at each run in order."""
        order = self.nest.statements.index
        for each in self.flows:
            for vector in self.shifted(each):
                if vector < (0,) * len(vector) or (not any(vector) and order(each.source) >= order(each.sink)):
                    found = f"{each.sink_access} of {each.sink}, from {each.source} at a distance of {each.distance}"
                    raise self.refused(found, "a step between them", each.sink)

    def field(self, number: int, text: Any) -> Field:
        statement = self.nest.statements[number]
        domain = Space(set_text(statement.loops, self.sizes))
        if domain.set.is_empty():
            what = f"{self.nest.name} computes nothing on this grid"
            raise OperatorError(what, where=statement.line, found=domain.text, hint="a larger grid, or more steps")
        domain.check()
        vectors = sorted({v for each in self.flows if each.source is statement for v in self.shifted(each)})
        name, values, start = text.names(number)
        dtype = text.dtypes[statement.target.array]
        ranges, shift = self._ranges(number, domain), self.shifts[number]
        return Field(name, values, start, dtype, domain, ranges, shift, tuple(vectors))

    def _ranges(self, number: int, domain: Space) -> Ranges:
        """The range of all indices that are computed or read. Reads beyond an axis that wraps are inside it."""
        low, high = map(list, zip(*domain.ranges, strict=True))
        axes = self.axes(self.nest.statements[number])
        for sink, sources in zip(self.nest.statements, self.sources, strict=True):
            space = Space(set_text(sink.loops, self.sizes))
            for source in (each for name in sources for each in sources[name] if each.number == number):
                for k, ((first, last), back) in enumerate(zip(space.ranges, source.distance, strict=True)):
                    if k not in axes:
                        low[k], high[k] = min(low[k], first - back), max(high[k], last - back)
        return tuple(zip(low, high, strict=True))

    def space(self) -> Space:
        """Return the hull of the points that compute a statement."""
        whole = None
        for statement, shift in zip(self.nest.statements, self.shifts, strict=True):
            one = Space(self._moved_text(statement, shift)).set
            whole = one if whole is None else whole.union(one)
        assert whole is not None
        found = whole if len(self.nest.statements) == 1 else whole.coalesce().simple_hull().to_set()
        return Space(str(found))

    def _moved_text(self, statement: Statement, shift: Vector) -> str:
        """A statement's points in isl's notation; of a folded axis, the lower half."""
        names = [f"i{k}" for k in range(len(shift))]
        own = [f"{name} - {by}" if by else name for name, by in zip(names, shift, strict=True)]
        halves = [f"0 <= {x} <= {(size - 1) // 2}" for x, size in zip(own, self.folded, strict=True) if size]
        indices: dict[str, str | int] = {
            **self.sizes,
            **{loop.index: f"({x})" for loop, x in zip(statement.loops, own, strict=True)},
        }
        bounds = [
            f"{loop.low.named(indices)} <= {x} < {loop.high.named(indices)}"
            for loop, x, size in zip(statement.loops, own, self.folded, strict=True)
            if not size
        ]
        return f"{{ [{', '.join(names)}] : {' and '.join([*halves, *bounds])} }}"

    def refused(self, found: str, hint: str, statement: Statement | None = None) -> OperatorError:
        """Return the error that the nest cannot be written as a tiled MPI program."""
        what = f"{self.nest.name} cannot be written as a tiled MPI program"
        return OperatorError(what, where=statement.line if statement else "", found=found, hint=hint)

    def notes(self) -> Iterator[str]:
        """Yield notes for the reader: how loops were shifted and folded."""
        for statement, shift in zip(self.nest.statements, self.shifts, strict=True):
            if any(shift):
                yield f"{statement.name}, {statement}, is computed {shift} behind its own indices"
        if any(self.folded):
            axes = ", ".join(
                f"{loop.index} and {size - 1} - {loop.index}"
                for loop, size in zip(self.nest.statements[0].loops, self.folded, strict=True)
                if size
            )
            yield f"periodic axes are folded: {axes} are computed at one point"


def _flows(nest: Recording) -> tuple[Dependence, ...]:
    """Return a nest's flow dependences. Raises OperatorError if they are not uniform."""
    try:
        return flows(nest)
    except OperatorError as refusal:
        what = f"{nest.name} cannot be written as a tiled MPI program: its dependences are not uniform"
        raise OperatorError(what, where=refusal.where, found=refusal.found, hint="sweeps in one direction") from None
