"""nest_analysis: where each value of a nest comes from, and at which point of one space each statement is computed.

Every value has a place of its own, by iteration, so that flow dependences are all there is. Statements of different
loops are computed side by side, some a few points behind others, so that what they read of one another is there; axes
that go round their ends are folded: i and n - 1 - i are computed at one point, and what meets at the ends is close by.
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
from dovetail.loops.analysis.sweeps import space
from dovetail.loops.matrices import Vector
from dovetail.loops.recording import WRAPS, Recording, Statement
from dovetail.tiling.spaces import Space

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Field:
    """The values of one statement, as C has them: `name` computes one, `values` is where it lies, `start` what lies
    there before. All by the statement's own indices, to which `shift` is added: there it is computed. `vectors`: from
    there to the points that read a value; `ranges`: what is held, its last indices included."""

    name: str
    values: str
    start: str
    dtype: str
    domain: Space
    ranges: Ranges
    shift: Vector
    vectors: tuple[Vector, ...]


class Source(NamedTuple):
    """A statement, by its number, whose iteration so far back wrote what is read."""

    number: int
    distance: Vector


class Analysis:
    """Where each value comes from, and which statement is computed how far behind the others."""

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
        """How many loops all statements share."""
        first, *others = self.nest.statements
        for each in others:
            if len(each.loops) != len(first.loops):
                found = f"{each} in {len(each.loops)} loops, {first} in {len(first.loops)}"
                raise _refused(self.nest, found, "put every statement in as many loops", each)
        common = 0
        while common < len(first.loops) and all(each.loops[common] is first.loops[common] for each in others):
            common += 1
        for each in self.nest.statements:
            if self.nest.arrays[each.target.array].time and any(
                each.loops[0].index in end.names for inner in each.loops[1:] for end in (inner.low, inner.high)
            ):
                raise _refused(self.nest, f"bounds of {each} that change with {each.loops[0].index}", "fixed ones")
        return common

    def _sources(self, statement: Statement) -> dict[str, list[Source]]:
        """Of each element that is read, who wrote it, the latest first; none where it is as it was given."""
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
        """Where one of several wrote what is read, it must be the same element in every iteration."""
        read = next(each for each in statement.reads if str(each) == name)
        for source in sources:
            writer = self.nest.statements[source.number]
            pairs = zip(writer.loops, statement.loops, source.distance, strict=True)
            back = {own.index: Affine(((loop.index, 1),)) - by for own, loop, by in pairs}
            written = [each.replaced(back).key for each in writer.target.at]
            if written != [each.key for each in read.at]:
                raise _refused(self.nest, f"{name} is from several places", "one of them", statement)

    def _folded(self) -> Vector:
        """Lengths of the axes that loops go along and that are periodic."""
        found = [0] * self.num_loops
        for statement in self.nest.statements:
            array = self.nest.arrays[statement.target.array]
            for loop, (axis, by) in self.places(statement).items() if array.boundary in WRAPS else ():
                size = self.size(array.shape[axis])
                if by or (statement.loops[loop].low.at(self.sizes), statement.loops[loop].high.at(self.sizes)) != (
                    0,
                    size,
                ):
                    raise _refused(self.nest, f"{statement}, in part of an axis that goes round", "u[t + 1, i] = …")
                if array.boundary == "periodic":
                    found[loop] = size
        self._check_folds(found)
        return tuple(found)

    def _check_folds(self, folded: Sequence[int]) -> None:
        for statement in self.nest.statements if any(folded) else ():
            for number, loop in enumerate(statement.loops):
                ends = (loop.low, loop.high)
                if any(loop.index in end.names for inner in statement.loops for end in (inner.low, inner.high)):
                    raise _refused(
                        self.nest, f"bounds that change with {loop.index}, where axes go round", "fixed ones"
                    )
                whole = (0, folded[number])
                if folded[number] and not all(0 <= end.at(self.sizes) <= whole[1] for end in ends):
                    raise _refused(self.nest, f"loop {loop.index} beyond an axis that goes round", f"{whole}")

    def places(self, statement: Statement) -> dict[int, tuple[int, int]]:
        """Of a target's axes but time: by the number of its loop which one, and what is added to the index."""
        indices = [loop.index for loop in statement.loops]
        found = {}
        array = self.nest.arrays[statement.target.array]
        for axis, each in enumerate(space(self.nest, statement.target)):
            if len(each.terms) == 1 and each.terms[0][1] == 1 and each.names[0] in indices:
                found[indices.index(each.names[0])] = (axis, each.constant)
            elif array.boundary in WRAPS:
                raise _refused(self.nest, str(statement.target), "one index for each axis", statement)
        return found

    def size(self, axis: str | int) -> int:
        return self.sizes[axis] if isinstance(axis, str) else axis

    def _shifts(self) -> list[Vector]:
        """By the longest path: what is read within a step must lie behind, along every axis."""
        count, n = len(self.nest.statements), self.num_loops
        shifts = [[0] * n for _ in range(count)]
        edges = [
            (self.nest.statements.index(each.source), self.nest.statements.index(each.sink), vector)
            for each in self.flows
            for vector in self.vectors(each)
            if not any(vector[: self.shared]) and each.source is not each.sink
        ]
        for _ in range(count + 1):
            moved = False
            for source, sink, vector in edges:
                for k in range(self.shared, n):
                    least = shifts[source][k] - vector[k]
                    moved |= shifts[sink][k] < least
                    shifts[sink][k] = max(shifts[sink][k], least)
            if not moved:
                return [tuple(each) for each in shifts]
        raise _refused(self.nest, "statements that need one another within a step, in loops of their own", "one loop")

    def vectors(self, each: Dependence) -> Iterator[Vector]:
        """A distance, and the others that it becomes where axes go round or are mirrored."""
        wraps = {
            loop
            for statement in (each.source, each.sink)
            for loop in self.places(statement)
            if self.nest.arrays[statement.target.array].boundary == "reflecting"
        } | {loop for loop, size in enumerate(self.folded) if size}
        spans = [
            range(-abs(d), abs(d) + 1) if loop in wraps else range(d, d + 1) for loop, d in enumerate(each.distance)
        ]
        yield from product(*spans)

    def shifted(self, each: Dependence) -> Iterator[Vector]:
        """The distances between the points at which the two statements are computed."""
        source, sink = (self.shifts[self.nest.statements.index(one)] for one in (each.source, each.sink))
        for vector in self.vectors(each):
            yield tuple(d + b - a for d, a, b in zip(vector, source, sink, strict=True))

    def _check_order(self) -> None:
        """Points in order, statements in order at each: every value must be there when it is read."""
        order = self.nest.statements.index
        for each in self.flows:
            for vector in self.shifted(each):
                if vector < (0,) * len(vector) or (not any(vector) and order(each.source) >= order(each.sink)):
                    found = f"{each.sink_access} of {each.sink}, from {each.source} at a distance of {each.distance}"
                    raise _refused(self.nest, found, "a step between them", each.sink)

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
        """What is computed, and what lies outside and is read. Axes that wrap are within."""
        low, high = map(list, zip(*domain.ranges, strict=True))
        places, target = self.places(self.nest.statements[number]), self.nest.statements[number].target
        wraps = self.nest.arrays[target.array].boundary in WRAPS
        for sink, sources in zip(self.nest.statements, self.sources, strict=True):
            space = Space(set_text(sink.loops, self.sizes))
            for source in (each for name in sources for each in sources[name] if each.number == number):
                for k, ((first, last), back) in enumerate(zip(space.ranges, source.distance, strict=True)):
                    if not (wraps and k in places):
                        low[k], high[k] = min(low[k], first - back), max(high[k], last - back)
        return tuple(zip(low, high, strict=True))

    def space(self) -> Space:
        """The hull of the points at which something is computed."""
        whole = None
        for statement, shift in zip(self.nest.statements, self.shifts, strict=True):
            one = Space(self._moved_text(statement, shift)).set
            whole = one if whole is None else whole.union(one)
        assert whole is not None
        found = whole if len(self.nest.statements) == 1 else whole.coalesce().simple_hull().to_set()
        return Space(str(found))

    def _moved_text(self, statement: Statement, shift: Vector) -> str:
        """A statement's points in isl's notation; of an axis that is folded, the near half."""
        names = [f"i{k}" for k in range(len(shift))]
        own = [f"{name} - {by}" if by else name for name, by in zip(names, shift, strict=True)]
        halves = [f"0 <= {x} <= {(size - 1) // 2}" for x, size in zip(own, self.folded, strict=True) if size]
        indices = {loop.index: f"({x})" for loop, x in zip(statement.loops, own, strict=True)}
        bounds = [
            f"{self.affine(loop.low, indices)} <= {x} < {self.affine(loop.high, indices)}"
            for loop, x, size in zip(statement.loops, own, self.folded, strict=True)
            if not size
        ]
        return f"{{ [{', '.join(names)}] : {' and '.join([*halves, *bounds])} }}"

    def affine(self, value: Affine, indices: Mapping[str, str]) -> str:
        """A sum in C, with numbers for sizes."""
        constant = value.constant + sum(factor * self.sizes[name] for name, factor in value.terms if name in self.sizes)
        terms = [
            indices[name] if factor == 1 else f"{factor} * {indices[name]}"
            for name, factor in value.terms
            if name not in self.sizes
        ]
        return " + ".join([*terms, *([str(constant)] if constant or not terms else [])]).replace("+ -", "- ")

    def refused(self, found: str, hint: str, statement: Statement | None = None) -> OperatorError:
        return _refused(self.nest, found, hint, statement)

    def notes(self) -> Iterator[str]:
        """What was done to the loops."""
        for statement, shift in zip(self.nest.statements, self.shifts, strict=True):
            if any(shift):
                yield f"{statement.name}, {statement}, is computed {shift} behind its own indices"
        if any(self.folded):
            axes = ", ".join(
                f"{loop.index} and {size - 1} - {loop.index}"
                for loop, size in zip(self.nest.statements[0].loops, self.folded, strict=True)
                if size
            )
            yield f"axes that go round are folded: {axes} are computed at one point"


def _flows(nest: Recording) -> tuple[Dependence, ...]:
    """Return a nest's flow dependences. OperatorError where dependences are not uniform."""
    try:
        return flows(nest)
    except OperatorError as refusal:
        what = f"{nest.name} cannot be written as a tiled MPI program: its dependences are not uniform"
        raise OperatorError(what, where=refusal.where, found=refusal.found, hint="sweeps that go one way") from None


def _refused(nest: Recording, found: str, hint: str, statement: Statement | None = None) -> OperatorError:
    where = statement.line if statement else ""
    what = f"{nest.name} cannot be written as a tiled MPI program"
    return OperatorError(what, where=where, found=found, hint=hint)
