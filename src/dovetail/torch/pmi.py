"""pmi: start MPICH, or an MPI of its kind, in processes that torchrun has started.

Such an MPI asks its launcher for a process's rank and for the addresses of other ranks, by lines of text over a socket
(PMI-1: https://github.com/pmodels/mpich/blob/main/src/pm/hydra/modules/pmi/maint/pmi-1.1.txt). Here a thread of the
process itself answers, from keys that the ranks exchange in torch's store.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from dovetail.core import RunError
from dovetail.run.shared.hosts import Exchange

LAUNCHERS_PREFIXES = ("PMI", "HYDI_", "HYDRA_", "MPI_LOCAL")  # of variables by which a launcher leads MPI to it
LIMITS = "kvsname_max=256 keylen_max=64 vallen_max=1024"


class Server:
    """Answers the MPI of this process.

    Parameters
    ----------
    rank, size : int
        Of this process, and of all.
    job : str
        A name that no other job on these hosts has: MPICH names its shared memory by it.
    hosts : sequence of str
        The host of each rank.
    exchange : callable
        See `Exchange`.
    """

    def __init__(self, rank: int, size: int, job: str, hosts: Sequence[str], exchange: Exchange) -> None:
        self._rank, self._size, self._job, self._exchange = rank, size, job, exchange
        self._known, self._new = {"PMI_process_mapping": mapping_of(hosts)}, dict[str, str]()
        self._num_barriers = 0
        self._own, self._theirs = socket.socketpair()
        threading.Thread(target=self._serve, name="dovetail pmi", daemon=True).start()

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Set the variables by which MPI finds this server, in place of those of a launcher around torchrun."""
        before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(LAUNCHERS_PREFIXES)}
        own = {"PMI_FD": self._theirs.fileno(), "PMI_RANK": self._rank, "PMI_SIZE": self._size}
        os.environ |= {name: str(value) for name, value in own.items()}
        try:
            yield
        finally:
            for name in own:
                del os.environ[name]
            os.environ |= before

    def close(self) -> None:
        """Answer MPI's last question in advance: MPICH asks it when the process ends, after Python's threads."""
        self._own.sendall(b"cmd=finalize_ack rc=0\n")

    def _serve(self) -> None:
        with suppress(OSError), self._own.makefile("r") as asked:
            for line in asked:
                words = dict(word.partition("=")[::2] for word in line.split())
                try:
                    answer = self._answer(words)
                except RunError as error:
                    print(f"dovetail: MPI does not start: {error}", file=sys.stderr, flush=True)  # noqa: T201
                    os._exit(1)  # MPI would wait for ever
                self._own.sendall(answer.encode() + b"\n")

    def _answer(self, asked: dict[str, str]) -> str:
        key = asked.get("key", "")
        match asked.get("cmd"):
            case "init":
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_maxes":
                return f"cmd=maxes {LIMITS} rc=0"
            case "get_appnum":
                return "cmd=appnum appnum=0 rc=0"
            case "get_my_kvsname":
                return f"cmd=my_kvsname kvsname={self._job} rc=0"
            case "get_universe_size":
                return f"cmd=universe_size size={self._size} rc=0"
            case "put":
                self._new[key] = asked["value"]
                return "cmd=put_result rc=0 msg=success"
            case "get" if key in self._known:
                return f"cmd=get_result rc=0 msg=success value={self._known[key]}"
            case "get":
                return f"cmd=get_result rc=-1 msg=key_{key}_not_found value=unknown"
            case "barrier_in":
                self._meet()
                return "cmd=barrier_out rc=0"
            case "finalize":
                return "cmd=finalize_ack rc=0"
            case "abort":
                os._exit(int(asked.get("exitcode", "1")) or 1)
            case other:
                return f"cmd={other} rc=-1 msg=unknown_command"

    def _meet(self) -> None:
        """Give what this rank has put to all ranks, and wait for theirs."""
        self._num_barriers += 1
        for text in self._exchange(f"pmi.{self._num_barriers}", json.dumps(self._new)):
            self._known |= json.loads(text)
        self._new = {}


def mapping_of(hosts: Sequence[str]) -> str:
    """Return which ranks share a host, as MPICH reads it: a vector of (first host, hosts, ranks on each).

    >>> mapping_of(["a", "a", "b"])
    '(vector,(0,1,2),(1,1,1))'
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    blocks: list[list[int]] = []
    for host in hosts:
        if blocks and blocks[-1][0] == numbers[host]:
            blocks[-1][1] += 1
        else:
            blocks.append([numbers[host], 1])
    return f"(vector,{','.join(f'({host},1,{count})' for host, count in blocks)})"
