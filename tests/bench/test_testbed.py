"""The testbed refuses bad input clearly, gives links their speed, runs both MPIs, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import needs
import pytest

from dovetail.core import load_json, save_json
from dovetail.ir.shapes import ring_all_reduce
from dovetail.trace import open_trace
from dovetail.trace.recorder.launch import Library, build_wrappers

FOLDER = needs.ROOT / "tools" / "testbed"
NAME = f"pytest-{os.getpid()}"
AHEAD = """#!/bin/sh
export LD_PRELOAD={preload} DOVETAIL_TRACE_DIR={place}
[ "${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}" = 0 ] && exec "$@"
exec unshare --time --monotonic 1000 --fork "$@"
"""
real = [pytest.mark.testbed, pytest.mark.needs("root", "tc")]


def testbed(*words: object, **settings) -> subprocess.CompletedProcess[str]:
    """Run one verb on a testbed of our own, with its output captured."""
    command = [sys.executable, str(FOLDER / "testbed"), "--name", NAME, *map(str, words)]
    return subprocess.run(command, text=True, capture_output=True, timeout=120, check=False, **settings)


testbed.__test__ = False  # a helper


def done(*words: object) -> str:
    """Stdout of a verb that must succeed."""
    result = testbed(*words)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "verb"),
        ("up", "HOSTS, RATE"),
        ("up 0 100mbit", "'0' is not a number of hosts from 1 to 64"),
        ("up two 100mbit", "'two'"),
        ("up 2 100mbps", "rate '100mbps' is not understood"),
        ("up 2 0mbit", "rate '0mbit'"),
        ("up 2 100mbit --mtu 100", "'100' is not a frame size"),
        ("up 2 100mbit --topology ring", "'ring'"),
        ("up 2 100mbit --topology mesh --nics 2", "one link per pair"),
        ("up 2 none --delay-us 50", "no delay"),
        ("up 2 100mbit --tcp hasty", "not 'hasty'"),
        ("run", "no program named"),
        ("run --env-dir /nowhere -- true", "no virtual environment at /nowhere"),
        ("run --timeout 0 -- true", "'0' is not a number above 0"),
        ("launcher --mpi lam", "'lam'"),
        ("rate 5", "rate '5'"),
        ("quiet", "no command named"),
        ("quiet -- /no/such/program", "no program '/no/such/program'"),
        ("prio maybe", "'maybe'"),
        ("status -- true", "takes no command"),
        ("--name ../x status", "'../x' is not usable"),
    ],
)
def test_bad_input_is_one_paragraph(words, said):
    result = testbed(*words.split())
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stderr.startswith("TestbedError: ")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_unusable_state_folder_is_named():
    result = testbed("down", env=os.environ | {"XDG_RUNTIME_DIR": "/no/such/folder"})
    assert result.returncode == 2
    assert "/no/such/folder" in result.stderr
    assert "Traceback" not in result.stderr


def test_verbs_need_a_testbed_that_is_up(mpi):
    for words in (("run", "--env-dir", mpi.bin.parent, "--", "true"), ("rate", "1gbit")):
        result = testbed(*words)
        assert result.returncode == 2
        assert "no testbed is up" in result.stderr


def test_launcher_is_an_absolute_command_with_a_place_for_ranks(mpi):
    words = done("launcher", "--env-dir", mpi.bin.parent).split()
    assert Path(words[0]).is_absolute()
    assert words[-3:] == ["-n", "{ranks}", "--"]
    assert words[words.index("--mpi") + 1] == mpi.name


def test_cpu_groups_are_found_in_both_versions(tmp_path, monkeypatch):
    quiet = load_quiet(monkeypatch)
    v1 = f"cgroup {tmp_path}/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup {tmp_path}/pids cgroup rw,pids 0 0\n"
    v2 = f"cgroup2 {tmp_path}/unified cgroup2 rw 0 0\n"
    (tmp_path / "unified").mkdir()
    control = tmp_path / "unified" / "cgroup.subtree_control"
    control.write_text("memory pids\n")
    assert quiet.group_roots("proc /proc proc rw 0 0\n" + v2) == []
    assert quiet.group_roots(v1 + v2) == [tmp_path / "cpu,cpuacct"]
    control.write_text("cpu memory\n")
    assert quiet.group_roots(v1 + v2) == [tmp_path / "unified"]


def load_quiet(monkeypatch):
    """The module quiet.py, without leaving its neighbours among this process's modules."""
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("testbed_quiet", FOLDER / "quiet.py")
    module = importlib.util.module_from_spec(spec)
    present = set(sys.modules)
    spec.loader.exec_module(module)
    for name in set(sys.modules) - present:
        del sys.modules[name]
    return module


def test_quiet_passes_on_output_and_exit_code_and_reports_load():
    result = testbed("quiet", "--", "sh", "-c", "echo out $PPID; exit 5")
    out, pid = result.stdout.split()
    assert (result.returncode, out) == (5, "out")
    assert "others" in result.stderr
    assert not list(Path("/sys/fs/cgroup").glob(f"**/dovetail-testbed-{pid}")), "other tests may have theirs"


def begin_two_hosts() -> None:
    if (answer := testbed("up", 2, "100mbit")).returncode:
        pytest.skip(f"needs tc: {answer.stderr}")


@pytest.fixture
def two_hosts():
    """Two hosts at 100 Mbit/s, which the test may change, removed afterwards."""
    begin_two_hosts()
    yield
    done("down")


@pytest.fixture(scope="module")
def _down_in_the_end():
    yield
    done("down")


@pytest.fixture
def standing_hosts(_down_in_the_end):
    """Two hosts at 100 Mbit/s, which other tests use, too."""
    if not state_folder().exists():
        begin_two_hosts()


def run_on(mpi: needs.Mpi, *words: object, options: tuple = (), **settings):
    return testbed("run", "--env-dir", mpi.bin.parent, *options, "--", *words, **settings)


def megabytes_per_s(mpi: needs.Mpi) -> float:
    """Ping-pong speed at 1 MiB, with weight over whatever else the machine does."""
    run = [FOLDER / "testbed", "--name", NAME, "run", "--env-dir", mpi.bin.parent, "--"]
    result = testbed("quiet", "--", sys.executable, *run, "python", FOLDER / "pingpong.py", 1 << 20)
    assert result.returncode == 0, result.stderr
    return float(result.stdout.split()[-2])


def has_link_speed(mpi: needs.Mpi, link: float, tries: int = 3) -> bool:
    """Within 15 % of the link's rate in MB/s, once in so many tries: a busy machine slows some of them down."""
    return any(abs(megabytes_per_s(mpi) / link - 1) < 0.15 for _ in range(tries))


class TestReal:
    pytestmark = real

    def test_links_have_their_speed_and_no_other(self, two_hosts, mpi):
        assert has_link_speed(mpi, 12.5)
        done("rate", "50mbit")
        assert has_link_speed(mpi, 6.25)
        done("rate", "none")  # the planted fault
        assert not has_link_speed(mpi, 12.5)

    def test_tcp_paces_as_the_machine_or_as_asked(self, two_hosts, mpi):
        pacing = "/proc/sys/net/ipv4/tcp_congestion_control"
        # Open MPI's daemons can wait forever for a rank that ends while they still start it.
        shown = ("sh", "-c", f"cat {pacing}; sleep 0.5")
        here = Path(pacing).read_text().strip()
        assert run_on(mpi, *shown, options=("-n", 2)).stdout.split() == [here] * 2
        other = "reno" if here != "reno" else "cubic"
        done("up", 2, "100mbit", "--tcp", other)
        assert run_on(mpi, *shown, options=("-n", 2)).stdout.split() == [other] * 2

    def test_ranks_fill_hosts_in_blocks_and_are_pinned(self, standing_hosts, mpi, tmp_path):
        program = tmp_path / "where.py"
        program.write_text(
            "import os, socket\nfrom mpi4py import MPI\n"
            "cpus = sorted(os.sched_getaffinity(0))\n"
            "rows = MPI.COMM_WORLD.gather((MPI.COMM_WORLD.rank, socket.gethostname(), cpus, os.environ['OMP_X']))\n"
            "print(rows or '', end='')\n"
        )
        settings = {"env": os.environ | {"OMP_X": "seen"}, "cwd": tmp_path}
        result = run_on(mpi, "python", "./where.py", options=("-n", 3), **settings)
        cpus = sorted(os.sched_getaffinity(0))
        expected = [(i, host, [cpus[i % len(cpus)]], "seen") for i, host in enumerate(["h1", "h1", "h2"])]
        assert result.stdout == repr(expected), result.stderr

    def test_executors_on_hosts_are_on_one_clock(self, standing_hosts, mpi, tmp_path):
        """Rank 1 is in a time namespace 1000 s ahead; its ops and MPI calls come out where they belong."""
        script, place = tmp_path / "ahead.sh", tmp_path / "trace"
        script.write_text(AHEAD.format(preload=build_wrappers(Library(mpi.name), mpi.bin), place=place))
        script.chmod(0o755)
        env = mpi.env | {"DOVETAIL_LAUNCH": f"{done('launcher', '--env-dir', mpi.bin.parent).strip()} {script}"}
        ring = save_json(tmp_path / "ring.json", ring_all_reduce(2, 2).to_json())
        words = ["run", ring, "--size", "1K", "--rounds", "2", "--trace", place, "--out", tmp_path / "out"]
        command = [mpi.python, "-m", "dovetail", *map(str, words)]
        ran = subprocess.run(command, env=env, text=True, capture_output=True, timeout=120, check=False)
        if "unshare" in ran.stderr:
            pytest.skip("needs root: no time namespaces")
        assert ran.returncode == 0, ran.stderr
        found = open_trace(place / "trace.dovetail")
        error_s = found.meta["ranks"][1]["clock_error_s"]
        assert found.meta["ranks"][1]["has_drift"]
        assert (found.meta["clocks"]["without_partner"], found.meta["clocks"]["messages"] > 100) == (0, True)
        assert found.meta["clocks"]["earliest_s"] <= error_s + 2e-6
        reported = load_json(tmp_path / "out" / "measured.json")
        assert reported["meta"]["clock_error_s"] > 0
        assert max(reported["columns"]["end_s"]) < 100, "not the thousand seconds of the clocks"

    def test_exit_code_is_passed_on(self, standing_hosts, mpi):
        assert run_on(mpi, "sh", "-c", "exit 7").returncode == 7
        assert run_on(mpi, "sh", "-c", "kill -9 $$").returncode not in (0, 2)

    def test_too_many_ranks_for_the_hosts(self, standing_hosts, mpi):
        result = run_on(mpi, "true", options=("-n", 5, "--ppn", 2))
        assert result.returncode == 2
        assert "5 ranks do not fit on 2 hosts" in result.stderr

    def test_timeout_leaves_nothing_running(self, standing_hosts, mpi):
        result = run_on(mpi, "sleep", "98765", options=("--timeout", 1))
        assert result.returncode == 124
        assert not processes("sleep 98765")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_stopping_the_run_leaves_nothing_running(self, standing_hosts, mpi, number):
        words = ["--name", NAME, "run", "--env-dir", mpi.bin.parent, "--", "sh", "-c", "setsid sleep 98764"]
        command = [sys.executable, FOLDER / "testbed", *words]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            assert eventually(lambda: len(processes("sleep 98764")) >= 2)
            running.send_signal(number)
        assert running.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[number]
        assert eventually(lambda: not processes("sleep 98764"))

    def test_down_leaves_nothing_and_may_be_repeated(self, two_hosts):
        first = host_pids()
        assert (len(namespaces()), len(first), running(first)) == (4, 3, first)
        done("up", 3, "1gbit", "--topology", "mesh")  # replaces the one before
        second = host_pids()
        assert (len(namespaces()), len(second), running(second)) == (5, 4, second)
        assert "3 hosts" in done("status")
        done("down")
        done("down")
        assert (namespaces(), running(first + second)) == ([], [])
        assert not state_folder().exists()

    def test_every_rank_has_a_network_of_its_own(self, mpi, tmp_path):
        (tmp_path / "ways.py").write_text(WAYS)
        try:
            done("up", 2, "100mbit", "--nics", 2)
            sent = lambda: run_on(mpi, "python", tmp_path / "ways.py", options=("--ranks-per-host", 2)).stdout  # noqa: E731
            assert sent() == "0->3 eth0, 1->2 eth1, 0->1 none"
            subprocess.run(f"ip -n dt_{NAME}_h1 rule del from 10.77.0.1".split(), check=True)  # the planted fault
            assert sent() == "0->3 eth1, 1->2 eth1, 0->1 none"
        finally:
            done("down")

    @pytest.mark.parametrize(("hosts", "per_host"), [(8, 1), (2, 4)])
    def test_more_ranks_than_cores(self, mpi, hosts, per_host):
        sum_ranks = "from mpi4py import MPI; c = MPI.COMM_WORLD; s = c.allreduce(c.rank); c.rank or print(s)"
        try:
            done("up", hosts, "100mbit")
            result = run_on(mpi, "python", "-c", sum_ranks, options=("--ranks-per-host", per_host))
            assert result.stdout.split() == ["28"], result.stderr
        finally:
            done("down")


# Which device of host h1 carries a message of 300 kB, for three pairs of ranks.
WAYS = """
import numpy as np
from mpi4py import MPI
comm, data, ways = MPI.COMM_WORLD, np.ones(300_000, np.uint8), []

def sent():
    rows = [line.split() for line in open("/proc/net/dev") if ":" in line]
    return {row[0].strip(":"): int(row[9]) for row in rows if row[0] != "mg0:"}

for source, target in ((0, 3), (1, 2), (0, 1)):
    comm.Barrier()
    before = sent()
    if comm.rank == source:
        comm.Ssend(data, target)
    if comm.rank == target:
        comm.Recv(data, source)
    comm.Barrier()
    used = [device for device, num_bytes in sent().items() if num_bytes - before[device] > 100_000]
    ways.append(f"{source}->{target} {' '.join(used) or 'none'}")
if comm.rank == 0:
    print(", ".join(ways), end="", flush=True)
"""


def host_pids() -> list[int]:
    return [int(path.read_text()) for path in state_folder().glob("*.pid")]


def running(pids: list[int]) -> list[int]:
    """Those of the pids that still run; one that ended but is not reaped yet has no command line."""
    lines = ((pid, Path(f"/proc/{pid}/cmdline")) for pid in pids)
    return [pid for pid, line in lines if line.exists() and line.read_bytes()]


def processes(words: str) -> list[str]:
    """Pids of the machine's processes, those on hosts included, whose command line has these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if line.startswith(words):
            found.append(path.parent.name)
    return found


def eventually(question, timeout_s: float = 240) -> bool:
    end_s = time.monotonic() + timeout_s
    while not (answer := question()) and time.monotonic() < end_s:
        time.sleep(0.05)
    return answer


def namespaces() -> list[str]:
    return sorted(path.name for path in Path("/run/netns").glob(f"dt_{NAME}_*"))


def state_folder() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/run") / "dovetail-testbed" / NAME
