"""together: raise an error that one rank has before a transfer on all ranks, so that no rank waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from dovetail.core import DovetailError, OperatorError, RunError, errors

E = TypeVar("E", bound=BaseException)
_COMMON = "_dovetail_common"
MOST_LETTERS = 1000  # of an error's text: MPI sends a message of this length without waiting for the receiver


class Unanswered(RunError):
    """A rank sent nothing within the time limit."""


class Fault(NamedTuple):
    """An error of a rank: the rank, the name of the error's class, its text. No text: it has no error."""

    rank: int
    kind: str = ""
    text: str = ""

    def raised(self) -> DovetailError:
        """Return the error for the other ranks: of the same class if that is Dovetail's, else an OperatorError."""
        kind = getattr(errors, self.kind, OperatorError)
        made: DovetailError = kind(f"rank {self.rank}: {self.text}")
        return made


class OtherRankFailed(Exception):
    """Another rank sent its fault in place of a message."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


def fault_of(rank: int, error: BaseException) -> Fault:
    """Return the Fault that a rank sends to the other ranks for an error."""
    ours = type(error).__name__ if isinstance(error, DovetailError) else ""
    return Fault(rank, ours if hasattr(errors, ours) else "", words_of(error))


def common(error: E) -> E:
    """Mark `error` as raised by all ranks together, so that no `faults.Door` reports it, and return it."""
    with suppress(Exception):  # from a user's class
        setattr(error, _COMMON, True)
    return error


def is_common(error: BaseException) -> bool:
    """Return whether `common` has marked this error."""
    return bool(vars(error).get(_COMMON, False)) if hasattr(error, "__dict__") else False


def words_of(error: BaseException) -> str:
    """Return an error's text. The name of its class comes first unless the class is Dovetail's.

    >>> words_of(OperatorError("no such root")), words_of(RuntimeError("boom")), words_of(SystemExit())
    ('no such root', 'RuntimeError: boom', 'SystemExit')
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # from a user's class
        text = ""
    if isinstance(error, DovetailError) and text:
        return text[:MOST_LETTERS]
    return (f"{name}: {text}" if text else name)[:MOST_LETTERS]


def first_of(faults: Mapping[int, Fault]) -> Fault:
    """Return the fault of the lowest rank that has one, or an empty fault."""
    return next((fault for _, fault in sorted(faults.items()) if fault.text), Fault(-1))


def of_all(comm: Any, own: Callable[[], Any], fault: BaseException | None = None) -> list[Any]:
    """Return the results of `own` on all ranks of the user's communicator. If it fails on one rank, all ranks raise."""
    found = None
    if fault is None:
        try:
            found = own()
        except BaseException as error:  # of any kind: the other ranks wait for this one
            fault = error
    sent = fault_of(comm.Get_rank(), fault) if fault is not None else Fault(-1)
    everyone = comm.allgather((sent, found))
    if fault is not None:
        raise common(fault)
    first = first_of({rank: each for rank, (each, _) in enumerate(everyone)})
    if first.text:
        raise common(first.raised())
    return [each for _, each in everyone]
