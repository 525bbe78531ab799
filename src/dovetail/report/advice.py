"""Advice in words: what to change, where, why, and the seconds that a replay saves."""

from __future__ import annotations

from dovetail.plan.advise import Advice, Finding
from dovetail.plan.replay import Replay
from dovetail.report.units import percent, seconds


def advice_text(advice: Advice) -> str:
    """The findings, numbered, then how far replays can be trusted."""
    parts = [_finding(number, finding, advice) for number, finding in enumerate(advice.findings, 1)]
    if not parts:
        parts = ["Nothing to change would save a hundredth of the time."]
    return "\n\n".join([*parts, replay_text(Replay(advice.traced_s, advice.replayed_s))])


def replay_text(replay: Replay) -> str:
    """How long a trace takes in the simulator, beside what was traced."""
    how = f"on machine '{replay.machine}'" if replay.machine else "as it was"
    times = f"takes {seconds(replay.replayed_s)} of {seconds(replay.traced_s)} traced"
    share = f"{percent(abs(replay.off))} {'more' if replay.off >= 0 else 'less'}"
    return f"Replayed {how}, the trace {times} ({share})."


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
