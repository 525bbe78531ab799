"""acceleration: the report of `dovetail accelerate`, in about ten lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from statistics import median

from dovetail.accelerate.contest import FASTER, SLOWER, Ratio
from dovetail.accelerate.counts import Bucket, Counts, Replaced
from dovetail.accelerate.expected import is_replaceable
from dovetail.accelerate.learn import IDLE, LOST, WON, Change, Learned, said
from dovetail.core import seconds_text, share_text
from dovetail.report.units import num_bytes

BUCKETS = 4  # lines of them
REPLACED = 3
LEFT = {
    "watched": "too few to learn from",
    "tried": "in a trial that the run's end cut short",
    "slower": "no faster in shared memory",
    "slower later": "no longer faster in shared memory",
    "other bytes": "with other bytes than the library's",
    "no memory": "without memory to share",
    "left alone": "of ranks that share no memory",
    "operation": "by operation or type",
    "order": "sums whose order would change (--reorder)",
    "long": "too long",
    "communicator": "on communicators of one rank or joining two groups",
}  # why calls are left to the library


def counts_text(counts: Counts, others: int = 0) -> str:
    """Return the lines about what the ranks spent; `others`: further jobs of the command, which are left out."""
    shown = BUCKETS if counts.replacing is None else BUCKETS // 2
    return "\n".join([*totals_text(counts, others), *(f"  {bucket_text(b, counts)}" for b in counts.buckets[:shown])])


def totals_text(counts: Counts, others: int = 0) -> list[str]:
    """Return two lines: where and how long; time in MPI, in collectives, in those that may be replaced, and skew."""
    known_s, skew_s = counts.known_skew
    skew = f"{share_text(skew_s / counts.rank_s)} waiting for the last rank" if known_s else "skew unknown"
    if known_s:
        skew += f" (known for {share_text(known_s / max(counts.in_collectives_s, 1e-12))} of their time)"
    more = f"; {counts.missing} ranks left no counts" if counts.missing else ""
    more += f"; {others} further jobs are left out" if others else ""
    where = f"{counts.ranks} ranks on {len(counts.hosts)} hosts, {_short(counts.library)}"
    served_s = sum(bucket.seconds for bucket in counts.buckets if is_replaceable(bucket, counts))
    return [
        f"{where}: {seconds_text(counts.elapsed_s)}{more}",
        f"in MPI {share_text(counts.in_mpi_s / counts.rank_s)} of the ranks' time, in collectives "
        f"{share_text(counts.in_collectives_s / counts.rank_s)}, {share_text(served_s / counts.rank_s)} in those that "
        f"--replace may serve; {skew}",
    ]


def applied_text(knobs: Mapping[str, str], readback: Mapping[str, str] | None = None) -> str:
    """Return the line about knobs in force; `readback`: what the library reported for them.

    >>> applied_text({"A": "1", "B": "ring", "C": "0"}, {"A": "1", "B": "4", "C": ""})
    'applied A=1 B=ring (the library reports A=1 B=4; it has no variable C, which is not applied)'
    """
    if not knobs:
        return "applied no knobs"
    found = {name: value for name, value in (readback or {}).items() if value}
    missing = [name for name, value in (readback or {}).items() if not value]
    reported = [f"the library reports {said(found)}"] if found else []
    if missing:
        reported.append(
            f"{'it' if found else 'the library'} has no variable {', '.join(missing)}, which is not applied"
        )
    applied = {name: value for name, value in knobs.items() if name not in missing}
    return f"applied {said(applied) or 'no knobs'}" + (f" ({'; '.join(reported)})" if reported else "")


def replacing_text(counts: Counts) -> str:
    """Return the lines about collectives that were replaced by exchanges in shared memory, and those that were not."""
    replacing = counts.replacing
    if replacing is None:
        return ""
    share, cost = replacing.saved_s / (counts.rank_s + replacing.saved_s), replacing.spent_s / counts.rank_s
    lines = [f"  {_replaced(row)}" for row in replacing.rows if row.moved][:REPLACED]
    moved, learning = sum(row.moved for row in replacing.rows), f"learning cost {share_text(cost)}"
    saved = f"saved about {share_text(share)} of the ranks' time, by blocks of calls; " if moved else ""
    lines.append(f"replaced {moved or 'no'} collectives: {saved}{learning}")
    calls: dict[str, int] = {}
    for row in replacing.rows:
        if row.state in LEFT:
            calls[LEFT[row.state]] = calls.get(LEFT[row.state], 0) + row.calls
    calls |= {LEFT[why]: number for why, number in replacing.left.items() if number}
    left = ", ".join(f"{number} {why}" for why, number in calls.items())
    return "\n".join([*lines, *([f"left to the library: {left}"] if left else [])])


def judged_text(learned: Learned) -> str:
    """Return the line about what whole runs have shown of replaced collectives.

    >>> judged_text(Learned("nothing to try", {}, "X", ("a",), 2, replacing="slower or unclear"))
    'collectives are left to the library: whole runs that replaced them failed'
    """
    if learned.replacing == IDLE:
        return "collectives are left to the library: the first run replaced none"
    if learned.replacing == WON and learned.replaced:
        return f"replaced collectives make whole runs faster: {ratio_text(learned.replaced)}"
    if learned.replaced is None:
        return "collectives are left to the library: whole runs that replaced them failed"
    return f"collectives are left to the library: replacing them is slower or unclear: {ratio_text(learned.replaced)}"


def size_text(log2_bytes: int) -> str:
    """Return the bytes of a bucket in words.

    >>> size_text(10), size_text(-1)
    ('1 KiB and more', 'no bytes')
    """
    return f"{num_bytes(1 << log2_bytes)} and more" if log2_bytes >= 0 else "no bytes"


def _replaced(row: Replaced) -> str:
    what = f" of {row.dtype} {row.op}" if row.op else ""
    size = size_text(row.log2_bytes)
    times = f"{seconds_text(row.was_s)} → {seconds_text(row.now_s)}"
    now = f"{times} from call to call (ratio {row.low:.2f} to {row.high:.2f})"
    if not row.was_s:
        now = "as an earlier run has shown"
    return f"MPI_{row.call}{what} on {row.comm_size} ranks, {size}: {now}, {row.moved} of {row.calls} calls"


def verdict_text(learned: Learned | None, why_not: str = "", *, replaced: bool = False) -> str:
    """Return the lines about what was learned; `replaced`: collectives were replaced, which knobs do not decide."""
    nothing = "nothing to gain by knobs" if replaced else "nothing to gain here"
    if learned is None:
        return f"nothing learned: {why_not}"
    lines = [f"left out: {each}" for each in learned.left_out]
    if learned.spent_s:
        lines.append(f"learning took {seconds_text(learned.spent_s)} of further runs")
    if learned.verdict == WON and learned.ratio:
        lines += [f"  {_change(change)}" for change in learned.changes[:REPLACED]]
        lines.append(f"later runs apply {said(learned.knobs)}")
        lines.append(f"faster: {ratio_text(learned.ratio)}")
    elif learned.verdict == LOST:
        measured = f": {ratio_text(learned.ratio)}" if learned.ratio else ""
        lines.append(f"{nothing}: {len(learned.tried)} settings tried, the best slower or unclear{measured}")
    else:
        lines.append(f"{nothing}: no known knob serves what this program spends its time in")
    return "\n".join(lines)


def check_text(ratio: Ratio, knobs: Mapping[str, str], *, replaces: bool = False) -> str:
    """Return the verdict of alternating runs; `replaces`: the runs with knobs also replaced collectives."""
    words = {FASTER: "faster", SLOWER: "slower"}
    verdict = words.get(ratio.verdict, "unclear: no difference is shown")
    if not knobs and not replaces:
        return f"nothing to gain here: no knobs are chosen; with counters alone {ratio_text(ratio)}"
    return f"{verdict}: {ratio_text(ratio)}"


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval.

    >>> ratio_text(Ratio((0.9, 0.95, 0.92, 0.99, 0.91)))
    'time with / without 0.920 (0.900 to 0.990, 94 % of 5 pairs of runs)'
    """
    low, high = ratio.interval
    pairs = f"{len(ratio.ratios)} pair{'s' if len(ratio.ratios) > 1 else ''} of runs"
    return f"time with / without {ratio.value:.3f} ({low:.3f} to {high:.3f}, {100 * ratio.coverage:.0f} % of {pairs})"


def exports(knobs: Mapping[str, str], words: Sequence[str]) -> str:
    """Return lines for a shell script that set the knobs, unless they are set."""
    if not knobs:
        return f"# dovetail accelerate: nothing to set for {' '.join(words)}"
    return "\n".join(f'export {name}="${{{name}-{value}}}"' for name, value in knobs.items())


def plain_text(knobs: Mapping[str, str], words: Sequence[str]) -> str:
    """Return the line about the command that applies knobs without Dovetail.

    >>> plain_text({"A": "1"}, ["mpiexec", "-n", "2", "./a b"])
    "without Dovetail: env A=1 mpiexec -n 2 './a b'"
    """
    return f"without Dovetail: env {said(knobs)} {shlex.join(words)}"


def _change(change: Change) -> str:
    low, high = min(change.now_s), max(change.now_s)
    ranks = f" on {change.comm_size} ranks" if change.comm_size else ""
    times = f"{seconds_text(change.was_s)} (one run) → {seconds_text(median(change.now_s))}"
    spread = f"{seconds_text(low)} to {seconds_text(high)} in {len(change.now_s)} runs"
    return f"MPI_{change.call}{ranks}, {size_text(change.log2_bytes)}: {times} a call ({spread}), by the knobs"


def bucket_text(bucket: Bucket, counts: Counts) -> str:
    """Return the line about a bucket: its share of the ranks' time, calls, seconds of a call, and skew."""
    size = size_text(bucket.log2_bytes)
    ranks = f" on {bucket.comm_size} ranks" if bucket.comm_size else ""
    skew = f", {share_text(bucket.skew_s / bucket.seconds)} of it skew" if bucket.skew_s is not None else ""
    each = seconds_text(bucket.seconds_each)
    share = share_text(bucket.seconds / counts.rank_s)
    return f"{share:>7} MPI_{bucket.call}{ranks}, {size}: {bucket.calls} calls of {each}{skew}"


def _short(library: str) -> str:
    return " ".join(library.replace(",", " ").split()[:3])
