"""replacement: whether replaced collectives make a program faster, judged in whole runs, and where later runs start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dovetail.accelerate.contest import FASTER, WANTED, FailedRun, Ratio, alternate
from dovetail.accelerate.counts import Counts
from dovetail.accelerate.learn import LOST, NOT_TRIED, PAIRS, WON, Learned, silent_run
from dovetail.accelerate.running import Command, Ran

LEAST_SAVED_S = 1e-3  # by a rank in a run: less does not pay for sharing memory from the first call on
MOST = 256  # buckets that the library in C reads


def start_words(counts: Counts) -> tuple[str, ...]:
    """Return the buckets that a later run replaces from their first call on, as the library in C reads them.

    >>> from dovetail.accelerate.counts import Replaced, Replacing
    >>> row = Replaced("Allreduce", 2, 3, "float64", "SUM", "replaced", 90, 80, 1e-3, 1e-4, key=0x80010203, block=24)
    >>> start_words(Counts("X 1", ("a",), 2, 1.0, 2.0, (), replacing=Replacing((row,), {}, 0.0)))
    ('80010203@2:24',)
    """
    rows = counts.replacing.rows if counts.replacing else ()
    won = [row for row in rows if row.state == "replaced" and row.saved_s >= LEAST_SAVED_S * row.comm_size]
    return tuple(f"{row.key:08x}@{row.comm_size}:{row.block}" for row in won[:MOST])


def judged(known: Learned | None, ratio: Ratio, ran: Ran, *, replaces: bool) -> Learned | None:
    """Return what is known after whole runs with and without all that is applied; None if they say nothing new.

    Fewer pairs than a verdict needs say nothing. If the program was not faster, later runs apply nothing: neither
    knobs nor replaced collectives, since the runs do not tell which of them failed.
    """
    if not ran.counts or ratio.coverage < WANTED:
        return None
    counts = ran.counts[0]
    if known is None or not known.fits(counts):
        known = Learned(NOT_TRIED, {}, counts.library, counts.hosts, counts.ranks)
    has_won = ratio.verdict == FASTER
    if replaces:
        known = replace(known, replacing=WON if has_won else LOST, replaced=ratio, start=start_words(counts))
    if known.knobs and not has_won:
        known = replace(known, verdict=LOST, knobs={}, ratio=ratio)
    return known


def judge_replacing(
    command: Command, learned: Learned, first: Ran, limit_s: float, note: Callable[[str], None]
) -> tuple[Learned, str]:
    """Judge in whole runs whether replaced collectives make a command faster, with the knobs that were learned in both.

    Parameters as in `learn`; `first`: a run that replaced collectives. Returns what is known then, and why nothing
    more is: "" otherwise.
    """
    need_s = 2 * PAIRS * first.seconds
    if need_s > limit_s:
        return learned, f"whole runs have not judged replaced collectives: --learn {need_s + 1:.0f}"
    note(f"judging replaced collectives in {2 * PAIRS} further runs, about {need_s:.0f} s")
    start = start_words(first.counts[0])
    started = replace(command, start=start)

    def without() -> float:
        return silent_run(command, learned.knobs, counted=False).seconds

    try:
        ratio = alternate(without, lambda: silent_run(started, learned.knobs).seconds, PAIRS)
    except FailedRun as failure:
        if failure.with_knobs:
            return replace(learned, replacing=LOST), ""
        return learned, f"{failure}: it cannot be run again to judge"
    return replace(learned, replacing=WON if ratio.verdict == FASTER else LOST, replaced=ratio, start=start), ""
