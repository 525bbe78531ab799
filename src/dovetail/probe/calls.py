"""calls: what blocking collectives of the MPI library take, measured in C as programs call them."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from dovetail.core import EnvironmentFault, RunError, cache_dir, find_tool
from dovetail.cost import fit
from dovetail.machine import Machine
from dovetail.probe.take import as_samples
from dovetail.run.mpi import OPEN_MPI

SOURCE = Path(__file__).with_suffix(".c")
MOST_BYTES = 1 << 20


def probe_calls(machine: Machine, launch: str, most_bytes: int = MOST_BYTES) -> Machine:
    """The machine with the costs `call:NAME:RANKS` of MPI_NAME, by its largest buffer, on as many ranks as it has.

    `launch` starts them, as executors do. Our engine calls the library's non-blocking collectives, which may take far
    longer than these.
    """
    command = [part.replace("{ranks}", str(machine.ranks)) for part in shlex.split(launch)]
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as place:  # where all hosts find it
        command += [_compiled(Path(place) / "calls"), str(most_bytes)]
        done = subprocess.run(command, env=OPEN_MPI | os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        found = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"measuring collectives ended with {done.returncode}", found=found)
    rows = defaultdict(list)
    for line in done.stdout.splitlines():
        name, num_bytes, repeat, seconds = line.split()
        rows[name].append((float(num_bytes), float(seconds), int(repeat)))
    costs = {f"call:{name}:{machine.ranks}": fit(as_samples(found)).to_json() for name, found in rows.items()}
    return machine.with_costs(costs)


def _compiled(target: Path) -> str:
    """The program, by the mpicc at hand."""
    mpicc = find_tool("mpicc")
    if mpicc is None:
        raise EnvironmentFault("there is no mpicc beside this Python or on PATH", hint="pip install 'dovetail[mpi]'")
    done = subprocess.run([mpicc, "-O2", str(SOURCE), "-o", str(target)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFault(f"{mpicc} could not compile {SOURCE.name}", found=done.stderr.strip()[-200:])
    return str(target)
