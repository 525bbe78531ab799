"""given: the arrays of a call, as users give them: what an argument must be, and results left where they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dovetail.core import OperatorError

_HARD = 1 << 16  # candidates that NumPy tries before it gives up to tell whether two views share an element


def check_plain(name: str, given: Any) -> None:
    """Refuse what is no NumPy array of numbers, and masked arrays, whose mask no result would have."""
    if not isinstance(given, np.ndarray):
        raise OperatorError(f"{name} must be a NumPy array", found=type(given).__name__)
    if isinstance(given, np.ma.MaskedArray):
        hint = "its .filled(…), or its .data where no element is masked"
        raise OperatorError(f"{name} is a masked array: loops compute masked elements, too", hint=hint)
    if not given.dtype.isnative:
        hint = f"astype('{given.dtype.name}')"
        raise OperatorError(f"{name} has bytes in the order of another machine", found=given.dtype.str, hint=hint)


def check_block(what: str, given: Any, shape: Sequence[int], dtype: str) -> None:
    """Refuse an array that is not a rank's block: `shape` is the one that it must have."""
    check_plain(what, given)
    if given.shape != tuple(shape):
        raise OperatorError(
            f"{what} must be its block, of shape {tuple(shape)}", found=f"an array of shape {given.shape}"
        )
    if given.dtype.name != dtype:
        raise OperatorError(f"{what} must be {dtype}", found=given.dtype.name, hint=f"astype('{dtype}')")


def check_number(nest: str, names: Sequence[str], given: Sequence[Any]) -> None:
    """Refuse too few or too many arrays."""
    if len(given) != len(names):
        takes = f"{nest} takes {len(names)} array{'s' * (len(names) > 1)}: {', '.join(names)}"
        raise OperatorError(takes, found=str(len(given)))


def outs_of(nest: str, written: Sequence[str], out: Any) -> tuple[Any, ...]:
    """The arrays for results: none, or one for each array that is written."""
    outs = () if out is None else tuple(out) if isinstance(out, tuple | list) else (out,)
    if out is not None and len(outs) != len(written):
        takes = f"`out` of {nest} takes {len(written)} array{'s' * (len(written) > 1)}: {', '.join(written)}"
        raise OperatorError(takes, found=str(len(outs)))
    return outs


def check_apart(inputs: dict[str, Any], outs: dict[str, Any]) -> None:
    """Refuse arrays for results that cannot be written, or that share elements with others."""
    for name, each in outs.items():
        if not each.flags.writeable:
            raise OperatorError(f"`out` for {name} is read-only", hint="an array that can be written")
        for other, held in inputs.items():
            if _share(each, held):
                raise OperatorError(f"`out` for {name} shares memory with {other}", hint="an array of its own")
        if any(stride == 0 and size > 1 for stride, size in zip(each.strides, each.shape, strict=True)):
            raise OperatorError(f"`out` for {name} has elements that share memory", hint="an array of its own")
    for (one, first), (two, second) in combinations(outs.items(), 2):
        if _share(first, second):
            raise OperatorError(
                f"`out` for {two} shares memory with that for {one}", hint="an array of its own for each"
            )


def _share(one: Any, other: Any) -> bool:
    """Whether two arrays share an element; two that NumPy cannot tell apart are taken to."""
    try:
        return np.shares_memory(one, other, max_work=_HARD)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
