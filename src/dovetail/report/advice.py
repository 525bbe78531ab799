"""advice: print advice: what to change, where, why, and the seconds that a replay saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail.advise.advise import Advice, Finding
from dovetail.advise.replay import Replay
from dovetail.report.units import percent, seconds

_DOING = {
    "work": "was late, by work", "io": "was late, by MPI I/O", "poll": "was late, by pauses between tests",
    "call": "was late, by its time in a call", "start": "began late",
}  # fmt: skip


def advice_text(advice: Advice) -> str:
    """Return the numbered findings, doubtful ones last, then how far replays can be trusted."""
    firm = [it for it in advice.findings if advice.num_runs > 1 or it.saves_s > advice.spread_s]
    faint = [it for it in advice.findings if it not in firm]
    mains = [it for it in firm if not it.instead_of or not any(_name(main) == it.instead_of for main in firm)]
    parts = [_with_ways(number, it, advice, firm) for number, it in enumerate(mains, 1)]
    if faint:
        parts.append(f"Below what two runs differ by, {seconds(advice.spread_s)}; these may be chance:")
        parts += [_finding(number, it, advice) for number, it in enumerate(faint, len(mains) + 1)]
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
    return "\n\n".join([*parts, *advice.notes, replay_text(Replay(advice.traced_s, advice.replayed_s))])


def _least(advice: Advice) -> str:
    return "more than runs differ by" if advice.doubtful else "a hundredth of the time"


def replay_text(replay: Replay) -> str:
    """Return the simulated makespan of a trace beside the traced one."""
    how = f"on machine '{replay.machine}'" if replay.machine else "unchanged"
    times = f"takes {seconds(replay.replayed_s)}; the trace took {seconds(replay.traced_s)}"
    off = f"{percent(abs(replay.off))} {'longer' if replay.off >= 0 else 'shorter'}"
    share = "less than 1 % apart" if abs(replay.off) < 0.01 else off
    return f"Replayed {how}, the program {times} ({share})."


def _name(finding: Finding) -> str:
    return f"{finding.kind} at {finding.where}"


def _with_ways(number: int, finding: Finding, advice: Advice, others: Sequence[Finding]) -> str:
    """Return a finding, with the other changes that save the same seconds."""
    ways = [it for it in others if it is not finding and it.instead_of == _name(finding)]
    lines = [f"   or        {it.kind.replace('_', ' ')}, {seconds(it.saves_s)}: {it.action}" for it in ways]
    return "\n".join([_finding(number, finding, advice), *lines])


def _finding(number: int, finding: Finding, advice: Advice) -> str:
    share = percent(finding.saves_s / advice.replayed_s) if advice.replayed_s else ""
    return "\n".join(
        [
            f"{number}. {finding.kind.replace('_', ' ')}: saves {seconds(finding.saves_s)} of "
            f"{seconds(advice.replayed_s)} ({share}), predicted",
            f"   where     {finding.where}",
            f"   evidence  {finding.evidence}",
            *_cause(finding),
            f"   do        {finding.action}",
        ]
    )


def _cause(finding: Finding) -> Iterator[str]:
    """Yield who made others wait, and the bound of what the change saves if the replay cannot know it."""
    rank, place = finding.root
    if rank >= 0 and finding.cause in _DOING:
        yield f"   cause     rank {rank} {_DOING[finding.cause]}: {place}"
    if finding.bound_s > 1.01 * finding.saves_s:
        yield f"   at most   {seconds(finding.bound_s)}"
