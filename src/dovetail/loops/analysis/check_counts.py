"""check_counts: check that the reference program of a nest executes as many operations as its loops.

The loops are counted independently (by isl if they are no box), because a comparison of the reference with the tiled
program would not show an operation that both leave out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from dovetail.core import ProgramError
from dovetail.ir import Program, Workload, op_works
from dovetail.loops.expressions import operations
from dovetail.loops.recording import Loop, Recording


def check_count(
    nest: Recording, sizes: Mapping[str, int], program: Program, workload: Workload, apart: Collection[str] = ()
) -> None:
    """Raise ProgramError unless the program has as many operations as the nest's loops.

    The program must compute each point once. Not counted: statements and kernels of names in `apart`, and kernels
    whose names do not begin with the nest's.
    """
    wanted = sum(
        iterations(statement.loops, sizes) * operations(statement.value)
        for statement in nest.statements
        if statement.name not in apart
    )
    names = [kernel.name for kernel in program.kernels]
    ours = {row for row, name in enumerate(names) if name.startswith(f"{nest.name}_") and name not in apart}
    calls = program.columns["call"].tolist()
    found = sum(work.flops for row, work in op_works(program, workload).items() if calls[row] in ours)
    if round(found) != wanted:
        raise ProgramError(
            f"the reference program of {nest.name} leaves out iterations of its loops, or executes some twice",
            found=f"{round(found)} operations instead of {wanted}",
            hint="this is a defect of ours: please report the nest and its grid",
        )


def iterations(loops: Sequence[Loop], sizes: Mapping[str, int]) -> int:
    """Return the number of iterations of nested loops. Loops with independent bounds are counted separately.

    >>> from dovetail.loops import array, loop, nest
    >>> @nest(a=array("n", "n"))
    ... def triangle(a):
    ...     for i in loop(a.shape[0]):
    ...         for j in loop(i, a.shape[1] - 1):
    ...             a[i, j] = 1.0
    >>> iterations(triangle.statements[0].loops, {"n": 5})
    10
    """
    groups: list[list[Loop]] = []
    for each in loops:
        named = {*each.low.names, *each.high.names}
        joined = [group for group in groups if named & {loop.index for loop in group}]
        groups = [group for group in groups if group not in joined]
        groups.append([*(loop for group in joined for loop in group), each])
    return prod(_count(group, sizes) for group in groups)


def _count(loops: Sequence[Loop], sizes: Mapping[str, int]) -> int:
    if len(loops) == 1:
        return max((loops[0].high - loops[0].low).at(sizes), 0)
    import islpy as isl

    return int(isl.Set(set_text(loops, sizes)).count_val().to_python())


def set_text(loops: Sequence[Loop], sizes: Mapping[str, int]) -> str:
    """Return the iterations of nested loops in isl's notation."""
    names = {loop.index: f"i{number}" for number, loop in enumerate(loops)}
    ends = [[end.named({**sizes, **names}) for end in (loop.low, loop.high)] for loop in loops]
    bounds = [f"{low} <= {name} < {high}" for name, (low, high) in zip(names.values(), ends, strict=True)]
    return f"{{ [{', '.join(names.values())}] : {' and '.join(bounds)} }}"
