"""One clock for all ranks: known offsets and drifts are recovered, within the error of the round trips."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import needs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import event, pair, write_process

from dovetail.core import load_json, save_json
from dovetail.ir.shapes import ring_all_reduce
from dovetail.timeline import Timeline
from dovetail.trace import merge
from dovetail.trace.analysis.matching import messages
from dovetail.trace.clocks import Line, Meeting, Reader, clocks_to_first, meetings_of, parent, rank_clocks
from dovetail.trace.process_file import ProcessFile, read_process
from dovetail.trace.recorder.launch import build_wrappers, environment, forwarded, library_of

SPAN = 1 << 40
ANCHORS_NS = 2000  # the time to read three clocks together
PROGRAM = """
#include <mpi.h>
#include <unistd.h>
int main(int argc, char** argv) {
    int rank, size, x = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < 100; ++i) {
        MPI_Sendrecv_replace(&x, 1, MPI_INT, (rank + 1) % size, 1, (rank + size - 1) % size, 1, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
        usleep(5000);
    }
    MPI_Finalize();
    return 0;
}
"""


def raw_clock(rank: int, ppm: float, offset_s: float):
    """The raw clock of `rank`, in ns, as a function of the true time in ns."""
    return lambda t: round(t * (1 + ppm * 1e-6 * rank) + offset_s * 1e9 * rank)


def meeting(mine, peers, at: int, late_ns: int) -> dict:
    """The note of a rank that read its peer's clock `late_ns` after its own; the round trip took four times as long."""
    return {"clock": {"mine_ns": mine(at), "peer_ns": peers(at + late_ns), "half_trip_ns": 2 * late_ns}}


def skewed_files(folder: Path, num_ranks: int, meetings: tuple[int, ...], late_ns: int = 0) -> list[ProcessFile]:
    """Files of ranks with exact event clocks; raw clocks of consecutive ranks are 1 s apart and drift by 50 ppm."""
    clocks = [raw_clock(rank, 50, 1.0) for rank in range(num_ranks)]
    for rank, mine in enumerate(clocks):
        met = [meeting(mine, clocks[parent(rank)], at, late_ns) for at in meetings] if rank else []
        notes = [{"clock_of": f"boot {rank}"}, *met]
        events = [event("begin", 10**9, 1), event("send", pair((rank + 1) % num_ranks, 1), 0, 8)]
        events += [event("end", 10**9 + 9, 1), event("begin", 2 * 10**9, 2), event("recv", pair(-1, 1), 0, 8)]
        events += [event("done", pair((rank - 1) % num_ranks, 1), 0, 8), event("end", 2 * 10**9 + 9, 2)]
        write_process(folder, rank, {1: events}, num_ranks=num_ranks, raw_ns=(mine(0), mine(SPAN)), notes=notes)
    return [read_process(folder / f"host-{rank}.dvt") for rank in range(num_ranks)]


def errors_ns(processes: list[ProcessFile]) -> list[float]:
    """The largest difference of each rank's corrected time from rank 0's between the first and last comparison."""
    lines = [clock.line for clock in rank_clocks(processes)]
    met = [meeting.peer_ns for process in processes for meeting in meetings_of(process.notes)]
    first, last = processes[0].first, processes[0].last
    ticks = (last.clock - first.clock) / (last.raw_ns - first.raw_ns)
    bounds = [first.clock + (at - first.raw_ns) * ticks for at in (min(met), max(met)) if len(processes) == 2]
    moments = np.linspace(*(bounds or (first.clock, last.clock)), 20)
    return [max(abs(line(t) - lines[0](t)) for t in moments) for line in lines]


def test_offsets_and_drifts_are_recovered(tmp_path):
    processes = skewed_files(tmp_path, 8, (10**8, SPAN - 10**8))
    assert max(errors_ns(processes)) < 100  # of an offset of 7 s and a drift of 0.4 s: the precision of doubles
    assert merge(tmp_path).meta["clocks"]["received_before_sent"] == 0
    assert all(clock.has_drift for clock in rank_clocks(processes))


def test_the_error_is_within_the_half_round_trips(tmp_path):
    processes = skewed_files(tmp_path, 8, (10**8, SPAN - 10**8), late_ns=5000)
    allowed = [clock.error_ns for clock in rank_clocks(processes)]
    assert allowed == [0, 10000, 10000, 20000, 10000, 20000, 20000, 30000]
    found = errors_ns(processes)
    assert all(found[rank] <= allowed[rank] + 200 for rank in range(8))
    assert max(found) > 10000


def test_the_error_counts_a_drift_that_hides_in_the_round_trips(tmp_path):
    """A constant offset fits two comparisons within their errors, but the true error may be larger than these."""
    clocks, span = [raw_clock(rank, 50, 1.0) for rank in range(2)], 10**9  # 50 us of drift in all
    met = [(10**6, 20_000, 25_000), (span, 15_000, 35_000)]  # moment, error and half round trip
    notes = [
        {"clock": {"mine_ns": clocks[1](at), "peer_ns": at + error, "half_trip_ns": half}} for at, error, half in met
    ]
    for rank, clock in enumerate(clocks):
        reported = [{"clock_of": f"boot {rank}"}, *(notes if rank else [])]
        write_process(tmp_path, rank, {1: []}, num_ranks=2, raw_ns=(clock(0), clock(SPAN)), notes=reported)
    processes = [read_process(tmp_path / f"host-{rank}.dvt") for rank in range(2)]
    found, allowed = errors_ns(processes)[1], rank_clocks(processes)[1].error_ns
    assert 35_000 < found <= allowed
    assert allowed < 2 * 35_000 + 25_000


moments = st.lists(st.integers(0, 10**9), min_size=2, max_size=5, unique=True).map(sorted)
round_trips = st.lists(st.tuples(st.integers(1, 10**6), st.floats(-1, 1)), min_size=5, max_size=5)


@given(moments, round_trips, st.integers(-2000, 2000))
def test_no_clock_is_wrong_by_more_than_the_reported_error(at, trips, ppm):
    """Between the first and the last comparison, for any drift and any lengths of round trips."""
    met = [Meeting(t, round(t + t * ppm * 1e-6 + half * off), half) for t, (half, off) in zip(at, trips, strict=False)]
    clock = clocks_to_first({0: Reader(Line(), "a", []), 1: Reader(Line(), "b", met)})[1]
    for t in np.linspace(at[0], at[-1], 7):
        assert abs(clock.line(t) - (t + t * ppm * 1e-6)) <= clock.error_ns + 2


def test_delayed_comparisons_are_ignored(tmp_path):
    """The line goes through short round trips near both ends, not through the long ones at the very ends."""
    clocks = [raw_clock(rank, 50, 1.0) for rank in range(2)]
    reported = [(10**6, 10**6), (2 * 10**6, 1000), (SPAN - 10**6, 1000), (SPAN, 10**6)]  # moment and error
    notes = [{"clock": {"mine_ns": clocks[1](at), "peer_ns": at + late, "half_trip_ns": late}} for at, late in reported]
    for rank, clock in enumerate(clocks):
        of_rank = [{"clock_of": f"boot {rank}"}, *(notes if rank else [])]
        write_process(tmp_path, rank, {1: []}, num_ranks=2, raw_ns=(clock(0), clock(SPAN)), notes=of_rank)
    processes = [read_process(tmp_path / f"host-{rank}.dvt") for rank in range(2)]
    assert errors_ns(processes)[1] <= rank_clocks(processes)[1].error_ns < 2000


def test_one_comparison_cannot_correct_the_drift(tmp_path):
    """Planted: no comparison at the end, as for ranks that never finalize."""
    processes = skewed_files(tmp_path, 2, (10**8,))
    line = rank_clocks(processes)[1].line
    assert not rank_clocks(processes)[1].has_drift
    assert abs(line(SPAN) - SPAN) == pytest.approx(50e-6 * SPAN, rel=0.01)


def test_wrong_clocks_are_reported(tmp_path):
    """Planted: rank 1 notes a clock reading that is 5 s too late."""
    skewed_files(tmp_path, 2, (10**8, SPAN - 10**8))
    notes = tmp_path / "host-1.jsonl"
    wrong = [line.replace('"mine_ns": ', '"mine_ns": 1000') for line in notes.read_text().splitlines()]
    notes.write_text("\n".join(wrong))
    found = merge(tmp_path).meta["clocks"]
    assert found["messages"] == 2
    assert found["received_before_sent"] == 1
    assert found["earliest_s"] > 1


def delayed_comparisons(folder: Path, wrong_ns: int, half_ns: int, flight_ns: int = 20_000) -> list[ProcessFile]:
    """Files of two ranks that exchange messages; each round trip of their clock comparison was delayed one way only."""
    clocks = [raw_clock(rank, 50, 1.0) for rank in range(2)]
    met = [{"mine_ns": clocks[1](at), "peer_ns": at + wrong_ns, "half_trip_ns": half_ns} for at in (10**6, SPAN)]
    for rank, clock in enumerate(clocks):
        reported = []
        for at in np.linspace(10**9, SPAN - 10**9, 600).astype("i8").tolist():
            sent, came = at + rank * 10**8, at + (1 - rank) * 10**8 + flight_ns
            one = [event("begin", sent, 1), event("send", pair(1 - rank, 1), 0, 8), event("end", sent + 9, 1)]
            other = [event("begin", came - 999, 2), event("recv", pair(-1, 1), 0, 8)]
            other += [event("done", pair(1 - rank, 1), 0, 8), event("end", came, 2)]
            reported += one + other if sent < came else other + one
        notes = [{"clock_of": f"boot {rank}"}, *({"clock": one} for one in met if rank)]
        write_process(folder, rank, {1: reported}, raw_ns=(clock(0), clock(SPAN)), notes=notes)
    return [read_process(folder / f"host-{rank}.dvt") for rank in range(2)]


@pytest.mark.parametrize("wrong_ns", [-400_000, 400_000])
def test_messages_narrow_the_clock_error(tmp_path, wrong_ns):
    """Within the error of the round trips, the fastest messages in both directions determine the offset."""
    before = rank_clocks(delayed_comparisons(tmp_path, wrong_ns, 500_000))[1]
    assert abs(before.line(SPAN / 2) - SPAN / 2) > 300_000
    found = merge(tmp_path)
    assert found.meta["clocks"]["messages"] == 1200
    assert found.meta["clocks"]["received_before_sent"] == 0
    took = messages(found.read())
    flights = took.received_s - took.sent_s
    assert flights.min() == pytest.approx(20e-6, abs=1e-6)
    assert flights.max() == pytest.approx(20e-6, abs=1e-6)
    assert found.meta["ranks"][1]["moved_s"] == pytest.approx([-wrong_ns * 1e-9] * 2, abs=2e-6)
    assert found.meta["ranks"][1]["clock_error_s"] > 500e-6, "the uncertainty of the round trips is not forgotten"


def test_clocks_are_not_moved_by_more_than_their_error(tmp_path):
    """Planted: a comparison that is wrong by more than its round trip; contradicting messages are reported."""
    delayed_comparisons(tmp_path, 400_000, 100_000)
    found = merge(tmp_path)
    assert found.meta["clocks"]["received_before_sent"] == 600
    assert found.meta["ranks"][1]["moved_s"] == [0, 0]


@pytest.fixture
def program(mpi, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clocks")
    (folder / "program.c").write_text(PROGRAM)
    command = [mpi.mpicc, folder / "program.c", "-o", folder / "program"]
    assert subprocess.run(command, env=mpi.env, check=False).returncode == 0
    return folder / "program"


def skewed(folder: Path) -> Path:
    """Compile the library that falsifies the clock."""
    source, target = needs.RANKS / "skewed_clock.c", folder / "skewed.so"
    subprocess.run([shutil.which("gcc") or "cc", "-shared", "-fPIC", source, "-o", target], check=True)
    return target


def skew(shim: Path, ppm: float) -> dict[str, str]:
    """The environment variables that put rank 1's clock 1 s ahead and make it gain `ppm`."""
    begin = str(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))
    found = {"SKEW_OFFSET_NS": "1000000000", "SKEW_PPM": str(ppm), "SKEW_FROM_NS": begin}
    return found | {"LD_PRELOAD": str(shim)}


def run_skewed(mpi, program: Path, folder: Path, shim: Path, ppm: float) -> list[ProcessFile]:
    command = [*mpi.mpiexec(2), str(program)]
    wrapped = build_wrappers(library_of(command), mpi.bin)
    names = skew(shim, ppm)
    env = environment(wrapped, folder, mpi.env | names)
    reported = [word for name in names if mpi.name == "openmpi" and name != "LD_PRELOAD" for word in ("-x", name)]
    line = forwarded(command)
    done = subprocess.run(
        [line[0], *reported, *line[1:]], env=env, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    processes = [read_process(path) for path in folder.glob("*.dvt")]
    return sorted(processes, key=lambda process: process.rank)


@pytest.mark.mpi
@pytest.mark.parametrize("ppm", [50, 2000])
def test_ranks_whose_clocks_are_wrong(mpi, program, tmp_path, ppm):
    """Rank 1's clock is 1 s ahead and gains; the processor's counter, which stamps the events, is exact."""
    needs.need("compiler")
    processes = run_skewed(mpi, program, tmp_path / "out", skewed(tmp_path), ppm)
    clock = rank_clocks(processes)[1]
    assert clock.has_drift
    assert errors_ns(processes)[1] <= clock.error_ns + ANCHORS_NS
    found = merge(tmp_path / "out").meta["clocks"]
    assert (found["messages"], found["without_partner"]) == (200, 0)
    assert found["earliest_s"] <= (clock.error_ns + ANCHORS_NS) * 1e-9
    for path in (tmp_path / "out").glob("*.jsonl"):  # planted: the clocks were never compared
        path.write_text("\n".join(line for line in path.read_text().splitlines() if '"clock"' not in line))
    assert rank_clocks([read_process(process.path) for process in processes])[1].error_ns is None


@pytest.mark.mpi
def test_executors_follow_clocks_that_are_wrong(mpi, tmp_path):
    """The timeline and the trace of a run are on one clock, by the same comparisons at its start and end."""
    needs.need("compiler")
    program = ring_all_reduce(2, 2)
    words = ["run", save_json(tmp_path / "ring.json", program.to_json()), "--size", "1K", "--rounds", "2"]
    words = [*map(str, words), "--trace", str(tmp_path / "trace"), "--out", str(tmp_path / "out")]
    env = mpi.env | skew(skewed(tmp_path), 50)
    done = subprocess.run(
        [mpi.python, "-m", "dovetail", *words], env=env, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    processes = sorted((read_process(path) for path in (tmp_path / "trace").glob("*.dvt")), key=lambda p: p.rank)
    assert processes[1].first.raw_ns - processes[0].first.raw_ns > 0.9e9
    clock = rank_clocks(processes)[1]
    assert clock.has_drift
    assert errors_ns(processes)[1] <= clock.error_ns + ANCHORS_NS
    timeline = Timeline.from_json(load_json(tmp_path / "out" / "measured.json"))
    assert timeline.meta["clock_error_s"] == pytest.approx(clock.error_ns * 1e-9)
    allowed_s = (clock.error_ns + ANCHORS_NS) * 1e-9
    start_s, end_s = (timeline.columns[side][np.argsort(timeline.columns["op"])] for side in ("start_s", "end_s"))
    for channel in range(len(program.channels)):
        sent = [op.index for op in program.ops() if op.chan_out == channel]
        came = [op.index for op in program.ops() if op.chan_in == channel]
        assert all(start_s[a] <= end_s[b] + allowed_s for a, b in zip(sent, came, strict=True))
        assert all(end_s[b] - start_s[a] < 0.5 for a, b in zip(sent, came, strict=True))


@pytest.mark.mpi
def test_ranks_in_time_namespaces(mpi, program, tmp_path):
    """Each rank in a namespace whose clock is ahead by 1000 s: no message is received before it was sent."""
    tried = subprocess.run(["unshare", "--time", "--monotonic", "5", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("needs root: no time namespaces")
    command = [*mpi.mpiexec(1), str(program), ":", "-n", "1", "unshare", "--time", "--monotonic", "1000", "--fork"]
    command.append(str(program))
    wrapped = build_wrappers(library_of(command), mpi.bin)
    env = environment(wrapped, tmp_path / "out", mpi.env)
    reported = [word for name in ("LD_PRELOAD", "DOVETAIL_TRACE_DIR") if mpi.name == "openmpi" for word in ("-x", name)]
    line = [command[0], *reported, *command[1:]]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    processes = sorted((read_process(path) for path in (tmp_path / "out").glob("*.dvt")), key=lambda p: p.rank)
    assert processes[1].first.raw_ns - processes[0].first.raw_ns > 900e9
    clock = rank_clocks(processes)[1]
    assert errors_ns(processes)[1] <= clock.error_ns + ANCHORS_NS
    assert merge(tmp_path / "out").meta["clocks"]["earliest_s"] <= (clock.error_ns + ANCHORS_NS) * 1e-9
