"""dependences: the flow, anti and output dependences of a nest, by isl; distances that vary raise OperatorError."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Literal, NamedTuple

from dovetail.core import OperatorError
from dovetail.loops.expressions import Read
from dovetail.loops.levels import check_constant
from dovetail.loops.recording import WRAPS, Loop, Recording, Statement, Take
from dovetail.loops.taken import check_untaken

Kind = Literal["flow", "anti", "output"]


class Dependence(NamedTuple):
    """Iteration j + `distance` of `sink` must come after iteration j of `source`, because of these two accesses.

    If the statements are in different loops, indices are compared by depth, the outermost first.
    """

    kind: Kind
    source: Statement
    sink: Statement
    distance: tuple[int, ...]
    source_access: Read
    sink_access: Read


class _Access(NamedTuple):
    """One access of a statement. For isl, each access is a separate statement."""

    name: str
    statement: Statement
    read: Read
    writes: bool


@lru_cache(maxsize=256)
def dependences(nest: Recording, among: tuple[Statement, ...] = ()) -> tuple[Dependence, ...]:
    """Return the flow (read after the last write), anti and output dependences of a nest; each is uniform.

    `among`: consider these statements only.

    Raises OperatorError, with the pair of accesses, if a distance depends on the iteration or on sizes, or if the set
    of elements that a step writes in a level changes with the step.
    """
    check_untaken(nest)
    check_constant(nest)
    accesses = {each.name: each for each in _accesses(nest) if not among or each.statement in among}
    writes = [each for each in accesses.values() if each.writes]
    reads = [each for each in accesses.values() if not each.writes]
    found: list[Dependence] = []
    for kind, sinks, sources in (("flow", reads, writes), ("output", writes, writes), ("anti", writes, reads)):
        for pair in _flow(nest, sinks, writes, reads if kind == "anti" else []):
            source, sink = (accesses[name] for name in (pair.get_tuple_name(_dim().in_), _sink_name(pair)))
            if any(source is each for each in sources):
                found += _uniform(nest, kind, source, sink, pair)  # type: ignore[arg-type]
    return tuple(sorted(found, key=lambda d: (d.kind != "flow", d.kind, d.source.name, d.sink.name, d.distance)))


def flows(nest: Recording) -> tuple[Dependence, ...]:
    """Return the flow dependences of a nest: which iteration wrote each value that is read."""
    return tuple(each for each in dependences(nest) if each.kind == "flow")


def read_too_early(nest: Recording, statement: Statement, read: Read) -> Statement | None:
    """Return a statement that writes an element after this access of `statement` has read it; None if there is none."""
    import islpy as isl

    name = f"{statement.name}r{[str(each) for each in statement.reads].index(str(read))}"
    accesses = list(_accesses(nest))
    sink = next(each for each in accesses if each.name == name)
    for writer in (each for each in accesses if each.writes and each.read.array == read.array):
        same = _map(nest, "element", [sink]).apply_range(_map(nest, "access", [writer]).reverse())
        order = _map(nest, "schedule", accesses)
        later = order.lex_le_union_map(order)
        if not isl.UnionMap.is_empty(same.intersect(later)):
            return writer.statement
    return None


def _accesses(nest: Recording) -> Iterator[_Access]:
    for statement in nest.statements:
        for number, each in enumerate(statement.reads):
            yield _Access(f"{statement.name}r{number}", statement, each, False)
        yield _Access(f"{statement.name}w", statement, statement.target, True)


def _dim() -> Any:
    import islpy as isl

    return isl.dim_type


def _sink_name(pair: Any) -> str:
    return str(pair.get_tuple_name(_dim().out))


def _flow(nest: Recording, sinks: Sequence[_Access], must: Sequence[_Access], may: Sequence[_Access]) -> Iterator[Any]:
    """Yield isl's maps from the last accesses before each sink to that sink, one for each pair of accesses."""
    import islpy as isl

    info = isl.UnionAccessInfo.from_sink(_map(nest, "access", sinks))
    info = info.set_must_source(_map(nest, "access", must)).set_schedule_map(_map(nest, "schedule", [*_accesses(nest)]))
    if may:
        info = info.set_may_source(_map(nest, "access", may))
    flow = info.compute_flow()
    found = flow.get_may_dependence() if may else flow.get_must_dependence()
    maps: list[Any] = []
    found.foreach_map(maps.append)
    yield from maps


def _map(nest: Recording, which: str, accesses: Sequence[_Access]) -> Any:
    """Map accesses to their subscripts ("access"), elements ("element") or execution times ("schedule")."""
    import islpy as isl

    parts = []
    for each in accesses:
        indices = ", ".join(loop.index for loop in each.statement.loops)
        bounds = [f"{loop.low} <= {loop.index} < {loop.high}" for loop in each.statement.loops]
        if which == "schedule":
            places: list[tuple[str, list[str]]] = [(f"[{', '.join(_moment(nest, each))}]", [])]
        else:
            lying = [_lying(nest, each.read, axis, which == "element") for axis in range(len(each.read.at))]
            chosen = [[*zip(*some, strict=True)] for some in product(*lying)]
            places = [(f"{each.read.array}[{', '.join(at)}]", [*where]) for at, where in chosen]
        for to, where in places:
            parts.append(f"{each.name}[{indices}] -> {to} : {' and '.join(filter(None, [*bounds, *where])) or 'true'}")
    symbols = ", ".join(sorted(nest.code.symbols))
    return isl.UnionMap(f"[{symbols}] -> {{ {'; '.join(parts)} }}")


def _lying(nest: Recording, read: Read, axis: int, wraps: bool) -> list[tuple[str, str]]:
    """The possible positions of a subscript along an axis, each with its condition; `wraps`: apply the boundary."""
    array, at = nest.arrays[read.array], read.at[axis]
    if axis < array.time or not wraps or array.boundary not in WRAPS:
        return [(str(at), "")]
    size = nest.code.symbol(array.shape[axis - array.time])
    mirrored = array.boundary == "reflecting"
    below, beyond = (-at, size * 2 - 2 - at) if mirrored else (at + size, at - size)
    return [(str(at), ""), (str(below), f"{at} < 0"), (str(beyond), f"{at} >= {size}")]


def _moment(nest: Recording, each: _Access) -> list[str]:
    """The execution time of an access: body positions alternating with loop indices; reads come before the write."""
    deepest = max(len(statement.loops) for statement in nest.statements)
    body, words = nest.body, list[str]()
    for loop in each.statement.loops:
        words += [str(_place(body, loop)), loop.index]
        body = loop.body
    words.append(str(_place(body, each.statement)))
    words += ["0"] * (2 * deepest + 1 - len(words))
    return [*words, str(int(each.writes))]


def _place(body: Sequence[Loop | Statement | Take], wanted: Loop | Statement | Take) -> int:
    return next(place for place, each in enumerate(body) if each is wanted)


def _uniform(nest: Recording, kind: Kind, source: _Access, sink: _Access, pair: Any) -> Iterator[Dependence]:
    """Yield the only distance of a pair of accesses; nothing if both belong to one iteration of one statement."""
    dim = _dim()
    depth = min(len(source.statement.loops), len(sink.statement.loops))
    for side in (dim.in_, dim.out):
        pair = pair.project_out(side, depth, pair.dim(side) - depth).reset_tuple_id(side)
    distances = pair.project_out(dim.param, 0, pair.dim(dim.param)).deltas()
    if not distances.is_singleton():
        raise _not_uniform(nest, source, sink, distances)
    point = distances.sample_point()
    distance = tuple(point.get_coordinate_val(dim.set, at).to_python() for at in range(depth))
    if any(distance) or source.statement is not sink.statement:
        yield Dependence(kind, source.statement, sink.statement, distance, source.read, sink.read)


def _not_uniform(nest: Recording, source: _Access, sink: _Access, distances: Any) -> OperatorError:
    indices = [loop.index for loop in sink.statement.loops]
    text = str(distances.coalesce()).replace("{ ", "").replace(" }", "")
    verbs = ["writes" if each.writes else "reads" for each in (source, sink)]
    found = f"{source.statement.name} {verbs[0]} {source.read}, {sink.statement.name} {verbs[1]} {sink.read}: {text}"
    what = f"{nest.name} has dependences that are not uniform: their distance changes with ({', '.join(indices)})"
    hint = "tiles and halos need constant distances; nest(…) still runs it in order"
    return OperatorError(what, where=sink.statement.line, found=found, hint=hint)
