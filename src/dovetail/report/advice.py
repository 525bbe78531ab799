"""advice: print advice: what to change, where, why, and the seconds that a replay saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dovetail.advise.advise import Advice
from dovetail.advise.finding import Finding
from dovetail.advise.replay import Replay
from dovetail.report.units import percent, seconds

_DOING = {
    "work": "was late, by work", "io": "read or wrote files", "pickle": "pickled objects",
    "poll": "was late, by pauses between tests", "call": "was late, by its time in a call", "start": "began late",
    "stolen": "was late, because it did not run", "crowded": "was late, because other ranks had its core",
}  # fmt: skip


class Part(NamedTuple):
    """A paragraph of advice, and the finding that it is about; None: none."""

    text: str
    finding: Finding | None = None


def advice_text(advice: Advice) -> str:
    """Return disturbances of the run, the numbered findings, doubtful ones last, and how far replays can be trusted."""
    return "\n\n".join(part.text for part in advice_parts(advice))


def advice_parts(advice: Advice) -> list[Part]:
    """Return the paragraphs of `advice_text`."""
    shaken = [it for it in advice.findings if it.is_disturbed]
    calm = [it for it in advice.findings if not it.is_disturbed]
    bare = [it for it in calm if _is_bare(it) and it.bound_s > advice.least_s]
    firm = [it for it in calm if not _is_bare(it) and (advice.num_runs > 1 or it.saves_s > advice.least_s)]
    faint = [it for it in calm if it not in firm and it not in bare]
    mains = [it for it in firm if not it.instead_of or not any(_name(main) == it.instead_of for main in firm)]
    groups = (
        ("", mains),
        ("What made ranks wait, though no replay knows a remedy:", bare),
        ("Others took as much of the ranks' cores, at the same time, as these save; they may be the cause:", shaken),
        (_doubt(advice, _chance(advice)), faint),
        (
            _doubt(advice, f"The {advice.num_runs} runs differ by {seconds(advice.spread_s)}; these would save less:"),
            advice.doubtful,
        ),
    )
    parts = [Part(text) for text in (*crowded_text(advice.crowded), *disturbed_text(advice.disturbed))]
    if not advice.findings:
        parts.append(Part(_nothing(advice)))
    number = 0
    for heading, those in groups:
        parts += [Part(heading)] if heading and those else []
        for it in those:
            number += 1
            ways = firm if those is mains else ()
            parts.append(Part(_with_ways(number, it, advice, ways), it))
    return [*parts, *map(Part, _remarks(advice))]


def _chance(advice: Advice) -> str:
    """Return the heading of findings that save less than the spread."""
    spread = seconds(advice.spread_s)
    if not _hides_all(advice):
        return f"Below what two runs differ by, {spread}; these may be chance:"
    how = "disturbed" if advice.disturbed or advice.crowded else "uneven"
    longer = f"Two runs may differ by {spread}, and the replayed program takes {seconds(advice.replayed_s)}"
    return f"This run was too {how} to tell what helps. {longer}. These may be chance:"


def _hides_all(advice: Advice) -> bool:
    """Return whether two runs may differ by more than the replayed program takes: no saving could exceed that."""
    return advice.num_runs == 1 and advice.spread_s > advice.replayed_s


def _doubt(advice: Advice, by_spread: str) -> str:
    """Return the heading of findings that are uncertain."""
    if advice.excess_s <= advice.spread_s:
        return by_spread
    longer = f"The replay takes {seconds(advice.excess_s)} longer than the trace: it lets ranks wait that did not"
    return f"{longer}. These save less:"


def _remarks(advice: Advice) -> Iterator[str]:
    """Yield sentences on how far the findings can be trusted."""
    if advice.read_rows < advice.num_rows:
        rows = f"{advice.read_rows} of {advice.num_rows} rows"
        yield f"The replay used excerpts, {rows}; savings are scaled to the whole."
    if advice.num_runs == 1:
        spread = seconds(advice.spread_s)
        spread += f" from the {seconds(advice.traced_s)} of this trace" if _hides_all(advice) else ""
        yield f"By the spread of its calls, a second run may differ by {spread}; `--again` compares with one."
    yield from advice.notes
    yield replay_text(Replay(advice.traced_s, advice.replayed_s), advice.num_runs)


def disturbed_text(warnings: Sequence[str]) -> list[str]:
    """Return a paragraph that says by whom a traced run was disturbed; none if it was not."""
    return [f"This run was disturbed. {'. '.join(warnings)}. Trace it again on a quiet machine."] if warnings else []


AS_IF = "What follows is what the program would do with a core for each rank, as far as the trace shows it"


def crowded_text(warnings: Sequence[str], said: str = AS_IF) -> list[str]:
    """Return a paragraph that says how many ranks share cores; none if each has one."""
    text = ". ".join([*warnings, *([said] if said else [])])
    return [f"{text}. Start fewer ranks to see it on these cores."] if warnings else []


def _nothing(advice: Advice) -> str:
    """Return why no change is offered for sure."""
    if not advice.doubtful:
        return "Nothing to change would save a hundredth of the time."
    return "The runs differ by more than any change would save: what follows may be right, and more runs would tell."


def replay_text(replay: Replay, num_runs: int = 1) -> str:
    """Return the simulated makespan of a trace, or the median of several, beside the traced one."""
    how = f"on machine '{replay.machine}'" if replay.machine else "unchanged"
    times = f"takes {seconds(replay.replayed_s)}; {_taken(num_runs)} took {seconds(replay.traced_s)}"
    off = f"{percent(abs(replay.off))} {'longer' if replay.off >= 0 else 'shorter'}"
    share = "less than 1 % apart" if abs(replay.off) < 0.01 else off
    return f"Replayed {how}, the program {times} ({share})."


def _taken(num_runs: int) -> str:
    return "the trace" if num_runs == 1 else f"the {num_runs} traces, at the median,"


def _name(finding: Finding) -> str:
    return f"{finding.kind} at {finding.where}"


def _with_ways(number: int, finding: Finding, advice: Advice, others: Sequence[Finding]) -> str:
    """Return a finding, with the other changes that save the same seconds."""
    ways = [it for it in others if it is not finding and it.instead_of == _name(finding)]
    lines = [f"   or        {it.kind.replace('_', ' ')}, {_most(it)}{seconds(it.saves_s)}: {it.action}" for it in ways]
    return "\n".join([_finding(number, finding, advice), *lines])


def _finding(number: int, finding: Finding, advice: Advice) -> str:
    share = percent(finding.saves_s / advice.replayed_s) if advice.replayed_s else ""
    saved = f"saves {_most(finding)}{seconds(finding.saves_s)} of {seconds(advice.replayed_s)} ({share}), predicted"
    if _is_bare(finding):
        saved = f"costs at most {seconds(finding.bound_s)} of {seconds(advice.replayed_s)}"
    return "\n".join(
        [
            f"{number}. {finding.kind.replace('_', ' ')}: {saved}",
            f"   where     {finding.where}",
            f"   evidence  {finding.evidence}",
            *_cause(finding),
            f"   do        {finding.action}",
        ]
    )


def _is_bare(finding: Finding) -> bool:
    """Return whether a finding names a cause for which no replay knows a remedy."""
    return finding.saves_s == 0.0 and finding.bound_s > 0.0


def _most(finding: Finding) -> str:
    """Return "at most " for a change of which the trace shows neither whether it is possible nor how much of it."""
    return "" if finding.is_sure else "at most "


def _cause(finding: Finding) -> Iterator[str]:
    """Yield who made others wait, and the bound of what the change saves if the replay cannot know it."""
    rank, place = finding.root
    if rank >= 0 and finding.cause in _DOING:
        yield f"   cause     rank {rank} {_DOING[finding.cause]}: {place}"
    if finding.bound_s > 1.01 * finding.saves_s and not _is_bare(finding):
        yield f"   at most   {seconds(finding.bound_s)}"
