"""The sections of bench/gpu: each takes a Setting, and yields what it finds, rows with a `line` for the table."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from checked import checks, full_size, sanitized
from rivals import CHUNKS, two_streams

from dovetail.collective import build
from dovetail.core import DovetailError
from dovetail.ir import Program, Slot, Workload, verify
from dovetail.machine import Machine
from dovetail.matmul import AllGatherMatmul, MatmulAllReduce, MatmulReduceScatter
from dovetail.matmul.alone import ProductAlone
from dovetail.probe import characterise, probe_links
from dovetail.probe.take import Budget
from dovetail.report.tuning import write_tuning
from dovetail.run.cuda_device import DeviceMemory, Gpu, native
from dovetail.run.cuda_executor import CudaExecutor
from dovetail.run.cuda_runs import ONE_RANK, InterpretedRun, StreamsOptions, StreamsRun, plain_sum
from dovetail.run.interpreter import PROTOCOLS, Layout
from dovetail.run.options import RunOptions
from dovetail.tune import tune

ROOT = Path(__file__).resolve().parents[2]
QUIET = RunOptions(spans=False, stall_s=5)
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu,driver_version"
Rows = Iterator[dict[str, Any]]


@dataclass
class Setting:
    out: Path
    small: bool
    until_s: float  # when all that the section does should have ended

    @cached_property
    def gpu(self) -> Gpu:
        return Gpu()

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()


class Section(NamedTuple):
    find: Callable[[Setting], Rows]
    seconds: float  # that it may take


def said(*command: str) -> str:
    """What a command prints; nothing where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def device(setting: Setting) -> Rows:
    """The device, its driver, clocks and library of products, and the commit."""
    read = said("nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader").split(", ")
    clocks = dict(zip(CLOCKS.split(","), read, strict=False))
    commit = said("git", "rev-parse", "--short", "HEAD")
    facts = setting.gpu.facts()
    about = f"{facts['device']}, driver of CUDA {facts['driver_version'] / 1000:.1f}, commit {commit or '?'}"
    yield {**facts, "clocks": clocks, "commit": commit, "small": setting.small, "line": about}
    blas = setting.gpu.blas
    yield {"blas": blas.path, "version": blas.version(), "line": f"{blas.path}, version {blas.version()}"}


def engines(setting: Setting) -> Rows:
    """Which copies end while a kernel holds every multiprocessor: those run on copy engines."""
    sizes = [1 << 16, 1 << 20] + ([] if setting.small else [16 << 20, 256 << 20])
    names = ("variant", "num_bytes", "beside", "failure")
    for size in sizes:
        for row in native().try_engines(setting.gpu.device, [size], 0.4):
            found = dict(zip(names, row, strict=True))
            mark = found["failure"] or ("copy engine" if found["beside"] else "multiprocessors")
            yield {**found, "line": f"{found['variant']}, {size} B: {mark}"}


def calls(setting: Setting) -> Rows:
    """What the calling thread spends on a run: enqueued op by op, and as one graph."""
    wish, ranks = AllGatherMatmul(256, 64, 64, "float32"), 4
    asked = wish.program(wish.serial(ranks), ranks)
    for graph in (False, True):
        memory = DeviceMemory(setting.gpu, asked, wish.workload(asked))
        bound = StreamsRun(memory, StreamsOptions(graph=graph), stamps=False)
        spent = []
        for _ in range(20):
            bound.run()
            spent.append(bound.enqueue_s)
        half = statistics.median(spent[5:])
        how = "a graph" if graph else "op by op"
        line = f"{how}: {1e6 * half:.1f} µs for {asked.num_ops} ops"
        yield {"graph": graph, "ops": asked.num_ops, "seconds": half, "line": line}


def refusals(setting: Setting) -> Rows:
    """Bad input is refused before anything is launched: what the words are."""
    huge = build("ring_all_reduce", 2)
    slots = {buffer.name: (Slot((1 << 46,), "int8"),) * 2 for buffer in huge.buffers}
    try:
        DeviceMemory(setting.gpu, huge, Workload(slots))
        yield {"bad": True, "line": "WRONG: 2^46 bytes were given"}
    except DovetailError as error:
        for line in str(error).splitlines():
            yield {"line": line}


def interpreter(setting: Setting) -> Rows:
    """all_reduce of 8 virtual ranks by size and protocol, beside a plain sum kernel that moves the same bytes."""
    programs = {"ring": build("ring_all_reduce", 8, instances=4), "all pairs": build("all_pairs_all_reduce", 8)}
    for asked in programs.values():
        verify(asked).raise_if_bad()
    for num_bytes in [1 << n for n in ((10, 14) if setting.small else (10, 13, 16, 18, 20, 22, 24, 26, 28))]:
        sums = num_bytes * 7 // 8 // 16 * 16 * 8  # every rank's buffer is summed over once, but for one part
        plain_s = plain_sum(setting.gpu, max(sums, 4096), 4 * setting.gpu.facts()["multiprocessors"])
        for name, asked in programs.items():
            for protocol in PROTOCOLS:
                if setting.left_s > 3:
                    row = one_all_reduce(setting, asked, num_bytes, protocol)
                    line = (
                        f"{name:9} {row['protocol']:6} {num_bytes:>10} B  {1e6 * row['seconds']:>9.1f} µs  "
                        f"{1e6 * row['per_step_s']:.2f} µs a step  plain sum {1e6 * plain_s:.1f} µs"
                    )
                    yield {"name": name, **row, "plain_sum_s": plain_s, "line": line}


def one_all_reduce(setting: Setting, asked: Program, num_bytes: int, protocol: str) -> dict[str, Any]:
    elements = max(num_bytes // 4 // asked.buffers[0].slots[0], 1)
    slots = {buffer.name: (Slot((elements,), "float32"),) * asked.num_ranks for buffer in asked.buffers}
    memory = DeviceMemory(setting.gpu, asked, Workload(slots))
    for rank in range(asked.num_ranks):
        for buffer in asked.buffers:
            spot = memory.spot(rank, buffer.name)
            setting.gpu.device.fill(memory.address(rank, buffer.name), 0x3E, spot.num_bytes)
    bound = InterpretedRun(memory, Layout(protocol), QUIET)
    seconds = [bound.run() for _ in range(3 if setting.small else 8)][1:]
    _, rounds, *_, used = bound.bound.facts()
    steps = max(len(rows) for rows in asked.queues().values()) * rounds
    half = statistics.median(seconds)
    return {
        "protocol": PROTOCOLS[used],
        "num_bytes": num_bytes,
        "seconds": half,
        "per_step_s": half / steps,
        "spread": (max(seconds) - min(seconds)) / half if half else 0.0,
    }


def products(setting: Setting) -> Rows:
    """Operators with 4 and 8 virtual ranks, tuned: every candidate that runs is held against float64."""
    m = 64 if setting.small else 2048
    wishes = [MatmulAllReduce(m, m // 2, m, "float16"), AllGatherMatmul(m, m, m // 4, "float16")]
    for ranks in (2,) if setting.small else (4, 8):
        for wish in wishes:
            if setting.left_s > 8:
                yield tuned(setting, wish, ranks, CudaExecutor(), 12)


def linked(setting: Setting, executor: CudaExecutor, ranks: int) -> Machine:
    """What messages cost, probed once for all sections: a probe takes longer than what it serves."""
    executor._gpu = setting.gpu
    kept = setting.out / "pages" / f"links-{ranks}{'' if executor.real is None else '-alone'}.json"
    if kept.exists():
        return Machine.from_json(json.loads(kept.read_text()))
    budget = Budget(1e-3 if setting.small else 0.01, 2, 20)
    machine = probe_links(executor, ranks, setting.gpu.facts()["device"], budget)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(machine.to_json()))
    return machine


def tuned(setting: Setting, wish: Any, ranks: int, executor: CudaExecutor, budget_s: float) -> dict[str, Any]:
    """One tuning, in a few numbers; its page beside the results."""
    name = f"{wish.name}-{wish.m}x{wish.k}x{wish.n}-{ranks}{'' if executor.real is None else '-alone'}"
    where = setting.out / "pages" / name
    machine = linked(setting, executor, ranks)
    budget_s = 1.0 if setting.small else min(budget_s, max(setting.left_s - 5, 3))
    found = tune(wish, ranks, out=where, executor=executor, machine=machine, rounds=5, budget_s=budget_s)
    document = write_tuning(found, where).to_json()
    keys = ("schedule", "serial_s", "measured_s", "ideal_s", "ideal_gain", "max_rel_error", "serial_spread")
    row = {"title": wish.title, "ranks": ranks, "compute_s": found.compute_s, "comm_s": found.comm_s}
    row |= {key: document[key] for key in keys}
    return {**row, "line": line_of(row)}


def line_of(row: dict[str, Any]) -> str:
    gain = "serial kept" if row["ideal_gain"] is None else f"{100 * row['ideal_gain']:.0f} % of the ideal gain"
    return (
        f"{row['title']}, {row['ranks']} ranks: serial {1e3 * row['serial_s']:.3f} ms, tuned "
        f"{1e3 * row['measured_s']:.3f} ms, {gain}, error {row['max_rel_error'] or 0:.1e}"
    )


def pieces(setting: Setting) -> Rows:
    """DIL of products alone, and CIL of products beside copies: by the driver, by kernels, and to and from the host."""
    shapes = "64x64x64" if setting.small else "8192x1024x4096, 1024x8192x4096, 4096x4096x4096, 16384x2048x2048"
    points = ProductAlone.points(shapes=shapes, dtype="float32" if setting.small else "bfloat16")
    ways = {
        "alone": (1, CudaExecutor()),
        "beside memcpy": (2, CudaExecutor()),
        "beside 8 threadblocks": (2, CudaExecutor(options=StreamsOptions(copies="kernel", copy_blocks=8))),
        "beside 32 threadblocks": (2, CudaExecutor(options=StreamsOptions(copies="kernel", copy_blocks=32))),
        "beside copies asked to overlap": (2, CudaExecutor(options=StreamsOptions(graph=False, copies="overlapping"))),
        "beside host copies both ways": (2, CudaExecutor(real=0)),
    }
    for name, (ranks, executor) in ways.items():
        machine = linked(setting, executor, ranks) if setting.left_s > 5 else None
        for point in points:  # one at a time, so that a cut loses one
            if machine and setting.left_s > 3:
                yield from one_piece(name, ranks, characterise(executor, machine, [point], ranks)[1])


def one_piece(name: str, ranks: int, each: Any) -> Rows:
    for one in each.found:
        cuts = ", ".join(f"{c.way} in {c.pieces} {c.dil.median:.2f}" for c in one.cuts)
        beside = ", ".join(f"{b.traffic} of {b.num_bytes} B {b.compute.median:.2f}" for b in one.beside)
        line = f"{name}, {one.title}: {cuts if ranks == 1 else beside}"
        yield {"name": name, "title": one.title, "characteristics": each.to_json(), "line": line}


def balanced(setting: Setting) -> list[Any]:
    """Wishes whose product takes about as long as its transfers, with the number of ranks."""
    if setting.small:
        return [(AllGatherMatmul(64, 32, 64, "float16"), 2), (MatmulReduceScatter(64, 64, 64, "float16"), 2)]
    gathers = [AllGatherMatmul(16384, 4096, 8 * n, "float16") for n in (8192, 12288)]  # a rank has an eighth of n
    return [(wish, 8) for wish in (*gathers, MatmulReduceScatter(16384, 65536, 4096, "float16"))]


def alone(setting: Setting) -> Rows:
    """One rank real, its peers in host memory: shapes where product and transfer balance."""
    for wish, ranks in balanced(setting):
        if setting.left_s > 8:
            yield {"label": ONE_RANK, **tuned(setting, wish, ranks, CudaExecutor(real=0), 15)}


def pytorch(setting: Setting) -> Rows:
    """The same wishes and transfers by PyTorch, on two streams, in chunks."""
    for wish, ranks in balanced(setting):
        for chunks in CHUNKS:
            seconds = two_streams(wish, ranks, chunks) if setting.left_s > 2 else None
            if seconds is not None:
                line = f"{wish.title}, {ranks} ranks: {1e3 * seconds:.3f} ms in chunks of 1/{chunks}"
                yield {"title": wish.title, "ranks": ranks, "chunks": chunks, "seconds": seconds, "line": line}


# In the order of their worth, should time run out.
SECTIONS = {
    "device": Section(device, 40),
    "engines": Section(engines, 30),
    "calls": Section(calls, 20),
    "refusals": Section(refusals, 15),
    "checks": Section(checks, 110),
    "full_size": Section(full_size, 40),
    "interpreter": Section(interpreter, 60),
    "alone": Section(alone, 75),
    "pytorch": Section(pytorch, 45),
    "pieces": Section(pieces, 75),
    "products": Section(products, 60),
    "sanitized": Section(sanitized, 60),
}
