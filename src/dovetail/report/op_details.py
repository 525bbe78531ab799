"""op_details: what a page shows of each op of a timeline: text, source line, messages, and what it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Program
from dovetail.ir.text.lines import op_lines
from dovetail.timeline.partners import message_of


@dataclass(frozen=True, eq=False)
class OpDetails:
    """`line` has a row of `lines` for each op, or -1; message i goes from op `sender[i]` to op `taker[i]`; op i waited
    for ops `dep[dep_start[i]:dep_start[i + 1]]`. `classes`: of each op its row of
    `MPI_GROUPS`; None for Dovetail's own kinds."""

    name: str
    lines: tuple[str, ...]
    texts: Sequence[str] = field(repr=False)
    line: NDArray[Any] = field(repr=False)
    sender: NDArray[Any] = field(repr=False)
    taker: NDArray[Any] = field(repr=False)
    dep_start: NDArray[Any] = field(repr=False)
    dep: NDArray[Any] = field(repr=False)
    classes: NDArray[Any] | None = field(default=None, repr=False)


def details_of(program: Program | OpDetails) -> OpDetails:
    """Those of a Program's ops."""
    if isinstance(program, OpDetails):
        return program
    sender = message_of(program)
    taker = np.flatnonzero(sender >= 0)
    col = program.columns
    links = (sender[taker], taker, col["dep_start"], col["dep"])
    return OpDetails(program.name, program.lines, op_lines(program, source=False), col["line"], *links)
