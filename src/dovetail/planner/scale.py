"""scale: choose a collective's algorithm for thousands of ranks: simulated and proved folded, never expanded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.collective.folded import FOLDED, build_folded
from dovetail.core import OperatorError
from dovetail.ir import Certificate, Folded, Slot, dtype_bytes, verify_folded
from dovetail.machine import Rails, Torus
from dovetail.sim.folded import simulate_folded
from dovetail.timeline import Timeline


@dataclass(frozen=True)
class Candidate:
    """An algorithm for a collective on a machine: folded, and its predicted Timeline on one server's ranks."""

    folded: Folded
    predicted: Timeline

    @property
    def seconds(self) -> float:
        """The predicted time of the whole collective, on every rank."""
        return float(self.predicted.columns["end_s"].max())


@dataclass(frozen=True)
class Choice:
    """The candidates for one size, the fastest first, and the proof of that one. `num_bytes`: as in `plan_folded`."""

    num_bytes: int
    candidates: tuple[Candidate, ...]
    certificate: Certificate


def plan_folded(
    kind: str, machine: Rails | Torus, sizes: Sequence[int], dtype: str = "float32", *, nodes: int | None = None
) -> list[Choice]:
    """Choose among the folded algorithms of a collective at each size. Each is built once; those chosen are proved.

    Parameters
    ----------
    kind : str
        all_reduce, all_gather or reduce_scatter.
    machine : Rails or Torus
        The machine; all its ranks take part.
    sizes : sequence of int
        Bytes of the larger one of a rank's input and output. Slots are rounded up to whole elements of `dtype`.
    dtype : str
        Type of the elements.
    nodes : int, optional
        Number of nodes for hierarchical algorithms. Default: the machine's servers, or first side.

    Raises
    ------
    OperatorError
        If no folded algorithm does this with the machine's number of ranks.
    ProgramError
        If the fastest cannot be proved, or an algorithm's ranks cannot be simulated folded.
    """
    names = folded_names(kind, machine)
    if not names:
        hint = f"known: {', '.join(FOLDED)}"
        raise OperatorError(f"no folded algorithm for {kind} of {machine.ranks} ranks", hint=hint)
    built = [build_folded(name, machine.ranks, nodes=nodes or machine.servers) for name in names]
    proofs: dict[str, Certificate] = {}
    found = []
    for size in sizes:
        tried = [Candidate(each, simulate_folded(each, machine, slot_of(each, size, dtype))) for each in built]
        tried.sort(key=lambda candidate: candidate.seconds)
        best = tried[0].folded
        if best.name not in proofs:
            proofs[best.name] = verify_folded(best)
            proofs[best.name].raise_if_bad()
        found.append(Choice(size, tuple(tried), proofs[best.name]))
    return found


def folded_names(kind: str, machine: Rails | Torus) -> list[str]:
    """Return the names of the folded algorithms for a collective that fit the ranks and servers of a machine."""
    return [name for name in FOLDED if name.endswith(f"_{kind}") and _fits(name, machine)]


def _fits(name: str, machine: Rails | Torus) -> bool:
    if isinstance(machine, Torus):  # others send to ranks that several shortest ways lead to
        return name.startswith("hierarchical") and len(machine.sides) == 2
    if name.startswith("recursive"):
        return machine.ranks & (machine.ranks - 1) == 0
    return not name.startswith("hierarchical") or (machine.servers > 1 and machine.devices > 1)


def slot_of(folded: Folded, num_bytes: int, dtype: str) -> Slot:
    """Return the slot with which the larger one of a rank's input and output has at least `num_bytes` bytes."""
    slots = max(buffer.slots[0] for buffer in folded.one.buffers)
    return Slot((max(1, -(-num_bytes // (slots * dtype_bytes(dtype)))),), dtype)
