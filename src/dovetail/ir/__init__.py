"""ir: Program, the only schedule IR, its text form, and the certificate that proves it."""

from dovetail.ir.build import Builder
from dovetail.ir.parts import (
    COLUMNS,
    RECVS,
    SENDS,
    Buffer,
    Channel,
    Collective,
    Kernel,
    Kind,
    Lane,
    Op,
    Post,
    Region,
    Term,
)
from dovetail.ir.program import Program
from dovetail.ir.workload import Slot, Work, Workload, dtype_bytes

__all__ = [
    "COLUMNS",
    "RECVS",
    "SENDS",
    "Buffer",
    "Builder",
    "Channel",
    "Collective",
    "Kernel",
    "Kind",
    "Lane",
    "Op",
    "Post",
    "Program",
    "Region",
    "Slot",
    "Term",
    "Work",
    "Workload",
    "dtype_bytes",
]
