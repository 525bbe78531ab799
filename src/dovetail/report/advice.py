"""advice: print advice: what to change, where, why, and the seconds that a replay saves."""

from __future__ import annotations

from dovetail.advise.advise import Advice, Finding
from dovetail.advise.replay import Replay
from dovetail.report.units import percent, seconds


def advice_text(advice: Advice) -> str:
    """Return the numbered findings, doubtful ones last, then how far replays can be trusted."""
    parts = [_finding(number, finding, advice) for number, finding in enumerate(advice.findings, 1)]
    if not parts:
        parts = [f"Nothing to change would save {_least(advice)}."]
    if advice.doubtful:
        parts.append(f"The {advice.num_runs} runs differ by {seconds(advice.spread_s)}; these would save less:")
        numbered = enumerate(advice.doubtful, len(advice.findings) + 1)
        parts += [_finding(number, finding, advice) for number, finding in numbered]
    if advice.read_rows < advice.num_rows:
        parts.append(
            f"The replay used excerpts, {advice.read_rows} of {advice.num_rows} rows; savings are scaled to the whole."
        )
    if advice.num_runs == 1:
        spread = seconds(advice.spread_s)
        parts.append(f"By the spread of its calls, a second run may differ by {spread}; `--again` compares with one.")
    return "\n\n".join([*parts, replay_text(Replay(advice.traced_s, advice.replayed_s))])


def _least(advice: Advice) -> str:
    return "more than runs differ by" if advice.doubtful else "a hundredth of the time"


def replay_text(replay: Replay) -> str:
    """Return the simulated makespan of a trace beside the traced one."""
    how = f"on machine '{replay.machine}'" if replay.machine else "unchanged"
    times = f"takes {seconds(replay.replayed_s)}; the trace took {seconds(replay.traced_s)}"
    off = f"{percent(abs(replay.off))} {'longer' if replay.off >= 0 else 'shorter'}"
    share = "less than 1 % apart" if abs(replay.off) < 0.01 else off
    return f"Replayed {how}, the program {times} ({share})."


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
