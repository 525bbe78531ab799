"""agreement: the process group of a call, and whether all its ranks make the same call, before any data move."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Never

import torch

from dovetail.core import OperatorError, RunError
from dovetail.torch import dispatch

FAULT = -1  # the number of a call whose arguments are invalid
TEXT = 2048  # bytes of what a rank says of its call
STATE = (1 << 16) - 1  # the bits of a number that are not of the call, but of what its rank knows of it


def named(name: str) -> Any:
    """Return the process group of this name. Raises OperatorError if there is none."""
    try:
        return dispatch.resolve_process_group(name)
    except RuntimeError as error:
        hint = 'init_process_group("dovetail"), or the name of a group that still exists'
        raise OperatorError(f"there is no process group '{name}'", hint=hint) from error


def check_backend(group: Any) -> None:
    """Raise OperatorError unless the group's backend is "dovetail"."""
    backend = group.name() if hasattr(group, "name") else ""
    if backend != "dovetail":
        hint = 'init_process_group("dovetail") or new_group(backend="dovetail")'
        what = 'these operators run on groups of backend "dovetail"'
        raise OperatorError(what, found=f"backend {backend}", hint=hint)


def exchange(group: Any, number: int) -> bytes:
    """Return every rank's number, 8 bytes each."""
    calls = getattr(group, "_calls", None)
    if calls is None:
        return texts_of(group, number.to_bytes(8, "little", signed=True), 8)
    try:
        found: bytes = group._worker.now(partial(calls.made.gather_number, number))
    except RunError as error:
        raise group._failed("the agreement of an operator", error) from None
    return found


def texts_of(group: Any, own: bytes, size: int) -> bytes:
    """Return what every rank says, in `size` bytes each."""
    mine = torch.frombuffer(bytearray(own[:size].ljust(size, b"\0")), dtype=torch.uint8)
    every = torch.empty(size * group.size(), dtype=torch.uint8)
    group.all_gather_single(every, mine).wait()
    return bytes(every.numpy().tobytes())


def words_of(group: Any, own: str) -> list[str]:
    """Return every rank's words."""
    every = texts_of(group, own.encode()[:TEXT], TEXT)
    starts = range(0, len(every), TEXT)
    return [every[start : start + TEXT].rstrip(b"\0").decode(errors="replace") for start in starts]


def agree(group: Any, number: int, says: Callable[[], str], fault: str = "") -> bool:
    """Return whether all ranks know the same of a call with this number.

    Every rank gets the same answer, by one message: what ranks do next does not depend on what one of them knows.
    Raises OperatorError on every rank if their calls differ, or if one has a fault.
    """
    own = FAULT if fault else number
    found = exchange(group, own)
    if not fault and found == found[:8] * (len(found) // 8):
        return True
    numbers = [int.from_bytes(found[at : at + 8], "little", signed=True) for at in range(0, len(found), 8)]
    if fault or any((each ^ own) & ~STATE for each in numbers):
        _raise(words_of(group, f"!{fault}" if fault else says()))
    return False


def asked(group: Any, number: int, says: Callable[[], str]) -> Callable[[], bool]:
    """Ask whether every rank calls with this number, and return what settles it: call that before data move.

    Between hosts the question travels while this rank computes. The answer is as that of `agree`.
    """
    if not getattr(group, "is_native", False):
        return partial(agree, group, number, says)
    question = group.ask(number)
    return lambda: group.settle(question, says())


def disagreed(group: Any, title: str) -> Never:
    """Raise the error of a call that is not the same on all ranks; each rank says what it calls."""
    _raise(words_of(group, title))


def _raise(words: list[str]) -> Never:
    for rank, text in enumerate(words):
        if text.startswith("!"):
            raise OperatorError(f"rank {rank}: {text[1:]}")
    for rank, text in enumerate(words):
        if text != words[0]:
            raise OperatorError("ranks make calls that do not fit", found=f"rank 0: {words[0]}; rank {rank}: {text}")
    raise OperatorError("ranks make calls that do not fit", found=words[0])
