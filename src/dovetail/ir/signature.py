"""signature: the arrays of a call of an operator: check them, lay them out in buffers, and return results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dovetail.core import OperatorError
from dovetail.ir.arrays import Array, Arrays, ArraySpec, Box, array_of, borrowed, check_apart, check_plain
from dovetail.ir.operator import Operator
from dovetail.ir.schedule import Schedule


@dataclass(frozen=True)
class Signature:
    """The arrays that each rank passes to a call of an operator, and those that it gets, by one schedule.

    If an input and an output have the same buffer, results are computed in a copy of the input.

    >>> from dovetail.ir.registry import operator_class
    >>> operator = operator_class("matmul_all_reduce")(4, 6, 2)
    >>> print(Signature.of(operator, operator.serial(2), 2))
    matmul_all_reduce(A: float32 (4, 3), B: float32 (3, 2)) -> C: float32 (4, 2)
    """

    operator: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]

    @staticmethod
    def of(operator: Operator, schedule: Schedule, ranks: int) -> Signature:
        """Return the signature of an operator with a schedule on `ranks` ranks. Raises PlanError if they do not fit."""
        return Signature(
            operator.name, tuple(operator.inputs(schedule, ranks)), tuple(operator.outputs(schedule, ranks))
        )

    def __str__(self) -> str:
        """Return the signature as text, with the shapes of rank 0."""
        given, found = (
            ", ".join(f"{spec.name}: {spec.dtype} {spec.shapes[0]}" for spec in side)
            for side in (self.inputs, self.outputs)
        )
        return f"{self.operator}({given}) -> {found}"

    def arguments(self, rank: int, given: Sequence[Any], out: Any) -> tuple[dict[str, Array], dict[str, Array]]:
        """Check a rank's arrays; return input buffers and result buffers by name, in the layout of slots.

        Parameters
        ----------
        given : sequence of array
            This rank's inputs, in order.
        out : array, sequence of array, or None
            Arrays for the results; None: the executor makes new ones. Blocks of a whole array may have any strides.
            Those that are not C-contiguous get no result buffer; `result` copies into them.

        Raises
        ------
        OperatorError
            If the number of arrays is wrong, or one is invalid. If arrays are no blocks of whole arrays, shapes and
            strides of `out` are not checked here, but by the executor.
        """
        held, outs = self._given(rank, given), self._wanted(rank, out)
        if self.is_of_blocks:
            check_apart(held, outs)
        wanted = dict[str, Array]()
        for spec, is_given in zip(self.outputs, self._is_given, strict=True):
            into = outs.get(spec.name)
            if is_given:
                held[spec.name] = _copied(held[spec.name], into)
            elif into is None:
                continue
            elif into.flags.c_contiguous and spec.takes(into, rank):
                if (slots := spec.to_slots(into, rank)).flags.c_contiguous:
                    wanted[spec.buffer] = slots
            elif not self.is_of_blocks:
                wanted[spec.buffer] = into
        return {spec.buffer: spec.to_slots(held[spec.name], rank) for spec in self.inputs}, wanted

    def laid_out(
        self, rank: int, given: Sequence[Array], outs: Sequence[Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return what `arguments` returns, without its checks, for arrays like those that it accepted.

        Valid only if `fills_out`.
        """
        pairs = zip(self.inputs, given, strict=True), zip(self.outputs, outs, strict=False)
        inputs, results = ({spec.buffer: spec.to_slots(each, rank) for spec, each in side} for side in pairs)
        return inputs, results

    def result(self, rank: int, held: Arrays, out: Any = None) -> Any:
        """Return a rank's results from its output buffers: an array, or a tuple of several.

        Results are copied into the arrays of `out`, unless they were computed there, and those arrays are returned.
        """
        found = list[Array]()
        for spec in self.outputs:
            array = spec.from_slots(held[spec.buffer], rank)
            found.append(array if spec.finish is None else spec.finish(array))
        outs = _each(out)
        for there, each in zip(map(borrowed, outs), found, strict=False):
            if not np.may_share_memory(there, each):  # else the result was computed in `there`
                there[...] = each
        found[: len(outs)] = outs
        return found[0] if len(found) == 1 else tuple(found)

    @cached_property
    def is_of_blocks(self) -> bool:
        """Whether each rank's arrays are blocks of whole arrays."""
        return any(spec.boxes for spec in self.inputs)

    @cached_property
    def fills_out(self) -> bool:
        """Whether results are computed directly in C-contiguous arrays of `out`."""
        return not any(self._is_given) and not any(spec.axis or spec.finish for spec in self.outputs)

    @cached_property
    def _is_given(self) -> tuple[bool, ...]:
        """For each output, whether it is an input, too."""
        names = {spec.name for spec in self.inputs}
        return tuple(spec.buffer in names and spec in self.inputs for spec in self.outputs)

    def blocks(self, rank: int) -> dict[str, Box]:
        """Return where each of a rank's arrays lies in its whole array, by name."""
        return {spec.name: spec.boxes[rank] for spec in self.inputs if spec.boxes}

    def _given(self, rank: int, given: Sequence[Any]) -> dict[str, Array]:
        names = [spec.name for spec in self.inputs]
        if len(given) != len(names):
            takes = _listed(names) if self.is_of_blocks else ", ".join(names)
            hint = "out=… takes the result" if len(given) > len(names) else None
            raise OperatorError(f"{self.operator} takes {takes}", found=f"{len(given)} arrays", hint=hint)
        pairs = list(zip(self.inputs, given, strict=True))
        if self.is_of_blocks:
            return {spec.name: _block(f"'{spec.name}' of rank {rank}", spec, rank, each) for spec, each in pairs}
        held = {spec.name: each if type(each) is np.ndarray else array_of(each, spec.dtype) for spec, each in pairs}
        for spec in self.inputs:
            if not spec.takes(array := held[spec.name], rank):
                what = f"'{spec.name}' has shape {array.shape}, but the plan needs {spec.shapes[rank]}"
                raise OperatorError(what)
        return held

    def _wanted(self, rank: int, out: Any) -> dict[str, Array]:
        """Return the arrays for results, by name: none, or one for each."""
        if out is None:
            return {}
        specs, outs = [spec for spec in self.outputs if spec.finish is None], _borrowed(out)
        if len(outs) != len(specs):
            takes = f"`out` of {self.operator} takes {_listed([spec.name for spec in specs])}"
            several = f"there are {len(specs)} results, but `out` has {len(outs)} arrays"
            raise OperatorError(takes if self.is_of_blocks else several, found=str(len(outs)))
        pairs = zip(specs, outs, strict=False)
        if self.is_of_blocks:
            return {s.name: _block(f"`out` for '{s.name}' of rank {rank}", s, rank, each) for s, each in pairs}
        if others := [each for each in outs if not isinstance(each, np.ndarray)]:
            raise OperatorError("`out` takes NumPy arrays", found=type(others[0]).__name__)
        return {spec.name: each for spec, each in pairs}


def _each(out: Any) -> tuple[Any, ...]:
    return () if out is None else tuple(out) if isinstance(out, list | tuple) else (out,)


def _borrowed(out: Any) -> tuple[Any, ...]:
    return tuple([borrowed(each, "`out`") for each in _each(out)])


def _listed(names: Sequence[str]) -> str:
    """Return a count and names.

    >>> _listed(["u"]), _listed(["u", "v"])
    ('1 array: u', '2 arrays: u, v')
    """
    return f"{len(names)} array{'s' * (len(names) > 1)}: {', '.join(names)}"


def _copied(array: Array, into: Array | None) -> Array:
    held = np.empty_like(array, order="C") if into is None else into
    np.copyto(held, array)
    return held


def _block(what: str, spec: ArraySpec, rank: int, given: Any) -> Array:
    """Return a rank's block of a whole array. Raises OperatorError if it has another shape or dtype."""
    given = borrowed(given, what)
    check_plain(what, given)
    if given.shape != spec.shapes[rank]:
        found = f"an array of shape {given.shape}"
        raise OperatorError(f"{what} must be the rank's block, of shape {spec.shapes[rank]}", found=found)
    if given.dtype.name != spec.dtype:
        makes = f", or make the operator with dtype='{given.dtype.name}'" if given.dtype.kind in "iuf" else ""
        hint = f"astype('{spec.dtype}'){makes}"
        raise OperatorError(f"{what} must be {spec.dtype}", found=given.dtype.name, hint=hint)
    found_array: Array = given
    return found_array
