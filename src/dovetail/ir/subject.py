"""Subject: a computation by itself, to be characterised: what cutting it costs, and what traffic beside it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from dovetail.ir.operator import LibraryCall, Option, Sample
from dovetail.ir.program import Program
from dovetail.ir.workload import Workload


class Subject(Protocol):
    """One computation, of one size, that every rank does alone. All of it is frozen.

    `name`: as on the command line. `options`: its options. `aspect`: the meaning of `shape`, in words.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    aspect: ClassVar[str]

    @classmethod
    def points(cls, **asked: Any) -> Sequence[Subject]:
        """One of each size that these values of its options ask for; None is not asked for."""

    @property
    def title(self) -> str:
        """It in a few words, sizes included."""

    @property
    def shape(self) -> float:
        """A number that distinguishes it from others with equal FLOP and bytes (see `aspect`)."""

    def to_json(self) -> dict[str, Any]: ...

    def ways(self) -> Sequence[Sample]:
        """The ways to cut it, each with how far it can be cut; all of a sample is the whole computation."""

    def samples(self, ranks: int) -> Sequence[Sample]:
        """Parts of it that schedules on `ranks` ranks compute in other ways than the first; their costs are measured
        too."""

    def library_calls(self, ranks: int) -> Sequence[LibraryCall]:
        """The library's call that schedules of it make, whole: what is measured beside it."""

    def workload(self, program: Program) -> Workload:
        """What a slot of each buffer of a program of samples is, and what its kernels are."""
