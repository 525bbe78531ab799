"""Hypothesis strategies of the executors' tests, apart so that ranks can make the same Programs without hypothesis."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from run_programs import Maker, Mover

from dovetail.ir import Program, verify


@st.composite
def programs(draw: st.DrawFn, num_ops: int = 14, maker: type[Maker] = Maker) -> Program:
    """A random Program that `verify` accepts, at the least depth of its channels or deeper."""
    program = maker(random.Random(draw(st.integers(0, 2**32))), draw(st.integers(1, num_ops))).program()
    certificate = verify(program)
    assert certificate.ok, certificate
    return program.with_depth(certificate.min_fifo_depth + draw(st.integers(0, 2)))


def movers(num_ops: int = 14) -> st.SearchStrategy[Program]:
    """The same without kernels."""
    return programs(num_ops, Mover)
