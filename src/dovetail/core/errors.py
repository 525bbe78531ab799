"""errors: exceptions that say what is wrong, where, what was found, and what to try next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DovetailError(ValueError):
    """A mistake in the user's input.

    `what` is wrong, `where` (a source line), what was `found`, and a `hint` what to do.

    >>> raise DovetailError("rank 3 does not exist", where="ring.py:12", found="4 ranks, 0 to 3", hint="count from 0")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.DovetailError: rank 3 does not exist
      written at  ring.py:12
      found       4 ranks, 0 to 3
      try         count from 0
    """

    def __init__(
        self, what: str, *, where: str | None = None, found: str | None = None, hint: str | None = None
    ) -> None:
        self.what, self.where, self.found, self.hint = what, where, found, hint
        rows = (("written at", where), ("found", found), ("try", hint))
        super().__init__("\n".join([what, *(f"  {key:<11} {text}" for key, text in rows if text)]))


def did_you_mean(name: object, known: Iterable[str], *, cutoff: float = 0.4) -> str:
    """Return "did you mean 'x'?" if one of the `known` names is similar to `name`; else an empty string.

    >>> did_you_mean("optimum", ("auto", "mc2", "optimal")), did_you_mean("x", ("auto", "mc2"))
    ("did you mean 'optimal'?", '')
    """
    close = difflib.get_close_matches(str(name), list(known), 1, cutoff)
    return f"did you mean '{close[0]}'?" if close else ""


class OperatorError(DovetailError):
    """An operator, or an argument of a call, that is invalid: a negative size, an unknown dtype, zero ranks."""


class ProgramError(DovetailError):
    """A Program that is malformed, or that cannot be proved."""


class MachineError(DovetailError):
    """A machine that is unknown, malformed, or too small."""


class CostError(DovetailError):
    """Samples that cannot be fitted, or a cost that is missing or outside the measured range."""


class PlanError(DovetailError):
    """A plan that cannot be made: the schedule is unknown, or does not fit the operator."""


class RunError(DovetailError):
    """A run that failed: a rank died, stalled or disagreed. Names rank and op."""


class EnvironmentFault(DovetailError):
    """Something outside Dovetail is missing or broken: an MPI, a compiler, a writable disk."""


class FileError(DovetailError):
    """A file that is damaged, truncated, or not of the expected kind."""
