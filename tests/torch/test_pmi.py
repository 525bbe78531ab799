"""PMI-1, served to an MPI of this process: answers, and what ranks put and get."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.needs("torch")
LIMIT_S = 20.0


class Exchange:
    """All ranks' texts by name."""

    def __init__(self, size):
        self.size, self.texts, self.changed = size, {}, threading.Condition()

    def by(self, rank):
        def exchange(name, own):
            with self.changed:
                self.texts.setdefault(name, {})[rank] = own
                self.changed.notify_all()
                assert self.changed.wait_for(lambda: len(self.texts[name]) == self.size, LIMIT_S)
                return [self.texts[name][each] for each in range(self.size)]

        return exchange


class Client:
    """The side of MPI."""

    def __init__(self, server):
        with server.environment():
            self.environ = {name: os.environ[name] for name in ("PMI_FD", "PMI_RANK", "PMI_SIZE")}
            self.has_others = "PMIX_RANK" in os.environ
        self.line = socket.socket(fileno=os.dup(int(self.environ["PMI_FD"])))
        self.line.settimeout(LIMIT_S)
        self.lines = self.line.makefile("r")

    def ask(self, text):
        self.line.sendall(text.encode() + b"\n")
        return self.lines.readline().strip()


@pytest.fixture
def clients(monkeypatch):
    from dovetail.torch.pmi import Server

    monkeypatch.setenv("PMI_RANK", "7")
    monkeypatch.setenv("PMIX_RANK", "7")
    exchange = Exchange(2)
    servers = [Server(rank, 2, "job_x", ["a", "b"], exchange.by(rank)) for rank in range(2)]
    made = [Client(server) for server in servers]
    yield servers, made
    for each in [line for client in made for line in (client.lines, client.line)]:
        each.close()
    for server in servers:
        server._own.shutdown(socket.SHUT_RDWR)  # its thread ends
        server._own.close()
        server._theirs.close()


def test_mpi_finds_the_server_in_place_of_a_launcher(clients):
    _, found = clients
    assert [each.environ["PMI_RANK"] for each in found] == ["0", "1"]
    assert {each.environ["PMI_SIZE"] for each in found} == {"2"}
    assert not any(each.has_others for each in found)
    assert (os.environ["PMI_RANK"], os.environ["PMIX_RANK"]) == ("7", "7"), "as before"
    assert "PMI_FD" not in os.environ


def test_ranks_get_what_others_put_before_the_barrier(clients):
    _, found = clients
    assert found[0].ask("cmd=init pmi_version=1 pmi_subversion=1").startswith("cmd=response_to_init")
    assert "kvsname=job_x" in found[0].ask("cmd=get_my_kvsname")
    assert "value=(vector,(0,1,1),(1,1,1))" in found[1].ask("cmd=get kvsname=job_x key=PMI_process_mapping")
    for rank, each in enumerate(found):
        assert "rc=0" in each.ask(f"cmd=put kvsname=job_x key=at-{rank} value=addr=#{rank}")
    assert "rc=-1" in found[1].ask("cmd=get kvsname=job_x key=at-0")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda each: each.ask("cmd=barrier_in"), found)) == ["cmd=barrier_out rc=0"] * 2
    assert found[1].ask("cmd=get kvsname=job_x key=at-0").endswith("value=addr=#0")
    assert found[0].ask("cmd=finalize") == "cmd=finalize_ack rc=0"


def test_the_last_question_is_answered_in_advance(clients):
    servers, found = clients
    servers[0].close()
    assert found[0].lines.readline() == "cmd=finalize_ack rc=0\n"
    assert "rc=-1" in found[0].ask("cmd=unheard_of")
