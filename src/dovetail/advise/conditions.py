"""conditions: how a traced program ran: what others took of its cores, and whether its ranks share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.advise.crowding import crowding
from dovetail.advise.disturbance import disturbance
from dovetail.run.load import Load


@dataclass(frozen=True)
class Conditions:
    """Conditions of a traced run.

    Attributes
    ----------
    load : Load
        Shares of the ranks' cores that other programs and the hypervisor took.
    disturbed : tuple of str
        Sentences on these shares, if they are too large to trust times.
    crowded : tuple of str
        A sentence if there are more ranks than cores.
    """

    load: Load = field(default_factory=Load)
    disturbed: tuple[str, ...] = ()
    crowded: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the shares, and `crowded`, by their names in documents."""
        return {**self.load.to_json(), "crowded": list(self.crowded)}


def conditions(meta: Mapping[str, Any], num_ranks: int) -> Conditions:
    """Return the conditions of a traced run, from the trace's meta; empty where the trace does not show them."""
    lost, cores = disturbance(meta, num_ranks), crowding(meta, num_ranks)
    crowded = cores.warnings if cores is not None else ()
    return Conditions(crowded=crowded) if lost is None else Conditions(lost.load, lost.warnings, crowded)
