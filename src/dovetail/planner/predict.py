"""predict: simulate a plan, or a program, on a machine."""

from __future__ import annotations

from dovetail.core import OperatorError, parse_count
from dovetail.cost import price
from dovetail.ir import Program, Slot, Workload
from dovetail.machine import Machine
from dovetail.planner.plan import Plan
from dovetail.sim import simulate as run
from dovetail.timeline import Timeline


def simulate(
    what: Plan | Program,
    machine: Machine | str,
    *,
    workload: Workload | None = None,
    slot_bytes: int | None = None,
    contention: float | None = None,
    extrapolate: bool = False,
) -> Timeline:
    """Predict when each op of a plan or a program starts and ends on a machine.

    Parameters
    ----------
    what : Plan or Program
        A plan knows its sizes. A program needs a `workload`, or `slot_bytes` if it has no kernels.
    machine : Machine or str
        A machine, the name of a preset, or the path of a machine's file.
    workload : Workload, optional
        Sizes of the program's slots, and what its kernels cost.
    slot_bytes : int, optional
        Bytes of each slot of every buffer.
    contention : float, optional
        One factor on the times of communication, instead of the measured slow-downs.
    extrapolate : bool
        Predict sizes beyond the measured range.

    Returns
    -------
    Timeline
        The predicted spans, in seconds.

    Raises
    ------
    CostError
        If the machine lacks a cost, or was not measured that far and `extrapolate` is false.
    OperatorError
        If the sizes of a program's slots are unknown.
    ProgramError
        If the program cannot finish.

    >>> import dovetail as dt
    >>> made = dt.plan(dt.MatmulAllReduce(4096, 3072, 8192, "float16"), "atlas-a2-8", schedule="mc2")
    >>> dt.simulate(made, "atlas-a2-8")
    <Timeline: 1283 µs predicted, 8 ranks, 80 spans>
    """
    where = Machine.load(machine) if isinstance(machine, str) else machine
    if isinstance(what, Plan):
        program, held = what.program, workload or what.operator.workload(what.program, what.schedule)
    else:
        program, held = what, workload or _even_slots(what, slot_bytes)
    return run(program, price(program, where, held, contention, extrapolate=extrapolate), where.name)


def _even_slots(program: Program, slot_bytes: int | None) -> Workload:
    if slot_bytes is None or program.kernels:
        names = ", ".join(kernel.name for kernel in program.kernels)
        hint = "pass workload=…" if names else "pass slot_bytes=65536, for example, or workload=…"
        found = f"kernels {names}" if names else None
        raise OperatorError(f"the sizes of program '{program.name}' are unknown", found=found, hint=hint)
    slot = Slot((parse_count(slot_bytes, "slot_bytes", least=1),), "uint8")
    return Workload({buffer.name: (slot,) * program.num_ranks for buffer in program.buffers})
