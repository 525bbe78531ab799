"""timing: one Program on ranks of its own at one size: how long it takes, and whether what it leaves is right."""

from __future__ import annotations

from dovetail.core import WishError
from dovetail.ir import Program, Slot, Workload, dtype_bytes
from dovetail.passes import two_sided
from dovetail.run.engine import check_supported
from dovetail.run.job import Executor, Job, JobResult, Variant
from dovetail.run.options import RunOptions

EACH_S = 4e-3  # a timing is of about as many runs as fill this
MOST_REPEATS = 100
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
) -> JobResult:
    """Run `program` on ranks, by MPI unless another executor is given, where the larger of a rank's input and output
    holds about `num_bytes` (see `even_slots`).

    `["timed"]` of what comes back has seconds, of runs one after the other without stamps, and how far all that the
    post-conditions name is from float64; `["traced"]` the Timeline of the median among single runs. Raises ProgramError
    for a program that `verify` refuses, WishError for kernels, whose sizes no Program tells, RunError where ranks fail.
    """
    if executor is None:
        from dovetail.run.mpi import MpiExecutor

        executor = MpiExecutor()
    return executor.execute(measuring_job(program, num_bytes, dtype, rounds, budget_s, seed))


def measuring_job(program: Program, num_bytes: int, dtype: str, rounds: int, budget_s: float, seed: int) -> Job:
    """What `measure` executes: puts and gets as messages, for ranks cannot reach into each other's memory."""
    program = two_sided(program)
    check_supported(program)
    workload = even_slots(program, num_bytes, dtype)
    hoped_s = 10e-6 + 1e-6 * program.num_ops / program.num_ranks + 1e-9 * held_bytes(program, workload)
    repeats = max(1, min(MOST_REPEATS, int(EACH_S / hoped_s)))
    timed = Variant(TIMED, program, workload, RunOptions(repeats=repeats, spans=False), check=bool(len(program.posts)))
    return Job((timed, Variant(TRACED, program, workload)), rounds, seed=seed, budget_s=budget_s)


def even_slots(program: Program, num_bytes: int, dtype: str) -> Workload:
    """Slots of as many elements each as fit into `num_bytes` of a rank's input or output, one at least.

    >>> from dovetail.ir.shapes import ring_all_reduce
    >>> ring = ring_all_reduce(4, 1)
    >>> held_bytes(ring, even_slots(ring, 1000, "float32"))
    992
    """
    if program.kernels:
        names = ", ".join(kernel.name for kernel in program.kernels)
        raise WishError("the sizes of kernels are not in a program", found=f"kernels {names}", hint="run a plan")
    elements = max(1, num_bytes // dtype_bytes(dtype) // max(1, _most_slots(program)))
    slot = Slot((elements,), dtype)
    return Workload({buffer.name: (slot,) * program.num_ranks for buffer in program.buffers}, {})


def held_bytes(program: Program, workload: Workload) -> int:
    """Bytes of the larger of a rank's input and output, as nccl-tests count."""
    first = program.buffers[0].name if program.buffers else None
    return _most_slots(program) * workload.slot_bytes(first, 0) if first else 0


def _most_slots(program: Program) -> int:
    sides = ([b.slots for b in program.buffers if b.role == role] for role in ("input", "output"))
    return max((sum(held) for side in sides for held in zip(*side, strict=True)), default=0)
