"""Ranks without MPI: how they meet, what becomes of those that are missing or die, and what they leave behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import needs
import pytest
from shared_ranks import run_shared

from dovetail import _native
from dovetail.collective import AllReduce
from dovetail.core import EnvironmentFault, OperatorError, RunError, load_json
from dovetail.machine import load
from dovetail.run.job import Job, Variant
from dovetail.run.ranks.library import SharedCalls
from dovetail.run.ranks.world import World
from dovetail.run.shared import environment, launch, stores
from dovetail.run.shared.arrays import empty
from dovetail.run.shared.executor import SharedExecutor
from dovetail.run.shared.world import Comm, join
from dovetail.store.selection import Choice
from dovetail.timeline import Timeline
from dovetail.tuner.collectives import entries_of
from dovetail.tuner.contest import contest


def in_threads(size, act):
    """What `act(rank)` returns or raises, for ranks that are threads."""
    found = [None] * size

    def one(rank):
        try:
            found[rank] = act(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


# Meeting


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_meet_in_a_folder_and_leave_nothing_there(size, tmp_path):
    store = stores.FileStore(tmp_path / "meeting")
    comms = [Comm(number) for number in in_threads(size, lambda rank: join(store, rank, size))]
    assert in_threads(size, lambda rank: comms[rank].allgather(rank**2)) == [[r**2 for r in range(size)]] * size
    assert not store.folder.exists()
    in_threads(size, lambda rank: comms[rank].Free())


def test_ranks_that_cannot_open_anonymous_memory_get_named_memory(tmp_path, monkeypatch):
    store, kinds, names, made = stores.FileStore(tmp_path / "meeting"), [], [], _native.Segment.make

    class Segment:
        open = _native.Segment.open

        @staticmethod
        def make(num_bytes, named):
            kinds.append(named)
            if not named:
                raise RuntimeError("no such luck")
            memory = made(num_bytes, named)
            names.append(memory.name)
            return memory

    monkeypatch.setattr(_native, "Segment", Segment)
    comms = [Comm(number) for number in in_threads(2, lambda rank: join(store, rank, 2))]
    assert in_threads(2, lambda rank: comms[rank].bcast(rank + 7, 1)) == [8, 8]
    assert kinds == [False, True]
    assert [Path("/dev/shm", name.strip("/")).exists() for name in names] == [False]
    in_threads(2, lambda rank: comms[rank].Free())


def test_no_memory_at_all_is_said_on_every_rank(tmp_path, monkeypatch):
    def refuse(num_bytes, named):
        raise RuntimeError("nothing left")

    monkeypatch.setattr(_native.Segment, "make", refuse)
    for error in in_threads(2, lambda rank: join(stores.FileStore(tmp_path / "meeting"), rank, 2)):
        assert isinstance(error, EnvironmentFault)
        assert "rank 0: nothing left" in str(error)


def test_the_rank_that_does_not_come_is_named(tmp_path):
    store = stores.FileStore(tmp_path / "meeting")
    found = in_threads(2, lambda rank: join(store, 2 * rank, 3, limit_s=0.3))
    assert [type(error) for error in found] == [RunError] * 2
    assert all("rank 1 of 3 did not come within 0 s" in str(error) for error in found)


def test_rank_0_that_does_not_come_is_named(tmp_path):
    with pytest.raises(RunError, match="rank 0 did not come"):
        join(stores.FileStore(tmp_path / "meeting"), 1, 2, limit_s=0.1)


def test_ranks_do_not_meet_where_others_write(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(EnvironmentFault, match="others could disturb them"):
        stores.FileStore(tmp_path)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def test_ranks_meet_at_an_address(tmp_path):
    address = "127.0.0.1", free_port()

    def enter(rank):
        return join(stores.SocketStore(address, rank == 0, stores.FileStore(tmp_path / "tokens")), rank, 2)

    comms = [Comm(number) for number in in_threads(2, enter)]
    assert in_threads(2, lambda rank: comms[rank].allgather(rank)) == [[0, 1]] * 2
    with socket.socket() as line:  # nobody serves there any more
        assert line.connect_ex(address) != 0
    in_threads(2, lambda rank: comms[rank].Free())


def test_the_address_answers_no_stranger(tmp_path, monkeypatch):
    address, tokens = ("127.0.0.1", free_port()), stores.FileStore(tmp_path / "tokens")
    served = stores.SocketStore(address, True, tokens)
    served.set("memory", "secret")
    assert stores.SocketStore(address, False, tokens).get("memory") == "secret"
    monkeypatch.setenv("DOVETAIL_TOKEN", "guessed")
    stranger = stores.SocketStore(address, False, tokens)
    assert stranger.get("memory") is None
    with pytest.raises(RunError, match="does not answer"):
        stranger.set("memory", "another")
    with socket.create_connection(address) as line:
        line.sendall(b"nonsense\n")
    assert served.get("memory") == "secret"
    served.close()


ADOPT = """
import sys, threading
from pathlib import Path
from dovetail.run.ranks.comm import adopted
from dovetail.run.shared.stores import FileStore
from dovetail.run.shared.world import Comm, join

def one(rank):
    sizes.append(adopted(Comm(join(FileStore(Path(sys.argv[1])), rank, 2))).size)

sizes = []
threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sizes)"""


def test_ranks_that_are_threads_of_one_process_adopt_a_communicator(tmp_path):
    """Each waits for the other, which needs the interpreter meanwhile."""
    words = [sys.executable, "-c", ADOPT, str(tmp_path / "meeting")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "[2, 2]\n", done.stderr


# Environments


@pytest.mark.parametrize(
    ("environ", "rank", "size"),
    [
        ({"DOVETAIL_RANK": "1", "DOVETAIL_RANKS": "3", "PMI_RANK": "0", "PMI_SIZE": "1"}, 1, 3),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, 2, 4),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 0, 2),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, 1, 2),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1"}, 1, 2),
    ],
)
def test_launchers_say_the_rank(environ, rank, size, tmp_path):
    found = environment.place_of(environ | {"DOVETAIL_STORE": str(tmp_path / "meeting")})
    assert (found.rank, found.size) == (rank, size)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "no launcher"),
        ({"PMI_RANK": "4", "PMI_SIZE": "4"}, "PMI_RANK=4 of 4 ranks does not exist"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK=one is not a number"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, "2 of 4 ranks are on this one"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}, "2 hosts"),
    ],
)
def test_what_is_no_rank_of_one_host_is_refused(environ, words):
    with pytest.raises(EnvironmentFault, match=words):
        environment.place_of(environ)


def test_ranks_of_one_launcher_meet_and_those_of_others_do_not(monkeypatch):
    """Between a launcher and its ranks there may be shells, which have the rank's variable too."""
    code = "from dovetail.run.shared.environment import _started_by; print(_started_by('SOME_RANK'))"
    shell = ["sh", "-c", f'"{sys.executable}" -c "{code}"; true']
    started = [
        subprocess.run(words, env=os.environ | {"SOME_RANK": str(rank)}, capture_output=True, text=True, check=True)
        for rank, words in enumerate([[sys.executable, "-c", code], shell])
    ]
    assert len({done.stdout for done in started}) == 1
    assert started[0].stdout.startswith(f"{os.getpid()}-")


# Ranks that die


def pair(tmp_path, size=2):
    numbers = in_threads(size, lambda rank: join(stores.FileStore(tmp_path / "meeting"), rank, size))
    return [Comm(number) for number in numbers]


def test_a_rank_that_has_left_is_named(tmp_path):
    here, gone = pair(tmp_path)
    gone.Free()
    with pytest.raises(RunError, match="rank 1 has ended, and was waited for"):
        here.world.recv(1, 60.0)


def test_messages_of_a_rank_that_has_left_still_come(tmp_path):
    here, gone = pair(tmp_path)
    gone.world.send("last words", 0)
    gone.Free()
    time.sleep(0.1)
    assert here.world.recv(1, 60.0) == "last words"


def test_a_killed_rank_is_named():
    code, said = run_shared(3, "killed_rank.py")
    assert code == -signal.SIGKILL
    assert said.count("RunError: shared memory failed in test\n  found       rank 1 has died") == 2, said


def test_a_rank_that_dies_while_it_has_locked_the_board_is_named():
    code, said = run_shared(2, "locked_board.py", limit_s=30)
    assert (code, said.split("\n")) == (-signal.SIGKILL, ["its own error", "rank 1 has died", ""])


def test_a_killed_rank_of_a_job_is_named_and_its_part_is_kept(tmp_path):
    """The ranks run until one is killed from outside."""
    operator = AllReduce(1 << 10)
    schedule = operator.by("ring_all_reduce")
    program = operator.program(schedule, 2)
    job = Job((Variant("one", program, operator.workload(program, schedule)),), rounds=10**6, budget_s=60.0)
    killer = threading.Thread(target=kill_rank_1, args=(tmp_path,))
    killer.start()
    with pytest.raises(RunError, match=r"rank 1 on .* died") as raised:
        SharedExecutor(folder=tmp_path).execute(job)
    killer.join()
    assert "partial timelines are in" in str(raised.value)
    (place,) = tmp_path.glob("job-*")
    assert Timeline.from_json(load_json(place / "partial.0.json")).meta["partial"]


def kill_rank_1(folder):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for alive in folder.glob("job-*/alive.1.*"):
            if "in variant" in alive.read_text():
                os.kill(int(alive.name.split(".")[3]), signal.SIGKILL)
                return
        time.sleep(0.05)


def test_the_launcher_ends_the_others_and_says_which_rank_failed_first():
    program = "import os, sys, time; os.environ['DOVETAIL_RANK'] == '1' and sys.exit(7); time.sleep(60)"
    begin = time.monotonic()
    code, said = launch.run_ranks([sys.executable, "-c", program], 2)
    assert (code, said) == (7, "rank 1 ended with exit code 7")
    assert time.monotonic() - begin < 30


def test_dovetail_launch(call):
    code, _, said = call("launch", "--ranks", 3, "--", sys.executable, "-c", "import dovetail; dovetail.world()")
    assert (code, said) == (0, "")
    code, _, said = call("launch", "--ranks", 2, "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert code == 128 + 9
    assert "was killed by SIGKILL" in said
    code, _, said = call("launch", "--ranks", 2)
    assert code == 2
    assert "no command to start" in said


# Calls


def test_messages_are_matched_and_wrong_sizes_refused(tmp_path):
    one, other = (comm.world for comm in pair(tmp_path))
    one.send([1], 1)
    assert other.recv(0) == [1]
    calls = SharedCalls()
    assert "without MPI" in calls.library
    with pytest.raises(RunError, match=r"join by dovetail\.world"):
        World(calls)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_all_calls(ranks, tmp_path):
    code, said = run_shared(ranks, "comm_ranks.py", env={"DOVETAIL_SELECTION": str(tmp_path / "selection.json")})
    assert code == 0, said[-3000:]
    assert "all the same" in said


def test_scripts_are_rivals_without_mpi(tmp_path):
    """Tuning measures algorithms through channels too, and ranks without MPI run them."""
    executor = SharedExecutor(folder=tmp_path)
    ((entry,), _) = entries_of([AllReduce(64)], load("shared-memory-2"), 2, shared=executor.shares_memory)
    chosen = [each for each in entry.predicted if Choice.of(each).transport == "shared"]
    (flat,) = (each for each in chosen if Choice.of(each).algorithm == "flat_all_reduce")
    found = contest([replace(entry, predicted={flat: 1e-6})], executor, rounds=1, budget_s=0.1, keep=True)
    assert [(each.schedule, each.wrong) for each in found.judged] == [(flat, {})]


def test_products(tmp_path):
    code, said = run_shared(2, "product_ranks.py", env={"DOVETAIL_CACHE": str(tmp_path)})
    assert code == 0, said[-3000:]


# Arrays that other ranks read


def test_arrays_of_all_ranks_in_every_call():
    code, said = run_shared(3, "shared_arrays.py")
    assert code == 0, said[-3000:]
    assert "all the same" in said


@pytest.mark.mpi
def test_arrays_of_all_ranks_of_mpi(mpi):
    done = mpi.run(3, needs.RANKS / "shared_arrays.py", timeout_s=200)
    assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]


def test_products_read_what_other_ranks_hold():
    code, said = run_shared(2, "shared_products.py")
    assert code == 0, said[-3000:]
    assert "all the same" in said


def test_arrays_are_shared_on_communicators_only():
    with pytest.raises(OperatorError, match="no communicator, but int"):
        empty(3, float, 7)
