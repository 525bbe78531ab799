"""What other programs and the hypervisor took of the ranks' cores: the counters, and what they mean for rounds."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

import needs
import numpy as np
import pytest

from dovetail.ir import Workload
from dovetail.ir.shapes import ring_all_reduce
from dovetail.run.job import Job, Variant, run_rounds
from dovetail.run.load import (
    LIMIT,
    PROC,
    Counters,
    Domain,
    Load,
    Place,
    Sample,
    Ticks,
    blocks,
    disturbed,
    domains,
    load_of,
    parse_cores,
    parse_ticks,
    parse_waited,
    place,
    spent,
)

# Of a two-core virtual machine, with interrupts cut short; of a kernel of 2.6.9; and as a container may show it.
STAT = """cpu  39802 0 5967 36067 121 0 41 116 0 0
cpu0 17211 0 2691 21088 22 0 7 50 0 0
cpu1 22590 3 3275 14979 98 2 34 66 0 0
intr 334743 0 0 0 13 0 0
ctxt 1058312
btime 1795338805
procs_running 3
softirq 212345 0 30312 1 8123 0 0 12 99823 0 74074
"""
OLD_STAT = "cpu  10 2 3 80 4 1 1\ncpu0 10 2 3 80 4 1 1\n"
BLANK_STAT = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"
CPUINFO = "\n\n".join(
    f"processor\t: {cpu}\nmodel name\t: Some CPU @ 2.10GHz\nphysical id\t: 0\nsiblings\t: 4\ncore id\t\t: {cpu % 2}"
    for cpu in range(4)
)
ARM_CPUINFO = "processor\t: 0\nBogoMIPS\t: 243.75\n\nprocessor\t: 1\nBogoMIPS\t: 243.75\n\nHardware\t: something\n"
STEP_S = 1.0


def test_stat_is_read() -> None:
    assert parse_ticks(STAT) == {0: Ticks(19902, 7, 50), 1: Ticks(25868, 36, 66)}
    assert parse_ticks(OLD_STAT) == {0: Ticks(15, 2, 0)}


@pytest.mark.parametrize("text", ["", BLANK_STAT, "cpu0 what is this\n", "<html>"])
def test_a_stat_that_says_nothing_is_none(text: str) -> None:
    assert parse_ticks(text) == {}


def test_cores_are_read_where_they_are_reported() -> None:
    assert parse_cores(CPUINFO) == {0: ("0", "0"), 1: ("0", "1"), 2: ("0", "0"), 3: ("0", "1")}
    assert parse_cores(ARM_CPUINFO) == parse_cores("") == {}


@pytest.mark.parametrize(
    ("text", "waited"), [("995355 652272 15\n", 652272), ("5 0 1", 0), ("0 0 0", None), ("x", None)]
)
def test_schedstat_is_read(text: str, waited: int | None) -> None:
    assert parse_waited(text) == waited


def at(cpus: str, booted_s: float = 1e9, host: str = "h", cores: str = "") -> Place:
    return Place(booted_s, host, frozenset(map(int, cpus)), parse_cores(cores))


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ([at("0"), at("1")], [((0,), "core 0"), ((1,), "core 1")]),
        ([at("0"), at("1"), at("0")], [((0, 2), "core 0"), ((1,), "core 1")]),
        ([at("01"), at("01")], [((0, 1), "cores 0-1")]),
        ([at("0"), at("2"), at("012")], [((0, 1, 2), "cores 0-2")]),
        # hosts in namespaces are one machine, hosts that booted at other moments are not
        ([at("0", host="h1"), at("0", 1e9 + 1e-6, host="h2")], [((0, 1), "core 0 of h1")]),
        ([at("0", host="h1"), at("0", 1e9 + 1e-3, host="h2")], [((0,), "core 0 of h1"), ((1,), "core 0 of h2")]),
    ],
)
def test_ranks_that_share_cpus_are_counted_together(places: list[Place], found: list[tuple]) -> None:
    assert [(domain.ranks, domain.name) for domain in domains(places)] == found


def test_a_core_is_all_its_hyper_threads() -> None:
    (pinned,) = domains([at("1", cores=CPUINFO)])
    assert (pinned.cpus, pinned.num_cores, pinned.name) == ((1, 3), 1, "core 1")
    assert [domain.reader for domain in domains([at("0"), at("1"), at("0", 2e9)])] == [0, 0, 2]
    (both,) = domains([at("1", cores=CPUINFO), at("3", cores=CPUINFO)])
    assert (both.ranks, both.cpus, both.num_cores) == ((0, 1), (1, 3), 1)


def counted(
    domain: Domain,
    used: Sequence[Sequence[float]],
    waited: Sequence[Sequence[float | None]],
    programs: Sequence[float],
    interrupts: float = 0.0,
    steal: float = 0.0,
    step_s: float = STEP_S,
) -> list[list[Sample]]:
    """Samples as ranks take them: shares of each interval that each rank used and waited (rows: intervals), and that
    programs, interrupts and the hypervisor had of all CPUs together, as ticks rounded down."""
    samples, sums = [], np.zeros(3)
    mine, idle = np.zeros(len(domain.ranks)), np.zeros(len(domain.ranks))
    for step in range(len(used) + 1):
        if step:
            mine += step_s * np.array(used[step - 1])
            idle += step_s * np.array([0.0 if w is None else w for w in waited[step - 1]])
            sums += step_s * np.array([programs[step - 1], interrupts, steal])
        ticks = {cpu: Ticks(*(int(100 * s / len(domain.cpus)) for s in sums)) for cpu in domain.cpus}
        unknown = waited[0][0] is None
        row = [Sample(0.0, 0.0, None, ticks)] * (max(domain.ranks) + 1)
        for rank, used_s, waited_s in zip(domain.ranks, mine, idle, strict=True):
            row[rank] = Sample(step_s * step, used_s, None if unknown else waited_s, ticks)
        samples.append(row)
    return samples


def shares(domain: Domain, *about, **rest) -> tuple[Load, list[bool]]:
    found = spent(domain, counted(domain, *about, **rest))
    assert found is not None
    return load_of(domain, found), disturbed(domain, found).tolist()


ALONE = Domain((0,), (1,), 1, "core 1")


def steady(used: float, waited: float | None, programs: float, count: int = 5, ranks: int = 1):
    return [[used] * ranks] * count, [[waited] * ranks] * count, [programs] * count


def test_a_program_on_a_ranks_core_is_foreign() -> None:
    load, bad = shares(ALONE, *steady(0.53, 0.47, 1.0))
    assert load.foreign == pytest.approx(0.47, abs=0.01)
    assert load.warnings == ("Other programs used 47 % of core 1: repeat on a quiet machine",)
    assert all(bad)


@pytest.mark.parametrize(
    ("domain", "about", "interrupts"),
    [
        (ALONE, steady(1.0, 0.0, 1.0), 0.0),
        # another rank on the same core, or a thread of its own
        (Domain((0, 1), (1,), 1, "core 1"), steady(0.5, 0.5, 1.0, ranks=2), 0.0),
        (ALONE, steady(1.0, 0.3, 1.0), 0.0),
        # ranks that wait for each other while the core idles half of the time
        (Domain((0, 1), (1,), 1, "core 1"), steady(0.25, 0.2, 0.5, ranks=2), 0.0),
        # packets: as they were counted on two hosts at 100 Mbit/s and, with small frames, at 1 Gbit/s
        (ALONE, steady(0.968, 0.033, 0.778), 0.223),
        (ALONE, steady(0.825, 0.187, 0.556), 0.441),
        (Domain((0, 2), (0,), 1, "core 0"), steady(0.49, 0.507, 0.697, ranks=2), 0.3),
        # other programs keep 14 of 16 CPUs, and ranks that are free to move do not meet them
        (Domain((0, 1), tuple(range(16)), 16, "cores 0-15"), steady(1.0, 0.0, 16.0, ranks=2), 0.0),
    ],
)
def test_what_the_job_itself_does_is_not_foreign(domain: Domain, about: tuple, interrupts: float) -> None:
    load, bad = shares(domain, *about, interrupts=interrupts)
    assert load.foreign is not None
    assert load.foreign < LIMIT / 2
    assert not any(bad)
    assert not load.warnings


def test_a_program_of_low_priority_is_found_among_packets() -> None:
    """As counted on two hosts at 100 Mbit/s, of which one shared its core with a program of nice 19."""
    load, bad = shares(ALONE, *steady(0.799, 0.202, 0.770), interrupts=0.226)
    assert load.foreign is not None
    assert LIMIT < load.foreign < 0.2
    assert all(bad)


def test_only_disturbed_rounds_are_disturbed() -> None:
    waited = [[0.001], [0.001], [0.5], [0.4], [0.001], [0.001]]
    used = [[1 - w] for (w,) in waited]
    load, bad = shares(ALONE, used, waited, [1.0] * 6)
    assert bad == [False, False, True, True, False, False]
    assert load.foreign == pytest.approx(0.15, abs=0.02)


def test_ranks_that_can_move_lose_what_they_wait_for() -> None:
    free = Domain((0, 1), (0, 1), 2, "cores 0-1")
    load, bad = shares(free, [[0.95, 0.5]] * 4, [[0.05, 0.5]] * 4, [2.0] * 4)
    assert load.foreign == pytest.approx(0.5, abs=0.03)
    assert load.foreign_at == "rank 1's share of cores 0-1"
    assert all(bad)


def test_ranks_that_share_a_core_lose_it_together() -> None:
    crowd = Domain((0, 1, 2, 3), (1,), 1, "core 1")
    load, bad = shares(crowd, *steady(0.2, 0.8, 1.0, ranks=4))
    assert load.foreign == pytest.approx(0.2, abs=0.03)
    assert all(bad)


def test_another_hyper_thread_is_the_same_core() -> None:
    load, _ = shares(Domain((0,), (1, 3), 1, "core 1"), *steady(1.0, 0.0, 2.0))
    assert load.foreign == pytest.approx(0.5, abs=0.02)


def test_the_hypervisor_is_reported_apart() -> None:
    load, bad = shares(ALONE, *steady(1.0, 0.0, 0.75), steal=0.25)
    assert load.foreign == pytest.approx(0.0, abs=0.01)
    assert load.steal == pytest.approx(0.25, abs=0.01)
    assert load.warnings == ("The hypervisor used 25 % of core 1: repeat on a quiet machine",)
    assert all(bad)


def test_a_tick_of_the_hypervisor_does_not_disturb_the_short_round_that_it_falls_into() -> None:
    load, bad = shares(ALONE, *steady(0.99, 0.0, 0.99, count=200), steal=0.01, step_s=0.01)
    assert load.steal == pytest.approx(0.01, abs=0.005)
    assert not any(bad)


def test_blocks_hold_enough_ticks() -> None:
    samples = counted(ALONE, *steady(1.0, 0.0, 1.0, count=50), step_s=0.03)
    found = blocks(spent(ALONE, samples))
    assert found.wall_s.min() >= 0.2
    assert found.used_s[:, 0] == pytest.approx(found.wall_s)
    alone = blocks(spent(ALONE, samples[:3]))
    assert alone.wall_s == pytest.approx([0.06, 0.06])


def test_what_cannot_be_reported_is_none() -> None:
    samples = [[sample._replace(ticks={}) for sample in row] for row in counted(ALONE, *steady(0.5, 0.5, 1.0))]
    assert spent(ALONE, samples) is None
    assert Load.worst([]).to_json() == {"foreign_load": None, "steal": None}
    assert not Load().warnings
    short, _ = shares(ALONE, *steady(0.5, 0.5, 1.0, count=1), step_s=0.1)
    assert short.foreign is None


def test_a_kernel_that_counts_no_waits_still_tells_the_share() -> None:
    load, bad = shares(ALONE, *steady(0.5, None, 1.0))
    assert load.foreign == pytest.approx(0.5, abs=0.02)
    assert not any(bad)


def test_the_worst_of_several() -> None:
    worst = Load.worst([Load(0.1, 0.0, "a", "a"), Load(), Load(0.0, 0.3, "b", "b")])
    assert worst == Load(0.1, 0.3, "a", "b")


# Rounds


def small_job(rounds: int = 5, **rest) -> Job:
    program = ring_all_reduce(2, 1)
    return Job((Variant("one", program, Workload({})),), rounds=rounds, **rest)


class Rounds:
    """Rounds of planted seconds, of which some were disturbed from outside."""

    def __init__(self, bad: str, seconds: Sequence[float] = (1.0,) * 40) -> None:
        self.bad, self.seconds, self.ran = bad, seconds, list[int]()

    def run_one(self, variant: Variant, index: int) -> float:
        self.ran.append(index)
        return self.seconds[len(self.ran) - 1]

    def loaded(self) -> np.ndarray:
        return np.array([mark == "x" for mark in self.bad[: len(self.ran)].ljust(len(self.ran), ".")])

    def run(self, job: Job):
        return run_rounds(job, self.run_one, lambda: 0.0, self.loaded)


def test_rounds_disturbed_from_outside_are_repeated() -> None:
    planted = Rounds("..x..xx")
    ran = planted.run(small_job(rounds=5))
    assert (len(ran.seconds), ran.disturbed) == (5, 3)
    assert ran.kept == [1, 3, 4, 7, 8]


def test_a_disturbed_warm_up_is_repeated_once() -> None:
    planted = Rounds("xx")
    ran = planted.run(small_job(rounds=3))
    assert planted.ran == [-1, -1, 0, 1, 2]
    assert ran.kept == [2, 3, 4]


def test_repeats_are_bounded_and_all_is_kept_but_outliers() -> None:
    seconds = [1.0] * 30
    seconds[4] = 9.0
    ran = Rounds("x" * 30, seconds).run(small_job(rounds=4))
    assert ran.disturbed == 8
    assert len(ran.seconds) == 7
    assert ran.seconds.max() == 1.0


# On this machine

SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
PLANTED = 3


@contextmanager
def spinning(cpu: int, count: int = PLANTED) -> Iterator[list[subprocess.Popen]]:
    """Busy programs on one CPU, until the end of `with`; each a session, for some kernels share by these."""
    command = [sys.executable, "-c", SPIN, str(cpu)]
    found = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield found
    finally:
        for each in found:
            each.kill()
            each.wait()


def compute(seconds: float) -> None:
    """Two threads that share a core, as a rank and its helper may."""
    block, end = bytes(1 << 20), time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < end:
            hashlib.sha256(block)

    helper = Thread(target=work)
    helper.start()
    work()
    helper.join()


@pytest.fixture
def one_cpu() -> Iterator[int]:
    """This process on a CPU of its own choosing."""
    before = os.sched_getaffinity(0)
    cpu = max(before)
    os.sched_setaffinity(0, {cpu})
    yield cpu
    os.sched_setaffinity(0, before)


@pytest.mark.slow
@pytest.mark.needs("proc")
def test_planted_programs_are_foreign_and_own_threads_are_not(one_cpu: int) -> None:
    """Spells with and without the planted ones alternate, so that both meet the same neighbours."""
    own, here = Counters(True), place()._replace(cores={})
    (domain,) = domains([here])
    spells: dict[bool, list] = {True: [], False: []}
    with spinning(one_cpu) as planted:
        for spell in range(12):
            for each in planted:
                each.send_signal(signal.SIGCONT if spell % 2 else signal.SIGSTOP)
            before = own.sample()
            compute(0.3)
            spells[bool(spell % 2)].append(spent(domain, [[before], [own.sample()]]))
    left = {}
    for beside, found in spells.items():
        columns = (np.concatenate(parts) for parts in zip(*found, strict=True))
        share = load_of(domain, type(found[0])(*columns)).foreign
        assert share is not None
        left[beside] = 1 - share
    assert left[True] < 0.8 * left[False]


def shared_core_job() -> Job:
    from dovetail.matmul import MatmulAllReduce
    from dovetail.tuner.measure import Entry

    operator = MatmulAllReduce(256, 512, 256)
    serial = operator.serial(2)
    variant = Entry("serial", operator, 2, serial, {serial: 5.0}).variant(serial, spans=True)
    return Job((variant,), rounds=25)


@pytest.mark.mpi
@pytest.mark.needs("proc", "mpich")
def test_a_job_tells_who_else_had_its_core(tmp_path) -> None:
    """Two ranks and three programs on one core, whoever else is there."""
    from dovetail.run.mpi.executor import MpiExecutor

    cpu = max(os.sched_getaffinity(0))
    launch = f"taskset -c {cpu} {needs.MPIS['mpich'].bin / 'mpiexec'} -n {{ranks}}"
    with spinning(cpu):
        result = MpiExecutor(launch, tmp_path).execute(shared_core_job())
    assert result.load.foreign is not None
    assert 2 * LIMIT < result.load.foreign <= 1.0
    assert result.load.foreign_at == f"core {cpu}"
    assert result.disturbed > result.rounds / 2
    assert json.dumps(result.load.to_json())


def test_the_machine_is_known_by_its_boot() -> None:
    first, second = place(), place()
    assert len(domains([first, second])) == 1
    assert PROC.name == "proc"
