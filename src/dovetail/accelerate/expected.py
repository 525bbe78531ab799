"""expected: what levers may save, predicted from counts and from times of the calls alone, before the program runs."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dovetail.accelerate.counter import COUNTER, REPLACED
from dovetail.accelerate.counts import Bucket, Counts
from dovetail.accelerate.knobs import Candidate, Promising, promising
from dovetail.accelerate.running import REPLACE_VARIABLE, Command, Knobs
from dovetail.core import DovetailError, cache_dir
from dovetail.ir.collectives import COLLECTIVES, kind_of_mpi
from dovetail.run.options import Level
from dovetail.trace.recorder.launch import compiler_for, environment, executable, forwarded, library_of, used_by

if TYPE_CHECKING:
    from dovetail.prober.baselines import Baselines

LEAST_GAIN = 0.01  # of the ranks' time: less is not worth a run
KEPT = 0.99  # the guard in C replaces calls only below this ratio
PIECE = 1 << 15  # bytes that a rank may give to a gather in shared memory
MOST_BYTES, MOST_RANKS = 1 << 24, 64  # of a replaced reduction
PASSES, ROUNDS, BATCH_S = 2, 5, 2e-3
COUNTED_S = 2e-8  # that counting adds to a call (bench/results)
LAUNCH_S = 1.0  # seconds that starting ranks takes, at a guess, before any was started


class Times(NamedTuple):
    """Seconds of a bucket's call as installed, and with a lever."""

    bucket: Bucket
    was_s: float
    now_s: float

    @property
    def saved_s(self) -> float:
        """Predicted seconds that the lever saves, summed over ranks; negative if it is slower.

        The share of the transfer that the calls alone save in a row, at most the seconds that they do: skew stays.
        """
        least = transfer_s(self.bucket) * (1 - self.now_s / self.was_s)
        each = self.bucket.calls * (self.was_s - self.now_s)
        return min(least, each) if self.now_s < self.was_s else each


@dataclass(frozen=True)
class Expected:
    """What one lever is predicted to save.

    Attributes
    ----------
    knobs : mapping
        Environment variables; empty for shared memory.
    times : tuple of Times
        By bucket that the lever changes.
    saves_s : float
        Predicted seconds of a rank: the mean over ranks, less what counting all calls costs. Buckets that the guard
        would leave to the library count as 0.
    """

    knobs: Knobs
    times: tuple[Times, ...]
    saves_s: float

    @property
    def is_memory(self) -> bool:
        """Whether the lever is the exchange in shared memory."""
        return not self.knobs


@dataclass(frozen=True)
class Prospects:
    """What may make a program faster, before it runs.

    Attributes
    ----------
    counts : Counts
        Of an earlier run, or of a trace.
    level : str
        Of thread support.
    knobs : Promising
        Knobs that may serve what it spends its time in.
    in_memory : tuple of Bucket
        Calls that `--replace` may perform in shared memory.
    expected : tuple of Expected
        The lever that saves most first; empty if nothing was measured.
    why_unmeasured : str
        Why not; "" if it was.
    """

    counts: Counts
    level: Level
    knobs: Promising
    in_memory: tuple[Bucket, ...]
    expected: tuple[Expected, ...] = ()
    why_unmeasured: str = ""

    @property
    def served_s(self) -> float:
        """Seconds of transfer, summed over ranks, in the calls that some lever serves."""
        by_knobs = {each.call for each in self.knobs.candidates}
        served = [b for b in self.counts.buckets if plain_call(b) in by_knobs or b in self.in_memory]
        return sum(map(transfer_s, served))

    def can_gain(self, *, replaces: bool) -> bool:
        """Whether the levers' calls take 1 % of the time, and some lever is predicted to save 1 %, or not predicted.

        `replaces`: shared memory may be used.
        """
        if self.served_s < LEAST_GAIN * self.counts.rank_s:
            return False
        if self.worth_trying.candidates:
            return True
        is_known = any(each.is_memory for each in self.expected)
        return replaces and bool(self.in_memory) and (not is_known or self.best(memory=True) is not None)

    @property
    def unpredicted(self) -> tuple[Candidate, ...]:
        """Knobs whose calls were not measured: all of them if none was."""
        known = [each.knobs for each in self.expected]
        return tuple(each for each in self.knobs.candidates if each.knobs not in known)

    @property
    def worth_trying(self) -> Promising:
        """The knobs that whole runs shall try: those predicted to save 1 %, the best first, then unpredicted ones."""
        enough_s = LEAST_GAIN * self.counts.elapsed_s
        by_knobs = {tuple(each.knobs.items()): each for each in self.knobs.candidates}
        known = [each for each in self.expected if not each.is_memory and each.saves_s >= enough_s]
        return Promising((*(by_knobs[tuple(e.knobs.items())] for e in known), *self.unpredicted), self.knobs.left_out)

    def best(self, *, memory: bool) -> Expected | None:
        """Return the lever that saves most, of shared memory or of knobs; None if none is predicted to save 1 %."""
        enough_s = LEAST_GAIN * self.counts.elapsed_s
        return next((e for e in self.expected if e.is_memory == memory and e.saves_s >= enough_s), None)

    def saves_s(self, knobs: Knobs, *, replaces: bool) -> float | None:
        """Return the predicted saving of these knobs, or of shared memory, whichever is more; None if unknown."""
        known = [each.saves_s for each in self.expected if (replaces if each.is_memory else each.knobs == knobs)]
        return max(known, default=None)


def transfer_s(bucket: Bucket) -> float:
    """Return the seconds of calls without known waiting for the last rank, summed over ranks."""
    return bucket.seconds - (bucket.skew_s or 0.0)


def prospects(counts: Counts, level: Level, words: Sequence[str], *, reorder: bool = False) -> Prospects:
    """Return what may make a program with these counts faster, without any measurement.

    `words`, `reorder`: see `promising`.
    """
    in_memory = tuple(b for b in counts.buckets if is_replaceable(b, counts, reorder=reorder))
    found = Prospects(counts, level, promising(counts, words, reorder=reorder), in_memory)
    return replace(found, why_unmeasured="not measured")


def is_replaceable(bucket: Bucket, counts: Counts, *, reorder: bool = False) -> bool:
    """Return whether the exchange in shared memory may serve a bucket, as far as counts show.

    Counts do not have the type of a reduction: on more than two ranks it is taken for a sum of floating-point numbers.
    """
    if len(counts.hosts) > 1 or not 1 < bucket.comm_size <= MOST_RANKS or bucket.call not in REPLACED:
        return False
    num_bytes = 1 << max(bucket.log2_bytes, 0)
    if bucket.call == "Allreduce":
        return num_bytes <= MOST_BYTES and (bucket.comm_size == 2 or reorder)
    return num_bytes <= PIECE * (bucket.comm_size if bucket.call == "Allgather" else 1)


def measured(found: Prospects, command: Command, limit_s: float, note: Callable[[str], None]) -> Prospects:
    """Measure the calls that levers serve, in a C program started as the command is, and predict what they save.

    Parameters
    ----------
    found : Prospects
        Without predictions.
    command : Command
        With counters: their library makes the exchange in shared memory.
    limit_s : float
        No measurement begins later.
    note : callable
        Prints a remark before the measurement.
    """
    from dovetail.prober.baselines import baselines

    launch = launch_of(command.words)
    if not launch:
        return replace(found, why_unmeasured="no word of the command is a program with MPI behind a launcher")
    points = _points(found)
    if not points:
        return replace(found, why_unmeasured="no call on all ranks that can be measured alone")
    settings = list(_settings(found))
    if limit_s < LAUNCH_S * len(settings):
        return replace(found, why_unmeasured=f"it takes about {LAUNCH_S * len(settings):.0f} s: --learn gives it")
    note(f"measuring {sum(map(len, points.values()))} sizes of calls with {len(settings)} settings")
    try:
        mpicc = compiler_for(library_of(command.words[len(launch) :]), Path(launch[0]).parent)
        with baselines(shlex.join(forwarded(launch, _variables(command), COUNTER)), mpicc) as program:
            times = _Contest(program, command, found, points).times(settings, limit_s)
    except DovetailError as error:
        return replace(found, why_unmeasured=error.what)
    return with_times(found, times)


_Setting = tuple[str, Knobs, str]  # "installed", "memory" or "knobs"; variables; the call that they serve, "" for all


def with_times(found: Prospects, times: Sequence[tuple[_Setting, Mapping[tuple[str, int], float]]]) -> Prospects:
    """Return the prospects with predictions from times of calls: by setting, seconds by name of the call and log2."""
    installed = next((seconds for (what, _, _), seconds in times if what == "installed"), {})
    expected, counting_s = [], COUNTED_S * sum(bucket.calls for bucket in found.counts.buckets)
    for (what, knobs, call), seconds in times:
        if what == "installed" or not seconds:
            continue
        served = found.in_memory if what == "memory" else [b for b in found.counts.buckets if plain_call(b) == call]
        keys = [(b, (plain_call(b), b.log2_bytes)) for b in served if b.comm_size == found.counts.ranks]
        rows = tuple(Times(b, installed[key], seconds[key]) for b, key in keys if key in installed and key in seconds)
        kept = [row for row in rows if what == "knobs" or row.now_s < KEPT * row.was_s]
        saves_s = sum(row.saved_s for row in kept) + freed_s(found.counts, kept) - counting_s
        expected.append(Expected(knobs, rows, saves_s / found.counts.ranks))
    ordered = tuple(sorted(expected, key=lambda each: -each.saves_s))
    return replace(found, expected=ordered, why_unmeasured="" if ordered else "the measurement gave no times")


def freed_s(counts: Counts, rows: Sequence[Times]) -> float:
    """Return the seconds, summed over ranks, that all else takes less because a lever's calls hold the cores less.

    With more ranks than cores, a rank that polls in a call has the core of one that has something to do. What ranks
    wait for cores beyond what their work explains is spread evenly over their time; the part of the calls' time that
    the lever saves is the part of these waits that it ends.
    """
    moved_s, saved_s = sum(transfer_s(row.bucket) for row in rows), sum(row.saved_s for row in rows)
    if moved_s <= 0 or saved_s <= 0:
        return 0.0
    return (counts.rank_s - moved_s) * counts.held_share * min(saved_s / moved_s, 1.0)


def launch_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command before its program: the launcher and its options; empty if they are not seen."""
    for i, word in enumerate(words):
        path = executable(word) if i else None
        if path is not None and used_by(path) is not None:
            return tuple(words[:i])
    return ()


def plain_call(bucket: Bucket) -> str:
    """Return the name of a bucket's call without the suffix of large counts."""
    return bucket.call.removesuffix("_c")


def _points(found: Prospects) -> dict[str, list[int]]:
    """Return the sizes, by kind, of the calls of levers that take 1 % of the time; powers of two."""
    calls = {each.call for each in found.knobs.candidates}
    points: dict[str, list[int]] = {}
    for bucket in found.counts.buckets:
        kind = kind_of_mpi(plain_call(bucket))
        served = bucket in found.in_memory or (
            plain_call(bucket) in calls and kind and COLLECTIVES[kind].mpi[0] in calls
        )
        if served and bucket.comm_size == found.counts.ranks and transfer_s(bucket) >= LEAST_GAIN * found.counts.rank_s:
            points.setdefault(kind, []).append(bucket.log2_bytes)
    return points


def _settings(found: Prospects) -> Iterator[_Setting]:
    """Yield what is timed: the library as installed, shared memory, and the knobs of each call."""
    yield "installed", {}, ""
    if found.in_memory:
        yield "memory", {}, ""
    yield from (("knobs", each.knobs, each.call) for each in found.knobs.candidates if kind_of_mpi(each.call))


def _variables(command: Command) -> list[str]:
    return [*command.settings, REPLACE_VARIABLE]


class _Contest:
    """Times calls under one setting after another, and all of them again, so that a drift of the machine shows less."""

    def __init__(
        self, program: Baselines, command: Command, found: Prospects, points: Mapping[str, Sequence[int]]
    ) -> None:
        self.program, self.command, self.found, self.points = program, command, found, points

    def times(
        self, settings: Sequence[_Setting], limit_s: float
    ) -> list[tuple[_Setting, dict[tuple[str, int], float]]]:
        """Return for each setting the least median of the passes, by name of the call and log2 of the bytes."""
        begun = time.monotonic()
        least: list[dict[tuple[str, int], float]] = [{} for _ in settings]
        for number in range(PASSES):
            order = range(len(settings)) if number % 2 == 0 else reversed(range(len(settings)))
            for i in order:
                if time.monotonic() - begun > limit_s:
                    break
                for key, seconds in self._time(*settings[i]).items():
                    least[i][key] = min(seconds, least[i].get(key, seconds))
        return list(zip(settings, least, strict=True))

    def _time(self, what: str, knobs: Knobs, call: str) -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], float] = {}
        with tempfile.TemporaryDirectory(prefix="counts-", dir=cache_dir()) as place:
            env = dict(knobs) | (self._counted(Path(place)) if what == "memory" else {})
            for kind, logs in self.points.items():
                name = COLLECTIVES[kind].mpi[0]
                if call in ("", name):
                    found |= self._of_kind(kind, name, logs, env)
        return found

    def _of_kind(self, kind: str, name: str, logs: Sequence[int], env: Knobs) -> dict[tuple[str, int], float]:
        ranks = self.found.counts.ranks
        moves = COLLECTIVES[kind].moves
        least = 4 * (ranks if COLLECTIVES[kind].in_parts else 1) if moves else 0
        sizes = {max(1 << log2 if log2 >= 0 else 0, least): log2 for log2 in sorted(logs)}
        dtype = "float64" if min(sizes) >= 8 * ranks else "float32"
        timed = self.program.time(
            kind, list(sizes), ranks, dtype=dtype, level=self.found.level, knobs=env, rounds=ROUNDS, batch_s=BATCH_S
        )
        return {(name, sizes[size]): each.median_s for size, each in timed.items()}

    def _counted(self, place: Path) -> dict[str, str]:
        assert self.command.gate is not None
        preload = environment(self.command.gate, place, {}, COUNTER)
        return {**preload, **self.command.settings, REPLACE_VARIABLE: "always"}
