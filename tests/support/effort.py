"""How much work a call is, on a machine of any speed and however busy: CPU time over that of other work beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import TypeVar

Result = TypeVar("Result")
TURNS = 1_000_000


def assert_quick(call: Callable[[], Result], loops: float, tries: int = 4) -> Result:
    """The result of `call`, which may take the CPU time of so many plain loops of a million turns, once in `tries`."""
    least = inf
    for _ in range(tries):
        before = cpu_s(_plain_loop)
        begin = time.process_time()
        result = call()
        took_s = time.process_time() - begin
        least = min(least, 2 * took_s / (before + cpu_s(_plain_loop)))
        if least < loops:
            return result
    raise AssertionError(f"it took as long as {least:.0f} loops of a million turns; {loops:g} are allowed")


def ratio(
    call: Callable[[], object],
    other: Callable[[], object],
    enough: float,
    clock: Callable[[], float] = time.process_time,
    rounds: int = 20,
) -> float:
    """Least time of `call` over the least of `other`, in turn: of 3 rounds, and of more while that exceeds `enough`."""
    least = [inf, inf]
    for number in range(rounds):
        for i, each in enumerate((call, other)):
            least[i] = min(least[i], cpu_s(each, clock))
        if number >= 2 and least[0] < enough * least[1]:
            break
    return least[0] / least[1]


def cpu_s(call: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    begin = clock()
    call()
    return clock() - begin


def _plain_loop() -> None:
    for _ in range(TURNS):
        pass
