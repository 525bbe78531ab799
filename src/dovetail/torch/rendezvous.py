"""rendezvous: where rank 0 serves torch's store, agreed on by ranks that a launcher of MPI has started."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from dovetail.core import RunError
from dovetail.run.shared.environment import place_of
from dovetail.run.shared.stores import Job, wait_for
from dovetail.torch.launchers import Launcher, launcher_of
from dovetail.torch.mpi import job_by_launcher

ARRIVE_S = 60.0  # seconds for all ranks to start; $DOVETAIL_ARRIVE_S if ranks wait in a queue
_found: dict[str, str] = {}  # what this module has set


def fill_in_address(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set MASTER_ADDR and MASTER_PORT, where rank 0 will serve torch's store. All ranks call it together.

    Ranks of one host find the port in a folder; on several hosts MPI begins. Does nothing if others have set the two,
    or if no launcher of MPI has started this process. Each call finds a new port: the last store may still be served.
    """
    launcher = launcher_of(environ)
    given = {name: environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environ}
    if launcher is None or (len(given) == 2 and given != _found):
        return
    if environ.get("RANK") != environ[launcher.rank] or environ.get("WORLD_SIZE") != environ[launcher.ranks]:
        return  # the program has ranks of its own
    address, port = _on_this_host() if _is_one_host(environ, launcher) else _on_several_hosts()
    for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)):
        _found[name] = given[name] if name in given and given != _found else value
    environ.update(_found)


def _is_one_host(environ: MutableMapping[str, str], launcher: Launcher) -> bool:
    if launcher.on_host:
        return environ.get(launcher.on_host, environ[launcher.ranks]) == environ[launcher.ranks]
    return environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "1")) == "1"


def _on_this_host() -> tuple[str, str]:
    place, limit_s = place_of(), float(os.environ.get("DOVETAIL_ARRIVE_S") or ARRIVE_S)
    job = Job(place.store, place.rank, place.size, limit_s)
    if place.rank == 0:
        port = _free_port()
        job.set("port", port)
        wait_for(job, [f"read.{rank}" for rank in range(1, place.size)], limit_s)
        job.close()
        return "127.0.0.1", port
    (found,) = wait_for(job, ["port"], limit_s)
    if found is None:
        raise RunError(f"rank 0 did not come within {limit_s:.0f} s", hint="look at its output")
    job.set(f"read.{place.rank}", "")
    return "127.0.0.1", found


def _on_several_hosts() -> tuple[str, str]:
    watch = job_by_launcher().watch
    from mpi4py import MPI

    return watch.address, MPI.COMM_WORLD.bcast(_free_port(), 0)


def _free_port() -> str:
    with socket.create_server(("", 0)) as tried:
        return str(tried.getsockname()[1])
