"""Whatever breaks is reported within seconds, with what and where; nothing hangs, and results stay on disk."""

from __future__ import annotations

import json
import os
import platform
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path

import needs
import numpy as np
import pytest

import dovetail as dt
from dovetail.cli import main
from dovetail.core import EnvironmentFault, OperatorError, RunError, save_json
from dovetail.run.mpi.executor import HANG_S, STOP_S, MpiExecutor, default_launch, last_line
from dovetail.run.ranks.heartbeat import LATE_S, SILENT_S, STOPPED_S, Deaths, Pulse, Watch
from dovetail.tuner.tune import beside_serial


@pytest.fixture(autouse=True)
def _no_launch(own_cache, monkeypatch):
    monkeypatch.delenv("DOVETAIL_LAUNCH", raising=False)


@pytest.fixture(scope="module")
def plan():
    return dt.plan(dt.MatmulAllReduce(256, 128, 64), "shared-memory-2", schedule="uniform")


@pytest.fixture(scope="module")
def good_run_s(plan, tmp_path_factory):
    """How long a good run takes with an MPI, from start to end: seconds as they are on this machine now."""

    @cache
    def measured(mpi: needs.Mpi) -> float:
        folder = tmp_path_factory.mktemp("good")
        save_json(folder / "plan.json", plan.to_json())
        begin = time.monotonic()
        line = command("run", folder, "--rounds", 1, bin=mpi.bin)
        subprocess.run(line, env=mpi.env, capture_output=True, check=True, timeout=240)
        return time.monotonic() - begin

    return measured


@pytest.fixture
def planned(plan, tmp_path):
    """A folder with a plan."""
    save_json(tmp_path / "planned" / "plan.json", plan.to_json())
    return tmp_path / "planned"


def command(*words: object, bin: Path | None = None) -> list[str]:
    python = bin / "python" if bin else sys.executable
    return [str(python), "-m", "dovetail", *map(str, words)]


def call(*words: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=240, **options)


def is_running(pid: int) -> bool:
    """Whether that process is there, and no zombie that waits for init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def check_told(err: str, *parts: str) -> None:
    """One paragraph with these parts, and no traceback."""
    assert "Traceback" not in err
    assert all(line.startswith("  ") for line in err.splitlines()[1:]), err
    for part in parts:
        assert part in err


# Ranks that die, stop or never come


class LongRun:
    """`dovetail run` of rounds without end, on the ranks of one MPI, its second rank known."""

    def __init__(self, folder: Path, out: Path, mpi: needs.Mpi, launch: str | None = None) -> None:
        words = ["run", folder, "--out", out, "--rounds", 1_000_000, *(["--launch", launch] if launch else [])]
        line = command(*words, bin=mpi.bin)
        self.out = out
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=mpi.env)

    def pids(self) -> list[int]:
        """Both ranks' process ids, once they have been in their rounds for several beats of their hearts: the first
        round is over then, and there is something to save."""
        deadline, beats = time.monotonic() + 120, dict[str, set[str]]()
        while time.monotonic() < deadline and self.process.poll() is None:
            found = sorted(self.out.glob("runs/*/alive.*"))
            for path in found:
                count, _, doing = path.read_text().partition(" ")
                beats.setdefault(path.name, set()).update({count} if "in variant" in doing else ())
            if len(found) == 2 and all(len(beats[path.name]) >= 3 for path in found):
                return [int(path.name.split(".")[3]) for path in found]
            time.sleep(0.05)
        raise AssertionError(f"the ranks did not begin: {self.process.communicate(timeout=5)}")

    def ends(self) -> tuple[int, str, float]:
        """Exit code, stderr, and the seconds until then."""
        begin = time.monotonic()
        _, err = self.process.communicate(timeout=240)
        return self.process.returncode, err, time.monotonic() - begin

    def left(self) -> list[int]:
        """Ranks that still run."""
        mark = os.fsencode(self.out)
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if mark in line and b"dovetail.run.mpi.rank" in line:
                found.append(int(path.parent.name))
        return found


@pytest.mark.mpi
def test_killed_rank(mpi, planned, tmp_path, good_run_s):
    run = LongRun(planned, tmp_path / "out", mpi)
    os.kill(run.pids()[1], signal.SIGKILL)
    code, err, spent = run.ends()
    assert code == 2
    assert spent < HANG_S + STOP_S + 3 * good_run_s(mpi)
    check_told(err, "RunError: rank 1", "died", str(tmp_path / "out"))
    assert (tmp_path / "out" / "plan.json").exists()
    assert run.left() == []


@pytest.fixture(scope="module")
def of_every_mpi(plan, tmp_path_factory):
    """What becomes of `faulted(mpi, folder)`, by the MPI's name: all at once, and once, for they mostly wait."""

    @cache
    def ended(faulted):
        found = [mpi for name, mpi in needs.MPIS.items() if needs.missing(name) is None]
        folders = [tmp_path_factory.mktemp(mpi.name) for mpi in found]
        for folder in folders:
            save_json(folder / "plan.json", plan.to_json())
        with ThreadPoolExecutor() as pool:
            begun = [pool.submit(faulted, mpi, folder) for mpi, folder in zip(found, folders, strict=True)]
        return {mpi.name: each for mpi, each in zip(found, begun, strict=True)}

    return ended


def stopped_in_the_midst(mpi, folder):
    run = LongRun(folder, folder / "out", mpi)
    os.kill(run.pids()[1], signal.SIGSTOP)
    return run, *run.ends()


@pytest.mark.mpi
def test_stopped_rank(mpi, of_every_mpi, good_run_s):
    """A rank that stops in the midst: no launcher notices. What the others had done is kept."""
    run, code, err, spent = of_every_mpi(stopped_in_the_midst)[mpi.name].result()
    assert code == 2
    assert spent < STOPPED_S + STOP_S + 3 * good_run_s(mpi)
    check_told(err, "RunError: rank 1", "no sign of life", "it is stopped")
    assert (run.out / "plan.json").exists()
    assert run.left() == []
    (partial,) = run.out.glob("runs/*/partial.0.json")
    assert json.loads(partial.read_text())["label"] == "measured"


def stopped_early(mpi, folder):
    wrapper = folder / "stop_rank_1"
    wrapper.write_text(
        '#!/bin/sh\n[ "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" = 1 ] && '
        f'echo $$ >> {folder}/pid && kill -STOP $$\nexec "$@"\n'
    )
    wrapper.chmod(0o755)
    launch = " ".join([*mpi.mpiexec(2), str(wrapper)])
    ended = LongRun(folder, folder / "out", mpi, launch).ends()
    return int((folder / "pid").read_text()), *ended


@pytest.mark.mpi
def test_rank_that_is_stopped_before_it_begins(mpi, of_every_mpi, good_run_s):
    pid, code, err, spent = of_every_mpi(stopped_early)[mpi.name].result()
    assert code == 2
    assert spent < STOPPED_S + STOP_S + 3 * good_run_s(mpi)
    check_told(err, "RunError: rank 1 never arrived", f"process {pid} is stopped")
    assert not is_running(pid)


@pytest.mark.mpi
def test_one_rank_too_few(mpi, planned, tmp_path, good_run_s):
    run = LongRun(planned, tmp_path / "out", mpi, " ".join(mpi.mpiexec(1)))
    code, err, spent = run.ends()
    assert code == 2
    assert spent < HANG_S + STOP_S + 3 * good_run_s(mpi)
    check_told(err, "the job has 2 ranks, the launcher started 1")


@pytest.mark.mpi
@pytest.mark.needs("mpich")
def test_launcher_that_fails(planned, tmp_path):
    done = call("run", planned, "--out", tmp_path / "out", "--launch", "sh -c 'echo no hosts; exit 7'")
    assert done.returncode == 2
    check_told(done.stderr, "RunError: rank 0 never started (launcher exit code 7)", "no hosts")


# The watch itself, on a pretended clock


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def beat(folder: Path, rank: int, count: int) -> None:
    (folder / f"alive.{rank}.host.1{rank}").write_text(f"{count} in variant 'x'")


def test_watch_knows_who_is_silent(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.run.ranks.heartbeat.crowding", lambda: 1.0)  # one core, calm
    clock = Clock()
    watch = Watch(tmp_path, 2, clock)
    for rank in (0, 1):
        save_json(tmp_path / f"ready.{rank}.json", {})
    for second in range(20):
        clock.now = float(second)
        beat(tmp_path, 0, second)
        beat(tmp_path, 1, min(second, 5))
        trouble = watch.trouble()
        assert (trouble is not None) == (second - 5 > SILENT_S), second
    assert trouble.startswith("rank 1 gave no sign of life")
    assert "process 11 on host, in variant 'x'" in trouble


def test_watch_knows_who_is_stopped(tmp_path, monkeypatch):
    """Sooner than one that is only silent: the system says so."""
    monkeypatch.setattr("dovetail.run.ranks.heartbeat.crowding", lambda: 1.0)
    clock = Clock()
    watch = Watch(tmp_path, 1, clock)
    with subprocess.Popen([sys.executable, "-c", "input()", tmp_path], stdin=subprocess.PIPE) as rank:
        (tmp_path / f"alive.0.{platform.node().replace('.', '-')}.{rank.pid}").write_text("1 in variant 'x'")
        assert watch.trouble() is None
        clock.now = STOPPED_S + 0.1
        assert watch.trouble() is None
        rank.send_signal(signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        assert watch.trouble().startswith("rank 0 gave no sign of life for 1.6 s")
        rank.kill()


def test_watch_knows_who_is_late(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.run.ranks.heartbeat.crowding", lambda: 1.0)
    clock = Clock()
    watch = Watch(tmp_path, 3, clock)
    for second in range(9):
        clock.now = float(second)
        beat(tmp_path, 0, second)
        beat(tmp_path, 2, second)
        late = second > LATE_S + 0.75
        assert (watch.trouble() is not None) == late
    assert watch.trouble().startswith("rank 1 never arrived: 1 of 3")


def test_watch_is_patient_on_a_busy_machine(tmp_path, monkeypatch):
    clock, busy = Clock(), 3.0
    monkeypatch.delenv("DOVETAIL_ARRIVE_S", raising=False)
    monkeypatch.setattr("dovetail.run.ranks.heartbeat.crowding", lambda: busy)
    watch = Watch(tmp_path, 2, clock)
    clock.now = 23.0
    assert watch.trouble() is None
    clock.now = 25.0
    assert watch.trouble() == "no rank has begun after 24 s"
    beat(tmp_path, 0, 0)
    assert watch.trouble() is None
    clock.now += 3 * (LATE_S + 0.5) + 1
    beat(tmp_path, 0, 1)
    assert watch.trouble().startswith("rank 1 never arrived")


def test_watch_of_a_launcher_that_queues(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setenv("DOVETAIL_ARRIVE_S", "100")
    watch = Watch(tmp_path, 2, clock)
    clock.now = 99.0
    assert watch.trouble() is None
    clock.now = 101.0
    assert watch.trouble() == "no rank has begun after 100 s"


def test_pulse_beats_and_cleans_up(tmp_path):
    code = "import sys, time, pathlib; from dovetail.run.ranks.heartbeat import Pulse; p = pathlib.Path(sys.argv[1])\n"
    code += "with Pulse(p):\n    while [f.read_text()[:1] for f in p.glob('alive.*')] != ['1']: time.sleep(0.01)\n"
    code += "    print(*(f.read_text() for f in p.glob('alive.*')))\n"
    code += "print(*p.iterdir(), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    count, rest = done.stdout.splitlines()
    assert count == "1 starting"
    assert rest == "False"
    assert Pulse(tmp_path).last_words() is None


BEATING = """
import sys
from pathlib import Path
from dovetail.run.ranks.heartbeat import Pulse
with Pulse(Path(sys.argv[1])):
    sys.stdin.read()
"""


@pytest.mark.parametrize("first", [0, 1, 2])
def test_deaths_are_reported_in_their_order(tmp_path, first):
    """However late one looks. A rank that ends by itself, even before, is not meant."""
    line, ranks = [sys.executable, "-c", BEATING, tmp_path], []
    for rank in map(str, range(3)):
        ranks.append(subprocess.Popen(line, stdin=subprocess.PIPE, env=os.environ | {"PMI_RANK": rank}))
    while len(list(tmp_path.glob("alive.*"))) < 3:
        time.sleep(0.01)
    with closing(Deaths(tmp_path)) as deaths:
        assert deaths.look(0.0) is None
        ranks[(first + 1) % 3].communicate()
        for rank in (first, (first + 2) % 3):
            ranks[rank].kill()
            ranks[rank].communicate()
        assert re.fullmatch(f"rank {first} on .+ died", deaths.look(0.0))


SENDING = """
import socket
import sys
from pathlib import Path
from dovetail.run.ranks.heartbeat import Pulse
with Pulse(Path(sys.argv[1])):
    with socket.create_connection(("localhost", int(sys.argv[2]))) as there:
        sys.stdin.read()
"""


def test_a_death_is_seen_before_its_sockets_close(tmp_path):
    """So that who dies of a closed socket dies later."""
    with socket.create_server(("localhost", 0)) as server, select.epoll() as ends:
        line = [sys.executable, "-c", SENDING, tmp_path, str(server.getsockname()[1])]
        rank = subprocess.Popen(line, stdin=subprocess.PIPE)
        with server.accept()[0] as connection, open(next(tmp_path.glob("held.*")), opener=unblocked) as fifo:
            ends.register(connection, select.EPOLLIN)
            ends.register(fifo, 0)
            rank.kill()
            rank.communicate()
            assert [fd for fd, _ in ends.poll(1.0)] == [fifo.fileno(), connection.fileno()]


def unblocked(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


# Arrays that do not fit

INSIDE = """
import os
import sys
import numpy as np
import dovetail as dt
from dovetail.run.ranks.embedded import this_world

which, world = sys.argv[1], this_world()
if which == "mpi4py":
    from mpi4py import MPI
m, k, n = 192, 64, 48
plan = dt.plan(dt.MatmulAllReduce(m, k, n), "shared-memory-2", ranks=2)
rng = np.random.default_rng(0)
whole = rng.standard_normal((m, k), "f4"), rng.standard_normal((k, n), "f4")
mine = slice(0, 32) if world.rank == 0 else slice(32, 64)
a, b = whole[0][:, mine], whole[1][mine]
if which == "raise" and world.rank == 1:
    raise SystemError("planted")
if which in ("good", "mpi4py", "raise"):
    out = np.empty((m, n), "f4")
    for _ in range(3):
        c = plan.run(a, b)
        assert plan.run(a, b, out=out) is out
    assert np.allclose(c, whole[0] @ whole[1], atol=1e-3) and (c == out).all()
    print("right")
    sys.exit()
if world.rank == 1:
    a = {"shape": a[:7], "dtype": a.astype("f8"), "nan": np.where(a > 1, np.nan, a), "inf": a / 0}[which]
try:
    plan.run(a, b)
except dt.DovetailError as error:
    text = f"{type(error).__name__} {str(error).splitlines()[0]}\\n"
    os.write(1, text.encode())  # at once: ranks write to one pipe
"""


def inside(mpi: needs.Mpi, ranks: int, which: str) -> subprocess.CompletedProcess[str]:
    threads = {"OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    line = [*mpi.mpiexec(ranks), str(mpi.python), "-c", INSIDE, which]
    environ = {**mpi.env, **threads}
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environ, timeout=240)


@pytest.mark.mpi
@pytest.mark.parametrize("which", ["good", "mpi4py"])
def test_plan_runs_inside_a_users_program(mpi, which):
    done = inside(mpi, 2, which)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == 2


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("which", "reported"),
    [
        ("shape", "rank 1 cannot run the plan: 'A' has shape (7, 32), but the plan needs (192, 32)"),
        ("dtype", "rank 1 cannot run the plan: 'A' is float64, and the plan is for float32"),
        ("nan", "values that are NaN or infinite (allow_nonfinite=True lets them pass)"),
        ("inf", "values that are NaN or infinite (allow_nonfinite=True lets them pass)"),
    ],
)
def test_bad_array_of_one_rank_is_refused_by_all(mpi, which, reported):
    done = inside(mpi, 2, which)
    assert "stalled" not in done.stdout + done.stderr  # nobody waits for the watchdog
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("OperatorError") == 2
    assert done.stdout.count(reported) == 2


@pytest.mark.mpi
def test_plan_for_other_ranks(mpi):
    done = inside(mpi, 3, "shape")
    assert done.stdout.count("OperatorError the plan is for 2 ranks") == 3


@pytest.mark.mpi
def test_exception_of_one_rank_ends_the_others(mpi):
    done = inside(mpi, 2, "raise")
    assert "stalled" not in done.stdout + done.stderr
    assert done.returncode != 0
    assert "planted" in done.stderr


@pytest.fixture
def alone():
    """A plan for one rank, which needs no MPI, and its arrays."""
    made = dt.plan(dt.MatmulAllReduce(96, 16, 8), "shared-memory-2", ranks=1)
    rng = np.random.default_rng(1)
    return made, rng.standard_normal((96, 16), "f4"), rng.standard_normal((16, 8), "f4")


def test_one_rank_without_mpi(alone):
    plan, a, b = alone
    assert np.allclose(plan.run(a, b), a @ b, atol=1e-4)
    assert np.allclose(plan.run(a[::-1], b), a[::-1] @ b, atol=1e-4)  # a view that is not contiguous


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (lambda a, b: (a[:5], b), "'A' has shape (5, 16)"),
        (lambda a, b: (a, b[:, :3]), "'B' has shape (16, 3)"),
        (lambda a, b: (a[0], b), "'A' has shape (16,)"),
        (lambda a, b: (a.astype("f2"), b), "'A' is float16, and the plan is for float32"),
        (lambda a, b: (a, np.full_like(b, np.inf)), "'B' holds 128 values that are NaN or infinite"),
        (lambda a, b: (a,), "matmul_all_reduce takes A, B"),
        (lambda a, b: (a, b, np.empty((96, 8), "f4")), "matmul_all_reduce takes A, B"),
    ],
)
def test_bad_arrays_are_refused(alone, change, reported):
    plan, a, b = alone
    with pytest.raises(OperatorError) as caught:
        plan.run(*change(a, b))
    assert reported in caught.value.what


def test_nonfinite_input_where_it_is_wanted(alone):
    plan, a, b = alone
    a[3, 2] = np.nan
    c = plan.run(a, b, allow_nonfinite=True)
    assert np.isnan(c[3]).all()
    assert np.isfinite(np.delete(c, 3, axis=0)).all()


def test_result_is_put_where_it_is_wanted(alone):
    plan, a, b = alone
    with pytest.raises(OperatorError, match="C-contiguous"):
        plan.run(a, b, out=np.empty((8, 96), "f4").T)
    locked = np.empty((96, 8), "f4")
    locked.flags.writeable = False
    with pytest.raises(OperatorError, match="writeable"):
        plan.run(a, b, out=locked)


# Disks


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    needs.need("root")
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"needs root: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_full_disk_costs_only_the_page(small_disk):
    sizes = ["--m", 512, "--k", 256, "--n", 128, "--machine", "shared-memory-2"]
    done = call("plan", "matmul_all_reduce", *sizes, "--out", small_disk)
    assert done.returncode == 2
    check_told(done.stderr, f"EnvironmentFault: cannot write {small_disk}", "No space left", "--out")
    assert json.loads((small_disk / "plan.json").read_text())["schema"] == "dovetail.plan/2"
    assert not (small_disk / "report.html").exists()


@pytest.mark.mpi
@pytest.mark.needs("mpich")
def test_disk_that_fills_up_while_running(small_disk, planned):
    """What was measured is printed even where it cannot be saved."""
    shutil.copy(planned / "plan.json", small_disk)
    (small_disk / "serial.json").mkdir()  # in the way of the timeline
    done = call("run", small_disk, "--rounds", "1", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["measured_s"] > 0
    check_told(done.stderr, "EnvironmentFault: cannot write", "serial.json")
    (small_disk / "full").write_bytes(bytes(40 << 10))
    done = call("run", small_disk, "--rounds", "1")
    assert done.returncode == 2
    check_told(done.stderr, str(small_disk))


def test_page_of_a_tuning_that_cannot_be_written(monkeypatch, capsys):
    """The numbers are printed, then the error."""
    from types import SimpleNamespace as Fake

    outcome = Fake(is_wrong=False)
    notes = ("the report is incomplete: cannot write /x/report.html, No space left on device",)
    both = {"serial": outcome, "planned": outcome, "keeps_serial": False}
    result = Fake(to_json=lambda: {"schema": "dovetail.tune/2"}, report=None, notes=notes, **both)
    monkeypatch.setattr("dovetail.tuner.tune", lambda *a, **k: result)
    monkeypatch.setattr("dovetail.report.tuning.write_tuning", lambda found, *_: found)
    sizes = ["--m", "8", "--k", "8", "--n", "8", "--ranks", "2"]
    code = main(["tune", "matmul_all_reduce", *sizes, "--json", "--out", "/nowhere"])
    out, err = capsys.readouterr()
    assert code == 2
    assert json.loads(out) == {"schema": "dovetail.tune/2"}
    check_told(err, "EnvironmentFault: the report is incomplete", "No space left")


@pytest.mark.parametrize(
    "verb", ["machines", pytest.param("doctor", marks=(pytest.mark.slow, pytest.mark.needs("mpich")))]
)
def test_unwritable_cache(tmp_path, verb):
    """A warning, and a private folder instead."""
    (tmp_path / "file").write_text("in the way")
    folders = {"DOVETAIL_CACHE": str(tmp_path / "file" / "cache"), "TMPDIR": str(tmp_path)}
    done = call(*verb.split(), env=os.environ | folders)
    assert done.returncode == 0
    said = done.stdout if verb == "doctor" else done.stderr  # doctor has a row for it
    assert said.count("cannot write to the cache") == 1
    assert "set DOVETAIL_CACHE" in said
    assert "Traceback" not in done.stderr


# No MPI


@pytest.mark.needs("mpich")
def test_launcher_that_does_not_exist(planned):
    done = call("run", planned, env=os.environ | {"DOVETAIL_LAUNCH": "/no/such/mpiexec -n {ranks}"})
    assert done.returncode == 2
    check_told(done.stderr, "EnvironmentFault", "/no/such/mpiexec")


def test_no_mpi_at_all(planned, monkeypatch, capsys):
    for room in ("ranks.library", "mpi.executor"):
        monkeypatch.setattr(f"dovetail.run.{room}.find_tool", lambda *names: None)
    assert main(["run", str(planned)]) == 2
    check_told(capsys.readouterr().err, "EnvironmentFault: no MPI found", "pip install 'dovetail[mpi]'")
    with pytest.raises(EnvironmentFault, match="no mpiexec"):
        default_launch()


def test_mpicc_that_cannot_compile(planned, monkeypatch, tmp_path, capsys):
    broken = tmp_path / "mpicc"
    broken.write_text("#!/bin/sh\necho 'gcc: not found' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr("dovetail.run.ranks.library.find_tool", lambda *names: str(broken))
    assert main(["run", str(planned)]) == 2
    check_told(capsys.readouterr().err, "EnvironmentFault", "could not compile", "gcc: not found")


# What the launcher says


def test_launchers_phrases_are_passed_over(tmp_path):
    (tmp_path / "output.txt").write_text("the cause\n=== BAD TERMINATION OF ONE\nPlease see the FAQ page\n====\n---\n")
    assert last_line(tmp_path) == "the cause"
    (tmp_path / "output.txt").write_text("")
    assert last_line(tmp_path) == "no output"


@pytest.mark.mpi
@pytest.mark.needs("mpich")
def test_failed_job_leaves_its_folder_a_good_one_does_not(plan, tmp_path):
    executor = MpiExecutor(folder=tmp_path)
    executor.execute(beside_serial(plan, rounds=1))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match="the launcher started 1"):
        MpiExecutor(default_launch().replace("{ranks}", "1"), tmp_path).execute(beside_serial(plan, rounds=1))
    (folder,) = tmp_path.iterdir()
    assert {"output.txt", "failure.0.json"} <= {path.name for path in folder.iterdir()}
