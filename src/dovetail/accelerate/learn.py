"""learn: which knobs make a program faster: tried in whole runs, once, and kept in the store."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any, NamedTuple

from dovetail.accelerate.contest import FASTER, FailedRun, Ratio, alternate
from dovetail.accelerate.counts import Counts
from dovetail.accelerate.knobs import PREFIXES, Candidate, Promising
from dovetail.accelerate.running import Command, Knobs, Ran
from dovetail.core import EnvironmentFault, check_schema, reading
from dovetail.store.store import SETTINGS, Item, Recalled, item, recall, save
from dovetail.trace.recorder.launch import Library, library_of

SCHEMA = "dovetail.accelerate.learned/3"
PAIRS = 5  # the least that gives a verdict
HEATS = 2  # runs of each candidate, beside as many without, that choose the one for the final
_WORD, _BUCKET = re.compile(r"[\w.,:+-]+"), re.compile(r"[0-9a-f]{8}@\d+:\d+")
_LISTS, _RATIOS = ("hosts", "tried", "left_out", "start"), ("ratio", "replaced")
MOST_CHANGES = 8  # buckets whose change is kept
MOST_HASHED = 1 << 28  # bytes; larger files are known by size and time
NOT_TRIED, NOTHING, LOST, WON = "not tried", "nothing to try", "slower or unclear", FASTER
IDLE = "nothing replaced"


class Change(NamedTuple):
    """What knobs changed of a bucket: seconds of a call in the first run, and in each run of the final with them."""

    call: str
    comm_size: int
    log2_bytes: int
    was_s: float
    now_s: tuple[float, ...]


@dataclass(frozen=True)
class Learned:
    """What whole runs of a program have shown.

    Attributes
    ----------
    verdict : str
        WON: `knobs` are applied to later runs; LOST: none of the tried knobs is; NOTHING: no knob was worth a run;
        NOT_TRIED: no knob was considered.
    knobs : mapping
        Environment variables; empty unless they won.
    library, hosts, ranks
        Where it was measured.
    ratio : Ratio or None
        Of the final: time with the best candidate over time without.
    tried, left_out : tuple of str
        Candidates that ran, as a shell takes them; sentences about others.
    replacing : str
        WON or LOST: whether whole runs were faster with replaced collectives; IDLE: none was replaced; "": unknown.
    replaced : Ratio or None
        Time with replaced collectives over time without, with `knobs` in both.
    start : tuple of str
        Buckets of collectives that are replaced from the first call on (see `replacement.start_words`).
    changes : tuple of Change
        Of the buckets with the most time in the first run, if knobs won.
    spent_s : float
        Seconds of the further runs that showed this.
    """

    verdict: str
    knobs: Knobs
    library: str
    hosts: tuple[str, ...]
    ranks: int
    ratio: Ratio | None = None
    tried: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    replacing: str = ""
    replaced: Ratio | None = None
    start: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    spent_s: float = 0.0

    def fits(self, counts: Counts) -> bool:
        """Return whether a run was on the ranks, hosts and library that were measured."""
        return (self.library, self.hosts, self.ranks) == (counts.library, counts.hosts, counts.ranks)

    def gains_nothing(self, *, replaces: bool) -> bool:
        """Return whether nothing is applied to later runs: they are left as they are. `replaces`: it was asked for.

        >>> [Learned(LOST, {}, "X", ("a",), 2, replacing=it).gains_nothing(replaces=True) for it in ("", WON, IDLE)]
        [False, False, True]
        """
        return self.verdict in (LOST, NOTHING) and (not replaces or self.replacing in (LOST, IDLE))

    def with_judgement_of(self, other: Learned | None) -> Learned:
        """Return this one with what `other` knows of replaced collectives."""
        if other is None:
            return self
        return replace(self, replacing=other.replacing, replaced=other.replaced, start=other.start)

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field and all attributes."""
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        ratios = {name: found.to_json() if (found := getattr(self, name)) else None for name in _RATIOS}
        return {"schema": SCHEMA, **vars(self), **lists, **ratios, "knobs": dict(self.knobs)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Learned:
        """Return what `to_json` wrote. Raises DovetailError for any other document."""
        check_schema(document, SCHEMA)
        with reading("settings document", EnvironmentFault):
            about = str(document["verdict"]), str(document["library"]), int(document["ranks"])
            lists: dict[str, Any] = {name: tuple(map(str, document[name])) for name in _LISTS}
            ratios: dict[str, Any] = {name: _ratio(document[name]) for name in _RATIOS}
            knobs = {str(name): str(value) for name, value in document["knobs"].items()}
            if not all(name.startswith(PREFIXES) and _WORD.fullmatch(name + value) for name, value in knobs.items()):
                raise EnvironmentFault("a variable of the settings configures no MPI library", found=said(knobs))
            if not all(map(_BUCKET.fullmatch, lists["start"])):
                raise EnvironmentFault("a bucket of the settings cannot be read", found=", ".join(lists["start"]))
            verdict, library, ranks = about
            found = cls(verdict, knobs, library, ranks=ranks, replacing=str(document["replacing"]), **ratios, **lists)
            changes = tuple(_change(*row) for row in document["changes"])
            return replace(found, changes=changes, spent_s=float(document["spent_s"]))


def settings_item(
    words: Sequence[str], *, reorder: bool, replace: bool = False, library: Library | None = None
) -> Item:
    """Return the item for a command: by its words, the files they name, the MPI library, this host, what the user's
    environment says to MPI libraries, and the options. `library`: the command's, if it is known."""
    files = [_identity(path) for word in words if (path := _file(word))]
    own = {name: value for name, value in os.environ.items() if name.startswith((*PREFIXES, "SLURM_JOB_NODELIST"))}
    host = [socket.gethostname(), platform.machine(), os.cpu_count()]
    return item(
        SETTINGS, list(words), files, _library(words, library), host, own, reorder, *(["replace"] if replace else [])
    )


def recall_settings(place: Item) -> Recalled[Learned]:
    """Return what was learned; None if nothing was."""
    return recall(place, Learned.from_json)


def learn(
    command: Command, first: Ran, limit_s: float, found: Promising, note: Callable[[str], None]
) -> tuple[Learned | None, str]:
    """Try knobs in whole runs of a command, whose output is discarded.

    Parameters
    ----------
    command : Command
        With counters.
    first : Ran
        Its run without knobs.
    limit_s : float
        Seconds that all further runs may take together, as the first run predicts.
    found : Promising
        The knobs to try, the most promising first.
    note : callable
        Prints a remark before the runs.

    Returns
    -------
    Learned or None
        None if there was no time to learn anything, or if the program failed without knobs.
    str
        The reason for None.
    """
    counts = first.counts[0]
    base = Learned(NOTHING, {}, counts.library, counts.hosts, counts.ranks, left_out=found.left_out)
    if not found.candidates:
        return base, ""
    chosen = found.candidates[: _affordable(int(limit_s / first.seconds))]
    if not chosen:
        need_s = 2 * PAIRS * first.seconds
        return None, f"{len(found.candidates)} settings are worth a try: --learn {need_s + 1:.0f}"
    if left := len(found.candidates) - len(chosen):
        base = replace(base, left_out=(*base.left_out, f"{left} settings, for want of time"))
    runs = 2 * PAIRS + (HEATS * (len(chosen) + 1) if len(chosen) > 1 else 0)
    note(f"trying {len(chosen)} settings in at most {runs} further runs, about {runs * first.seconds:.0f} s")
    base = replace(base, verdict=LOST, tried=tuple(said(each.knobs) for each in chosen))
    begun, seen = time.monotonic(), list[Ran]()
    try:
        best = _heats(command, chosen)
        ratio = _final(command, best.knobs, seen) if best else None
    except FailedRun as failure:
        return (base, "") if failure.with_knobs else (None, f"{failure}: it cannot be run again to learn")
    base = replace(base, ratio=ratio, spent_s=time.monotonic() - begun)
    if best and ratio and ratio.verdict == FASTER:
        return replace(base, verdict=WON, knobs=best.knobs, changes=_changes(counts, seen)), ""
    return base, ""


def _changes(counts: Counts, runs: Sequence[Ran]) -> tuple[Change, ...]:
    """Return the changes of the buckets with the most time."""
    later = [{b[:3]: b for b in ran.counts[0].buckets} for ran in runs if ran.counts]
    found = []
    for bucket in counts.buckets[:MOST_CHANGES]:
        now_s = tuple(them[bucket[:3]].seconds_each for them in later if bucket[:3] in them)
        if now_s:
            found.append(Change(*bucket[:3], bucket.seconds_each, now_s))
    return tuple(found)


def _affordable(runs: int) -> int:
    """Return how many candidates can be tried in this number of runs: one needs no heats.

    >>> [_affordable(runs) for runs in (9, 10, 15, 16, 18, 30)]
    [0, 1, 1, 2, 3, 9]
    """
    return max(int(runs >= 2 * PAIRS), (runs - 2 * PAIRS) // HEATS - 1)


def save_settings(place: Item, learned: Learned, words: Sequence[str]) -> Path | None:
    """Save what was learned; None, with a warning, if it cannot be written."""
    about = f"{learned.verdict}: {' '.join(words)[:80]}, {learned.ranks} ranks, {learned.library}"
    return save(place, about, learned.to_json())


def said(knobs: Knobs) -> str:
    """Return knobs as a shell takes them."""
    from dovetail.prober.baselines import said as joined

    return joined(knobs)


def check(command: Command, knobs: Knobs, pairs: int) -> tuple[Ratio, Ran]:
    """Return the ratio of runs with the knobs and counters over runs of the command as it is, and the last counted run.

    Raises FailedRun if a run ends with another exit code than 0.
    """
    seen: list[Ran] = []
    return _final(command, knobs, seen, pairs), seen[-1]


def _heats(command: Command, chosen: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate with the least median ratio to the runs without knobs; None if all of them fail."""
    if len(chosen) == 1:
        return chosen[0]
    ratios: dict[int, list[float]] = {i: [] for i in range(len(chosen))}
    for _ in range(HEATS):
        usual = silent_run(command, {}, counted=False).seconds
        for i in list(ratios):
            try:
                ratios[i].append(silent_run(command, chosen[i].knobs).seconds / usual)
            except FailedRun:
                del ratios[i]
    return chosen[min(ratios, key=lambda i: median(ratios[i]))] if ratios else None


def _final(command: Command, knobs: Knobs, seen: list[Ran], pairs: int = PAIRS) -> Ratio:
    """Return the ratio of runs with the knobs over runs without; `seen`: receives the runs with them."""

    def accelerated() -> float:
        seen.append(silent_run(command, knobs))
        return seen[-1].seconds

    return alternate(lambda: silent_run(command, {}, counted=False).seconds, accelerated, pairs)


def _change(call: str, comm_size: int, log2_bytes: int, was_s: float, now_s: Sequence[float]) -> Change:
    return Change(str(call), int(comm_size), int(log2_bytes), float(was_s), tuple(map(float, now_s)))


def _ratio(document: Mapping[str, Any] | None) -> Ratio | None:
    if not document:
        return None
    without_s = document.get("without_s")
    return Ratio(tuple(map(float, document["ratios"])), None if without_s is None else float(without_s))


def silent_run(command: Command, knobs: Knobs, *, counted: bool = True) -> Ran:
    """Run a command with its output discarded. Raises FailedRun if its exit code is not 0."""
    ran = command.run(knobs, counted=counted, shown=False)
    if ran.code:
        raise FailedRun(ran.code, with_knobs=counted)
    return ran


def _file(word: str) -> Path | None:
    path = Path(word if os.sep in word or Path(word).is_file() else which(word) or word)
    return path if path.is_file() else None


def _identity(path: Path) -> list[Any]:
    """Return what tells a file from others: its bytes; for a large one that is no program, size and time."""
    facts = path.stat()
    if facts.st_size > MOST_HASHED:
        return [facts.st_size, facts.st_mtime_ns]
    return [sha256(path.read_bytes()).hexdigest()]


def _library(words: Sequence[str], library: Library | None) -> list[Any]:
    """Return what tells the command's MPI library from others: its kind, and the sizes and times of its files."""
    try:
        library = library or library_of(words)
    except EnvironmentFault:
        return []
    found = sorted(library.folder.glob("libmpi*.so*")) if library.folder else []
    return [library.kind, *([path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in found)]
