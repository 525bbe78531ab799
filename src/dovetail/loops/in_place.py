"""in_place: rewrite a nest with a time axis to update its arrays in place, if that gives the same values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from dovetail.loops.analysis.dependences import Dependence, flows
from dovetail.loops.analysis.sweeps import refusal, space
from dovetail.loops.expressions import Read
from dovetail.loops.levels import levels_of
from dovetail.loops.record import record
from dovetail.loops.recording import Recording, Statement

Flow = tuple[str, str, tuple[str, ...], tuple[int, ...]]


class Newest:
    """An array without a time axis, for a function whose first subscript is the step; the step is ignored."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape

    def __getitem__(self, at: Any) -> Any:
        return self.array[at[1:]]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.array[at[1:]] = value


def in_place(nest: Recording) -> Recording:
    """Return the nest with one level of each array, which is overwritten element by element.

    Raises OperatorError if a statement needs the old value of an element after its new value is written.

    >>> from dovetail.loops import array, loop, nest
    >>> @nest(u=array("n", time=True, boundary="fixed"))
    ... def swept(u, steps):
    ...     for t in loop(steps):
    ...         for i in loop(1, u.shape[0] - 1):
    ...             u[t + 1, i] = u[t + 1, i - 1] + u[t, i + 1]
    >>> swept.arrays["u"].time, in_place(swept).arrays["u"].time
    (True, False)
    """
    for name, levels in levels_of(nest).items():
        wraps_around = nest.arrays[name].boundary in ("periodic", "reflecting")
        if levels.depth > 2 or wraps_around:
            why = f"is {nest.arrays[name].boundary}" if wraps_around else f"keeps {levels.depth} levels"
            raise refusal(
                nest, "pipeline", f"array {name} {why}", None, "arrays of two levels with boundary='fixed' can"
            )
    arrays = {name: replace(array, time=False, boundary=None) for name, array in nest.arrays.items()}
    function = _on_newest(nest)
    code = record(function, arrays, nest.parameters)
    made = replace(nest, function=function, arrays=arrays, code=code)
    _check_same(nest, made)
    return made


def _on_newest(nest: Recording) -> Callable[..., Any]:
    """The nest's function for arrays with only one level."""

    @wraps(nest.function)
    def function(**given: Any) -> None:
        nest.function(**{name: Newest(each) if name in levels_of(nest) else each for name, each in given.items()})

    return function


def _check_same(nest: Recording, made: Recording) -> None:
    """Check that each read gets its value from the same statement and iteration as with levels."""
    wanted = {_key(nest, flow): flow for flow in flows(nest)}
    found = {_key(made, flow): flow for flow in flows(made)}
    lost = next((flow for key, flow in wanted.items() if key not in found), None)
    if lost is not None:
        hint = "read u[t + 1, …] where the sweep has already passed, or reverse the sweep"
        raise refusal(nest, "pipeline", f"{lost.sink_access} is overwritten before it is read", lost.sink.line, hint)
    if strange := next((flow for key, flow in found.items() if key not in wanted), None):
        hint = "read the newest level that there is"
        raise refusal(
            nest, "pipeline", f"{strange.source_access} of a later level would be read", strange.sink.line, hint
        )


def _key(nest: Recording, flow: Dependence) -> Flow:
    return flow.source.name, flow.sink.name, _element(nest, flow.sink_access, flow.sink), flow.distance


def _element(nest: Recording, read: Read, statement: Statement) -> tuple[str, ...]:
    """The array and the subscripts without the step. Loops are named by depth, because two recordings may differ in
    names."""
    places = {each.index: f"loop {place}" for place, each in enumerate(statement.loops)}
    subscripts = space(nest, read)
    terms = [sorted((places.get(name, name), factor) for name, factor in each.terms) for each in subscripts]
    return read.array, *(f"{part} {each.constant}" for part, each in zip(terms, subscripts, strict=True))
