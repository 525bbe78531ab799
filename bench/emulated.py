"""Products that sleep instead of computing, so that more ranks than cores keep their overlap; ranks import this."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dovetail.ir import KernelForm, Program, Schedule, Workload
from dovetail.matmul import MATMUL
from dovetail.matmul.kernels import Array, shape


def asleep(start_s: float, flop_per_s: float, reads: Sequence[Array], writes: Sequence[Array]) -> None:
    """Takes as long as a product of these shapes, from its start at this speed, and leaves the results as they are.

    The core is free meanwhile for the network and the other ranks, as it is where an accelerator computes.
    """
    (a, b), (c,) = reads, writes
    if c.size:
        m, k, n = shape(a.size, b.size, c.size)
        time.sleep(start_s + 2 * m * k * n / flop_per_s)


def form(start_s: float, flop_per_s: float) -> KernelForm:
    """The kernel `matmul` as it sleeps: its work is a product's, its results are nobody's."""
    return KernelForm(MATMUL.name, partial(asleep, start_s, flop_per_s), MATMUL.work)


def emulating(kind: Any, start_s: float, flop_per_s: float) -> Any:
    """The operators of a class, with products that sleep; whatever is planned, probed and run of them, runs with
    these."""
    kernel = form(start_s, flop_per_s)

    def workload(self: Any, program: Program, schedule: Schedule) -> Workload:
        return replace(kind.workload(self, program, schedule), forms=(kernel,))

    return type(f"Emulated{kind.__name__}", (kind,), {"workload": workload})
