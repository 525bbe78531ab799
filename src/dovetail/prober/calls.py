"""calls: measure blocking calls of the MPI library with a C program."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from dovetail.core import EnvironmentFault, RunError, cache_dir, find_tool, native_folder
from dovetail.cost import as_measured
from dovetail.machine import Machine
from dovetail.prober.links import pairs_of
from dovetail.prober.take import as_samples
from dovetail.run.mpi.executor import OPEN_MPI, stop

SOURCE = native_folder("prober") / "calls.c"
MOST_BYTES = 1 << 20
LOOK_S = 0.05  # seconds between polls
SILENT_S = 120.0  # far more than one measurement takes, even with eight ranks at 100 Mbit/s


def probe_calls(machine: Machine, launch: str, most_bytes: int = MOST_BYTES, silent_s: float = SILENT_S) -> Machine:
    """Measure blocking calls of the MPI library.

    A C program makes the calls, as a user's program does. The executors cannot measure them: they call non-blocking
    collectives, which may take far longer.

    Parameters
    ----------
    machine : Machine
        Its ranks and links decide what is measured.
    launch : str
        Command that starts the ranks, with `{ranks}`.
    most_bytes : int
        Largest buffer.
    silent_s : float
        Seconds without output after which the measurement fails.

    Returns
    -------
    Machine
        With costs in seconds against bytes. `call:NAME:RANKS`: the collective MPI_NAME, by its largest buffer, with
        another root in each call. `call:NAME_again:RANKS`: the same root in all calls. `call:Send:KIND`: one way of a
        ping-pong. `call:Sendrecv:KIND`: messages in both directions at once.

    Raises
    ------
    RunError
        If a measurement fails or hangs. All processes are ended first.
    EnvironmentFault
        If the launcher cannot be started, or there is no mpicc.
    """
    command = [part.replace("{ranks}", str(machine.ranks)) for part in shlex.split(launch)]
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as place:  # a folder that all hosts share
        pairs = [f"{kind}:{a}:{b}" for kind, (a, b) in pairs_of(machine).items()]
        program = [compiled(SOURCE, Path(place) / "calls"), str(most_bytes), *pairs]
        lines = measured(command, program, Path(place), silent_s)
    rows = defaultdict(list)
    for line in lines:
        name, num_bytes, repeat, seconds = line.split()
        key = f"call:{name}" if ":" in name else f"call:{name}:{machine.ranks}"
        rows[key].append((float(num_bytes), float(seconds), int(repeat)))
    return machine.with_costs({key: as_measured(as_samples(found)).to_json() for key, found in rows.items()})


def measured(
    command: list[str],
    program: list[str],
    place: Path,
    silent_s: float,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Run the program by the command, in a new process group; return the lines that it prints.

    Raises RunError if it fails, or prints nothing for `silent_s`; EnvironmentFault if the launcher cannot be started.
    """
    printed, errors = place / "output.txt", place / "errors.txt"
    with printed.open("wb") as out, errors.open("wb") as err:
        env = {**OPEN_MPI, **os.environ, **environment}
        try:
            launcher = subprocess.Popen(
                [*command, *program], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
            )
        except OSError as error:
            raise EnvironmentFault(f"cannot start the launcher {command[0]}", found=error.strerror) from error
        try:
            _wait(launcher, printed, silent_s, shlex.join(command))
        finally:
            stop(launcher, place)
    if launcher.returncode:
        found = (errors.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise RunError(f"measuring collectives ended with {launcher.returncode}", found=found)
    return printed.read_text().splitlines()


def _wait(launcher: subprocess.Popen[bytes], printed: Path, silent_s: float, started_by: str) -> None:
    """Wait until the program ends. Raise RunError if it prints nothing for `silent_s`.

    Counts polls rather than seconds, so that time during which the machine was suspended does not count.
    """
    size, quiet = 0, 0
    while launcher.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(LOOK_S)
        now = printed.stat().st_size
        size, quiet = now, quiet + 1 if now == size else 0
        if quiet * LOOK_S > silent_s:
            name, num_bytes, *_ = [*(printed.read_text().splitlines() or [""])[-1].split(), "", ""]
            raise RunError(
                f"measuring collectives hangs: no measurement ended for {silent_s:g} s",
                found=f"the last to end was MPI_{name} of {num_bytes} bytes" if name else "not even the first ended",
                hint=f"check that `{started_by} hostname` ends and hosts reach each other, or try another --launch",
            )


def compiled(source: Path, target: Path, mpicc: str | None = None) -> str:
    """Compile a program by an mpicc, the installed one by default; return `target`. EnvironmentFault if that fails."""
    mpicc = mpicc or find_tool("mpicc")
    if mpicc is None:
        raise EnvironmentFault("there is no mpicc beside this Python or on PATH", hint="pip install 'dovetail[mpi]'")
    done = subprocess.run([mpicc, "-O2", str(source), "-o", str(target)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFault(f"{mpicc} could not compile {source.name}", found=done.stderr.strip()[-200:])
    return str(target)
