"""predict: a plan, or a program, on a machine's pretended clock."""

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
        A plan knows its sizes. A program needs a `workload`, or where it has no kernels `slot_bytes`.
    machine : Machine or str
        A machine, or what `Machine.load` takes: a preset's name, or the path of a file.
    workload : Workload, optional
        Sizes of the program's slots, and what its kernels cost.
    slot_bytes : int, optional
        Bytes of each slot of every buffer.
    contention : float, optional
        One factor on communication in place of the measured slow-downs.
    extrapolate : bool
        Whether sizes beyond what was measured may be predicted.

    Returns
    -------
    Timeline
        Labelled predicted; seconds.

    Raises
    ------
    CostError
        Where the machine lacks a cost, or was not measured that far.
    OperatorError
        Where the sizes of a program's slots are not known.
    ProgramError
        Where the program cannot finish.

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
        hint = "give its workload=…" if names else "give slot_bytes=65536, say, or its workload=…"
        found = f"kernels {names}" if names else None
        raise OperatorError(f"the sizes of program '{program.name}' are not known", found=found, hint=hint)
    slot = Slot((parse_count(slot_bytes, "slot_bytes", least=1),), "uint8")
    return Workload({buffer.name: (slot,) * program.num_ranks for buffer in program.buffers})
