"""Soak: random collectives on random executors, and ranks that die: `python tools/soak.py --minutes 20`.

Fails on a job that does not end, a wrong number, an error that does not name the dead rank, or a leak: memory and open
files of this process, names in /dev/shm. Prints the seed of each job that failed; `--seed` repeats it.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from dovetail.collective import ALGORITHMS, PROTOCOLS, build
from dovetail.core import DovetailError, OperatorError
from dovetail.run import measure
from dovetail.run.executor import executor_on

LIMIT_S = 120  # of one job
DTYPES = ("float16", "float32", "float64")
ON = ("threads", "numpy", "shared")
WARM = 20  # jobs before memory is compared
MOST_GROWTH = 64 << 20
DYING = """
import os, signal, sys
import numpy as np
import dovetail as dt
comm = dt.world()
for call in range(50):
    if comm.rank == {rank} and call == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    dt.{kind}(np.ones({size}), comm)
"""


def job(seed: int) -> str:
    """Run one random collective; return its name. Raises AssertionError for a wrong number."""
    rng = random.Random(seed)
    name, ranks, on = rng.choice([*ALGORITHMS]), rng.randint(1, 4), rng.choice(ON)
    options = {"instances": rng.randint(1, 2), "protocol": rng.choice([*PROTOCOLS]), "channels": rng.randint(1, 2)}
    try:
        program = build(name, 8 if name.startswith("sccl") else ranks, **options)
    except OperatorError:  # an option that this algorithm does not have
        program = build(name, 8 if name.startswith("sccl") else ranks)
    size, dtype = 1 << rng.randint(3, 21), rng.choice(DTYPES)
    found = measure(program, size, dtype, executor=executor_on(on), rounds=1, budget_s=5.0, seed=seed)["timed"]
    assert not found.is_wrong, f"{name} on {ranks} ranks, {size} bytes {dtype}, on {on}: wrong by {found.max_rel_error}"
    return f"{on}: {name}"


def fault(seed: int) -> str:
    """Kill a rank between calls; return what was tried. Raises AssertionError unless the command ends and names it."""
    rng = random.Random(seed)
    kind, ranks = rng.choice(("all_reduce", "all_gather", "broadcast")), rng.randint(2, 4)
    rank = rng.randrange(ranks)
    code = DYING.format(kind=kind, rank=rank, call=rng.randint(1, 40), size=1 << rng.randint(0, 17))
    command = [sys.executable, "-m", "dovetail", "launch", "--ranks", str(ranks), "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode != 0, f"{kind} on {ranks} ranks went on without rank {rank}"
    assert f"rank {rank}" in done.stderr, f"rank {rank} died, and nobody says so: {done.stderr[-500:]}"
    return f"killed: {kind}"


def held() -> tuple[int, int, int]:
    """Return the bytes of memory and the open files of this process, and the names of ours in /dev/shm."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir("/proc/self/fd")), sum("dovetail" in name for name in os.listdir("/dev/shm"))


def late(*_: object) -> None:
    raise TimeoutError(f"no end within {LIMIT_S} s")


def soak(seconds: float, seed: int) -> int:
    """Run jobs for so long; print counts and failures; return the number of failures."""
    signal.signal(signal.SIGALRM, late)
    end, done, failed, before = time.monotonic() + seconds, Counter[str](), 0, held()
    while time.monotonic() < end:
        signal.alarm(LIMIT_S)
        try:
            done[(fault if random.Random(seed).random() < 0.15 else job)(seed).partition(":")[0]] += 1
        except (AssertionError, TimeoutError, DovetailError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
        signal.alarm(0)
        seed += 1
        if done.total() == WARM:
            gc.collect()
            before = held()
    gc.collect()
    after = held()
    grown = after[0] - before[0]
    for what, leaked in (
        ("memory", grown > MOST_GROWTH),
        ("files", after[1] > before[1] + 2),
        ("/dev/shm", after[2] > before[2]),
    ):
        failed += leaked
        print(f"{what}: {before} -> {after}" if leaked else f"{what}: no leak")
    print(", ".join(f"{count} {what}" for what, count in done.items()), f"{grown >> 20} MiB more", sep="; ")
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    sys.exit(min(soak(60 * asked.minutes, asked.seed), 1))
