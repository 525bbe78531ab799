"""Groups over several hosts: calls, a rank that dies or does not call, launchers, and hosts without a connection."""

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import needs
import pytest
from forked_ranks import Job, run_jobs

pytestmark = pytest.mark.needs("torch")
PROGRAM = needs.RANKS / "torch_joined.py"
TESTBED = needs.ROOT / "tools" / "testbed"
LIMIT_S = 100


def lines_of(text):
    """The JSON lines among what ranks have printed, which may run into each other."""
    parts = text.replace("}{", "}\n{").splitlines()
    return [json.loads(part) for part in parts if part.startswith("{") and part.endswith("}")]


def end(started):
    """Wait for processes; return what they printed and their exit codes. None is left running."""
    until = time.monotonic() + LIMIT_S
    try:
        printed = "".join(each.communicate(timeout=max(1.0, until - time.monotonic()))[0] for each in started)
    finally:
        for each in started:
            each.kill()
        codes = [each.wait() for each in started]
        for each in started:
            each.stdout.close()
    return printed, codes


def begin(command, **env):
    env = os.environ | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in env.items()}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def pretended():
    """How jobs on three ranks `Ended`, begun as torchrun does, every other rank as if on another host."""
    jobs = [(what, by) for by in ("sockets", *(["mpi"] * (needs.missing("mpich") is None))) for what in ("all", "dies")]
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2 * len(jobs))]
        ports = [str(each.getsockname()[1]) for each in sockets]
    started = []
    for what, by in jobs:
        env = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "FI_PROVIDER": "tcp", "DOVETAIL_TORCH_TRANSPORT": by}
        env["MASTER_PORT"] = ports.pop()
        ranks = [{**env, "RANK": rank, "LOCAL_RANK": rank} for rank in "012"]
        started.append(Job([PROGRAM, what, "pretend", ports.pop()], ranks))
    return dict(zip(jobs, run_jobs(started, limit_s=2 * LIMIT_S), strict=True))


BY = pytest.mark.parametrize(
    ("by", "joined"), [("sockets", "HostRanks"), pytest.param("mpi", "MpiRanks", marks=pytest.mark.needs("mpich"))]
)


def check_all_passed(printed, ranks, joined):
    found = lines_of(printed)
    assert [each.get("passed") for each in found] == [True] * ranks, printed[-3000:]
    assert {each["joined"] for each in found} == {joined}
    assert sorted(int(each["RANK"]) for each in found) == list(range(ranks))


def check_death_was_named(printed, ranks):
    found = lines_of(printed)
    (died,) = [each["dies"] for each in found if "dies" in each]
    others = [each for each in found if "said" in each]
    assert len(others) == ranks - 1, printed[-3000:]
    for each in others:
        assert len(each["said"]) == 3, "each of three calls fails"
        assert all(f"rank {ranks - 1} has died" in text for text in each["said"]), each
        assert each["at"] - died < 10


@BY
def test_calls_of_every_kind_on_two_hosts_under_torchrun(pretended, by, joined):
    printed, codes = pretended["all", by]
    check_all_passed(printed, 3, joined)
    assert codes == [0, 0, 0], printed[-3000:]


@BY
def test_a_killed_rank_is_named_on_other_hosts(pretended, by, joined):
    printed, codes = pretended["dies", by]
    check_death_was_named(printed, 3)
    assert codes == [0, 0, -9], printed[-3000:]


@pytest.mark.parametrize(
    ("library", "said"),
    [("Open MPI v5.0.8", "mpiexec -n RANKS"), (None, "no MPI found")],
)
def test_an_mpi_that_cannot_begin_is_an_error_on_all_ranks(library, said, monkeypatch):
    from dovetail.core import EnvironmentFault
    from dovetail.torch import mpi, ranks

    def shim():
        if library is None:
            raise EnvironmentFault("no MPI found")
        return SimpleNamespace(library=library)

    monkeypatch.setattr(mpi, "shim", shim)
    monkeypatch.setattr(mpi, "is_mpi_launched", lambda: False)
    for error in meet_in_vain(ranks, monkeypatch, transports=("mpi", "mpi")):
        assert said in error
        assert "2 ranks on 2 hosts" in error


@pytest.mark.parametrize(("asked", "said"), [("mpi sockets", "do not agree"), ("tcp tcp", "no transport 'tcp'")])
def test_transports_that_do_not_fit_are_an_error_on_all_ranks(asked, said, monkeypatch):
    from dovetail.torch import ranks

    for error in meet_in_vain(ranks, monkeypatch, transports=asked.split()):
        assert said in error
        assert "DOVETAIL_TORCH_TRANSPORT=sockets or mpi" in error


def test_a_host_that_cannot_be_reached_is_named_on_all_ranks(monkeypatch):
    from dovetail.run.shared import hosts
    from dovetail.torch import ranks

    monkeypatch.setattr(hosts, "own_addresses", list)
    monkeypatch.setattr(hosts, "ACCEPT_S", 0.2)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for error in meet_in_vain(ranks, monkeypatch):
        assert "the hosts cannot be connected" in error
        assert "rank 1 does not reach rank 0: tried no address" in error


def meet_in_vain(ranks, monkeypatch, transports=("", "")):
    """The errors of two ranks that cannot meet, as if on two hosts."""
    import torch.distributed as dist

    from dovetail.core import EnvironmentFault

    kept = ranks._exchange
    names = iter(["one boot", "other boot"])
    monkeypatch.setattr(ranks, "host", lambda: next(names))
    monkeypatch.setattr(ranks, "_exchange", lambda job, rank, size, limit_s, name, own: kept(
        job, rank, size, limit_s, name, transports[rank] if name == "transport" else own
    ))  # fmt: skip
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        began = [pool.submit(ranks.meet, store, rank, 2, 10.0) for rank in range(2)]
    errors = [each.exception() for each in began]
    assert [type(each) for each in errors] == [EnvironmentFault] * 2
    return [str(each) for each in errors]


@pytest.fixture
def two_hosts(monkeypatch):
    name = f"torch-{os.getpid()}"
    testbed = [sys.executable, TESTBED / "testbed", "--name", name]
    up = subprocess.run([*testbed, "up", "2", "1gbit"], capture_output=True, text=True, check=False)
    if up.returncode:
        pytest.skip(f"needs tc: {up.stderr}")
    monkeypatch.setenv("TESTBED_STATE", f"{os.environ.get('XDG_RUNTIME_DIR') or '/run'}/dovetail-testbed/{name}")
    yield testbed
    subprocess.run([*testbed, "down"], check=True)


@pytest.mark.testbed
@pytest.mark.slow
@pytest.mark.needs("root", "tc")
class TestHosts:
    def test_mpiexec(self, two_hosts, mpi):
        site = needs.ROOT / ".venv" / "lib" / PROGRAM_PYTHON / "site-packages"
        words = [*two_hosts, "run", "--env-dir", mpi.bin.parent, "--timeout", str(LIMIT_S), "-n", "2", "--", "env"]
        words += [f"TORCH_SITE={site}", "DOVETAIL_TORCH_TRANSPORT=mpi"] if mpi.name == "openmpi" else []
        printed, codes = end([begin([*words, "GLOO_SOCKET_IFNAME=eth0", "python", PROGRAM, "all"])])
        check_all_passed(printed, 2, "MpiRanks" if mpi.name == "openmpi" else "HostRanks")
        assert codes == [0], printed[-3000:]

    def test_torchrun(self, two_hosts):
        env = {"GLOO_SOCKET_IFNAME": "eth0"}
        words = ["-m", "torch.distributed.run", "--nnodes", "2", "--master-addr", "h1", "--master-port", "29400"]
        commands = [
            [TESTBED / "agent", f"h{node + 1}", sys.executable, *words, "--node-rank", str(node), PROGRAM, "all"]
            for node in range(2)
        ]
        printed, codes = end([begin(command, **env) for command in commands])
        check_all_passed(printed, 2, "HostRanks")
        assert codes == [0, 0], printed[-3000:]

    @pytest.mark.thorough
    def test_torchrun_starts_failed_ranks_anew(self, two_hosts, tmp_path):
        (program := tmp_path / "restarted.py").write_text(RESTARTED.replace("{folder}", str(tmp_path / "failed")))
        words = [
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "h1:29402",
        ]
        words += ["--rdzv-id", "job", "--max-restarts", "1", "--monitor-interval", "0.2", "--nproc-per-node", "1"]
        commands = [[TESTBED / "agent", f"h{node + 1}", sys.executable, *words, program] for node in range(2)]
        printed, codes = end([begin(each, GLOO_SOCKET_IFNAME="eth0") for each in commands])
        assert codes == [0, 0], printed[-3000:]
        assert "said barrier failed: rank 1 has died" in printed
        assert printed.count("<anew: [2.0, 2.0]>") == 2, printed[-3000:]

    def test_a_rank_of_another_host_dies(self, two_hosts):
        env = ["WORLD_SIZE=2", "MASTER_ADDR=h1", "MASTER_PORT=29401"]
        commands = [
            [TESTBED / "agent", f"h{rank + 1}", "env", f"RANK={rank}", *env, sys.executable, PROGRAM, "dies"]
            for rank in range(2)
        ]
        printed, _ = end([begin(command) for command in commands])
        check_death_was_named(printed, 2)


RESTARTED = """
import os
import torch, torch.distributed as dist, dovetail.torch
dist.init_process_group("dovetail")
dist.all_reduce(tensor := torch.ones(2))
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1 and not os.path.exists("{folder}"):
    os.mkdir("{folder}")
    os._exit(3)
try:
    dist.barrier()
except RuntimeError as error:
    print("said", str(error).splitlines()[0], flush=True)
    raise
print(f"<anew: {tensor.tolist()}>", flush=True)
dist.destroy_process_group()
"""
PROGRAM_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
