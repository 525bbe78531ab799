"""repeat_steps: make the program of many time steps by repeating one period of a program of few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import PlanError
from dovetail.ir import Program
from dovetail.ir.build import OP, REGION
from dovetail.passes.op_rows import SIDES, rows_of, taken

Ints = NDArray[np.int64]
LISTS = {"dep": ("dep",)} | {side: tuple(f"{side}_{part}" for part in REGION) for side in SIDES}
MOST_STEPS = 1 << 17  # of a program that is made without repetition
MOST_OPS = 1 << 25  # of a program, which then takes gigabytes
FEW = 20  # periods; programs of fewer are made without repetition


def repeated(make: Callable[[int], Program], steps: int, period: int = 1) -> Program:
    """Return `make(steps)`, built from three short programs: the ops that the second has beyond the first are repeated.
    If one repetition does not give the third program, call `make(steps)` instead.

    >>> from dovetail.ir import Schedule
    >>> from dovetail import SyncP2p
    >>> how = Schedule.of("any", cut=(1, 2), mapped=0, grain=4)
    >>> longer, shorter = (SyncP2p("9x8", steps=steps).program(how, 2).num_ops for steps in (40, 39))
    >>> longer - shorter
    17
    """
    if min(steps, 6 * period) > MOST_STEPS:
        what = f"the schedule repeats only after {period} steps; a program of {steps} steps would be too long"
        raise PlanError(what, hint=f"fewer steps between exchanges or tests, {MOST_STEPS // 6} at most")
    if steps <= FEW * period:
        return make(steps)
    first = 3 * period + steps % period
    short, longer, check = (make(first + more * period) for more in (1, 2, 3))
    more = (steps - first) // period - 2
    total = longer.num_ops + more * (longer.num_ops - short.num_ops)
    if total > MOST_OPS:
        hint = "fewer steps, and several calls, each on the results of the one before"
        raise PlanError(f"a program of {steps} steps would have {total} ops, more than {MOST_OPS}", hint=hint)
    grown = _grown(short, longer, 1, period)
    if grown is None or not is_same(grown, check):
        return make(steps)
    return _grown(short, longer, more, period) or make(steps)


def _grown(short: Program, longer: Program, more: int, period: int) -> Program | None:
    """Repeat the ops that `longer` has beyond `short`, `more` times more; None if the repetition does not hold."""
    added, begin = longer.num_ops - short.num_ops, _common(short, longer)
    if added <= 0 or begin < added or not _has_same_tables(short, longer):
        return None
    end, total = begin + added, longer.num_ops
    moves = _moving_deps(short, longer, begin, added)
    if moves is None:
        return None
    rows = np.concatenate([np.arange(end), np.tile(np.arange(begin, end), more), np.arange(end, total)])
    turn = np.concatenate([np.zeros(end, int), np.repeat(np.arange(1, more + 1), added), np.full(total - end, more)])
    columns, _ = taken(longer.columns, rows)
    row, owner = rows_of(longer.columns["dep_start"], rows)
    columns["dep"] = longer.columns["dep"][row] + turn[owner] * added * moves[row]
    columns["dep_start"] = np.append(0, np.cumsum(np.diff(longer.columns["dep_start"])[rows]))
    lines, columns["line"] = _lines(longer, rows, turn, period)
    return longer.with_columns(columns, lines)


def _has_same_tables(one: Program, other: Program) -> bool:
    names = ("buffers", "lanes", "channels", "kernels", "collectives", "posts", "num_ranks")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _common(one: Program, other: Program) -> int:
    """The number of equal ops at the beginning of both."""
    count = min(one.num_ops, other.num_ops)
    found = [count]
    for name in OP[:-1]:  # without the source lines
        found += np.flatnonzero(one.columns[name][:count] != other.columns[name][:count])[:1].tolist()
    for start, parts in LISTS.items():
        starts = one.columns[f"{start}_start"]
        found += [int(at) - 1 for at in _first_difference(starts, other.columns[f"{start}_start"])]
        for part in parts:
            at = _first_difference(one.columns[part], other.columns[part])
            found += [int(np.searchsorted(starts, where, "right")) - 1 for where in at]
    return max(min(found), 0)


def _first_difference(one: NDArray[Any], other: NDArray[Any]) -> Ints:
    count = min(len(one), len(other))
    return np.flatnonzero(one[:count] != other[:count])[:1]


def _moving_deps(short: Program, longer: Program, begin: int, added: int) -> NDArray[np.bool_] | None:
    """For each dependency of `longer`: whether its distance in ops is constant in repeated steps; if not, it is on one
    fixed op. None if a dependency is neither."""
    moves = np.zeros(len(longer.columns["dep"]), np.bool_)
    start, end = longer.columns["dep_start"], longer.num_ops
    spans = ((longer, begin - added, begin, begin), (short, begin, short.num_ops, begin + added))
    for other, low, high, here in spans:
        before = other.columns["dep"][other.columns["dep_start"][low] : other.columns["dep_start"][high]]
        place = slice(int(start[here]), int(start[min(here + high - low, end)]))
        now = longer.columns["dep"][place]
        if len(before) != len(now) or not np.isin(now - before, (0, added)).all():
            return None
        moves[place] = now - before == added
    return moves


def _lines(longer: Program, rows: Ints, turn: Ints, period: int) -> tuple[tuple[str, ...], Ints]:
    """Source lines and their indices. Lines of repeated ops say how many steps later they run."""
    old = longer.columns["line"][rows].astype(np.int64)
    many = len(longer.lines) + 1
    keys, found = np.unique(np.where(old < 0, -1, turn * many + old), return_inverse=True)
    texts = [longer.lines[key % many] + _later(int(key // many) * period) for key in keys.tolist() if key >= 0]
    return tuple(texts), found.astype(np.int64) - int(len(keys) > 0 and keys[0] < 0)


def _later(steps: int) -> str:
    return f", {steps} steps later" if steps else ""


def is_same(one: Program, other: Program) -> bool:
    """Return whether two programs are equal, apart from source lines."""
    return _has_same_tables(one, other) and all(
        np.array_equal(values, other.columns[name]) for name, values in one.columns.items() if name != "line"
    )
