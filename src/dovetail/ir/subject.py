"""Subject: a computation measured in isolation: what splitting it costs, and what traffic beside it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from dovetail.ir.operator import LibraryCall, Option, Sample
from dovetail.ir.program import Program
from dovetail.ir.workload import Workload


class Subject(Protocol):
    """A computation of one size that every rank does without communicating. Immutable.

    `name`: the name on the command line. `options`: its options. `aspect`: what `shape` means, as text.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    aspect: ClassVar[str]

    @classmethod
    def points(cls, **asked: Any) -> Sequence[Subject]:
        """Return a subject of each size that these values of the options ask for. None: the option was not given."""

    @property
    def title(self) -> str:
        """A short description, sizes included."""

    @property
    def shape(self) -> float:
        """A number that distinguishes the subject from others with equal FLOP and bytes (see `aspect`)."""

    def to_json(self) -> dict[str, Any]: ...

    def ways(self) -> Sequence[Sample]:
        """Return the ways to split the computation. The largest amount of each Sample is the whole computation."""

    def samples(self, ranks: int) -> Sequence[Sample]:
        """Return parts that schedules on `ranks` ranks compute in other ways than the first; they are measured, too."""

    def library_calls(self, ranks: int) -> Sequence[LibraryCall]:
        """Return the library's calls that schedules with this computation make: the traffic measured beside it."""

    def workload(self, program: Program) -> Workload:
        """Describe a program of samples: elements and dtype of each buffer's slots, and its kernels."""
