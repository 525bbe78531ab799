"""plan: MscclppPlan, an MSCCL++ execution plan that was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from dovetail.collective.mscclpp.columns import alone
from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.parts import Document, Remark
from dovetail.ir import Program


@dataclass(frozen=True)
class MscclppPlan:
    """An MSCCL++ execution plan that could be read. `rows`: its ops, with threads in lockstep.

    `limits`: ops that executor 0.9 would not run as written. `notes`: remarks that change no verdict. `certify` proves
    whether it is right.
    """

    document: Document = field(repr=False)
    rows: Lowering = field(repr=False, compare=False)
    limits: tuple[Remark, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def program(self) -> Program:
        """The plan's ops, with a lane for each threadblock and port channel."""
        return alone(self.rows)

    @property
    def place(self) -> str:
        return self.document.place

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def collective(self) -> str:
        return self.document.collective

    @property
    def protocol(self) -> str:
        return self.document.protocol

    @property
    def in_place(self) -> bool:
        return self.document.in_place
