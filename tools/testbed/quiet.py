"""Run a command in a CPU group of great weight, and report how much of the machine others used meanwhile."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import priority

# 16 times an ordinary group. Not more: whoever is kept from running may hold a lock of the kernel's (memory is
# compacted for everyone), and a rank that needs it waits as long; with 256 times, ranks stood still for seconds.
V1_SHARES, V2_WEIGHT = 16_384, 1_600
GROUP_PREFIX = "dovetail-testbed-"  # then the pid of `quiet`
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def group_roots(mounts_text):
    """Folders in which to make a group: [v2 root] or the v1 [cpu, cpuacct] roots; [] where there are none."""
    v1, v2 = {}, []
    for line in mounts_text.splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup2" and "cpu" in read_words(f"{folder}/cgroup.subtree_control"):
            v2.append(Path(folder))
        elif kind == "cgroup":
            v1 |= {name: Path(folder) for name in options.split(",") if name in ("cpu", "cpuacct")}
    return v2[:1] or sorted(set(v1.values()))


def read_words(path):
    try:
        return Path(path).read_text().split()
    except OSError:
        return []


def counted_s(folder):
    """CPU seconds that a control group has used, or None where it does not count."""
    if nanoseconds := read_words(folder / "cpuacct.usage"):
        return int(nanoseconds[0]) / 1e9
    words = read_words(folder / "cpu.stat")
    return int(words[words.index("usage_usec") + 1]) / 1e6 if "usage_usec" in words else None


def empty_out(folder):
    """Remove a group; members that outlived its command go back to the parent."""
    for pid in read_words(folder / "cgroup.procs"):
        with contextlib.suppress(OSError):  # ended meanwhile
            (folder.parent / "cgroup.procs").write_text(pid)
    with contextlib.suppress(OSError):  # removed meanwhile
        folder.rmdir()


def remove_stale():
    """Groups whose `quiet` was killed."""
    for root in group_roots(Path("/proc/mounts").read_text()):
        for folder in root.glob(GROUP_PREFIX + "*"):
            if not Path("/proc", folder.name.removeprefix(GROUP_PREFIX)).exists():
                empty_out(folder)


class CpuGroup:
    """The control group of one command; without any folder it does nothing."""

    def __init__(self, roots):
        self.folders = []
        for root in roots:
            folder = root / f"{GROUP_PREFIX}{os.getpid()}"
            try:
                folder.mkdir()
            except OSError:
                continue
            self.folders.append(folder)
            for name, weight in (("cpu.weight", V2_WEIGHT), ("cpu.shares", V1_SHARES)):
                if (folder / name).exists():
                    (folder / name).write_text(str(weight))

    @property
    def weighted(self):
        return any((folder / name).exists() for folder in self.folders for name in ("cpu.weight", "cpu.shares"))

    def join(self):
        """Called in the child between fork and exec; its children are born into the group."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def used_s(self):
        """CPU seconds of all members so far; of this process's ended children where no group counts."""
        for folder in self.folders:
            if (used_s := counted_s(folder)) is not None:
                return used_s
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    def everyone_used_s(self):
        """The same for the parent of the group, which holds all processes; else from the machine's ticks."""
        for folder in self.folders:
            if (used_s := counted_s(folder.parent)) is not None:
                return used_s
        return machine_seconds()[0]

    def close(self):
        for folder in self.folders:
            empty_out(folder)
        self.folders = []


def machine_seconds():
    """(busy, of which interrupt work, stolen by the hypervisor): CPU seconds since boot, all CPUs."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, read_words("/proc/stat")[1:9])
    busy = user + nice + system + irq + softirq
    return busy / TICKS_PER_S, (irq + softirq) / TICKS_PER_S, steal / TICKS_PER_S


def packet_thread_s():
    """CPU seconds of ksoftirqd: work for somebody's packets, here the command's."""
    spent = [read_words(f"/proc/{pid}/schedstat")[:1] for pid in priority.packet_threads()]
    return sum(int(words[0]) for words in spent if words) / 1e9


def snapshot(group):
    """Counters, in seconds: wall, everyone, the command, ksoftirqd, busy, interrupts, stolen."""
    return time.monotonic(), group.everyone_used_s(), group.used_s(), packet_thread_s(), *machine_seconds()


def run(command, max_foreign_percent):
    """Run it; returns its exit code, or 1 when it succeeded but others used more than the limit."""
    remove_stale()
    group = CpuGroup(group_roots(Path("/proc/mounts").read_text()))
    if not group.weighted:
        print("testbed: no CPU control group here: the command runs with ordinary weight", file=sys.stderr)
    try:
        before = snapshot(group)
        code = wait_through_signals(subprocess.Popen(command, preexec_fn=group.join))
        after = snapshot(group)
    finally:
        group.close()
    foreign = report(*(b - a for a, b in zip(before, after, strict=True)))
    if code == 0 and max_foreign_percent is not None and foreign > max_foreign_percent:
        print(f"testbed: others used more than --max-foreign {max_foreign_percent:g} %", file=sys.stderr)
        return 1
    return code


def report(wall_s, everyone_s, own_s, packets_s, _busy_s, interrupts_s, stolen_s):
    """Say who used the machine; returns the share of others in percent."""
    cpus = os.cpu_count()
    percent = 100 / (wall_s * cpus)
    foreign = max(0.0, everyone_s - own_s - packets_s) * percent
    print(
        f"testbed: {wall_s:.1f} s; of {cpus} CPUs the command used {own_s * percent:.0f} %, others {foreign:.1f} % "
        f"(interrupts {interrupts_s * percent:.1f} %, whoever they met; stolen {stolen_s * percent:.1f} %)",
        file=sys.stderr,
    )
    return foreign


def wait_through_signals(child):
    """The child's exit code. Ctrl-C reaches the child by itself, other requests to end are handed on; here
    they must not end the waiting."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: child.send_signal(number))
    signal.signal(signal.SIGINT, lambda *_: None)
    code = child.wait()
    return code if code >= 0 else 128 - code
