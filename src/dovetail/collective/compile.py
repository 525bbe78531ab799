"""compile: from what an algorithm wrote to the Program that runs, pass by pass, and its proof."""

from __future__ import annotations

from typing import Literal

from dovetail.core import WishError
from dovetail.ir import Program, verify
from dovetail.passes.hints import Hints

Lanes = Literal["auto", "manual"]
Replicate = Literal["interleaved", "batched"]
PROTOCOLS = {"Simple": 2, "LL": 8, "LL128": 8}  # messages that a channel holds (references: seed 002, section 6.1)


def depth_of(protocol: str) -> int:
    """Messages that a channel of this protocol holds.

    >>> depth_of("LL128")
    8
    """
    if protocol not in PROTOCOLS:
        raise WishError(f"no protocol '{protocol}'", hint=f"one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol]


def compile_traced(
    program: Program,
    hints: Hints,
    *,
    instances: int = 1,
    fuse: bool = True,
    lanes: Lanes = "auto",
    replicate: Replicate = "interleaved",
) -> Program:
    """The pipeline; the certificate is taken on what comes out. ProgramError where it does not hold."""
    verify(program).raise_if_bad()
    return program
