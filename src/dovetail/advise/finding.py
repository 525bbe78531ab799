"""finding: one change to a traced program, and the order in which changes are listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.advise.remedy import CAUSE, KINDS

MUCH_THE_SAME = 0.2  # savings that differ by less are ranked by effort: two predictions may be off by a tenth each


@dataclass(frozen=True)
class Finding:
    """One change to a traced program.

    Attributes
    ----------
    kind : str
        One of `advise.remedy.KINDS`.
    where : str
        Call site, as function, file and line.
    evidence : str
        What the trace shows, with figures.
    action : str
        What to change.
    saves_s : float
        Seconds of makespan that a replay with the change saves.
    cause : str
        Why ranks waited: kind of the root's activity (`advise.roots`); "calls" if the calls themselves cost the time.
    root : tuple of int and str
        The late rank, and what it did where. -1 and "": unknown.
    confidence : str
        "high"; "medium" if the trace does not show whether the change is possible; "low" if it saves less than noise.
    bound_s : float
        The most that such a change saves. Equals `saves_s` unless the trace does not show how much is possible.
    instead_of : str
        Kind and place of a finding listed before, whose change saves the same seconds; empty: none.
    disturbed_s : float
        Seconds of the saving that other programs may have caused.
    calls : tuple of (int, float, float)
        Rank, start and end of the calls that it is about: the longest.
    is_sure : bool
        Whether the trace shows that the change is possible.
    """

    kind: str
    where: str
    evidence: str
    action: str
    saves_s: float
    cause: str = ""
    root: tuple[int, str] = (-1, "")
    confidence: str = "high"
    bound_s: float = 0.0
    instead_of: str = ""
    disturbed_s: float = 0.0
    calls: tuple[tuple[int, float, float], ...] = ()
    is_sure: bool = True

    @property
    def is_disturbed(self) -> bool:
        """Return whether other programs may have caused most of what the change saves."""
        return self.disturbed_s > 0.5 * self.saves_s

    @property
    def expected_s(self) -> float:
        """Return the seconds by which findings are ranked: half of those of a change that may be impossible.

        If the trace does not show how much of a change is possible, each share from none to all is as likely. If
        `bound_s` exceeds `saves_s`, that is such a mean already.
        """
        return self.saves_s if self.is_sure else min(self.saves_s, max(self.bound_s, self.saves_s) / 2)

    def to_json(self) -> dict[str, Any]:
        """Return all attributes by name, but `is_sure`, which `confidence` includes."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "is_sure"}
        calls = [dict(zip(("rank", "start_s", "end_s"), call, strict=True)) for call in self.calls]
        return {**found, "root": {"rank": self.root[0], "place": self.root[1]}, "calls": calls}


def counted_s(finding: Finding) -> float:
    """Return the seconds by which a finding is compared with noise."""
    return finding.bound_s if finding.kind == CAUSE else finding.saves_s


def ranked_by(found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings, largest expected saving first; of nearly equal ones, the least effort first."""
    rest = sorted(found, key=lambda finding: -finding.expected_s)
    while rest:
        near = [finding for finding in rest if finding.expected_s >= (1 - MUCH_THE_SAME) * rest[0].expected_s]
        best = min(near, key=lambda finding: KINDS.index(finding.kind))
        yield best
        rest.remove(best)
