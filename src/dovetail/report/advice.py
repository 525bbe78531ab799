"""Advice in words: what to change, where, why, and the seconds that a replay saves."""

from __future__ import annotations

from dovetail.plan.advise import Advice, Finding
from dovetail.report.units import percent, seconds


def advice_text(advice: Advice) -> str:
    """The findings, numbered, then how far replays can be trusted."""
    parts = [_finding(number, finding, advice) for number, finding in enumerate(advice.findings, 1)]
    if not parts:
        parts = ["Nothing to change would save a hundredth of the time."]
    off = advice.replayed_s / advice.traced_s - 1 if advice.traced_s else 0.0
    trust = f"Replayed as it was, the trace takes {seconds(advice.replayed_s)} of {seconds(advice.traced_s)} traced"
    return "\n\n".join([*parts, f"{trust} ({percent(abs(off))} {'more' if off >= 0 else 'less'})."])


def _finding(number: int, finding: Finding, advice: Advice) -> str:
    share = percent(finding.saves_s / advice.replayed_s) if advice.replayed_s else ""
    return "\n".join(
        [
            f"{number}. {finding.kind.replace('_', ' ')}: saves {seconds(finding.saves_s)} of "
            f"{seconds(advice.replayed_s)} ({share}), predicted",
            f"   where     {finding.where}",
            f"   evidence  {finding.evidence}",
            f"   do        {finding.action}",
        ]
    )
