"""The sections of bench/gpu: each takes a Setting, and returns what it found with a few `lines` for the table."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rivals import two_streams

from dovetail.collective import build
from dovetail.core import DovetailError
from dovetail.ir import Program, Slot, Workload, verify
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


@dataclass
class Setting:
    out: Path
    small: bool
    until_s: float
    gpu: Gpu = field(default_factory=Gpu)

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    def at_most(self, seconds: float) -> float:
        """When a section that may take so long must end."""
        return min(time.monotonic() + seconds, self.until_s)


def engines(setting: Setting) -> dict[str, Any]:
    """Which copies end while a kernel holds every multiprocessor: those run on copy engines."""
    sizes = [1 << 16, 1 << 20] + ([] if setting.small else [16 << 20, 256 << 20])
    names = ("variant", "num_bytes", "beside", "failure")
    rows = [dict(zip(names, row, strict=True)) for row in native().try_engines(setting.gpu.device, sizes, 0.4)]
    lines = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == variant]
        marks = [row["failure"] or ("copy engine" if row["beside"] else "multiprocessors") for row in mine]
        lines.append(f"{variant}: " + ", ".join(f"{r['num_bytes']} B {m}" for r, m in zip(mine, marks, strict=True)))
    return {"rows": rows, "lines": lines}


def checks(setting: Setting) -> dict[str, Any]:
    """The tests of tests/cuda_checks.py on this device: every algorithm, protocol, dtype, family and fault."""
    chosen = ["-k", "algorithm and ring"] if setting.small else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cuda_checks.py", *chosen]
    limit_s = max(setting.at_most(120) - time.monotonic(), 1)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s)
        last, code = (done.stdout.strip().splitlines() or ["nothing was printed"])[-12:], done.returncode
    except subprocess.TimeoutExpired:
        last, code = ["ran out of time"], 1
    return {"ok": code == 0, "lines": last}


def bound_all_reduce(setting: Setting, asked: Program, num_bytes: int, layout: Layout) -> InterpretedRun:
    elements = max(num_bytes // 4 // asked.buffers[0].slots[0], 1)
    slots = {buffer.name: (Slot((elements,), "float32"),) * asked.num_ranks for buffer in asked.buffers}
    return InterpretedRun(DeviceMemory(setting.gpu, asked, Workload(slots)), layout, QUIET)


def interpreter(setting: Setting) -> dict[str, Any]:
    """all_reduce of 8 virtual ranks by size and protocol, beside a plain sum kernel that moves the same bytes."""
    until = setting.at_most(90)
    sizes = [1 << n for n in ((10, 14) if setting.small else (10, 13, 16, 18, 20, 22, 24, 26, 28))]
    programs = {"ring": build("ring_all_reduce", 8, instances=4), "all pairs": build("all_pairs_all_reduce", 8)}
    rows = []
    for num_bytes in sizes:
        for name, asked in programs.items():
            verify(asked).raise_if_bad()
            for protocol in PROTOCOLS:
                if time.monotonic() < until:
                    rows.append(one_all_reduce(setting, name, asked, num_bytes, protocol))
    for row in rows:
        sums = row["num_bytes"] * 7 // 8 // 16 * 16 * 8  # every rank's buffer is summed over once, but for one part
        row["plain_sum_s"] = plain_sum(setting.gpu, max(sums, 4096), 4 * setting.gpu.facts()["multiprocessors"])
    lines = [
        f"{r['name']:9} {r['protocol']:6} {r['num_bytes']:>10} B  {1e6 * r['seconds']:>9.1f} µs  "
        f"{1e6 * r['per_step_s']:.2f} µs a step  plain sum {1e6 * r['plain_sum_s']:.1f} µs"
        for r in rows
    ]
    return {"rows": rows, "lines": lines}


def one_all_reduce(setting: Setting, name: str, asked: Program, num_bytes: int, protocol: str) -> dict[str, Any]:
    bound = bound_all_reduce(setting, asked, num_bytes, Layout(protocol))
    seconds = [bound.run() for _ in range(3 if setting.small else 8)][1:]
    _, rounds, *_, used = bound.bound.facts()
    steps = max(len(rows) for rows in asked.queues().values()) * rounds
    half = statistics.median(seconds)
    return {
        "name": name,
        "protocol": PROTOCOLS[used],
        "num_bytes": num_bytes,
        "seconds": half,
        "per_step_s": half / steps,
        "spread": (max(seconds) - min(seconds)) / half if half else 0.0,
    }


def products(setting: Setting) -> dict[str, Any]:
    """Operators with 4 and 8 virtual ranks, tuned: every candidate that runs is held against float64."""
    m = 64 if setting.small else 2048
    wishes = [MatmulAllReduce(m, m // 2, m, "float16"), AllGatherMatmul(m, m, m // 4, "float16")]
    until, rows = setting.at_most(70), []
    for ranks in (2,) if setting.small else (4, 8):
        for wish in wishes:
            if time.monotonic() < until:
                rows.append(tuned(setting, wish, ranks, CudaExecutor(), 12))
    return {"rows": rows, "lines": [line_of(row) for row in rows]}


def tuned(setting: Setting, wish: Any, ranks: int, executor: CudaExecutor, budget_s: float) -> dict[str, Any]:
    """One tuning, in a few numbers."""
    executor._gpu = setting.gpu
    where = setting.out / f"{wish.name}-{wish.m}x{wish.k}x{wish.n}-{ranks}{'' if executor.real is None else '-alone'}"
    machine = probe_links(executor, ranks, setting.gpu.facts()["device"], Budget(0.01, 2, 20))
    found = tune(wish, ranks, out=where, executor=executor, machine=machine, rounds=5, budget_s=budget_s)
    found = write_tuning(found, where)
    document = found.to_json()
    keys = ("schedule", "serial_s", "measured_s", "ideal_s", "ideal_gain", "max_rel_error", "serial_spread")
    about = {key: document[key] for key in keys}
    return {"title": wish.title, "ranks": ranks, "compute_s": found.compute_s, "comm_s": found.comm_s, **about}


def line_of(row: dict[str, Any]) -> str:
    gain = "serial kept" if row["ideal_gain"] is None else f"{100 * row['ideal_gain']:.0f} % of the ideal gain"
    return (
        f"{row['title']}, {row['ranks']} ranks: serial {1e3 * row['serial_s']:.3f} ms, tuned "
        f"{1e3 * row['measured_s']:.3f} ms, {gain}, error {row['max_rel_error'] or 0:.1e}"
    )


def pieces(setting: Setting) -> dict[str, Any]:
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
    until, found, lines = setting.at_most(110), {}, []
    for name, (ranks, executor) in ways.items():
        if time.monotonic() > until:
            continue
        executor._gpu = setting.gpu
        machine = probe_links(executor, ranks, name, Budget(0.01, 2, 20))
        machine, each = characterise(executor, machine, points, ranks)
        found[name] = {"machine": machine.to_json(), "characteristics": each.to_json()}
        for one in each.found:
            cuts = ", ".join(f"{c.way} in {c.pieces} {c.dil.median:.2f}" for c in one.cuts)
            beside = ", ".join(f"{b.traffic} of {b.num_bytes} B {b.compute.median:.2f}" for b in one.beside)
            lines.append(f"{name}, {one.title}: {cuts if ranks == 1 else beside}")
    return {"found": found, "lines": lines}


def alone(setting: Setting) -> dict[str, Any]:
    """One rank real, its peers in host memory: shapes where product and transfer balance; beside PyTorch's chunking."""
    wishes: list[Any] = [AllGatherMatmul(64, 32, 64, "float16"), MatmulReduceScatter(64, 64, 64, "float16")]
    if not setting.small:
        wishes = [AllGatherMatmul(16384, 4096, n, "float16") for n in (8192, 12288)]
        wishes += [MatmulReduceScatter(16384, k, 4096, "float16") for k in (65536,)]
    until, rows = setting.at_most(120), []
    for wish in wishes:
        if time.monotonic() < until:
            row = tuned(setting, wish, 2 if setting.small else 8, CudaExecutor(real=0), 15)
            row["pytorch_s"] = two_streams(wish, row["ranks"])
            rows.append(row)
    gains = [row["ideal_gain"] for row in rows if row["ideal_gain"] is not None]
    lines = [line_of(row) for row in rows]
    lines += [f"{r['title']}: PyTorch's two streams {1e3 * r['pytorch_s']:.3f} ms" for r in rows if r["pytorch_s"]]
    lines.append(f"median share of the ideal gain: {100 * statistics.median(gains):.0f} %" if gains else "serial kept")
    return {"label": ONE_RANK, "rows": rows, "lines": lines}


def calls(setting: Setting) -> dict[str, Any]:
    """What the calling thread spends on a run: enqueued op by op, and as one graph."""
    wish, ranks = AllGatherMatmul(256, 64, 64, "float32"), 4
    asked = wish.program(wish.serial(ranks), ranks)
    lines, rows = [], []
    for graph in (False, True):
        memory = DeviceMemory(setting.gpu, asked, wish.workload(asked))
        bound = StreamsRun(memory, StreamsOptions(graph=graph), stamps=False)
        spent = []
        for _ in range(20):
            bound.run()
            spent.append(bound.enqueue_s)
        rows.append({"graph": graph, "ops": asked.num_ops, "seconds": statistics.median(spent[5:])})
        lines.append(
            f"{'a graph' if graph else 'op by op'}: {1e6 * rows[-1]['seconds']:.1f} µs for {asked.num_ops} ops"
        )
    return {"rows": rows, "lines": lines}


def refusals(setting: Setting) -> dict[str, Any]:
    """Bad input is refused before anything is launched: what the words are."""
    huge = build("ring_all_reduce", 2)
    slots = {buffer.name: (Slot((1 << 46,), "int8"),) * 2 for buffer in huge.buffers}
    try:
        DeviceMemory(setting.gpu, huge, Workload(slots))
    except DovetailError as error:
        return {"lines": str(error).splitlines()}
    return {"failed": "2^46 bytes were given"}


SECTIONS = {
    "engines": engines,
    "calls": calls,
    "refusals": refusals,
    "checks": checks,
    "interpreter": interpreter,
    "alone": alone,
    "pieces": pieces,
    "products": products,
}
