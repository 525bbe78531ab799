"""load: shares of the ranks' cores that other programs and the hypervisor took, from the kernel's counters."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dovetail.run.ranks.world import World

LIMIT = 0.05  # share of a round that others may take: a third of the excess of an outlier over the median
TICKS_PER_S = 100  # of /proc/stat, for every program that reads it (USER_HZ)
LOST_TICKS = 2  # most ticks by which a CPU's counters may be off, by rounding
LEAST_S = 0.02  # least seconds between two readings of the counters
BLOCK_S = 0.2  # seconds in which /proc/stat counts 20 ticks; shorter rounds cannot be judged by them
INTERRUPTS_MET = 0.5  # share of interrupt time in ranks; ksoftirqd, which a namespace may hide, had up to 0.4 of it
SAME_BOOT_S = 20e-6  # most seconds by which two readings of one machine's boot time differ
PROC = Path("/proc")
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """Shares of the ranks' cores that others took, of the rank that lost most: 0 none, 1 all, None if unknown.

    `foreign`: programs that are no ranks of the job. `steal`: the hypervisor. `foreign_at`, `steal_at`: names of the
    cores.
    """

    foreign: float | None = None
    steal: float | None = None
    foreign_at: str = ""
    steal_at: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for each share that is too large to trust the timings."""
        found = ((self.foreign, "Other programs", self.foreign_at), (self.steal, "The hypervisor", self.steal_at))
        text = "{} used {:.0f} % of {}: repeat on a quiet machine"
        return tuple(text.format(who, 100 * share, at) for share, who, at in found if share and share > LIMIT)

    def to_json(self) -> dict[str, float | None]:
        """Return the shares by their names in documents."""
        return {"foreign_load": self.foreign, "steal": self.steal}

    @staticmethod
    def worst(loads: Sequence[Load]) -> Load:
        """Return the largest share of each kind over several jobs or groups of ranks."""
        foreign = max(loads, key=lambda load: -1.0 if load.foreign is None else load.foreign, default=Load())
        steal = max(loads, key=lambda load: -1.0 if load.steal is None else load.steal, default=Load())
        return Load(foreign.foreign, steal.steal, foreign.foreign_at, steal.steal_at)


class Place(NamedTuple):
    """Where a rank runs.

    `booted_s`: boot time of its machine, which distinguishes machines where namespaces hide their names. `cpus`: CPUs
    that it may use. `cores`: physical core of each CPU of the machine, if known.
    """

    booted_s: float
    host: str
    cpus: frozenset[int]
    cores: Mapping[int, tuple[str, str]]


class Domain(NamedTuple):
    """Ranks of one machine that share CPUs, and these CPUs with their hyper-threads.

    `reader`: the rank that reads the counters of all programs of that machine.
    """

    ranks: tuple[int, ...]
    cpus: tuple[int, ...]
    num_cores: int
    name: str
    reader: int = 0


class Ticks(NamedTuple):
    """Counters of a CPU since boot: programs (with the kernel on their behalf), interrupts (with packets), steal."""

    programs: int
    interrupts: int
    steal: int


class Sample(NamedTuple):
    """Counters of one rank at one time: seconds of CPU that it used, and that its threads waited for a CPU."""

    now_s: float
    used_s: float
    waited_s: float | None
    ticks: Mapping[int, Ticks]  # of the whole machine, by one rank of it


class Spent(NamedTuple):
    """Increase of a domain's counters, in seconds; axis 0: intervals.

    Used and waited: by rank on axis 1 (NaN where the kernel does not count). All others: sums over CPUs.
    """

    wall_s: Numbers
    used_s: Numbers
    waited_s: Numbers
    programs_s: Numbers
    interrupts_s: Numbers
    steal_s: Numbers


def parse_ticks(text: str) -> dict[int, Ticks]:
    """Return the counters of each CPU from the text of /proc/stat; empty if the text is.

    >>> parse_ticks("cpu  3 0 4 9 0 0 1 2 0 0\\ncpu1 3 1 4 9 6 5 1 2 0 0\\nintr 7\\n")
    {1: Ticks(programs=8, interrupts=6, steal=2)}
    """
    rows = {}
    for line in text.splitlines():
        name, *words = line.split() or [""]
        if name[:3] == "cpu" and name[3:].isdigit() and len(words) >= 7:
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, [*words, "0"][:8])
            rows[int(name[3:])] = Ticks(user + nice + system, irq + softirq, steal)
    return rows if any(map(any, rows.values())) else {}


def parse_cores(text: str) -> dict[int, tuple[str, str]]:
    """Return package and core of each CPU from the text of /proc/cpuinfo, as far as it lists them.

    >>> parse_cores("processor\\t: 3\\nphysical id\\t: 0\\ncore id\\t\\t: 1\\n\\nprocessor\\t: 4\\n")
    {3: ('0', '1')}
    """
    found = {}
    for block in text.split("\n\n"):
        about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        if about.get("processor", "").isdigit() and "core id" in about:
            found[int(about["processor"])] = about.get("physical id", ""), about["core id"]
    return found


def parse_waited(text: str) -> int | None:
    """Return nanoseconds that a task waited for a CPU, from its schedstat; None if the kernel does not count.

    >>> parse_waited("9065 700 15"), parse_waited("0 0 0"), parse_waited("")
    (700, None, None)
    """
    words = text.split()
    return int(words[1]) if len(words) == 3 and any(map(int, words)) else None


def place() -> Place:
    """Return where this process runs.

    Its machine is identified by boot time: real time less time since boot. Namespaces do not change it, and steps of
    the clock change it for all.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    booted_s = statistics.median(time.time() - time.clock_gettime(clock) for _ in range(9))
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Place(booted_s, platform.node(), frozenset(cpus), parse_cores(_read(PROC / "cpuinfo")))


def domains(places: Sequence[Place]) -> list[Domain]:
    """Group ranks by machine and by CPUs that they may share.

    >>> one, two = (Place(5.0, "h", frozenset(cpus), {}) for cpus in ({0}, {1, 2}))
    >>> [(d.ranks, d.cpus, d.name) for d in domains([one, two, one, one._replace(booted_s=6.0)])]
    [((0, 2), (0,), 'core 0'), ((1,), (1, 2), 'cores 1-2'), ((3,), (0,), 'core 0')]
    """
    groups: list[tuple[list[int], set[int]]] = []
    for rank, here in enumerate(places):
        cpus = _with_siblings(here)
        same = [g for g in groups if _one_machine(places[g[0][0]], here) and cpus & g[1]]
        groups = [group for group in groups if group not in same]
        ranks = sorted([rank, *(r for group in same for r in group[0])])
        groups.append((ranks, cpus.union(*(group[1] for group in same))))
    several = len({here.host for here in places}) > 1
    return [_domain(ranks, cpus, places, several) for ranks, cpus in sorted(groups)]


def each_has_a_core(places: Sequence[Place]) -> bool:
    """Return whether ranks are on one machine, and may use as many CPUs of it as they are."""
    cpus = frozenset().union(*(here.cpus for here in places))
    return len(cpus) >= len(places) and all(_one_machine(places[0], here) for here in places)


def _domain(ranks: list[int], cpus: set[int], places: Sequence[Place], several: bool) -> Domain:
    cores = {places[ranks[0]].cores.get(cpu, cpu) for cpu in cpus}
    own = sorted(frozenset().union(*(places[rank].cpus for rank in ranks)))
    name = f"core{'s' * (len(own) > 1)} {_ranges(own)}" + f" of {places[ranks[0]].host}" * several
    reader = next(rank for rank, other in enumerate(places) if _one_machine(other, places[ranks[0]]))
    return Domain(tuple(ranks), tuple(sorted(cpus)), len(cores), name, reader)


def _one_machine(one: Place, other: Place) -> bool:
    return abs(one.booted_s - other.booted_s) < SAME_BOOT_S


def _with_siblings(here: Place) -> set[int]:
    """Return the CPUs and the other hyper-threads of their cores."""
    own = {here.cores[cpu] for cpu in here.cpus if cpu in here.cores}
    return {*here.cpus, *(cpu for cpu, core in here.cores.items() if core in own)}


def _ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges.

    >>> _ranges([0, 1, 2, 5]), _ranges([3])
    ('0-2, 5', '3')
    """
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


class Counters:
    """This process's own counters; with `reads_machine`, also those of the machine."""

    def __init__(self, reads_machine: bool) -> None:
        self._reads_machine = reads_machine
        self._waited_ns: dict[str, int] = {}  # by thread, because an ended thread's counter disappears
        self._total_ns = 0

    def sample(self) -> Sample:
        """Read the kernel's counters now."""
        ticks = parse_ticks(_read(PROC / "stat")) if self._reads_machine else {}
        return Sample(time.monotonic(), time.process_time(), self._waited_s(), ticks)

    def _waited_s(self) -> float | None:
        now: dict[str, int] = {}
        with suppress(OSError):
            for thread in os.listdir(PROC / "self/task"):
                waited = parse_waited(_read(PROC / f"self/task/{thread}/schedstat"))
                now |= {} if waited is None else {thread: waited}
        self._total_ns += sum(max(ns - self._waited_ns.get(thread, 0), 0) for thread, ns in now.items())
        self._waited_ns = now
        return self._total_ns / 1e9 if now else None


def spent(domain: Domain, samples: Sequence[Sequence[Sample]]) -> Spent | None:
    """Return increases of the counters between samples of all ranks; None without /proc/stat."""
    ranks = [[row[rank] for rank in domain.ranks] for row in samples]
    read = [row[domain.reader].ticks for row in samples]
    machine = [[ticks[cpu] for cpu in domain.cpus if cpu in ticks] for ticks in read]
    if min(map(len, machine), default=0) < len(domain.cpus):
        return None
    ticks = np.diff(np.array(machine, float).sum(axis=1), axis=0) / TICKS_PER_S
    used, waited = (np.array([[each[at] for each in row] for row in ranks], float) for at in (1, 2))
    wall_s = np.diff([row[0].now_s for row in ranks])
    return Spent(wall_s, np.diff(used, axis=0), np.diff(waited, axis=0), *ticks.T)


def others_s(domain: Domain, found: Spent, met: float) -> float:
    """Return CPU seconds of other programs on the domain's CPUs, if the ranks met that share of the interrupts.

    A rank's use includes the interrupts that it meets, but not those that ksoftirqd or another program handles. All of
    these count as work for packets of the job: none is foreign.
    """
    busy_s = float(found.programs_s.sum() + met * found.interrupts_s.sum())
    return max(busy_s - float(found.used_s.sum()) - len(domain.cpus) * LOST_TICKS / TICKS_PER_S, 0.0)


def waits(domain: Domain, found: Spent) -> Numbers:
    """Return for each interval and rank the share of time that it waited for a CPU which another program used.

    The kernel reports how long a rank waited, not for whom: it may be another rank, or ksoftirqd. Waits count as caused
    by other programs only up to the CPU seconds that these used. Ranks that share a core lose alternately.
    """
    for_others = min(others_s(domain, found, INTERRUPTS_MET) / max(float(found.waited_s.sum()), 1e-9), 1.0)
    crowding = max(len(domain.ranks) / len(domain.cpus), 1.0)
    wanted_s = np.maximum(found.wall_s[:, None], found.used_s + found.waited_s)
    return np.asarray(np.minimum(for_others * crowding * found.waited_s / wanted_s, 1.0))


def stolen(domain: Domain, found: Spent) -> Numbers:
    """Return for each interval the share of the wanted CPU time that the hypervisor took."""
    wanted_s = found.programs_s + found.interrupts_s + found.steal_s
    least_s = found.wall_s * min(len(domain.ranks), len(domain.cpus))
    return np.asarray(found.steal_s / np.maximum(np.maximum(wanted_s, least_s), 1e-9))


def disturbed(domain: Domain, found: Spent) -> NDArray[np.bool_]:
    """Return intervals of which others took more than LIMIT. Steal ticks are counted in blocks of BLOCK_S."""
    return np.asarray((waits(domain, found) > LIMIT).any(axis=1) | (stolen(domain, blocks(found)) > LIMIT))


def load_of(domain: Domain, found: Spent) -> Load:
    """Return the shares over all intervals together.

    Ranks lose the time that they wait. Ranks with only one core lose all that others use of it, also of its other
    hyper-thread, and while the ranks sleep.
    """
    wall_s = float(found.wall_s.sum())
    if wall_s < BLOCK_S:
        return Load()
    whole = Spent(*(column.sum(axis=0, keepdims=True) for column in found))
    waited, steal = waits(domain, whole)[0], float(stolen(domain, whole)[0])
    least = min(others_s(domain, found, 0.0) / wall_s / len(domain.cpus), 1.0)
    if np.isnan(waited).any() or (domain.num_cores == 1 and least > waited.max()):
        return Load(least, steal, domain.name, domain.name)
    rank = "" if domain.num_cores == 1 else f"rank {domain.ranks[int(waited.argmax())]}'s share of "
    return Load(float(waited.max()), steal, rank + domain.name, domain.name)


def blocks(found: Spent) -> Spent:
    """Return each interval with the counters of its block: successive intervals of at least BLOCK_S in total."""
    labels, total_s = list[int](), BLOCK_S
    for wall_s in found.wall_s:
        begins = total_s >= BLOCK_S
        labels.append(labels[-1] + begins if labels else 0)
        total_s = wall_s if begins else total_s + wall_s
    if total_s < BLOCK_S:  # the rest joins the previous block
        labels = [max(min(label, labels[-1] - 1), 0) for label in labels]
    return Spent(*(_summed(column, labels)[labels] for column in found))


def _summed(column: Numbers, labels: Sequence[int]) -> Numbers:
    sums = np.zeros((max(labels, default=-1) + 1, *column.shape[1:]))
    np.add.at(sums, labels, column)
    return sums


class Meter:
    """Reads the counters of all ranks between the rounds of a job. Collective: all ranks create and call it together.

    Skips short rounds, since reading leaves cold caches that would slow the next. Rounds between two readings are
    judged together. `each_has_a_core`: the ranks are on one machine, and have as many CPUs as they are.
    """

    def __init__(self, world: World, limit_s: float, least_s: float = LEAST_S) -> None:
        self._world, self._limit_s, self._least_s = world, limit_s, least_s
        places = world.gather(place(), limit_s)
        self._domains = domains(places)  # empty except on rank 0
        about = [domain.reader for domain in self._domains], each_has_a_core(places)
        readers, self.each_has_a_core = world.share(about, limit_s)
        self._counters = Counters(world.rank in readers)
        self._latest, self._read_s = self._sample(), time.monotonic()
        self._spent: list[list[Spent | None]] = []  # by interval and domain
        self._intervals: list[int] = []  # by round

    def disturbed(self) -> NDArray[np.bool_]:
        """End a round; return which rounds so far were disturbed. Collective: equal on every rank."""
        self._intervals.append(len(self._spent))
        if self._world.share(time.monotonic() - self._read_s >= self._least_s, self._limit_s):
            before, self._latest, self._read_s = self._latest, self._sample(), time.monotonic()
            self._spent.append([spent(domain, [before, self._latest]) for domain in self._domains])
        bad = np.zeros(len(self._spent) + 1, np.bool_)
        for domain, found in self._known():
            bad[:-1] |= disturbed(domain, found)
        shared: NDArray[np.bool_] = self._world.share(bad[self._intervals], self._limit_s)
        return shared

    def load(self) -> Load:
        """Return on rank 0 the shares that others took in all intervals so far."""
        return Load.worst([load_of(domain, found) for domain, found in self._known()])

    def _known(self) -> Iterator[tuple[Domain, Spent]]:
        """The domains whose counters are known, with those of all intervals."""
        for domain, *parts in zip(self._domains, *self._spent, strict=True):
            known = [part for part in parts if part is not None]
            if parts and len(known) == len(parts):
                yield domain, Spent(*map(np.concatenate, zip(*known, strict=True)))

    def _sample(self) -> list[Sample]:
        sampled: list[Sample] = self._world.gather(self._counters.sample(), self._limit_s)
        return sampled


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
