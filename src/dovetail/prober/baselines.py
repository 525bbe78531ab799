"""baselines: what the MPI library's collectives take a plain C program, as installed and with its own knobs set."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from dovetail.core import DovetailError, cache_dir, native_folder
from dovetail.prober.calls import compiled, measured
from dovetail.run.options import Level

SOURCE = native_folder("prober") / "baseline.c"
SILENT_S = 60.0
PAGE_BYTES = 4096
ENDS_S = 5.0  # seconds more than asked for that a measurement may take to start and end
DTYPES = ("float32", "float64", "int32", "int64")
BOTH = ("REDUCE", "BCAST")  # what MPICH's all_reduce of shared memory is made of
MPICH = {  # word in the knobs, algorithms between processes
    "all_reduce": ("ALLREDUCE", ("recursive_doubling", "reduce_scatter_allgather", "recexch")),
    "all_gather": ("ALLGATHER", ("recursive_doubling", "ring", "brucks")),
    "reduce_scatter": ("REDUCE_SCATTER_BLOCK", ("recursive_halving", "recursive_doubling", "pairwise")),
    "all_to_all": ("ALLTOALL", ("pairwise", "scattered", "brucks")),
    "broadcast": ("BCAST", ("binomial", "scatter_recursive_doubling_allgather", "scatter_ring_allgather")),
    "reduce": ("REDUCE", ("binomial", "reduce_scatter_gather")),
    "gather": ("GATHER", ("binomial",)),
    "scatter": ("SCATTER", ("binomial",)),
    "all_to_next": ("", ()),
}
OPEN_MPI = {  # word in the knobs, numbers of coll_tuned's algorithms
    "all_reduce": ("allreduce", (2, 3, 4, 6)),
    "all_gather": ("allgather", (1, 2, 3, 4, 6)),
    "reduce_scatter": ("reduce_scatter_block", (1, 2, 3, 4)),
    "all_to_all": ("alltoall", (1, 2, 3, 5)),
    "broadcast": ("bcast", (1, 3, 6, 8)),
    "reduce": ("reduce", (1, 3, 5, 7)),
    "gather": ("gather", (1, 2, 3)),
    "scatter": ("scatter", (1, 2, 3)),
    "all_to_next": ("", ()),
}
Environment = Mapping[str, str]
INSTALLED: Environment = {}


class Timing(NamedTuple):
    """One size: seconds of a call in each round, of the slowest rank, and wrong elements of a checked call.

    `exchange_s`: by round, seconds of an exchange of a word between ranks 0 and 1; NaN or none where unknown.
    """

    num_bytes: int
    seconds: tuple[float, ...]
    num_wrong: int = 0
    exchange_s: tuple[float, ...] = ()

    @property
    def median_s(self) -> float:
        """Median of `seconds`."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the interquartile range over the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median_s

    @property
    def apart_s(self) -> float | None:
        """Median of `exchange_s`; None where it is unknown."""
        known = [s for s in self.exchange_s if s > 0]
        return median(known) if known else None

    def where(self, kept: Sequence[bool]) -> Timing:
        """Return the rounds that are `kept`."""
        seconds, apart_s = (tuple(compress(each, kept)) for each in (self.seconds, self.exchange_s))
        return self._replace(seconds=seconds, exchange_s=apart_s)

    @staticmethod
    def joined(launches: Sequence[Timing]) -> Timing:
        """Return all rounds of several launches, with their stamps if every launch has them."""
        seconds = tuple(s for each in launches for s in each.seconds)
        apart_s = tuple(s for each in launches for s in each.exchange_s)
        return Timing(launches[0].num_bytes, seconds, 0, apart_s if len(apart_s) == len(seconds) else ())


def can_time(kind: str, dtype: str) -> bool:
    """Whether the C program knows this collective and element type."""
    return kind in MPICH and dtype in DTYPES


def knobs_of(library: str, kind: str) -> list[Environment]:
    """Return the settings of a library that may serve a collective better than its own choice.

    MPICH: every algorithm between processes in place of those of shared memory; processes that yield their core, for
    ranks that outnumber the cores; larger buffers in shared memory. Open MPI: its component of shared memory, which is
    off by default, and every algorithm of `coll_tuned`, which HAN hides.

    >>> knobs_of("MPICH Version: 5.0.2", "gather")[1]
    {'MPIR_CVAR_GATHER_DEVICE_COLLECTIVE': '0', 'MPIR_CVAR_POLLS_BEFORE_YIELD': '1'}
    >>> knobs_of("Open MPI v5.0.11", "broadcast")[0]
    {'OMPI_MCA_coll_han_priority': '0', 'OMPI_MCA_coll_sm_priority': '95'}
    """
    if library.startswith("Open MPI"):
        return _open_mpi(*OPEN_MPI[kind])
    word, algorithms = MPICH[kind]
    messages = {f"MPIR_CVAR_{word}_DEVICE_COLLECTIVE": "0"}
    found: list[Environment] = [messages | {f"MPIR_CVAR_{word}_INTRA_ALGORITHM": each} for each in algorithms]
    if word:
        found.append(messages | {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"})
    if word in (*BOTH, "ALLREDUCE"):
        found.insert(0, {f"MPIR_CVAR_{each}_INTRANODE_BUFFER_TOTAL_SIZE": str(1 << 20) for each in BOTH})
    return found


def _open_mpi(word: str, algorithms: Sequence[int]) -> list[Environment]:
    no_han = {"OMPI_MCA_coll_han_priority": "0"}
    found: list[Environment] = [no_han] if word else []
    if word in ("allreduce", "bcast", "reduce"):
        found.insert(0, no_han | {"OMPI_MCA_coll_sm_priority": "95"})
    forced = no_han | {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}
    return [*found, *(forced | {f"OMPI_MCA_coll_tuned_{word}_algorithm": str(each)} for each in algorithms)]


def said(knobs: Environment) -> str:
    """Return knobs as a shell takes them.

    >>> said({"A": "1", "B": "2"})
    'A=1 B=2'
    """
    return " ".join(f"{name}={value}" for name, value in knobs.items())


@dataclass(frozen=True)
class Baselines:
    """The compiled C program and the command that starts its ranks, with `{ranks}`. Made by `baselines`."""

    program: Path
    launch: str

    def time(
        self,
        kind: str,
        sizes: Sequence[int],
        ranks: int,
        *,
        dtype: str = "float32",
        level: Level = "single",
        knobs: Environment = INSTALLED,
        rounds: int = 5,
        batch_s: float = 4e-3,
        most_s: float = 5.0,
        stamps: bool = False,
    ) -> dict[int, Timing]:
        """Start the ranks once, and time a collective at each size; empty if the library fails or cannot.

        `level`: of thread support that the program asks for; "single": by MPI_Init. `knobs`: set in its environment,
        without those that the user's own set. `batch_s`: seconds of calls between two readings of the clock. `most_s`:
        no round begins later. `stamps`: measure `exchange_s` too; the ranks must be on one host, with a core each.
        """
        command = [part.replace("{ranks}", str(ranks)) for part in shlex.split(self.launch)]
        about = [level, dtype, str(rounds), f"{batch_s:g}", f"{most_s:g}", *(f"{kind}:{size}" for size in sizes)]
        silent_s = SILENT_S + most_s
        with tempfile.TemporaryDirectory(dir=self.program.parent) as folder:
            place = Path(folder)
            (place / "exchange").write_bytes(bytes(PAGE_BYTES))
            seen = {"DOVETAIL_EXCHANGE": str(place / "exchange")} if stamps else {}
            try:
                lines = measured(command, [str(self.program), *about], place, silent_s, {**knobs, **seen})
                document = json.loads("\n".join(lines))
            except (DovetailError, ValueError):  # a knob that this build of the library does not have
                return {}
        apart_s = tuple(document["exchange_s"])
        found = (Timing(row["num_bytes"], tuple(row["seconds"]), row["num_wrong"], apart_s) for row in document["rows"])
        return {each.num_bytes: each for each in found if not each.num_wrong}


@contextmanager
def baselines(launch: str, mpicc: str | None = None) -> Iterator[Baselines]:
    """Compile the C program with an mpicc, by default the installed one, for as long as the block lasts.

    Raises EnvironmentFault without an mpicc, or if it fails.
    """
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as place:  # where all hosts find it
        yield Baselines(Path(compiled(SOURCE, Path(place) / "baseline", mpicc)), launch)


def unset_by_user(knobs: Environment) -> bool:
    """Whether the user's environment sets none of these knobs: their own settings are what is installed."""
    return not any(name in os.environ for name in knobs)
