"""Ranks without MPI under strain: random calls, ranks that end at random moments, strange places, what is left."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import needs
import pytest
from shared_ranks import run_shared

from dovetail.core import EnvironmentFault, RunError
from dovetail.run.shared import environment, stores
from dovetail.run.shared.launch import Ranks

GONE = re.compile(r"rank (\d+) learns: .*rank \d+ (?:of \d+ )?has (?:died|ended|failed)")
SAYS = "import dovetail as dt, numpy as np; c = dt.world(); print(dt.all_reduce(np.ones(3), c.Dup()))"
is_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")


@pytest.mark.parametrize("ranks", [2, 3])
def test_random_calls_are_right(ranks):
    code, said = run_shared(ranks, "shared_soak.py", ranks, 150)
    assert code == 0, said[-3000:]
    assert said.count("calls right") == ranks


@pytest.mark.parametrize(("how", "words"), [("kill", "has died"), ("exit", "has ended"), ("raise", "has ended")])
def test_every_other_rank_learns_that_one_has_gone(how, words):
    code, said = run_shared(3, "shared_soak.py", 5, 10**6, 1, how, 60, limit_s=60)
    assert code == {"kill": -signal.SIGKILL, "exit": 3, "raise": 1}[how], said[-3000:]
    assert {int(rank) for rank in GONE.findall(said)} == {0, 2}, said[-3000:]
    assert words in said


@pytest.mark.parametrize("stops", [False, True])
def test_a_rank_killed_at_a_random_moment(stops):
    """Also while ranks start and meet; one that is stopped for a while before is waited for."""
    words = ["env", f"PYTHONPATH={needs.SUPPORT}", sys.executable, str(needs.RANKS / "shared_soak.py"), "8", str(10**6)]
    with tempfile.TemporaryFile() as printed:
        ranks = Ranks(words, 3, printed)
        pids = [process.pid for process in ranks._running.values()]
        try:
            time.sleep(random.uniform(0.5, 1.5))
            if stops:
                os.kill(pids[0], signal.SIGSTOP)
                time.sleep(0.2)
                assert ranks.poll() is None
                assert ranks.first is None
                os.kill(pids[0], signal.SIGCONT)
            os.kill(pids[2], signal.SIGKILL)
            assert ranks.wait(60) == -signal.SIGKILL
        finally:
            ranks.end()
        printed.seek(0)
        said = printed.read().decode()
    learned = {int(rank) for rank in GONE.findall(said)}
    assert len(learned) + said.count("a rank that meets others learns:") == 2, said
    assert "AssertionError" not in said


def test_nothing_is_left_in_the_process():
    code, said = run_shared(2, "leaving_nothing.py", 5, 300)
    assert code == 0, said[-3000:]


def test_a_fork_of_a_rank_is_no_rank():
    program = """
import os, sys, numpy as np, dovetail as dt
comm, x = dt.world(), np.ones(3)
dt.all_reduce(x, comm)
if comm.rank == 0:
    if not os.fork():
        try:
            comm.barrier()
        except dt.core.RunError as error:
            sys.exit(5 if "forked" in str(error) else 6)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 5
comm.barrier()
print(dt.all_reduce(x, comm))"""
    assert said_by(program, 2) == "[4.4.4.]" * 2


def test_threads_that_ask_for_the_world_at_once_get_one():
    program = """
import threading, dovetail as dt
found = []
threads = [threading.Thread(target=lambda: found.append(dt.world())) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(set(map(id, found))) == 1 and len(found) == 3
print(found[0].size)"""
    assert said_by(program, 2) == "22"


def said_by(program, ranks, env=None):
    with tempfile.TemporaryFile() as printed:
        started = Ranks(
            ["env", *(f"{k}={v}" for k, v in (env or {}).items()), sys.executable, "-c", program], ranks, printed
        )
        try:
            code = started.wait(60)
        finally:
            started.end()
        printed.seek(0)
        said = printed.read().decode()
    assert code == 0, said
    return "".join(said.split())


# Meeting


def test_remains_of_a_job_that_was_killed_disturb_nobody(tmp_path):
    store = stores.FileStore(tmp_path)
    for key in ("job", "knock.1", "anonymous", "anonymous.1", "anonymous.memory"):
        store.set(key, "stale joined")
    said = said_by(SAYS, 2, {"DOVETAIL_STORE": str(tmp_path)})
    assert said == "[2.2.2.]" * 2
    assert not tmp_path.exists()


def test_a_rank_that_ends_before_all_have_met_is_named():
    program = f"import os; os.environ['DOVETAIL_RANK'] == '1' and os._exit(4); {SAYS}"
    with tempfile.TemporaryFile() as printed:
        ranks = Ranks([sys.executable, "-c", program], 3, printed)
        assert ranks.wait(30) == 4
        printed.seek(0)
        assert printed.read().count(b"rank 1 of 3 has ended before all ranks had met") == 2


def test_a_job_hears_only_of_its_own_keys(tmp_path):
    store = stores.FileStore(tmp_path)
    first, second = stores.Job(store, 0, 1, 1.0), stores.Job(store, 0, 1, 1.0)
    first.set("key", "old")
    assert second.get("key") is None
    with pytest.raises(RunError, match="rank 0 did not come"):
        stores.Job(store, 1, 2, 0.05)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    store = stores.FileStore(tmp_path)
    monkeypatch.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(EnvironmentFault, match=f"cannot meet in {tmp_path}") as raised:
        store.set("key", "value")
    assert "set TMPDIR" in str(raised.value)


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_the_folder_of_a_user_is_private_whatever_the_umask(mask, tmp_path, monkeypatch):
    monkeypatch.setattr(environment.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    before = os.umask(mask)
    try:
        folder = environment._own_folder()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_nobody_blocks_the_folder_of_another_user(tmp_path, monkeypatch):
    monkeypatch.setattr(environment.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    taken = tmp_path / f"dovetail-{os.geteuid()}"
    taken.mkdir()
    os.chown(taken, 65534, 65534)
    assert environment._own_folder() == tmp_path / "cache" / "ranks"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_their_launcher(number, tmp_path, tmp_path_factory):
    """The last of them is a grandchild, and one does not care for SIGTERM."""
    program = f"import os, pathlib, time; pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); time.sleep(100)"
    words = ["sh", "-c", f'[ $DOVETAIL_RANK = 1 ] && trap "" TERM; "{sys.executable}" -c "{program}"; true']
    command = "from dovetail.run.shared.launch import run_ranks; import sys; run_ranks(sys.argv[1:], 2)"
    env = os.environ | {"TMPDIR": str(tmp_path_factory.mktemp("meeting"))}
    launcher = subprocess.Popen([sys.executable, "-c", command, *words], env=env)
    until = time.monotonic() + 30
    while len(found := list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    launcher.send_signal(number)
    assert launcher.wait(30) == (-number if number == signal.SIGKILL else 128 + number)
    while (left := [path.name for path in found if is_running(path.name)]) and time.monotonic() < until:
        time.sleep(0.02)
    assert len(found) == 2
    assert not left
    while os.listdir(env["TMPDIR"]) and time.monotonic() < until:
        time.sleep(0.02)
    assert not os.listdir(env["TMPDIR"])


def is_running(pid):
    """Whether that process is there, and no zombie that waits for init."""
    try:
        return Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# Strange places


def by_hand(place, words, ranks=2, program=None):
    """What ranks print that meet in `place`, each started by `words`."""
    begun = [
        subprocess.Popen(
            [*words, sys.executable, "-c", program or (PROGRAM_OF_3 if ranks == 3 else SAYS)],
            env=os.environ | {"DOVETAIL_STORE": str(place), "DOVETAIL_RANK": str(rank), "DOVETAIL_RANKS": str(ranks)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    return [each.communicate(timeout=60)[0] for each in begun]


PROGRAM_OF_3 = """
import os, numpy as np, dovetail as dt
comm = dt.world()
assert dt.all_reduce(np.ones(3), comm).tolist() == [3.0] * 3
if comm.rank == 1:
    os._exit(9)
try:
    dt.all_reduce(np.ones(3), comm)
except dt.core.RunError as error:
    print(error)"""


@is_root
def test_a_rank_that_dies_in_another_pid_namespace_is_named(tmp_path):
    said = by_hand(tmp_path / "meeting", ["unshare", "--pid", "--fork", "--mount-proc"], 3)
    assert ["rank 1 has died" in each for each in said] == [True, False, True], said


LATE = """
import time, numpy as np, dovetail as dt
from dovetail.call import use
from dovetail.store.selection import Row, Selection
comm = dt.world()
use(comm, Selection({}, (Row("all_reduce", 2, 1, 0, 1 << 40, "ring_all_reduce", transport="shared"),)))
for turn in range(4):
    time.sleep(0.2 * (comm.rank == turn % 2))
    found = dt.all_reduce(np.ones(64), comm)
print(found[0])"""


@is_root
def test_a_rank_that_is_late_in_another_pid_namespace_is_no_dead_one(tmp_path):
    """Its number there is another process's here, or nobody's."""
    said = by_hand(tmp_path / "meeting", ["unshare", "--pid", "--fork", "--mount-proc"], program=LATE)
    assert [each.strip() for each in said] == ["2.0", "2.0"], said


@is_root
@pytest.mark.parametrize(
    "mount", ["mount -t tmpfs -o size=64m x /dev/shm", "mount -t tmpfs -o ro x /dev/shm", "ulimit -n 32"]
)
def test_small_places(mount):
    script = f"{mount} && exec '{sys.executable}' -c '{SAYS}'"
    started = ["unshare", "--mount", "bash", "-c", script]
    with tempfile.TemporaryFile() as printed:
        ranks = Ranks(started, 2, printed)
        code = ranks.wait(60)
        printed.seek(0)
        assert (code, "".join(printed.read().decode().split())) == (0, "[2.2.2.]" * 2)


def test_more_ranks_than_cores_and_two_jobs_at_once():
    with tempfile.TemporaryFile() as one, tempfile.TemporaryFile() as other:
        jobs = [(size, Ranks([sys.executable, "-c", SAYS], size, to), to) for size, to in ((6, one), (3, other))]
        for size, ranks, printed in jobs:
            assert ranks.wait(60) == 0
            printed.seek(0)
            assert "".join(printed.read().decode().split()) == f"[{size}.{size}.{size}.]" * size


@pytest.mark.parametrize("mask", ["0", "077"])
def test_ranks_under_any_umask(mask):
    with tempfile.TemporaryFile() as printed:
        ranks = Ranks(["sh", "-c", f"umask {mask}; exec '{sys.executable}' -c '{SAYS}'"], 2, printed)
        assert ranks.wait(60) == 0
        printed.seek(0)
        assert "".join(printed.read().decode().split()) == "[2.2.2.]" * 2
