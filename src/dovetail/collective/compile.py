"""compile: lower a recorded algorithm by passes to the Program that runs, and prove it."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from dovetail.collective.recorder import MOST_INSTANCES, MOST_OPS
from dovetail.core import OperatorError, ProgramError, parse_count
from dovetail.ir import Program, verify
from dovetail.passes.hints import Hints
from dovetail.passes.lower import lower

Lanes = Literal["auto", "manual"]
Replicate = Literal["interleaved", "batched"]
PROTOCOLS = {"Simple": 2, "LL": 8, "LL128": 8}  # messages that a channel holds (seed 002, section 6.1)


def depth_of(protocol: str) -> int:
    """Return the number of messages that a channel of this protocol holds. Raise OperatorError for other protocols.

    >>> depth_of("LL128")
    8
    """
    if protocol not in PROTOCOLS:
        raise OperatorError(f"no protocol '{protocol}'", hint=f"one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol]


def check_instances(instances: int) -> int:
    """Return `instances` as an int. Raise OperatorError if it is not 1 to MOST_INSTANCES."""
    count = parse_count(instances, "instances")
    if not 1 <= count <= MOST_INSTANCES:
        raise OperatorError(f"{count} instances", hint=f"1 to {MOST_INSTANCES}")
    return count


def compile_traced(
    program: Program,
    hints: Hints,
    *,
    instances: int = 1,
    fuse: bool = True,
    lanes: Lanes = "auto",
    replicate: Replicate = "interleaved",
) -> Program:
    """Lower a recorded algorithm to a Program and prove it.

    Parameters
    ----------
    program, hints
        From `Algorithm.trace`. Lanes that the hints ask for are kept.
    instances, fuse, lanes, replicate
        As in `Algorithm.compile`.

    Raises
    ------
    ProgramError
        Naming your line, if the Program cannot be proved, or if `lanes` is "manual" and an op asks for no lane.
    OperatorError
        For invalid options, or too many ops.
    """
    if lanes not in get_args(Lanes):
        raise OperatorError(f"no lanes '{lanes}'", hint=f"one of {', '.join(get_args(Lanes))}")
    if lanes == "manual":
        _check_lanes(program, hints)
    _check_size(hints, instances)
    lowered = lower(program, hints, instances=instances, how=replicate, fuse=fuse)
    verify(lowered).raise_if_bad()
    return lowered


def _check_size(hints: Hints, instances: int) -> None:
    """Raise OperatorError if the instances of all ops are more than MOST_OPS."""
    ops = int(hints.copies.sum(dtype=np.int64)) * instances
    if ops > MOST_OPS:
        raise OperatorError(f"{ops} ops in {instances} instances", hint=f"fewer instances: at most {MOST_OPS} ops")


def _check_lanes(program: Program, hints: Hints) -> None:
    """Raise ProgramError for the first op that asks for no lane."""
    unasked = np.flatnonzero(hints.lane < 0)
    if len(unasked):
        op = program.op(int(unasked[0]))
        what = f"this {op.kind.name} on rank {op.rank} names no lane, but lanes are 'manual'"
        raise ProgramError(what, where=op.line, hint="name send_lane and recv_lane, or use lanes='auto'")
