"""Schedule: how an operator becomes a Program: a family, its parameters, and how its messages are driven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, Literal, get_args

from dovetail.core import PlanError, reading

Progress = Literal["thread", "poll"]
Value = int | str | bool | None | tuple[int, ...]
SERIAL = "serial"  # the family of schedules that overlap nothing


@dataclass(frozen=True)
class Schedule:
    """One way to carry out an operator.

    Schedules with equal parameters and run options are equal: they make the same Program and run the same way, even if
    different families found them.

    Parameters
    ----------
    family : str
        The rule that found the schedule.
    parameters : tuple of (str, value)
        All that the Program depends on besides the operator.
    progress, block_rows, slice_bytes, blocking
        How the Program is run (see `run.RunOptions`).
    steps : mapping
        Named intermediate values of the rule.
    notes : tuple of str
        Sentences for the user.

    >>> two = Schedule.of("uniform", tiles=(4, 4), by="library")
    >>> two["tiles"], two.get("rows_per_message"), two == Schedule.of("optimal", by="library", tiles=(4, 4))
    ((4, 4), None, True)
    """

    family: str = field(compare=False)
    parameters: tuple[tuple[str, Value], ...] = ()
    progress: Progress = "poll"
    block_rows: int = 0
    slice_bytes: int = 0
    blocking: bool = False
    steps: Mapping[str, float | int | str] = field(default_factory=dict, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @staticmethod
    def of(family: str, **parameters: Value) -> Schedule:
        """Return the schedule of a family with these parameters; those that are None are left out."""
        return Schedule(family).with_parameters(**parameters)

    def __getitem__(self, name: str) -> Any:
        return dict(self.parameters)[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or `default` if the schedule has none of this name."""
        return dict(self.parameters).get(name, default)

    def with_parameters(self, **changed: Value) -> Schedule:
        """Return the schedule with changed parameters; None removes one."""
        both = dict(self.parameters) | changed
        return replace(self, parameters=tuple(sorted((k, v) for k, v in both.items() if v is not None)))

    def as_of(self, family: str, **steps: float | int | str) -> Schedule:
        """Return the same schedule, labelled as found by another family."""
        return replace(self, family=family, steps=steps, notes=())

    @property
    def is_serial(self) -> bool:
        return self.family == SERIAL

    @property
    def way(self) -> str:
        """How messages travel: "library", or an algorithm of the operator; "" without a parameter `by`."""
        return str(self.get("by", ""))

    @property
    def is_by_library(self) -> bool:
        """Whether all its communication is calls of the collective library."""
        return self.way in ("", "library")

    @property
    def tiles(self) -> tuple[int, ...]:
        """Rows of each tile, in the order in which tiles run; () for schedules without row tiles."""
        found: tuple[int, ...] = self.get("tiles", ())
        return found

    def __str__(self) -> str:
        """Return the family, and the parameters that distinguish schedules of one family.

        >>> str(Schedule.of("mc2", tiles=(8, 8, 8), by="ring")), str(Schedule.of("ring_all_gather", channels=2))
        ('mc2, 3 tiles, ring', 'ring_all_gather, 2 channels')
        >>> str(Schedule.of("wavefront", cut=(2, 1), depth=8)), str(Schedule.of("mc2", own_block="first"))
        ('wavefront, cut 2 x 1, depth 8', 'mc2, own block first')
        """
        lists = [(len(value), name) for name, value in self.parameters if isinstance(value, tuple) and name[-1] == "s"]
        parts = [f"{count} {name if count != 1 else name.removesuffix('s')}" for count, name in lists]
        sides = [(name, value) for name, value in self.parameters if isinstance(value, tuple) and name[-1] != "s"]
        parts += [f"{name} {' x '.join(map(str, value))}" for name, value in sides]
        words = [(name, value) for name, value in self.parameters if isinstance(value, str) and value != self.family]
        parts += [f"{name.replace('_', ' ')} {value}" if "_" in name else value for name, value in words]
        parts += [name for name, value in self.parameters if value is True]
        numbers = [(name, value) for name, value in self.parameters if type(value) is int]
        parts += [_counted(name.replace("_", " "), value) for name, value in numbers]
        parts += [f"slices of {self.slice_bytes >> 10}K"] if self.slice_bytes else []
        return ", ".join([self.family, *parts])

    def to_json(self) -> dict[str, Any]:
        shown = {name: list(value) if isinstance(value, tuple) else value for name, value in self.parameters}
        driven = {name: getattr(self, name) for name in ("progress", "block_rows", "slice_bytes", "blocking")}
        return {"family": self.family, "parameters": shown, **driven}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Schedule:
        """Return the schedule that `to_json` wrote. Raises PlanError for values that no schedule has."""
        with reading("schedule", PlanError):
            parameters = {n: tuple(v) if isinstance(v, list) else v for n, v in dict(document["parameters"]).items()}
            driven: dict[str, Any] = {name: index(document[name]) for name in ("block_rows", "slice_bytes")}
            found = replace(Schedule.of(str(document["family"]), **parameters), **driven)
            hash(found)
            progress, blocking = document["progress"], document["blocking"]
            if progress not in get_args(Progress) or not isinstance(blocking, bool) or min(driven.values()) < 0:
                raise ValueError(f"progress {progress!r}, blocking {blocking!r}, {driven}")
            return replace(found, progress=progress, blocking=blocking)


def _counted(name: str, value: int) -> str:
    """Return `2 channels`, `64 rows per message`, `depth 8`."""
    return f"{value} {name}" if " " in name or name.endswith("s") else f"{name} {value}"
