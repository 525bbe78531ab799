"""faults: raise an error of one rank, raised in a collective before its transfer, on all ranks of the host.

The ranks of a communicator on one host share a board (see native/run/board.hpp). A call costs two stores to it. A rank
that fails posts its error on the board, then joins the transfers that other ranks have begun, with dummy arrays in
place of its own. So no rank stays inside MPI. After such a transfer, or in place of the next one, every other rank
raises the error.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple, Self

import numpy as np

from dovetail import _native
from dovetail.core import RunError
from dovetail.ir.collectives import COLLECTIVES
from dovetail.run.ranks import comm as ranks
from dovetail.run.ranks.comm import KINDS, REDUCED, CollectiveCall, Communicator
from dovetail.run.ranks.together import Fault, common, fault_of, is_common
from dovetail.run.reduce import REDUCE_OPS

REPORT_S = 2.0  # seconds after which a rank that waits for others before it raises prints the reason
_POLL_S = 1e-3


class Owed(NamedTuple):
    """A call that this rank completes before it raises a fault. `absent`: ranks that have not reached it."""

    number: int
    absent: tuple[int, ...]
    kind: int  # -1: no rank has recorded it
    elements: int = 0
    dtype: int = 0
    op: int = 0
    root: int = 0
    num_bytes: int = 0
    by_rules: bool = True
    begun: bool = False
    all_counts: bytes = b""


class Door:
    """While it is open, an error of this rank is raised on all ranks of `made`, unless all ranks raise it anyway.

    `comm`: the user's communicator; `made`: Dovetail's for it, if it is known already; `bound`: its native one.
    """

    made: Communicator | None

    def __init__(self, comm: Any, bound: _native.Communicator | None = None) -> None:
        self.comm, self.made = comm, ranks.known_by(bound) if bound is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if error is None or is_common(error) or isinstance(error, RunError):  # the last: the transfer itself failed
            return
        made = self.made or ranks.known(self.comm)
        if made is not None:
            report(made, error)


def report(made: Communicator, error: BaseException) -> None:
    """Raise an error of this rank on the other ranks. The caller raises it afterwards on this rank."""
    made.world.requests.finish_others()
    fault = fault_of(made.rank, error)
    with suppress(RunError):  # a rank has died, as the others find out by themselves: this one raises its own error
        if made.bound.post(fault.kind, fault.text):
            _finish(made, fault)


def raise_fault(bound: _native.Communicator) -> None:
    """Raise the error that another rank has posted. The native call does this in place of a transfer, or after it."""
    made = ranks.known_by(bound)
    assert made is not None
    rank, kind, text = bound.fault()
    fault = Fault(rank, kind, text.decode(errors="replace"))
    _finish(made, fault)
    raise common(fault.raised())


def _finish(made: Communicator, fault: Fault) -> None:
    """Complete the calls that ranks had started when the fault was posted. All ranks then drop their engines."""
    begun, made.bound.standing_in = made.world.transport.begun, True
    try:
        while (owed := Owed(*made.bound.owed())).number:
            _await_all(made, owed, fault)
            made.world.transport.begun = owed.begun
            _stand_in(made, owed, fault)
    except RunError:  # MPI fails: the others see it too
        pass
    finally:
        made.bound.standing_in, made.world.transport.begun = False, begun
        made.bound.clear()
        made.bound.acknowledge()


def _await_all(made: Communicator, owed: Owed, fault: Fault) -> None:
    """Wait until all ranks have reached a call. Unlike a wait inside MPI, this can be interrupted."""
    begin, is_reported = time.monotonic(), False
    while owed.absent:
        time.sleep(_POLL_S)
        owed = Owed(*made.bound.owed())
        if not is_reported and time.monotonic() - begin > REPORT_S:
            missing = ", ".join(map(str, owed.absent))
            _print(f"{_said(fault)}. Rank {made.rank} raises it when these ranks have reached the call: {missing}")
            is_reported = True


def _stand_in(made: Communicator, owed: Owed, fault: Fault) -> None:
    """Take part in a call of the other ranks with arrays of zeros. The results are not used."""
    if owed.kind < 0:
        _print(f"{_said(fault)}. Other ranks wait in a call that it cannot join: the job is ended")
        made.world.abort(1)
    kind, is_root = KINDS[owed.kind], owed.root == made.rank
    traits = COLLECTIVES[kind]
    counts = None
    if owed.all_counts:
        counts = np.frombuffer(owed.all_counts, np.int64)
        counts = counts.reshape(made.size, made.size) if traits.exchanges else counts
    most = made.size * owed.elements if counts is None else int(counts.sum())
    src = np.zeros(most * np.dtype(_STORED.get(REDUCED[owed.dtype], REDUCED[owed.dtype])).itemsize, np.uint8)
    dst = src if traits.from_root and not traits.cut else np.zeros_like(src)
    given, result = src.ctypes.data, dst.ctypes.data
    if not owed.by_rules:
        made.bound.library(owed.kind, given, result, owed.elements)
        return
    given = given if not traits.input_at_root or is_root else 0
    result = result if not traits.to_root or is_root else 0
    sizes = owed.elements, REDUCED[owed.dtype], owed.num_bytes
    made.run(CollectiveCall(kind, given, result, *sizes, REDUCE_OPS[owed.op], owed.root, counts))


_STORED = {"bfloat16": "uint16"}


def _said(fault: Fault) -> str:
    return f"dovetail: rank {fault.rank} fails in a collective: {fault.kind and f'{fault.kind}: '}{fault.text}"


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
