"""ir: Program, the only schedule IR; its text form; and its proof, the certificate."""

from dovetail.ir.abilities import Heuristic, PublishedCase
from dovetail.ir.build import Builder
from dovetail.ir.compute_calls import Call, Calls, compute_calls, kernel_calls, op_works, work_keys
from dovetail.ir.fold import fold
from dovetail.ir.folded import Folded, Requirement
from dovetail.ir.kernels import Agreement, CFunction, Gemm, KernelCall, KernelForm, Operand, Work
from dovetail.ir.operator import LibraryCall, Operator, Option, Piece, Sample, Space
from dovetail.ir.program import Program, check_columns
from dovetail.ir.proof.certificate import Certificate, Check
from dovetail.ir.proof.folded import verify_folded
from dovetail.ir.proof.limits import TARGETS, Target
from dovetail.ir.proof.sizes import sizes_fault, slot_classes, slot_sizes, uneven
from dovetail.ir.proof.verify import judge_limits, verify, verify_reference
from dovetail.ir.schedule import SERIAL, Progress, Schedule
from dovetail.ir.slots import Slot, dtype_bytes
from dovetail.ir.subject import Subject
from dovetail.ir.symmetry import Symmetry
from dovetail.ir.text.parse import parse
from dovetail.ir.text.write import canonical, to_text
from dovetail.ir.types import (
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
    is_one_of,
)
from dovetail.ir.workload import Sizes, Workload, region_bytes

__all__ = [
    "COLUMNS",
    "RECVS",
    "SENDS",
    "SERIAL",
    "TARGETS",
    "Agreement",
    "Buffer",
    "Builder",
    "CFunction",
    "Call",
    "Calls",
    "Certificate",
    "Channel",
    "Check",
    "Collective",
    "Folded",
    "Gemm",
    "Heuristic",
    "Kernel",
    "KernelCall",
    "KernelForm",
    "Kind",
    "Lane",
    "LibraryCall",
    "Op",
    "Operand",
    "Operator",
    "Option",
    "Piece",
    "Post",
    "Program",
    "Progress",
    "PublishedCase",
    "Region",
    "Requirement",
    "Sample",
    "Schedule",
    "Sizes",
    "Slot",
    "Space",
    "Subject",
    "Symmetry",
    "Target",
    "Term",
    "Work",
    "Workload",
    "canonical",
    "check_columns",
    "compute_calls",
    "dtype_bytes",
    "fold",
    "is_one_of",
    "judge_limits",
    "kernel_calls",
    "op_works",
    "parse",
    "region_bytes",
    "sizes_fault",
    "slot_classes",
    "slot_sizes",
    "to_text",
    "uneven",
    "verify",
    "verify_folded",
    "verify_reference",
    "work_keys",
]
