"""Run a command in a CPU group of great weight, and tell how much of the machine others used meanwhile."""

import contextlib
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

V1_SHARES, V2_WEIGHT = 262_144, 10_000  # 256 and 100 times an ordinary group
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


class CpuGroup:
    """The control group of one command; without any folder it does nothing."""

    def __init__(self, roots):
        self.folders = []
        for root in roots:
            folder = root / f"dovetail-testbed-{os.getpid()}"
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
            if nanoseconds := read_words(folder / "cpuacct.usage"):
                return int(nanoseconds[0]) / 1e9
            words = read_words(folder / "cpu.stat")
            if "usage_usec" in words:
                return int(words[words.index("usage_usec") + 1]) / 1e6
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    def close(self):
        """Members that outlived the command go back to the parent group; the groups are removed."""
        for folder in self.folders:
            for pid in read_words(folder / "cgroup.procs"):
                with contextlib.suppress(OSError):  # ended meanwhile
                    (folder.parent / "cgroup.procs").write_text(pid)
            folder.rmdir()
        self.folders = []


def machine_seconds():
    """(busy, of which interrupt work, stolen by the hypervisor): CPU seconds since boot, all CPUs."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, read_words("/proc/stat")[1:9])
    busy = user + nice + system + irq + softirq
    return busy / TICKS_PER_S, (irq + softirq) / TICKS_PER_S, steal / TICKS_PER_S


def run(command, max_foreign_percent):
    """Run it; returns its exit code, or 1 when it succeeded but others used more than the limit."""
    group = CpuGroup(group_roots(Path("/proc/mounts").read_text()))
    if not group.weighted:
        print("testbed: no CPU control group here: the command runs with ordinary weight", file=sys.stderr)
    try:
        start_s, before, own_before = time.monotonic(), machine_seconds(), group.used_s()
        code = wait_through_interrupt(subprocess.Popen(command, preexec_fn=group.join))
        wall_s, after, own_s = time.monotonic() - start_s, machine_seconds(), group.used_s() - own_before
    finally:
        group.close()
    busy_s, interrupt_s, steal_s = (b - a for a, b in zip(before, after, strict=True))
    percent = 100 / (wall_s * os.cpu_count())
    foreign = max(0.0, busy_s - interrupt_s - own_s) * percent
    print(
        f"testbed: {wall_s:.1f} s; of {os.cpu_count()} CPUs the command used {own_s * percent:.0f} %, "
        f"others {foreign:.1f} %, interrupts {interrupt_s * percent:.1f} %, stolen {steal_s * percent:.1f} %",
        file=sys.stderr,
    )
    if code == 0 and max_foreign_percent is not None and foreign > max_foreign_percent:
        print(f"testbed: others used more than --max-foreign {max_foreign_percent:g} %", file=sys.stderr)
        return 1
    return code


def wait_through_interrupt(child):
    """The child's exit code; Ctrl-C reaches the child by itself, so here it only must not end the waiting."""
    while True:
        try:
            code = child.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            continue
