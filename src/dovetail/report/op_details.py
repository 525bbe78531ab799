"""op_details: what a page shows of each op: text, source line, messages, and the ops that it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Program
from dovetail.ir.text.lines import op_lines
from dovetail.report.span_classes import MPI_GROUPS
from dovetail.timeline.partners import message_of


@dataclass(frozen=True, eq=False)
class OpDetails:
    """Details of each op of a program or trace.

    Op i has the text `texts[i]` and the source line `lines[line[i]]` (none if -1), and waited for the ops
    `dep[dep_start[i]:dep_start[i + 1]]`. Message j goes from op `sender[j]` to op `taker[j]`. `classes`: each op's row
    of `MPI_GROUPS`; None for Dovetail's own kinds of ops. `outside`: what the first of these groups is called.
    """

    name: str
    lines: tuple[str, ...]
    texts: Sequence[str] = field(repr=False)
    line: NDArray[Any] = field(repr=False)
    sender: NDArray[Any] = field(repr=False)
    taker: NDArray[Any] = field(repr=False)
    dep_start: NDArray[Any] = field(repr=False)
    dep: NDArray[Any] = field(repr=False)
    classes: NDArray[Any] | None = field(default=None, repr=False)
    outside: str = MPI_GROUPS[0].name


def details_of(program: Program | OpDetails) -> OpDetails:
    if isinstance(program, OpDetails):
        return program
    sender = message_of(program)
    taker = np.flatnonzero(sender >= 0)
    col = program.columns
    links = (sender[taker], taker, col["dep_start"], col["dep"])
    return OpDetails(program.name, program.lines, op_lines(program, source=False), col["line"], *links)
