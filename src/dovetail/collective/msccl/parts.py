"""parts: the vocabulary of MSCCL XML: dialects, ops, buffers, protocols and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dovetail.collective.compile import PROTOCOLS
from dovetail.core import ProgramError
from dovetail.ir import Kind, Program
from dovetail.ir.collectives import COLLECTIVES
from dovetail.ir.proof.certificate import Fault

DIALECTS = ("msccl", "azure", "rccl")
FIFO_DEPTHS = PROTOCOLS  # messages in flight between two GPUs of one node
_NCCL_BYTES = {"Simple": 2 << 20, "LL": 32 << 10, "LL128": 576_000}
MESSAGE_BYTES: dict[str, dict[str, int]] = {  # bytes of one message at default buffers (NCCL_BUFFSIZE)
    "msccl": _NCCL_BYTES,
    "azure": _NCCL_BYTES,
    "rccl": {"Simple": 2 << 20, "LL": 16 << 10, "LL128": 50_176},
}
NOP = "nop"
KINDS = {
    "s": Kind.send,
    "r": Kind.recv,
    "rcs": Kind.recv_copy_send,
    "rrs": Kind.recv_reduce_send,
    "rrc": Kind.recv_reduce,
    "rrcs": Kind.recv_reduce_copy_send,
    "cpy": Kind.copy,
    "re": Kind.reduce,
    NOP: Kind.nop,
}
BUFFERS = ("i", "o", "s")
_EXECUTOR = {kind: traits.nccl for kind, traits in COLLECTIVES.items() if traits.nccl}
WORDS: dict[str, dict[str, str]] = {  # dialect -> our name -> its name
    "msccl": _EXECUTOR | {kind: kind for kind in ("reduce_scatter", "custom")},  # msccl and Dovetail share these names
    "azure": _EXECUTOR,
    "rccl": _EXECUTOR,
}
UNASKED = ("custom", "gather", "scatter", "alltoallv", "send", "recv")  # known words without a post-condition here
MEANINGS = {word: kind for names in WORDS.values() for kind, word in names.items()} | dict.fromkeys(UNASKED, "custom")


@dataclass(frozen=True)
class Header:
    """The attributes of an <algo>, unchanged. None: the attribute is absent. `more`: attributes that no runtime reads.

    Bytes are of the whole buffer; `min_bytes` ≤ size < `max_bytes` (azure, rccl: ≤, and 0: unlimited).
    """

    name: str
    proto: str
    coll: str
    nchannels: int
    nchunksperloop: int
    ngpus: int
    inplace: bool
    outofplace: bool | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    nthreads: int | None = None
    more: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> str:
        """The collective in our spelling; "custom" if its post-condition is not known."""
        return MEANINGS[self.coll]

    @property
    def runs(self) -> tuple[bool, ...]:
        """The declared uses: out of place (False) first, then in place (True)."""
        away = not self.inplace if self.outofplace is None else self.outofplace
        return (False,) * (away or not self.inplace) + (True,) * self.inplace


class Refusal(NamedTuple):
    """Why a runtime does not accept a file, and the line of the cause."""

    why: str
    line: int


class Use(NamedTuple):
    """The Program of a file when it runs in place, or out of place."""

    in_place: bool
    program: Program


@dataclass(frozen=True)
class MscclFile:
    """An MSCCL XML file that could be read. `program`: its Program in its first use.

    `refusals`: for each dialect, why its runtime refuses this file; None if it accepts it. `faults`: faults that a
    Program cannot express, by the check that fails.
    """

    place: str
    header: Header
    uses: tuple[Use, ...]
    refusals: Mapping[str, Refusal | None]
    faults: Mapping[str, Fault] = field(default_factory=dict)
    line: int = 1  # of the header

    @property
    def program(self) -> Program:
        return self.uses[0].program

    @property
    def protocol(self) -> str:
        return self.header.proto

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects whose runtimes accept the file."""
        return tuple(name for name, why in self.refusals.items() if why is None)


def check_dialect(name: str) -> str:
    """Return `name`. Raises ProgramError, with a list of the dialects, if it is unknown."""
    if name not in DIALECTS:
        raise ProgramError(f"no MSCCL dialect '{name}'", hint=f"one of {', '.join(DIALECTS)}")
    return name
