"""algorithms: `dovetail simulate` of an algorithm by its name: folded for many ranks, else with every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.cli import output, sources
from dovetail.core import CostError, MachineError, OperatorError, ProgramError, parse_bytes

if TYPE_CHECKING:
    from dovetail.cost import Prices
    from dovetail.ir import Program, Slot
    from dovetail.machine import Machine
    from dovetail.timeline import Timeline


class Case(NamedTuple):
    """What is simulated: a program and its costs on a machine; `plan`: the document of its plan, if that chose it."""

    program: Program
    prices: Prices
    machine: Machine
    plan: dict[str, Any] | None = None


class Size(NamedTuple):
    """The options of `simulate` that say where an algorithm runs, and on how much."""

    machine: str | None
    slots: Sequence[str] | None
    num_bytes: str | None
    ranks: int | None
    nodes: int | None


def folded(place: str, size: Size) -> Timeline | None:
    """Return the Timeline of one server's ranks, or of a torus's first place; None if it cannot be folded.

    `place`: a shipped algorithm. Raises OperatorError if machine or size is missing.
    """
    from dovetail.ir import verify_folded
    from dovetail.machine import Rails, Torus
    from dovetail.sim.folded import simulate_folded

    machine, ranks, nodes, num_bytes = _given(place, size)
    rails, found = Rails.of(machine) or Torus.of(machine), sources.folded(place, ranks, nodes)
    if rails is None or found is None or ranks != rails.ranks:
        return None
    verify_folded(found).raise_if_bad()
    try:
        return simulate_folded(found, rails, _slot(max(b.slots[0] for b in found.one.buffers), num_bytes))
    except (CostError, MachineError, ProgramError) as error:
        output.note(f"Every rank is simulated: {error.what}.")
        return None


def case(place: str, size: Size, contention: float | None, extrapolate: bool) -> Case:
    """Return an algorithm with every rank, and its costs; see `sources.written` for `place`.

    Raises OperatorError if machine or size is missing, or there are too many ranks to be written out.
    """
    from dovetail.cost import price
    from dovetail.ir import Workload

    machine, ranks, nodes, num_bytes = _given(place, size)
    takes_nodes = size.nodes is not None or "hierarchical" in place
    program = sources.expanded(place, ranks, nodes if takes_nodes else None)
    slot = _slot(max(max(buffer.slots) for buffer in program.buffers if buffer.role != "scratch"), num_bytes)
    workload = Workload({buffer.name: (slot,) * program.num_ranks for buffer in program.buffers})
    prices = price(program, machine, workload, contention, extrapolate=extrapolate)
    return Case(program, prices.as_run(program), machine)


def _given(place: str, size: Size) -> tuple[Machine, int, int | None, int]:
    """Return machine, number of ranks, number of nodes and bytes."""
    from dovetail.cli.machines import find
    from dovetail.machine import level_nodes

    if size.machine is None or size.num_bytes is None or size.slots:
        what = f"{place} is an algorithm: it needs a machine, and its size in bytes"
        raise OperatorError(what, hint="--machine (`dovetail machines` lists them) and --bytes 256M")
    machine = find(size.machine)
    ranks = size.ranks or machine.ranks
    nodes = size.nodes or (level_nodes(machine) if ranks == machine.ranks else None)
    return machine, ranks, nodes, parse_bytes(size.num_bytes)


def _slot(slots: int, num_bytes: int) -> Slot:
    """Return the slot with which `slots` of them have at least `num_bytes` bytes, in whole float32."""
    from dovetail.ir import Slot

    return Slot((max(1, -(-num_bytes // (4 * slots))),), "float32")
