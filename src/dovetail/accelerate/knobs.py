"""knobs: settings of the MPI library that may make a program faster, chosen by what its ranks spent their time in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.accelerate.counts import Bucket, Counts
from dovetail.ir.collectives import COLLECTIVES, kind_of_mpi

LEAST_SHARE = 0.05  # of the ranks' time, from which a knob for it is worth a whole run
LONG_LOG2 = 16  # messages from 64 KiB on, which Open MPI sends in pieces
MPICH, OPEN_MPI = "MPICH", "Open MPI"
PREFIXES = ("MPIR_CVAR_", "OMPI_MCA_", "FI_", "UCX_", "I_MPI_")  # of variables that configure MPI libraries
_SENDS = ("Send", "Isend", "Ssend", "Issend", "Rsend", "Irsend", "Sendrecv", "Isendrecv", "Recv", "Wait", "Waitall")


class Candidate(NamedTuple):
    """Environment variables to try together, and the MPI call that they are for."""

    knobs: Mapping[str, str]
    call: str


class Promising(NamedTuple):
    """Candidates, the most promising first, and sentences about what was left out and why."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[str, ...]


def promising(counts: Counts, words: Sequence[str], *, reorder: bool = False) -> Promising:
    """Return the knobs that may make a program with these counts faster.

    A kind of call must take 5 % of the ranks' time. Time that is known to be waiting for the last rank does not count:
    no algorithm gains it.

    Parameters
    ----------
    counts : Counts
        Of a run without knobs.
    words : sequence of str
        The command line. What it or the environment sets is the user's, and is left out.
    reorder : bool
        Also knobs that may change the order in which floating-point numbers are added, and so the last digits of
        results. Between two ranks there is one order only.
    """
    library = next((name for name in (MPICH, OPEN_MPI) if counts.library.startswith(name)), None)
    if library is None:
        return Promising((), (f"no knobs are known for {counts.library}",))
    found: list[list[Candidate]] = []
    left_out: list[str] = []
    for call, seconds in _shares(counts):
        if seconds < LEAST_SHARE * counts.rank_s:
            continue
        kind = kind_of_mpi(call)
        reorders = COLLECTIVES[kind].reduces and any(b.comm_size > 2 for b in _of(counts, call))
        if reorders and not reorder:
            left_out.append(f"knobs of MPI_{call} may change the order of floating-point sums: --reorder tries them")
            continue
        found.append(list(_settings(counts.library, kind, call)))
    candidates = [*_interleaved(found), *_between_hosts(library, counts)]
    own = [each for each in candidates if any(set_by_user(name, words) for name in each.knobs)]
    left_out += [
        f"{name} is set by the user" for name in sorted({n for c in own for n in c.knobs if set_by_user(n, words)})
    ]
    return Promising(tuple(each for each in candidates if each not in own), tuple(left_out))


def set_by_user(name: str, words: Sequence[str]) -> bool:
    """Return whether the environment, the command line or the user's file of Open MPI parameters sets a variable."""
    short = name.removeprefix("OMPI_MCA_")
    if name in os.environ or any(short in word.replace("=", " ").split() for word in words):
        return True
    return short != name and short in _parameters(Path.home() / ".openmpi" / "mca-params.conf")


def _parameters(file: Path) -> set[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {line.partition("=")[0].strip() for line in lines if "=" in line and not line.lstrip().startswith("#")}


def _of(counts: Counts, call: str) -> list[Bucket]:
    return [b for b in counts.buckets if b.call.removesuffix("_c") == call and b.comm_size > 1]


def _shares(counts: Counts) -> list[tuple[str, float]]:
    """Return the blocking collectives that have knobs, and their seconds without known waiting, the longest first."""
    sums: dict[str, float] = {}
    for bucket in counts.buckets:
        call = bucket.call.removesuffix("_c")
        kind = kind_of_mpi(call)
        if kind and COLLECTIVES[kind].moves and COLLECTIVES[kind].mpi[0] == call and bucket.comm_size > 1:
            sums[call] = sums.get(call, 0.0) + bucket.seconds - (bucket.skew_s or 0.0)
    return sorted(sums.items(), key=lambda each: -each[1])


def _settings(library: str, kind: str, call: str) -> Iterator[Candidate]:
    from dovetail.prober.baselines import can_time, knobs_of

    if can_time(kind, "float32"):
        yield from (Candidate(knobs, call) for knobs in knobs_of(library, kind))


def _interleaved(found: Iterable[list[Candidate]]) -> Iterator[Candidate]:
    """Yield the first candidate of each list, then the second of each, and so on."""
    lists = list(found)
    for i in range(max(map(len, lists), default=0)):
        yield from (each[i] for each in lists if i < len(each))


def _between_hosts(library: str, counts: Counts) -> Iterator[Candidate]:
    """Yield knobs for messages between hosts."""
    if len(counts.hosts) < 2:
        return
    sends = [bucket for bucket in counts.buckets if bucket.call.removesuffix("_c") in _SENDS]
    has_windows = any(bucket.call.startswith("Win_") for bucket in counts.buckets)
    if sum(bucket.seconds for bucket in sends) < LEAST_SHARE * counts.rank_s:
        return
    if library == MPICH and not has_windows:  # without it MPICH's sends over tcp end at the receiver's answer
        yield Candidate({"MPIR_CVAR_CH4_OFI_ENABLE_RMA": "0"}, "Send")
    if library == OPEN_MPI and any(bucket.log2_bytes >= LONG_LOG2 for bucket in sends):
        yield Candidate({"OMPI_MCA_btl_tcp_progress_thread": "1"}, "Send")
