"""Whether results are right: tests/cuda_checks.py in processes of their own, and collectives at full size."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.collective import build
from dovetail.ir import Slot, Workload
from dovetail.run.cuda_device import DeviceMemory
from dovetail.run.cuda_runs import InterpretedRun, fill, outputs
from dovetail.run.interpreter import PROTOCOLS, Layout
from dovetail.run.options import RunOptions

ROOT = Path(__file__).resolve().parents[2]
# Of tests/cuda_checks.py, most telling first: what one breaks on the device does not harm the next.
PARTS = (
    "algorithm and ring",
    "TestProducts and right",
    "every_reduction",
    "TestProducts and not right",
    "TestArrays or TestFaults or plain_sum or copy_engines",
    "on_streams",
    "TestMovement and not on_streams and not every_reduction and not (algorithm and ring)",
)
# As nothing of the project's own settings needs: its plugins may be absent.
PYTEST = ("-m", "pytest", "-c", "/dev/null", "--rootdir=.", "--noconftest", "--import-mode=importlib")
MORE = ("-v", "-ra", "--tb=short", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60", "tests/cuda_checks.py")


def checks(setting: Any) -> Iterator[dict[str, Any]]:
    """The tests of tests/cuda_checks.py on this device: every algorithm, protocol, dtype, family and fault."""
    for part in PARTS[: 1 if setting.small else None]:
        yield ran(setting, [], part, setting.left_s)


def sanitized(setting: Any) -> Iterator[dict[str, Any]]:
    """A few of them again under compute-sanitizer, which finds accesses that are out of bounds."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        yield {"line": "no compute-sanitizer here"}
        return
    under = [tool, "--tool", "memcheck", "--error-exitcode", "9", "--target-processes", "all"]
    for part in ("algorithm and ring_all_reduce", "every_reduction and float16", "right and 2-AllGather"):
        yield ran(setting, under, part, setting.left_s)


def ran(setting: Any, under: list[str], part: str, limit_s: float) -> dict[str, Any]:
    """One process of pytest, all that it says kept in checks.log; how it ended, and what failed."""
    log = setting.out / "checks.log"
    begin, ended = time.monotonic(), "ran out of time"
    command = [*under, sys.executable, *PYTEST, *MORE, "-k", part]
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    how: dict[str, Any] = {"cwd": ROOT, "check": False, "env": os.environ | {"PYTHONPATH": paths}}
    with log.open("a") as file:
        print(f"\n==> {' '.join(command)}", file=file, flush=True)
        start = file.tell()
        try:
            done = subprocess.run(command, stdout=file, stderr=file, timeout=max(limit_s, 1), **how)
            ended = "passed" if done.returncode == 0 else f"failed with code {done.returncode}"
        except subprocess.TimeoutExpired:
            pass
    said = log.read_text(errors="replace")[start:]
    counts = " ".join(re.findall(r"\d+ (?:passed|failed|errors?|skipped)", said.splitlines()[-1] if said else ""))
    failed = [line[:300] for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    last = [] if ended == "passed" or failed else said.strip().splitlines()[-3:]
    first = f"{' '.join([*under[:1], part])}: {ended} ({counts or 'nothing counted'})"
    line, took_s = "\n    ".join([first, *failed[:8], *last]), round(time.monotonic() - begin, 1)
    return {"part": part, "bad": ended != "passed", "failed": failed, "took_s": took_s, "line": line}


def full_size(setting: Any) -> Iterator[dict[str, Any]]:
    """all_reduce of 8 ranks over many tiles, again and again, every element against the sum: races show here."""
    elements, repeats = (1000, 2) if setting.small else ((3 << 20) + 40, 6)
    for name in ("ring_all_reduce", "all_pairs_all_reduce", "double_tree_all_reduce"):
        for protocol in PROTOCOLS:
            if setting.left_s > 3:
                yield agreed(setting, name, protocol, elements, repeats)


def agreed(setting: Any, name: str, protocol: str, elements: int, repeats: int) -> dict[str, Any]:
    asked = build(name, 8)
    each = max(elements // asked.buffers[0].slots[0], 1)
    slots = {buffer.name: (Slot((each,), "int32"),) * asked.num_ranks for buffer in asked.buffers}
    memory = DeviceMemory(setting.gpu, asked, Workload(slots))
    bound, wrong = InterpretedRun(memory, Layout(protocol), RunOptions(stall_s=5, spans=False)), []
    given = [buffer for buffer in asked.buffers if buffer.role == "input"]
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        shapes = [(slots_of, each) for slots_of in given[0].slots]
        inputs = {given[0].name: [rng.integers(-1000, 1000, shape, np.int32) for shape in shapes]}
        fill(memory, inputs)
        bound.run()
        total = np.sum(inputs[given[0].name], axis=0, dtype=np.int32)
        held = outputs(memory, RunOptions())[asked.posts[0].region.buffer]
        wrong.append(sum(int((array != total).sum()) for array in held))
    used = PROTOCOLS[bound.bound.facts()[-1]]
    line = f"{name}, {used}, {each * given[0].slots[0]} int32: " + (
        "right" if not any(wrong) else f"WRONG elements in each of {repeats} runs: {wrong}"
    )
    return {"name": name, "protocol": used, "bad": any(wrong), "wrong": wrong, "line": line}
