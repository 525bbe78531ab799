"""counts: what the ranks of a program spent in MPI, by call, size of the communicator and bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.trace.recorder.mpi_calls import MPI_COLLECTIVES

RANK_SCHEMA = "dovetail.accelerate.counts/3"  # of one process, as counter.h writes it
_COLLECTIVES = {
    form: kind.name for kind in MPI_COLLECTIVES for form in (kind.name, f"I{kind.name.lower()}", f"{kind.name}_init")
}


class Bucket(NamedTuple):
    """Calls of one kind on communicators of one size, of 2^log2_bytes bytes up to twice as many; summed over ranks.

    Attributes
    ----------
    call : str
        Name without `MPI_`.
    comm_size : int
        Ranks of the communicator; 0 for calls that are not collective.
    log2_bytes : int
        log2 of the larger of the bytes sent and received by a rank, rounded down; -1: no bytes.
    calls, seconds : int, float
        Number of calls, and time in them.
    sampled, sampled_s, waited_s : int, float, float
        Calls for which the last rank's arrival is known, time in these, and how much of it passed before that arrival.
    """

    call: str
    comm_size: int
    log2_bytes: int
    calls: int
    seconds: float
    sampled: int = 0
    sampled_s: float = 0.0
    waited_s: float = 0.0

    @property
    def collective(self) -> str | None:
        """The collective that the call, blocking or not, belongs to: "Allreduce"; None for other calls."""
        return _COLLECTIVES.get(self.call.removesuffix("_c"))

    @property
    def seconds_each(self) -> float:
        """Seconds of a call."""
        return self.seconds / max(self.calls, 1)

    def added(self, other: Bucket) -> Bucket:
        """Return the sums of both."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in self._fields[3:]}
        return self._replace(**sums)

    @property
    def skew_s(self) -> float | None:
        """Estimated seconds of waiting for the last rank to arrive, from the sampled calls; None where unknown."""
        return self.seconds * self.waited_s / self.sampled_s if self.sampled_s > 0 else None


class Replaced(NamedTuple):
    """Collectives of one kind that may be replaced: by communicator size, bytes, type and operation, summed over ranks.

    Attributes
    ----------
    call : str
        Name without `MPI_`.
    comm_size, log2_bytes : int
        As in `Bucket`; bytes of a rank's data, of a block for `Alltoall`.
    dtype, op : str
        Of a reduction; empty for other kinds.
    state : str
        "replaced"; "watched": no trial fitted into the budget; "tried": the run ended in a trial; "slower": a trial was
        lost; "slower later": replaced at first; "other bytes": a check failed; "no memory"; "left alone": the ranks of
        the communicator share no memory.
    calls, moved : int
        Calls, and how many of them went through shared memory.
    was_s, now_s : float
        Median seconds from one call to the next, in blocks of the library's calls and of ours: with all that the
        program does in between; 0 if unknown.
    low, high, ratio : float
        Quartiles and median of ours over the library's time, of pairs of blocks.
    key, block : int
        What the library in C calls the bucket; calls of a block.
    """

    call: str
    comm_size: int
    log2_bytes: int
    dtype: str
    op: str
    state: str
    calls: int
    moved: int
    was_s: float = 0.0
    now_s: float = 0.0
    low: float = 0.0
    high: float = 0.0
    ratio: float = 0.0
    key: int = 0
    block: int = 0

    @property
    def saved_s(self) -> float:
        """Estimated seconds that the replaced calls saved, summed over ranks."""
        return self.moved * (self.was_s - self.now_s)

    def added(self, other: Replaced) -> Replaced:
        """Return the sums of both, with the times of the one with more calls."""
        more = self if self.calls >= other.calls else other
        return more._replace(calls=self.calls + other.calls, moved=self.moved + other.moved)


@dataclass(frozen=True)
class Replacing:
    """What was replaced in a job, and what it cost.

    Attributes
    ----------
    rows : tuple of Replaced
        The one that saved the most first.
    left : mapping
        Calls, summed over ranks, that never qualify: "operation" (or type) of a reduction, "order" (sums of
        floating-point numbers of more than two ranks), "long" (more bytes than a gather may have), "communicator".
    spent_s : float
        Seconds of learning, summed over ranks.
    """

    rows: tuple[Replaced, ...]
    left: Mapping[str, int]
    spent_s: float

    @property
    def saved_s(self) -> float:
        """Estimated seconds saved, summed over ranks."""
        return sum(row.saved_s for row in self.rows)


@dataclass(frozen=True)
class Counts:
    """The counts of a job's ranks.

    Attributes
    ----------
    library : str
        Name and version of the MPI library.
    hosts : tuple of str
        Hosts of the ranks that left counts.
    ranks : int
        Size of MPI_COMM_WORLD.
    elapsed_s, rank_s : float
        Seconds from MPI_Init to MPI_Finalize: of the slowest rank, and summed over ranks.
    buckets : tuple of Bucket
        Summed over ranks, the one with the most time first.
    missing : int
        Ranks that left no counts.
    replacing : Replacing or None
        None if no call was to be replaced.
    readback : mapping
        Knobs, and what the library of the first rank reported for them after MPI_Init; "": it has no such variable.
    crowd, core_waits_s : float
        Ranks for each core where they are the most; seconds, summed over ranks, for which they waited for a core. 1 and
        0 where unknown: only traces show it.
    """

    library: str
    hosts: tuple[str, ...]
    ranks: int
    elapsed_s: float
    rank_s: float
    buckets: tuple[Bucket, ...]
    missing: int = 0
    replacing: Replacing | None = None
    readback: Mapping[str, str] = field(default_factory=dict)
    crowd: float = 1.0
    core_waits_s: float = 0.0

    @property
    def in_mpi_s(self) -> float:
        """Seconds in MPI, summed over ranks."""
        return sum(bucket.seconds for bucket in self.buckets)

    @property
    def held_share(self) -> float:
        """Share of the ranks' time for which they wait for cores that others hold without working: 0 if unknown.

        Ranks that share a core wait for it as long as the others work.
        """
        if self.crowd <= 1:
            return 0.0
        needed_s = (self.crowd - 1) * (self.rank_s - self.in_mpi_s)
        return min(max(self.core_waits_s - needed_s, 0.0) / self.rank_s, 1.0)

    @property
    def in_collectives_s(self) -> float:
        """Seconds in collectives, summed over ranks."""
        return sum(bucket.seconds for bucket in self.buckets if bucket.collective)

    @property
    def known_skew(self) -> tuple[float, float]:
        """Seconds, summed over ranks, in collectives whose skew is known, and their skew."""
        known = [(bucket.seconds, bucket.skew_s) for bucket in self.buckets if bucket.skew_s is not None]
        return sum(seconds for seconds, _ in known), sum(skew for _, skew in known if skew is not None)


def read_counts(folder: Path) -> list[Counts]:
    """Return the counts of each job whose processes wrote to `folder`, the longest first; broken files are left out.

    Ranks belong to one job if they agree in their number of ranks and their library. Several jobs of one command are
    added up.
    """
    jobs: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(document, dict) and document.get("schema") == RANK_SCHEMA:
            jobs.setdefault((document["library"], document["size"]), []).append(document)
    return sorted((_joined(*key, ranks) for key, ranks in jobs.items()), key=lambda job: -job.rank_s)


def _joined(library: str, size: int, ranks: Iterable[Mapping[str, Any]]) -> Counts:
    sums: dict[tuple[str, int, int], Bucket] = {}
    ranks = list(ranks)
    for more in (Bucket(*row) for document in ranks for row in document["rows"]):
        sums[more[:3]] = sums[more[:3]].added(more) if more[:3] in sums else more
    elapsed = [document["elapsed_s"] for document in ranks]
    hosts = tuple(sorted({document["host"] for document in ranks}))
    buckets = tuple(sorted(sums.values(), key=lambda bucket: -bucket.seconds))
    missing = max(size - len(ranks), 0)
    readback = min(ranks, key=lambda document: document["rank"]).get("knobs", {})
    return Counts(library, hosts, size, max(elapsed), sum(elapsed), buckets, missing, _replacing(ranks), readback)


def _replacing(ranks: Sequence[Mapping[str, Any]]) -> Replacing | None:
    ranks = [document for document in ranks if "replaced" in document]
    if not ranks:
        return None
    sums: dict[tuple[Any, ...], Replaced] = {}
    for more in (Replaced(*row) for document in ranks for row in document["replaced"]):
        sums[more[:6]] = sums[more[:6]].added(more) if more[:6] in sums else more
    left = {why: sum(document["left"][why] for document in ranks) for why in ranks[0]["left"]}
    rows = tuple(sorted(sums.values(), key=lambda row: (-row.saved_s, -row.calls)))
    return Replacing(rows, left, sum(document["spent_s"] for document in ranks))
