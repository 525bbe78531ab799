"""Bring the hosts up as sets of namespaces, and take everything down again."""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import links
import priority
import quiet
import state
from state import TestbedError, command

HERE = Path(__file__).resolve().parent
READY_TIMEOUT_S = 20


def namespaces(name):
    """Network namespaces of the testbed, from the system itself: also those of a half-built one."""
    folder = Path("/run/netns")
    prefix = state.namespace_prefix(name)
    return sorted(path.name for path in folder.glob(prefix + "*")) if folder.is_dir() else []


def pids_in(namespace):
    """Processes of one network namespace; none when it is gone or half-made."""
    done = subprocess.run(["ip", "netns", "pids", namespace], text=True, capture_output=True)
    return [int(word) for word in done.stdout.split()]


def take_down(name):
    """Kill all processes of the testbed, delete its namespaces and state; done twice, it does nothing."""
    deadline_s = time.monotonic() + 10
    while pids := [pid for space in namespaces(name) for pid in pids_in(space)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise TestbedError(f"processes {pids} do not end", f"testbed {name!r}", "testbed down again")
        time.sleep(0.02)
    for space in namespaces(name):
        command("ip", "netns", "del", space)
    state.forget(name)
    quiet.remove_stale()
    if not state.names_up():
        priority.off()


def bring_up(testbed):
    """Namespaces, cables, then the first process of each host; a failure leaves nothing behind."""
    take_down(testbed.name)
    try:
        folder = state.state_dir(testbed.name)
        folder.mkdir(parents=True)
        write_files(testbed, folder)
        for host in ["switch", "head", *testbed.host_names]:
            command("ip", "netns", "add", testbed.namespace(host))
        links.lay(testbed)
        start_hosts(testbed, folder)
        state.save(testbed)
        priority.on()
    except BaseException:
        take_down(testbed.name)
        raise


def write_files(testbed, folder):
    rows = ["127.0.0.1 localhost", "10.76.0.254 head"]
    rows += [f"10.76.0.{i} {host}" for i, host in enumerate(testbed.host_names, 1)]
    (folder / "hosts").write_text("\n".join(rows) + "\n")
    for host in testbed.host_names:
        (folder / f"{host}.boot_id").write_text(f"{uuid.uuid4()}\n")


def start_hosts(testbed, folder):
    """One sleeping first process per host. The head keeps the outer pid namespace: from inside a host's
    own, the other hosts could not be entered."""
    names = {"head": "--uts --mount"}
    names |= dict.fromkeys(testbed.host_names, "--uts --mount --ipc --pid --fork --kill-child")
    for host, unshare in names.items():
        kind = "head" if host == "head" else "host"
        words = ["ip", "netns", "exec", testbed.namespace(host), "unshare", *unshare.split()]
        words += ["/bin/sh", str(HERE / "host_init"), kind, host, str(folder)]
        with open(folder / f"{host}.log", "w") as log:
            null = subprocess.DEVNULL
            subprocess.Popen(words, stdin=null, stdout=log, stderr=log, cwd="/", start_new_session=True)
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    for host in names:
        while state.init_pid(testbed, host) is None:
            if time.monotonic() > deadline_s:
                said = " ".join((folder / f"{host}.log").read_text().split())
                raise TestbedError(f"host {host} did not start: {said or 'no message'}", "testbed up", "testbed check")
            time.sleep(0.005)
