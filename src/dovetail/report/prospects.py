"""prospects: what a trace shows of an MPI program, which levers serve it, and what they are predicted to save."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.accelerate.contest import Ratio
from dovetail.accelerate.expected import Expected, Prospects, transfer_s
from dovetail.accelerate.learn import said
from dovetail.core import seconds_text, share_text
from dovetail.report.acceleration import bucket_text, size_text, totals_text

SHOWN = 3  # buckets of a lever, and levers of knobs
NOTHING = "nothing to gain here"


def prospects_text(found: Prospects, source: str) -> str:
    """Return the lines about what the ranks spent, and what levers serve."""
    counts = found.counts
    first, *others = totals_text(counts)
    lines = [f"{source}: {first}, thread level {found.level}", *others]
    lines += [f"  {bucket_text(bucket, counts)}" for bucket in counts.buckets[:SHOWN]]
    served = share_text(found.served_s / max(counts.rank_s, 1e-12))
    lines.append(f"levers serve {served} of the ranks' time, waiting for the last rank left out: {_levers(found)}")
    lines += [f"left out: {each}" for each in found.knobs.left_out]
    return "\n".join(lines)


def _levers(found: Prospects) -> str:
    knobs = len(found.knobs.candidates)
    parts = [f"{knobs} setting{'s' * (knobs > 1)} of the library"] if knobs else []
    if found.in_memory:
        calls = dict.fromkeys(bucket.call for bucket in found.in_memory)
        parts.append(f"shared memory (--replace) for {', '.join(f'MPI_{call}' for call in calls)}")
    return " and ".join(parts) or "none"


def predicted_text(found: Prospects) -> str:
    """Return the lines about what each lever is predicted to save, the best knobs and shared memory."""
    if found.why_unmeasured:
        return f"no saving is predicted: {found.why_unmeasured}"
    memory = [each for each in found.expected if each.is_memory]
    knobs = [each for each in found.expected if not each.is_memory]
    return "\n".join(line for each in (*memory, *knobs[:SHOWN]) for line in _expected(each, found))


def _expected(each: Expected, found: Prospects) -> Iterator[str]:
    what = "shared memory" if each.is_memory else said(each.knobs)
    yield f"predicted: {what} {saving_text(each.saves_s, found.counts.elapsed_s)}"
    for row in sorted(each.times, key=lambda row: -abs(row.saved_s))[:SHOWN]:
        share = share_text(transfer_s(row.bucket) / max(found.counts.rank_s, 1e-12))
        times = f"{seconds_text(row.was_s)} → {seconds_text(row.now_s)} alone"
        yield f"    MPI_{row.bucket.call} of {size_text(row.bucket.log2_bytes)}: {times}, {share} of the time"


def saving_text(saves_s: float, elapsed_s: float) -> str:
    """Return a predicted saving in words.

    >>> saving_text(0.012, 0.6), saving_text(-0.03, 0.6), saving_text(1e-5, 0.6)
    ('saves 12.0 ms of 600.0 ms (2.0 %)', 'costs 30.0 ms of 600.0 ms (5.0 %)', 'changes less than 0.1 %')
    """
    if abs(saves_s) < 1e-3 * elapsed_s:
        return "changes less than 0.1 %"
    verb = "saves" if saves_s > 0 else "costs"
    share = share_text(abs(saves_s) / elapsed_s)
    return f"{verb} {seconds_text(abs(saves_s))} of {seconds_text(elapsed_s)} ({share})"


def nothing_text(found: Prospects) -> str:
    """Return the sentence that says why the command runs unchanged."""
    memory = found.best(memory=True)
    if memory:
        saves = saving_text(memory.saves_s, found.counts.elapsed_s)
        return f"nothing to gain by knobs; --replace {saves}, predicted; the command runs unchanged"
    share = share_text(found.served_s / max(found.counts.rank_s, 1e-12))
    if not found.expected:
        return f"{NOTHING}: what levers serve takes {share} of the ranks' time; the command runs unchanged"
    best = saving_text(found.expected[0].saves_s, found.counts.elapsed_s)
    return f"{NOTHING}: the best of {len(found.expected)} levers {best}, predicted; the command runs unchanged"


def compared_text(saves_s: float | None, ratio: Ratio) -> str:
    """Return the predicted saving beside the measured one.

    >>> compared_text(0.2, Ratio((0.8, 0.9, 0.8, 1.2, 0.7), 2.0))
    'saving of a run: predicted 200.0 ms, measured 400.0 ms (-400.0 ms to 600.0 ms)'
    """
    predicted = "not predicted" if saves_s is None else f"predicted {signed_text(saves_s)}"
    if ratio.saved_s is None:
        return f"saving of a run: {predicted}"
    middle, low, high = map(signed_text, ratio.saved_s)
    return f"saving of a run: {predicted}, measured {middle} ({low} to {high})"


def signed_text(value_s: float) -> str:
    """Return seconds that may be negative."""
    return f"{'-' * (value_s < 0)}{seconds_text(abs(value_s))}"
