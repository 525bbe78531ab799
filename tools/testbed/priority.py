"""Real-time priority for the kernel's packet threads, so that busy ranks do not delay the shaper by whole ticks."""

import os
from pathlib import Path

from state import TestbedError


def packet_threads():
    """Pids of ksoftirqd/<cpu>."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().startswith("ksoftirqd/"):
                found.append(int(path.parent.name))
        except OSError:
            pass  # ended meanwhile
    return sorted(found)


def set_policy(policy, level):
    for pid in packet_threads():
        try:
            os.sched_setscheduler(pid, policy, os.sched_param(level))
        except PermissionError as error:
            raise TestbedError("ksoftirqd's priority may not be changed", f"pid {pid}", "run as root") from error


def on():
    set_policy(os.SCHED_FIFO, 1)


def off():
    set_policy(os.SCHED_OTHER, 0)


def is_on():
    threads = packet_threads()
    return bool(threads) and all(os.sched_getscheduler(pid) == os.SCHED_FIFO for pid in threads)
