"""Certificate: what was proved of one Program, or the counterexample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from dovetail.core import ProgramError, check_schema

SCHEMA = "dovetail.certificate/1"
CHECKS = ("bounds", "deadlock", "races", "result", "limits")
REUSE = "reuse"  # only for one-sided plans: may the caller overwrite its buffers once a call has returned?


class Fault(NamedTuple):
    """What a check found: a sentence, the rows of the ops that show it, what was found, and what to try.

    `blamed`: the rows among `ops` to show even if there are many; the source line shown is the first one's. Empty: the
    first of `ops`.
    """

    what: str
    ops: tuple[int, ...] = ()
    found: str | None = None
    hint: str | None = None
    blamed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Check:
    """One part of the proof.

    `ops`: rows of the fewest ops that show the fault. `schedule`: the same ops as text. `where`: source line of the op
    to look at first. `found`, `hint`: as in DovetailError.
    """

    ok: bool
    message: str
    ops: tuple[int, ...] = ()
    where: str | None = None
    found: str | None = None
    hint: str | None = None
    schedule: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        required = {"ok": self.ok, "message": self.message}
        optional = {"ops": self.ops, "where": self.where, "found": self.found, "hint": self.hint}
        return required | {key: value for key, value in (optional | {"schedule": self.schedule}).items() if value}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Check:
        return cls(
            bool(document["ok"]),
            str(document["message"]),
            tuple(document.get("ops", ())),
            document.get("where"),
            document.get("found"),
            document.get("hint"),
            tuple(document.get("schedule", ())),
        )


@dataclass(frozen=True)
class Certificate:
    """The verdict of `verify` on the Program named `program`: the checks CHECKS, all of which must hold.

    Certificates of MSCCL++ plans have a sixth check, `reuse`. If it fails, the program is correct, but its caller must
    not reuse its buffers at once: a warning.

    `min_fifo_depth`: the least depth, at least 1 and the same for every channel, at which the program completes; None
    if none suffices, or the check did not get that far. `collective_found`: the collective that the outputs hold, if
    any. `safe_up_to_bytes`: the largest buffer for which an MSCCL file completes; None if every size that the file is
    for is safe, for other programs, and for invalid ones.
    """

    program: str
    checks: Mapping[str, Check]
    min_fifo_depth: int | None = None
    collective_found: str | None = None
    target: str | None = field(default=None)
    safe_up_to_bytes: int | None = None

    def __post_init__(self) -> None:
        known = tuple(self.checks) in (CHECKS, (*CHECKS, REUSE))
        assert known, f"a certificate has the checks {CHECKS}, in this order, and at most '{REUSE}' after them"
        object.__setattr__(self, "checks", MappingProxyType(dict(self.checks)))

    @property
    def ok(self) -> bool:
        return all(self.checks[name].ok for name in CHECKS)

    @property
    def failed(self) -> str | None:
        """The first check that failed."""
        return next((name for name in CHECKS if not self.checks[name].ok), None)

    @property
    def warning(self) -> Check | None:
        """The check `reuse`, where it found a hazard for the caller of a valid program."""
        check = self.checks.get(REUSE)
        return check if check and not check.ok and self.ok else None

    def raise_if_bad(self) -> None:
        """Raise a ProgramError for the first check that failed; do nothing when all hold."""
        if self.failed is None:
            return
        check = self.checks[self.failed]
        found = "\n              ".join([*([check.found] if check.found else []), *check.schedule])
        raise ProgramError(
            f"program '{self.program}' fails the {self.failed} check: {check.message}",
            where=check.where,
            found=found or None,
            hint=check.hint,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document: `ok`, `checks`, `min_fifo_depth`, `collective_found`, and the other fields."""
        return {
            "schema": SCHEMA,
            "program": self.program,
            "ok": self.ok,
            "checks": {name: check.to_json() for name, check in self.checks.items()},
            "min_fifo_depth": self.min_fifo_depth,
            "collective_found": self.collective_found,
            "target": self.target,
            "safe_up_to_bytes": self.safe_up_to_bytes,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Certificate:
        check_schema(document, SCHEMA)
        return cls(
            str(document["program"]),
            {name: Check.from_json(document["checks"][name]) for name in (*CHECKS, REUSE) if _has(document, name)},
            document.get("min_fifo_depth"),
            document.get("collective_found"),
            document.get("target"),
            document.get("safe_up_to_bytes"),
        )


def _has(document: Mapping[str, Any], name: str) -> bool:
    return name in CHECKS or name in document["checks"]
