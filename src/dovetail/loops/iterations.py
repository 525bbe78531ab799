"""iterations: detect Python variables that change from one iteration of a recorded loop to the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from types import CodeType, FrameType
from typing import Any

import numpy as np

from dovetail.core import OperatorError
from dovetail.loops.affine import Affine, is_ours
from dovetail.loops.expressions import Value
from dovetail.loops.recording import Statement

MOST = 1000  # most elements of a container, and bytes of an array, that are compared
DEEPEST = 4

State = dict[tuple[CodeType, str], str]


def state_now() -> State:
    """Return the user's variables, as text: locals of the running functions, and the globals that they name."""
    found: State = {}
    for frame in _frames():
        code = frame.f_code
        named = {name: frame.f_globals[name] for name in code.co_names if name in frame.f_globals}
        for name, value in (named | frame.f_locals).items():
            if text := _text(value):
                found[code, name] = text
    return found


def _frames() -> Iterator[FrameType]:
    """The frames of the user's functions, innermost first, up to the recorded one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "record_once":
        if not is_ours(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _text(value: Any, deep: int = 0) -> str:
    """A text that is equal for equal values; empty for values that are not compared."""
    if isinstance(value, int | float | complex | str | bytes | None | np.generic):
        return repr(value)
    if isinstance(value, Value | Affine):
        return f"{type(value).__name__} {value}"
    if deep == DEEPEST:
        return ""
    if isinstance(value, Mapping):
        value = [*value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        last = [*value][-MOST:]
        return f"{len(value)} of {[_text(each, deep + 1) for each in last]}"
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.tobytes()[:MOST]!r}"
    if isinstance(value, type) or callable(value) or not hasattr(value, "__dict__") or hasattr(value, "__path__"):
        return ""
    if type(value).__module__.startswith("dovetail.") or hasattr(value, "__spec__"):
        return ""
    return _text(vars(value), deep + 1)


def check_same(where: str, before: State, after: State) -> None:
    """Raise OperatorError if a variable differs between the ends of two iterations."""
    for key, text in after.items():
        if before.get(key, text) != text:
            raise carried(f"'{key[1]}' changes from one iteration to the next", where)


def check_alike(first: list[Statement], again: list[Statement]) -> None:
    """Raise OperatorError if two iterations have different statements."""
    for one, other in zip_longest(first, again):
        if one is None or other is None or (str(one), one.line) != (str(other), other.line):
            shown = [f"{each}" if each else "no statement" for each in (one, other)]
            where = (other or one).line
            raise carried("a statement changes from one iteration to the next", where, f"{shown[0]}; then {shown[1]}")


def carried(what: str, where: str, found: str | None = None) -> OperatorError:
    hint = "a loop is recorded once: pass values between iterations in an array, s[i + 1] = s[i] + u[i]"
    return OperatorError(what, where=where, found=found, hint=hint)
