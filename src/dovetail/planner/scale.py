"""scale: choose a collective's algorithm for thousands of ranks: proved and simulated folded, never expanded."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.collective.folded import FOLDED, build_folded
from dovetail.core import OperatorError
from dovetail.ir import Certificate, Folded, Slot, dtype_bytes, verify_folded
from dovetail.machine import Rails
from dovetail.sim.folded import simulate_folded
from dovetail.timeline import Timeline


@dataclass(frozen=True)
class Candidate:
    """An algorithm for a collective on a machine: folded, proved, and its predicted Timeline on one server's ranks."""

    folded: Folded
    certificate: Certificate
    predicted: Timeline

    @property
    def seconds(self) -> float:
        """The predicted time of the whole collective, on every rank."""
        return float(self.predicted.columns["end_s"].max())


def plan_folded(kind: str, machine: Rails, num_bytes: int, dtype: str = "float32") -> list[Candidate]:
    """Return every folded algorithm for a collective on a machine, proved and simulated; the fastest first.

    Parameters
    ----------
    kind : str
        all_reduce, all_gather or reduce_scatter.
    machine : Rails
        The machine; all its ranks take part.
    num_bytes : int
        Bytes of the larger one of a rank's input and output. Slots are rounded up to whole elements of `dtype`.

    Raises
    ------
    OperatorError
        If no folded algorithm does this with so many ranks.
    ProgramError
        If an algorithm cannot be proved, or its ranks cannot be simulated folded.
    """
    names = folded_names(kind, machine)
    if not names:
        hint = f"known: {', '.join(FOLDED)}"
        raise OperatorError(f"no folded algorithm for {kind} of {machine.ranks} ranks", hint=hint)
    found = [_candidate(name, machine, num_bytes, dtype) for name in names]
    return sorted(found, key=lambda candidate: candidate.seconds)


def folded_names(kind: str, machine: Rails) -> list[str]:
    """Return the names of the folded algorithms for a collective that fit the ranks and servers of a machine."""
    return [name for name in FOLDED if name.endswith(f"_{kind}") and _fits(name, machine)]


def _fits(name: str, machine: Rails) -> bool:
    if name.startswith("recursive"):
        return machine.ranks & (machine.ranks - 1) == 0
    return not name.startswith("hierarchical") or (machine.servers > 1 and machine.devices > 1)


def _candidate(name: str, machine: Rails, num_bytes: int, dtype: str) -> Candidate:
    folded = build_folded(name, machine.ranks, nodes=machine.servers)
    certificate = verify_folded(folded)
    certificate.raise_if_bad()
    slots = max(buffer.slots[0] for buffer in folded.one.buffers)
    slot = Slot((max(1, -(-num_bytes // (slots * dtype_bytes(dtype)))),), dtype)
    return Candidate(folded, certificate, simulate_folded(folded, machine, slot))
