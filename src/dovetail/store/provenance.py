"""provenance: the operator and schedule that a Program was made from: they give its sizes, kernels and reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from dovetail.core import DovetailError, OperatorError, PlanError, parse_count, reading
from dovetail.ir import KernelForm, Operator, Program, Schedule, Slot, Workload, op_works
from dovetail.ir.registry import KERNELS, kernel_form, operator_from


@dataclass(frozen=True)
class MadeOf:
    """The operator that a Program was made from, and the schedule if it is known."""

    operator: Operator
    schedule: Schedule | None = None

    def to_json(self) -> dict[str, Any]:
        """Return operator and schedule in the form of a plan's document."""
        made = {} if self.schedule is None else {"choices": self.schedule.to_json()}
        return {"operator": self.operator.to_json(), **made}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> MadeOf:
        """Return operator and schedule from what `to_json` wrote, or from the document of a plan or a tuning.

        Raises PlanError if the document is malformed.
        """
        with reading("document of what a program was made of", PlanError):
            chosen = document.get("choices")
            return MadeOf(operator_from(document["operator"]), None if chosen is None else Schedule.from_json(chosen))

    def workload(self, program: Program) -> Workload:
        """Return the workload of a Program of this operator. Raises OperatorError if it is not one.

        >>> from dovetail.matmul import MatmulAllReduce
        >>> operator = MatmulAllReduce(4, 6, 2)
        >>> program = operator.program(operator.serial(2), 2)
        >>> MadeOf(operator).workload(program).slots["B"][1].shape
        (3, 2)
        >>> MadeOf(MatmulAllReduce(4, 8, 5)).workload(program).slots["C"][0].shape
        (5,)
        >>> MadeOf(MatmulAllReduce(8, 6, 2)).workload(program)
        Traceback (most recent call last):
        ...
        dovetail.core.errors.OperatorError: program 'matmul_all_reduce' is not one of matmul_all_reduce 8 × 6 × 2
        float32
          found       12 elements of buffer 'A' on rank 0; the operator has 24
        """
        try:
            found = self.operator.workload(program, self.schedule or self.operator.serial(program.num_ranks))
            if lacking := [buffer.name for buffer in program.buffers if buffer.name not in found.slots]:
                raise self._mismatch(program, f"buffer '{lacking[0]}', which the operator does not have")
            op_works(program, found)
            self._check_totals(program, found)
        except OperatorError:
            raise
        except DovetailError as error:
            raise self._mismatch(program, f"{error.what}, {error.found}" if error.found else error.what) from error
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise self._mismatch(program, f"{type(error).__name__}: {error}") from error
        return found

    def reference(self, program: Program) -> tuple[Program, Workload] | None:
        """Return the reference program to compare results with, and its workload; None if post-conditions define the
        results, or the schedule, on which the reference depends, is unknown."""
        if self.schedule is None:
            return None
        with reading("document of what a program was made of", PlanError):
            right = self.operator.reference(self.schedule, program.num_ranks)
        return None if right is None else (right, self.operator.workload(right, self.schedule))

    def _check_totals(self, program: Program, found: Workload) -> None:
        """Check that inputs and outputs are as large as the serial schedule's, if equal in all schedules."""
        ranks = program.num_ranks
        serial = self.operator.serial(ranks)
        if self.operator.reference(serial, ranks) is not None:
            return
        usual = self.operator.program(serial, ranks)
        wanted = self.operator.workload(usual, serial)
        sides = {buffer.name for buffer in usual.buffers if buffer.role != "scratch"}
        for name in (buffer.name for buffer in program.buffers if buffer.role != "scratch" and buffer.name in sides):
            for rank in range(ranks):
                held, asked = (elements(*each, name, rank) for each in ((program, found), (usual, wanted)))
                if held != asked:
                    what = f"{held} elements of buffer '{name}' on rank {rank}; the operator has {asked}"
                    raise self._mismatch(program, what)

    def _mismatch(self, program: Program, found: str) -> OperatorError:
        return OperatorError(f"program '{program.name}' is not one of {self.operator.title}", found=found)


def elements(program: Program, workload: Workload, buffer: str, rank: int) -> int:
    """Return the number of elements that a rank holds in a buffer."""
    count = program.slots_of(buffer, rank)
    return workload.length(buffer, rank, count) * prod(workload.slots[buffer][rank].shape)


def shaped(program: Program, shapes: Mapping[str, Sequence[Sequence[int]]], dtype: str) -> Workload:
    """Return the Workload of a Program with slots of these shapes: for each buffer one shape, or one for each rank.

    Its kernels must be those of `ir.registry.KERNELS`. Raises OperatorError for an unknown buffer or kernel, and for
    shapes that a kernel does not accept.

    >>> from dovetail.matmul import MatmulAllReduce
    >>> operator = MatmulAllReduce(4, 6, 2)
    >>> program = operator.program(operator.serial(2), 2)
    >>> held = shaped(program, {"A": [[3]], "B": [[3, 2]], "P": [[2]], "C": [[2]]}, "float32")
    >>> held == operator.workload(program, operator.serial(2))
    True
    """
    names = [buffer.name for buffer in program.buffers]
    if unknown := [name for name in shapes if name not in names]:
        raise OperatorError(
            f"program '{program.name}' has no buffer '{unknown[0]}'", found=f"buffers {', '.join(names)}"
        )
    slots = {name: _slots(name, shapes.get(name), program.num_ranks, dtype) for name in names}
    found = Workload(slots, tuple(_form(name) for name in dict.fromkeys(kernel.name for kernel in program.kernels)))
    try:
        op_works(program, found)
    except OperatorError:
        raise
    except DovetailError as error:
        raise OperatorError(f"these shapes do not fit: {error.what}", found=error.found) from error
    return found


def _slots(name: str, shapes: Sequence[Sequence[int]] | None, ranks: int, dtype: str) -> tuple[Slot, ...]:
    if shapes is None:
        raise OperatorError(f"the shape of a slot of buffer '{name}' is missing", hint="give a shape for each buffer")
    if len(shapes) not in (1, ranks):
        found = f"{len(shapes)} shapes for {ranks} ranks"
        hint = "give one shape, or one for each rank"
        raise OperatorError(f"wrong number of shapes for buffer '{name}'", found=found, hint=hint)
    made = [Slot(tuple(parse_count(n, f"a side of a slot of '{name}'") for n in shape), dtype) for shape in shapes]
    return tuple(made * ranks if len(made) == 1 else made)


def _form(name: str) -> KernelForm:
    if name not in KERNELS:
        hint = "name the operator that the program was made from"
        raise OperatorError(f"kernel '{name}' is unknown without the program's operator", hint=hint)
    return kernel_form(name)
