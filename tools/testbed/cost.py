"""What traffic at a rate costs the hosts' cores: a product on the receiving core, beside an exchange and alone."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import hosts
import state
from state import Testbed, TestbedError

HERE = Path(__file__).resolve().parent
LIMIT_S = 60
MOST_VARIED = 0.15
SCHEMA = "dovetail.testbed.cost/1"


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of two hosts that send to each other at the full rate; the core that is slowed more.

    `slowdown`: seconds of a product beside the traffic over those alone. `interrupts_per_s`: timers and calls from
    core to core, of a core. `varied`: most over least of the products alone, less one.
    """

    rate: str
    mtu: int
    slowdown: float
    gflop_per_s: float
    bytes_per_s: float
    interrupts_per_s: float
    varied: float

    def line(self):
        traffic = f"{self.rate}, frames of {self.mtu}: {self.bytes_per_s / 1e6:.1f} MB/s each way"
        alone = f"{self.gflop_per_s:.0f} GFLOP/s alone, {self.interrupts_per_s:.0f} interrupts/s"
        doubt = f"; disturbed, alone it varied by {self.varied:.0%}: repeat" if self.varied > MOST_VARIED else ""
        return f"{traffic} slow a product on the same core {self.slowdown:.2f} x ({alone}){doubt}"


def measure(rate, mtu, python):
    """The Cost of one rate, on two hosts of their own, each on one core; `python` has NumPy."""
    bed = Testbed(f"cost-{os.getpid()}", 2, rate, 1, "star", mtu, 0)
    with state.exclusive():
        hosts.bring_up(bed)
    try:
        found = exchange(bed, python)
    finally:
        with state.exclusive():
            hosts.take_down(bed.name)
    return Cost(rate, mtu, **max(found, key=lambda host: host["slowdown"]))


def exchange(bed, python):
    """What `traffic.py` says on either host."""
    cpus, running = sorted(os.sched_getaffinity(0)), []
    for i, (host, role) in enumerate(zip(bed.host_names, ("listen", "connect"), strict=True)):
        words = ["nsenter", "-t", str(state.init_pid(bed, host)), "-n", "--", "taskset", "-c", str(cpus[i % len(cpus)])]
        words += [str(python), str(HERE / "traffic.py"), role, "10.77.0.1"]
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(words, env=os.environ | threads, **pipes))
    try:
        said = [process.communicate(timeout=LIMIT_S) for process in running]
    except subprocess.TimeoutExpired:
        raise TestbedError("the traffic between two hosts does not end", "testbed check") from None
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, said, strict=True):
        if process.returncode:
            why = errors.strip().splitlines()[-1:] or ["no message"]
            raise TestbedError(
                f"the traffic between two hosts failed: {why[0]}", str(python), "--env-dir VENV with NumPy"
            )
    return [json.loads(out) for out, _ in said]
