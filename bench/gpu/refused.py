"""Bad input on a device is refused with words, before anything is launched."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.collective import build
from dovetail.core import DovetailError
from dovetail.ir import Program, Slot, Workload
from dovetail.ir.shapes import ring_all_reduce
from dovetail.run.cuda.device import DeviceMemory
from dovetail.run.cuda.runs import InterpretedRun
from dovetail.run.interpreter import Layout

OLD = """int cuDriverGetVersion(int *version) { return *version = 11040, 0; }
"""
OPEN = """from dovetail.core import DovetailError
from dovetail.run.cuda.device import Gpu
try:
    print("it was opened:", Gpu().facts())
except DovetailError as error:
    print(error)
"""


def refusals(setting: Any) -> Iterator[dict[str, Any]]:
    """What is said to each kind of bad input; `bad` where it is something else, or nothing."""
    cases: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("more bytes than there are", "too little memory", too_large),
        ("more lanes than can be resident", "threadblocks of 512 threads", too_wide),
        ("an array of the host", "is on another device", elsewhere),
        ("a driver of CUDA 11.4", "the CUDA driver is too old", old_driver),
    )
    for name, words, attempt in cases:
        try:
            said = attempt(setting)
        except DovetailError as error:
            said = str(error)
        bad = words not in said
        lines = "\n    ".join(line.strip() for line in said.splitlines())
        yield {"name": name, "said": said, "bad": bad, "line": f"{name}: {'WRONG: ' if bad else ''}{lines}"}


def alike(asked: Program, size: int) -> Workload:
    return Workload({buffer.name: (Slot((size,), "int8"),) * asked.num_ranks for buffer in asked.buffers})


def too_large(setting: Any) -> str:
    huge = ring_all_reduce(2, 1)
    DeviceMemory(setting.gpu, huge, alike(huge, 1 << 46))
    return "2^46 bytes were given"


def too_wide(setting: Any) -> str:
    most = 4 * setting.gpu.facts()["multiprocessors"]  # of 512 threads: one has 2048
    wide = build("ring_all_reduce", 8, instances=most // 8 + 1)
    InterpretedRun(DeviceMemory(setting.gpu, wide, alike(wide, 1)), Layout(threads=512))
    return f"{len(wide.queues())} lanes of 512 threads were taken"


def elsewhere(setting: Any) -> str:
    ring = ring_all_reduce(2, 1)
    name, workload = ring.buffers[0].name, alike(ring, 6)
    DeviceMemory(setting.gpu, ring, workload, {(name, 0): np.zeros((2, 6), np.int8)})
    return "it was taken"


def old_driver(setting: Any) -> str:
    """A process of its own, which finds a library that says so in the driver's place."""
    del setting
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "old.c"
        source.write_text(OLD)
        made = ["cc", "-shared", "-fPIC", "-o", str(Path(folder) / "libcuda.so.1"), str(source)]
        paths = os.pathsep.join([folder, os.environ.get("LD_LIBRARY_PATH", "")])
        try:
            subprocess.run(made, check=True, capture_output=True, timeout=30)
            how: dict[str, Any] = {"env": os.environ | {"LD_LIBRARY_PATH": paths}, "capture_output": True, "text": True}
            opened = subprocess.run([sys.executable, "-c", OPEN], check=False, timeout=60, **how)
        except (OSError, subprocess.SubprocessError) as error:
            return f"not tried: {error}"
        return (opened.stdout or opened.stderr).strip()
