"""lower: turn a traced algorithm into a program on lanes by all passes in order."""

from __future__ import annotations

import numpy as np

from dovetail.core import ProgramError
from dovetail.ir import Program
from dovetail.passes.allocate_slots import allocate_slots
from dovetail.passes.assign_channels import assign_channels
from dovetail.passes.assign_lanes import assign_lanes
from dovetail.passes.depend import depend
from dovetail.passes.drop_redundant import drop_redundant
from dovetail.passes.fuse_flows import find_flows, fuse_flows
from dovetail.passes.fuse_reduces import fuse_reduces
from dovetail.passes.hints import Hints
from dovetail.passes.replicate import How, replicate


def lower(
    program: Program,
    hints: Hints,
    *,
    instances: int = 1,
    how: How = "interleaved",
    fuse: bool = True,
    most: int = 32,
) -> Program:
    """Lower a traced algorithm to lanes and channels, with forwards fused, in `instances` copies.

    The trace has one lane per rank. Its rows are in the order written, each receive in the row after its send. The
    result completes at the least depth that its channels declare; if fused ops prevent that, fewer are fused.
    It uses at most `most` channels, unless the author asks for more. Verify it before it runs.

    Raises ProgramError if the lanes asked for are impossible, or if `batched` instances would change the result.
    """
    copies = instances * int(hints.copies.max(initial=1))
    few = max(most // copies, 1)
    laid_out, hints = _lay_out(program, hints, fuse, few)
    packed = allocate_slots(laid_out)
    replicated = replicate(packed, hints, instances, how)
    return drop_redundant(replicated)


def _lay_out(program: Program, hints: Hints, fuse: bool, most: int) -> tuple[Program, Hints]:
    """Assign channels, lanes and an order. If fused reduces prevent an order, leave reduces unfused."""
    for fuses_reduces in (True, False) if fuse else (False,):
        graph, some = fuse_reduces(program, hints) if fuses_reduces else (program, hints)
        graph = depend(graph)
        forward = find_flows(graph, some) if fuse else np.full(graph.num_ops, -1)
        some, forward = assign_channels(graph, some, forward, most)
        found = assign_lanes(graph, some, forward)
        if found:
            return fuse_flows(*found)
    raise ProgramError(f"program '{program.name}' has no order", hint="list each receive right after its send")
