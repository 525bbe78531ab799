"""timing: run one Program at one size on its own ranks: seconds, and correctness of the result."""

from __future__ import annotations

from dataclasses import replace

from dovetail.core import OperatorError
from dovetail.ir import Buffer, Program, Schedule, Slot, Workload, dtype_bytes, op_works
from dovetail.passes import two_sided
from dovetail.run.engine import check_supported
from dovetail.run.executor import Executor, executor_on
from dovetail.run.job import EACH_S, Job, JobResult, Variant
from dovetail.run.options import RunOptions

MOST_REPEATS = 100
USUAL, SLOWEST = 20e9, 1e9  # FLOP/s: expected of one rank; of all ranks together, below which a run counts as stalled
TIMED, TRACED = "timed", "traced"


def measure(
    program: Program,
    num_bytes: int = 1 << 20,
    dtype: str = "float32",
    *,
    executor: Executor | None = None,
    rounds: int = 5,
    budget_s: float = 60.0,
    seed: int = 0,
    workload: Workload | None = None,
) -> JobResult:
    """Run `program` on ranks and time it. The default executor is MPI.

    Slots have equal sizes so that the larger of a rank's input and output holds about `num_bytes` (see `even_slots`),
    unless `workload` gives slots and kernels. In the result, `["timed"]` has the seconds of back-to-back runs without
    stamps, and the error of everything that the post-conditions name, against float64; `["traced"]` has the Timeline of
    the median of single runs. Raises ProgramError for a program that `verify` refuses, OperatorError for kernels
    without a `workload` (a Program does not contain their sizes), RunError if ranks fail.
    """
    program = two_sided(program)
    held = workload or even_slots(program, num_bytes, dtype)
    return (executor or executor_on()).execute(measuring_job(program, held, rounds, budget_s, seed))


def measuring_job(
    program: Program,
    workload: Workload,
    rounds: int,
    budget_s: float,
    seed: int,
    *,
    schedule: Schedule | None = None,
    against: tuple[Program, Workload] | None = None,
) -> Job:
    """Return the job that `measure` executes. The Program must have no puts and gets: ranks share no memory.

    `schedule`: how progress is driven. `against`: the reference program, with its workload, to compare results with."""
    check_supported(program)
    flops = sum(work.flops for work in op_works(program, workload).values())
    hoped_s = 10e-6 + 1e-6 * program.num_ops / program.num_ranks + 1e-9 * held_bytes(program, workload)
    stall_s = max(RunOptions.stall_s, flops / SLOWEST)
    hoped_s += flops / program.num_ranks / USUAL
    repeats = max(1, min(MOST_REPEATS, int(EACH_S / hoped_s)))
    one = RunOptions.of(schedule, stall_s=stall_s) if schedule else RunOptions(stall_s=stall_s)
    many, check = replace(one, repeats=repeats, spans=False), bool(len(program.posts)) or against is not None
    variants = Variant(TIMED, program, workload, many, check, against), Variant(TRACED, program, workload, one)
    return Job(variants, rounds, seed=seed, budget_s=budget_s)


def even_slots(program: Program, num_bytes: int, dtype: str) -> Workload:
    """Return slots of equal size: as many elements as fit into `num_bytes` of a rank's input or output, at least one.

    >>> from dovetail.ir.shapes import ring_all_reduce
    >>> ring = ring_all_reduce(4, 1)
    >>> held_bytes(ring, even_slots(ring, 1000, "float32"))
    992
    """
    if program.kernels:
        names = ", ".join(kernel.name for kernel in program.kernels)
        hint = "pass a Workload, or run a plan"
        raise OperatorError("the sizes of kernels are not in a program", found=f"kernels {names}", hint=hint)
    elements = max(1, num_bytes // dtype_bytes(dtype) // max(1, _most_slots(program)))
    slot = Slot((elements,), dtype)
    return Workload({buffer.name: (slot,) * program.num_ranks for buffer in program.buffers}, {})


def held_bytes(program: Program, workload: Workload) -> int:
    """Return bytes of the larger of a rank's input and output, maximum over ranks, as nccl-tests counts."""
    sides = [[b for b in program.buffers if b.role == role] for role in ("input", "output")]
    return max(sum(_bytes(workload, b, rank) for b in side) for side in sides for rank in range(program.num_ranks))


def _bytes(workload: Workload, buffer: Buffer, rank: int) -> int:
    """Bytes of a buffer of a rank."""
    return workload.length(buffer.name, rank, buffer.slots[rank]) * workload.slot_bytes(buffer.name, rank)


def _most_slots(program: Program) -> int:
    sides = ([b.slots for b in program.buffers if b.role == role] for role in ("input", "output"))
    return max((sum(held) for side in sides for held in zip(*side, strict=True)), default=0)
