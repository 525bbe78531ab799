"""Whether results are right: tests/run/cuda_checks.py in processes of their own, the corpus, full sizes, operators."""

from __future__ import annotations

import csv
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.collective import build
from dovetail.collective.msccl import read
from dovetail.core import DovetailError
from dovetail.ir import Agreement, Program, Schedule, Slot, Workload, verify
from dovetail.matmul import (
    AllGatherColumnsMatmul,
    AllGatherMatmul,
    AllToAllMatmul,
    MatmulAllReduce,
    MatmulAllToAll,
    MatmulReduceScatter,
)
from dovetail.run import execute, fresh_inputs
from dovetail.run.arrays import Array
from dovetail.run.check import check_outputs
from dovetail.run.cuda.device import DeviceMemory
from dovetail.run.cuda.runs import InterpretedRun, fill, outputs, run_streams
from dovetail.run.interpreter import PROTOCOLS, Layout
from dovetail.run.options import RunOptions

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
from product_runs import costs  # noqa: E402

OPERATORS = (
    MatmulAllReduce,
    AllGatherMatmul,
    MatmulReduceScatter,
    AllGatherColumnsMatmul,
    AllToAllMatmul,
    MatmulAllToAll,
)
# Of tests/run/cuda_checks.py, each in a process: what one breaks does not harm the next. Side by side, but for the
# last, whose tests take most of the memory, or ask what ends beside what.
PARTS = (
    "algorithm and ring",
    "TestProducts and right",
    "every_reduction",
    "TestProducts and not right",
    "on_streams",
    "TestMovement and not on_streams and not every_reduction and not algorithm",
    "algorithm and not ring",
    "TestArrays",
    "TestFaults or plain_sum or copy_engines or TestTraces",
)
SIZES = ((4, (256, 256, 256)), (8, (264, 250, 243)))  # of families: ranks, and m, k, n
STALL_S = 8  # of a lane; a test that stalls should cost its part no more
CORPUS = ("build/gpu/corpus", "shared/corpus/msccl", "../shared/corpus/msccl")  # from here; the first that is there
# As nothing of the project's own settings needs: its plugins may be absent.
PYTEST = ("-m", "pytest", "-c", "/dev/null", "--rootdir=.", "--noconftest", "--import-mode=importlib")
MORE = (
    "-v",
    "-ra",
    "--tb=short",
    "-p",
    "no:cacheprovider",
    "-o",
    "faulthandler_timeout=60",
    "tests/run/cuda_checks.py",
)


def checks(setting: Any) -> Iterator[dict[str, Any]]:
    """The tests of tests/run/cuda_checks.py on this device: every algorithm, protocol, dtype, family and fault."""
    *beside, last = PARTS[:2] if setting.small else PARTS
    for found in (*side_by_side(setting, [([], part) for part in beside]), ran(setting, [], last, setting.left_s)):
        del found["said"]
        yield found


def side_by_side(setting: Any, runs: Sequence[tuple[list[str], str]]) -> Iterator[dict[str, Any]]:
    """Several processes of pytest at once, in two thirds of the time that is left."""
    limit_s = max(setting.left_s * 2 / 3, 15.0)
    with ThreadPoolExecutor(len(runs)) as pool:
        yield from pool.map(lambda run: ran(setting, *run, limit_s), runs)


def sanitized(setting: Any) -> Iterator[dict[str, Any]]:
    """A few of them again under compute-sanitizer, which finds accesses that are out of bounds, threads that do not
    meet at a barrier, and races in memory that a threadblock shares."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        yield {"line": "no compute-sanitizer here: nothing was sanitized"}
        return
    parts = ("algorithm and ring_all_reduce", "every_reduction and float16", "right and 2-AllGather")
    tools = [*(("memcheck", part) for part in parts), ("synccheck", parts[0]), ("racecheck", parts[0])]
    under = ["--report-api-errors", "no", "--error-exitcode", "9", "--target-processes", "all"]
    runs = [([tool, "--tool", which, *under], part) for which, part in tools]
    for (which, part), found in zip(tools, side_by_side(setting, runs), strict=True):
        if "Device not supported" in found.pop("said"):
            yield {"part": part, "line": f"{which}: compute-sanitizer does not support this device"}
        else:
            yield {"tool": which, **found}


def ran(setting: Any, under: list[str], part: str, limit_s: float) -> dict[str, Any]:
    """One process of pytest, all that it says kept in checks.log; how it ended, and what failed."""
    begin, ended = time.monotonic(), "ran out of time"
    command = [*under, sys.executable, *PYTEST, *MORE, "-k", part]
    paths = os.pathsep.join([str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")])
    how: dict[str, Any] = {
        "cwd": ROOT,
        "check": False,
        "env": os.environ | {"PYTHONPATH": paths, "STALL_S": str(STALL_S)},
    }
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        print(f"\n==> {' '.join(command)}", file=file, flush=True)
        try:
            done = subprocess.run(command, stdout=file, stderr=file, timeout=max(limit_s, 1), **how)
            ended = "passed" if done.returncode == 0 else f"failed with code {done.returncode}"
        except subprocess.TimeoutExpired:
            pass
        file.seek(0)
        said = file.read()
    with (setting.out / "checks.log").open("a") as log:
        log.write(said)
    counts = " ".join(re.findall(r"\d+ (?:passed|failed|errors?|skipped)", said.splitlines()[-1] if said else ""))
    failed = [line[:300] for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    last = [] if ended == "passed" or failed else said.strip().splitlines()[-3:]
    first = f"{' '.join([*under[2:3], part])}: {ended} ({counts or 'nothing counted'})"
    line, took_s = "\n    ".join([first, *failed[:8], *last]), round(time.monotonic() - begin, 1)
    return {
        "part": part,
        "bad": ended != "passed",
        "failed": failed,
        "took_s": took_s,
        "said": said[-4000:],
        "line": line,
    }


def corpus(setting: Any) -> Iterator[dict[str, Any]]:
    """Every valid file of the corpus, in three sizes, by all protocols: equal to the reference, to the bit."""
    place = next((ROOT / each for each in CORPUS if (ROOT / each / "INDEX.tsv").exists()), None)
    if place is None:
        yield {"line": f"no corpus here: copy it to {CORPUS[0]}"}
        return
    with (place / "INDEX.tsv").open() as file:
        verdicts = {row["file"]: row["validity (independent checker)"] for row in csv.DictReader(file, delimiter="\t")}
    files = [name for name, said in verdicts.items() if name.endswith(".xml") and is_valid(said)]
    wrong, ran_of = [], 0
    files = files[: 3 if setting.small else None]
    for name in files:
        if setting.left_s < 3:
            break
        row = one_file(setting, name, (place / name).read_text())
        ran_of += 1
        wrong += [name] if row["bad"] else []
        yield row
    line = f"{ran_of} of {len(files)} valid files, 3 sizes, {len(PROTOCOLS)} protocols: " + (
        f"WRONG: {', '.join(wrong)}" if wrong else "equal to the reference, to the bit"
    )
    yield {"files": len(files), "ran": ran_of, "bad": ran_of < len(files), "line": line}


def is_valid(said: str) -> bool:
    return said.startswith("valid") and not said.startswith("valid only with")


def one_file(setting: Any, name: str, text: str) -> dict[str, Any]:
    """Its line only where something is wrong: there are many files."""
    try:
        asked = read(text).program
        asked = asked.with_depth(max(verify(asked).min_fifo_depth, 2))
        found = [f for elements in (1, 5, 65) for f in unlike_reference(setting, asked, elements)]
    except DovetailError as error:
        found = [f"{type(error).__name__}: {error}"]
    line = {"line": f"{name}: WRONG: {'; '.join(found)[:300]}"} if found else {}
    return {"name": name, "bad": bool(found), "found": found, **line}


def unlike_reference(setting: Any, asked: Program, elements: int) -> Iterator[str]:
    workload = Workload({buffer.name: (Slot((elements,), "int32"),) * asked.num_ranks for buffer in asked.buffers})
    inputs = fresh_inputs(asked, workload, elements)
    expected = execute(asked, inputs, workload=workload).outputs
    memory = DeviceMemory(setting.gpu, asked, workload)
    for protocol in PROTOCOLS:
        fill(memory, inputs)
        InterpretedRun(memory, Layout(protocol, 4096, 64), RunOptions(stall_s=5, spans=False)).run()
        held = outputs(memory, RunOptions())
        for buffer, parts in expected.items():
            for rank, part in enumerate(parts):
                if not np.array_equal(held[buffer][rank], part):
                    yield f"{protocol}, {elements} elements, buffer {buffer} of rank {rank}"


def full_size(setting: Any) -> Iterator[dict[str, Any]]:
    """all_reduce of 8 ranks over many tiles, again and again, every element against the sum: races show here."""
    draw = Draw(8, *((1000, 2) if setting.small else ((3 << 20) + 40, 6)))
    for name in ("ring_all_reduce", "all_pairs_all_reduce", "double_tree_all_reduce"):
        for protocol in PROTOCOLS:
            if setting.left_s > 3:
                yield agreed(setting, name, protocol, draw)
            else:
                yield untried(f"{name}, {protocol}")


@dataclass
class Draw:
    """Inputs and sums of all runs, drawn and added up once: each rank and run begins at another place of one array, so
    that its elements are others each time."""

    ranks: int
    elements: int
    runs: int
    between_ranks, between_runs = 7919, 104_729  # primes: no multiple of a tile, nor of each other

    def __post_init__(self) -> None:
        length = self.elements + self.runs * self.between_runs
        longest = length + self.ranks * self.between_ranks
        self.values = np.random.default_rng(0).integers(-1000, 1000, longest, np.int32)
        self.summed = np.zeros(length, np.int32)
        for begin in self.begins:
            self.summed += self.values[begin : begin + length]

    @property
    def begins(self) -> range:
        """Where each rank's values begin."""
        return range(0, self.ranks * self.between_ranks, self.between_ranks)

    def inputs(self, run: int, shape: tuple[int, int]) -> list[Array]:
        return [self.piece(self.values[begin:], run, shape) for begin in self.begins]

    def sums(self, run: int, shape: tuple[int, int]) -> Array:
        return self.piece(self.summed, run, shape)

    def piece(self, array: Array, run: int, shape: tuple[int, int]) -> Array:
        return array[run * self.between_runs :][: shape[0] * shape[1]].reshape(shape)


def untried(name: str) -> dict[str, Any]:
    """What was not tried is not known to be right."""
    return {"name": name, "bad": True, "line": f"{name}: not tried, no time was left"}


def agreed(setting: Any, name: str, protocol: str, draw: Draw) -> dict[str, Any]:
    asked = build(name, draw.ranks)
    shape = asked.buffers[0].slots[0], max(draw.elements // asked.buffers[0].slots[0], 1)
    slots = {buffer.name: (Slot(shape[1:], "int32"),) * asked.num_ranks for buffer in asked.buffers}
    memory = DeviceMemory(setting.gpu, asked, Workload(slots))
    bound, wrong = InterpretedRun(memory, Layout(protocol), RunOptions(stall_s=5, spans=False)), []
    given = next(buffer.name for buffer in asked.buffers if buffer.role == "input")
    for run in range(draw.runs):
        fill(memory, {given: draw.inputs(run, shape)})
        bound.run()
        wrong.append(num_wrong(memory, asked.posts[0].region.buffer, draw.sums(run, shape)))
    used = PROTOCOLS[bound.bound.facts()[-1]]
    line = f"{name}, {used}, {shape[0] * shape[1]} int32: " + (
        "right" if not any(wrong) else f"WRONG elements in each of {draw.runs} runs: {wrong}"
    )
    return {"name": name, "protocol": used, "bad": any(wrong), "wrong": wrong, "line": line}


def num_wrong(memory: DeviceMemory, buffer: str, expected: Array) -> int:
    """How many elements of a buffer, on all ranks, are not as expected."""
    held, wrong = np.empty_like(expected), 0
    for rank in memory.ranks:
        memory.gpu.download(held, memory.address(rank, buffer))
        wrong += int(np.count_nonzero(held != expected))
    return wrong


def families(setting: Any) -> Iterator[dict[str, Any]]:
    """Every operator by the first schedule of each family, 4 and 8 virtual ranks: each element against float64."""
    with_one_thread()
    for kind, (ranks, sizes) in product(OPERATORS, ((4, (64, 64, 64)),) if setting.small else SIZES):
        operator = kind(*sizes, "float16")
        yield held_against_float64(setting, operator, ranks) if setting.left_s > 3 else untried(operator.title)


def with_one_thread() -> None:
    """NumPy's products by the calling thread: they are small, and where all cores have work, the threads of OpenBLAS
    wait for each other many times as long as they compute."""
    for path in Path(np.__file__).parents[1].glob("numpy.libs/libscipy_openblas64*"):
        ctypes.CDLL(str(path)).scipy_openblas_set_num_threads64_(1)


def held_against_float64(setting: Any, operator: Any, ranks: int) -> dict[str, Any]:
    firsts: dict[str, Schedule] = {}
    for each in operator.schedules(costs(ranks)):
        firsts.setdefault(each.family, each)
    errors, wrong = {}, []
    for family, schedule in firsts.items():
        try:
            agreed = of_one_family(setting, operator.program(schedule, ranks), operator, schedule)
            errors[family] = agreed.max_rel_error
            wrong += [] if agreed.ok else [f"{family}: {agreed.worst}"]
        except DovetailError as error:
            wrong.append(f"{family}: {type(error).__name__}: {error}")
    line = f"{operator.title}, {ranks} ranks: " + (
        f"WRONG: {'; '.join(wrong)[:300]}"
        if wrong
        else f"{len(firsts)} families right, error at most {max(errors.values()):.1e}"
    )
    return {"title": operator.title, "ranks": ranks, "errors": errors, "bad": bool(wrong), "wrong": wrong, "line": line}


def of_one_family(setting: Any, asked: Program, operator: Any, schedule: Schedule) -> Agreement:
    workload = operator.workload(asked, schedule)
    inputs = fresh_inputs(asked, workload, 3)
    found, _ = run_streams(asked, workload, inputs, gpu=setting.gpu)
    return check_outputs(asked, workload, inputs, found)
