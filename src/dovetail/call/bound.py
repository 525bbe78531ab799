"""bound: an operator bound to ranks: its schedule is looked up, proved and compiled once, then called many times."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from dovetail.call.rank_0 import read_by_rank_0
from dovetail.core import DovetailError, OperatorError, ProgramError, RunError
from dovetail.ir import Operator, Program, Schedule, verify
from dovetail.ir.signature import Signature
from dovetail.run.engine import needs_order
from dovetail.run.options import RunOptions
from dovetail.run.ranks.embedded import STALL_S, Embedded
from dovetail.run.ranks.world import World
from dovetail.run.requests import Request
from dovetail.store.program_cache import Known, known_of, program_of, save_proof
from dovetail.store.tuned_schedules import recall_schedule


class Bound:
    """An operator that is proved, compiled and bound to the ranks of a communicator. `dovetail.bind` returns it.

    Attributes
    ----------
    operator, schedule, program
        The operator, its schedule, and the Program that runs; equal on every rank.
    signature
        The arrays of a call: shapes, dtypes, and which slices of the whole arrays they are.
    rank : int
        This process's rank in the communicator.
    num_bytes : int
        Bytes of all ranks' arrays divided by the number of ranks. All ranks have the same figure, so their caches
        drop the same operators.
    """

    def __init__(self, operator: Operator, schedule: Schedule, embedded: Embedded) -> None:
        self.operator, self.schedule, self.embedded = operator, schedule, embedded
        self.program, self.rank = embedded.program, embedded.rank
        self.signature = Signature.of(operator, schedule, self.program.num_ranks)
        self.num_bytes = _num_bytes(embedded)

    def __call__(self, *arrays: Any, out: Any = None, allow_nonfinite: bool = False) -> Any:
        """Run on this rank's arrays and return this rank's result; every rank must call.

        Parameters
        ----------
        *arrays
            This rank's part of each input, in the operator's order.
        out : array or tuple of arrays, optional
            One writable array per result, in any memory layout, without memory in common with the inputs. The call
            returns `out`.
        allow_nonfinite : bool
            Whether inputs may hold NaN or infinity.

        Raises
        ------
        OperatorError
            On every rank, before any data moves, if some rank's arrays do not fit.
        RunError
            On every rank, if some rank does not call within ten minutes.
        """
        held = self.embedded.call(
            lambda: self.signature.arguments(self.rank, arrays, out), allow_nonfinite=allow_nonfinite
        )
        return self.signature.result(self.rank, held, out)

    def begin(self, *arrays: Any, out: Any = None, allow_nonfinite: bool = False) -> Request[Any]:
        """Begin a call on this rank's arrays and return its `Request`; every rank begins the same calls in one order.

        `request.wait()` returns the call's result, or raises the call's error. Until `wait()` returns, do not write
        the arrays, nor read the results.
        """
        call = partial(self, *arrays, out=out, allow_nonfinite=allow_nonfinite)
        if self.embedded.world is None:
            raise RunError("an operator bound without a communicator cannot be begun", hint="bind(operator, comm)")
        return self.embedded.world.requests.begin(call)

    def __repr__(self) -> str:
        return f"<Bound: {self.operator.title} on rank {self.rank} of {self.program.num_ranks}: {self.schedule}>"

    def explain(self) -> str:
        """Return the schedule: its family and parameters, then what it does in words."""
        return f"{self.schedule}: {self.operator.describe(self.schedule, self.program.num_ranks)}"


def _num_bytes(embedded: Embedded) -> int:
    program, work = embedded.program, embedded.workload
    buffers = ((buffer, rank) for buffer in program.buffers for rank in range(program.num_ranks))
    sizes = (work.length(b.name, rank, b.slots[rank]) * work.slot_bytes(b.name, rank) for b, rank in buffers)
    return sum(sizes) // program.num_ranks


def bind_on(
    operator: Operator,
    world: World | None,
    schedule: Schedule | None = None,
    *,
    program: Program | None = None,
    spans: bool = True,
    made: type[Bound] = Bound,
) -> Any:
    """Bind an operator that is equal on every rank of `world`; called inside `world.together()`.

    A given `program` counts as proved. Default of `schedule`: the tuned schedule; if its Program can no longer be made
    or proved, every rank warns and uses the operator's default schedule.
    """
    if schedule is None and world and (tuned := tuned_schedule(operator, world)):
        try:
            found, fault = _prepared(operator, tuned, world, None, spans)
        except (DovetailError, LookupError, TypeError, ValueError) as error:
            fault = str(error) or type(error).__name__
        if not (fault := _first(world, fault)):
            return _saved(made(operator, tuned, found.embedded), found)
        leave_aside("the tuned schedule", fault)
    own = operator.default_schedule(world.size if world else 1) if schedule is None else schedule
    found, fault = _prepared(operator, own, world, program, spans)
    if fault := _first(world, fault):
        raise ProgramError(fault)
    return _saved(made(operator, own, found.embedded), found)


class _Prepared(NamedTuple):
    """A compiled Program, whether its ops need an order, and whether this rank has just proved it."""

    embedded: Embedded
    in_order: bool
    is_new_proof: bool


def _prepared(
    operator: Operator, schedule: Schedule, world: World | None, program: Program | None, spans: bool
) -> tuple[_Prepared, str]:
    """Compile a schedule's Program; rank 0 also proves it. Return it and the fault found; ranks exchange no message."""
    ranks, is_given = world.size if world else 1, program is not None
    program = program or program_of(operator, schedule, ranks)
    known = Known(True) if is_given else known_of(operator, schedule, program)
    to_prove = not known.is_proved and (world is None or world.rank == 0)
    fault = _fault(operator, schedule, program) if to_prove else ""
    in_order = needs_order(program) if known.in_order is None else known.in_order
    options = RunOptions.of(schedule, stall_s=STALL_S, spans=spans)
    embedded = Embedded(program, operator.workload(program, schedule), options, world, in_order)
    embedded.bind()
    return _Prepared(embedded, in_order, to_prove), fault


def _saved(bound: Bound, found: _Prepared) -> Bound:
    if found.is_new_proof:
        save_proof(bound.operator, bound.schedule, bound.program, in_order=found.in_order)
    return bound


def _first(world: World | None, fault: str) -> str:
    """Return the fault of the lowest rank that has one, on every rank."""
    if world is None:
        return fault
    found: str = world.share(next(filter(None, world.gather(fault, STALL_S)), ""), STALL_S)
    return found


def _fault(operator: Operator, schedule: Schedule, program: Program) -> str:
    """Return why a program cannot be proved; empty if it is proved."""
    try:
        verify(program, against=operator.reference(schedule, program.num_ranks)).raise_if_bad()
    except ProgramError as error:
        return str(error)
    return ""


def tuned_schedule(operator: Operator, world: World) -> Schedule | None:
    """Return, on every rank, the schedule that `dovetail tune` saved for these ranks in rank 0's cache."""
    hosts = world.gather(platform.node())
    found = read_by_rank_0(world, lambda: recall_schedule(operator, world.library, hosts))
    if found.why_not:
        leave_aside("the tuned schedule", found.why_not)
    return found.value


def leave_aside(what: str, why: str) -> None:
    """Warn that an entry of the cache is not used; every rank calls it."""
    warnings.warn(f"{what} is left aside: {why}", RuntimeWarning, stacklevel=6)


def check_same(world: World, what: str, asked: Mapping[str, Any], content: str) -> None:
    """Raise OperatorError, on every rank, if ranks give different arguments, with which they would deadlock."""
    own = ", ".join([what, *(f"{name}={value}" for name, value in sorted(asked.items()) if value is not None)])
    every = world.gather([own, content], STALL_S)
    other = next((rank for rank, each in enumerate(every) if each != every[0]), None)
    found = "" if other is None else f"rank 0 {every[0][0]}; rank {other} {every[other][0]}"
    if found := world.share(found, STALL_S):
        raise OperatorError("ranks do not ask for the same", found=found, hint="the same nest, grid and options on all")
