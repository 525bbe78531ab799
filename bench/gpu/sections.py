"""The sections of bench/gpu: each takes a Setting, and yields what it finds, rows with a `line` for the table."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from checked import checks, corpus, families, full_size, sanitized
from refused import refusals
from rivals import CHUNKS, NO_PYTORCH, plain_add, two_streams, two_streams_call_s
from shapes import beside, pieces, schedules
from verdicts import verdicts

from dovetail.collective import build
from dovetail.ir import RECVS, SENDS, Builder, Kind, Program, Region, Schedule, Slot, Workload, verify
from dovetail.machine import Machine
from dovetail.matmul import AllGatherMatmul, MatmulAllReduce, MatmulReduceScatter
from dovetail.prober import probe_links
from dovetail.prober.take import Budget
from dovetail.report.tuning import write_tuning
from dovetail.run import fresh_inputs
from dovetail.run.cuda.device import DeviceMemory, Gpu, native
from dovetail.run.cuda.executor import CudaExecutor
from dovetail.run.cuda.runs import ONE_RANK, InterpretedRun, OneRank, StreamsOptions, StreamsRun, plain_sum
from dovetail.run.interpreter import PROTOCOLS, Layout
from dovetail.run.options import RunOptions
from dovetail.tuner import tune

ROOT = Path(__file__).resolve().parents[2]
WARM_S = 0.15
QUIET = RunOptions(spans=False, stall_s=5)
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu,driver_version"
Rows = Iterator[dict[str, Any]]


@dataclass
class Setting:
    out: Path
    pages: Path  # of all sections, until they are packed
    small: bool
    until_s: float  # when all that the section does should have ended

    @cached_property
    def gpu(self) -> Gpu:
        """The device, its clocks brought up by some work."""
        made, begin = Gpu(), time.monotonic()
        while time.monotonic() - begin < WARM_S:
            plain_sum(made, 1 << 24, 256, repeats=5)
        return made

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    @property
    def commit(self) -> str:
        """Of what is measured; where the device's machine has no repository, whoever sends it there says it."""
        return os.environ.get("COMMIT") or said("git", "describe", "--always", "--dirty")

    def linked(self, executor: CudaExecutor, ranks: int) -> Machine:
        """What messages cost, probed once for all sections: a probe takes longer than what it serves."""
        executor._gpu = self.gpu
        how = [executor.options.copies, str(executor.options.copy_blocks)] + (["alone"] if executor.real == 0 else [])
        kept = self.pages / f"links-{ranks}-{'-'.join(how)}.json"
        if kept.exists():
            return Machine.from_json(json.loads(kept.read_text()))
        budget = Budget(1e-3 if self.small else 0.01, 2, 20)
        machine = probe_links(executor, ranks, self.gpu.facts()["device"], budget)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(machine.to_json()))
        return machine


class Section(NamedTuple):
    find: Callable[[Setting], Rows]
    seconds: float  # that it may take


def said(*command: str) -> str:
    """What a command prints; nothing where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def spread(seconds: Sequence[float]) -> float:
    """From the fastest to the slowest, as a share of the median."""
    half = statistics.median(seconds)
    return (max(seconds) - min(seconds)) / half if half else 0.0


def clocks_now() -> dict[str, str]:
    read = said("nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader").split(", ")
    return dict(zip(CLOCKS.split(","), read, strict=False))


def device(setting: Setting) -> Rows:
    """The device, its driver, clocks and library of products, and the commit."""
    clocks = clocks_now()
    commit = setting.commit
    facts = setting.gpu.facts()
    about = f"{facts['device']}, driver of CUDA {facts['driver_version'] / 1000:.1f}, commit {commit or '?'}"
    yield {**facts, "clocks": clocks, "commit": commit, "small": setting.small, "line": about}
    blas = setting.gpu.blas
    name = Path(blas.path).name
    yield {"blas": name, "version": blas.version(), "line": f"{name}, version {blas.version()}"}


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
    operator, ranks = AllGatherMatmul(256, 64, 64, "float32"), 4
    serial = operator.serial(ranks)
    asked = operator.program(serial, ranks)
    for graph in (False, True):
        memory = DeviceMemory(setting.gpu, asked, operator.workload(asked, serial))
        bound = StreamsRun(memory, StreamsOptions(graph=graph), stamps=False)
        spent = []
        for _ in range(20):
            bound.run()
            spent.append(bound.enqueue_s)
        half = statistics.median(spent[5:])
        how = "a graph" if graph else "op by op"
        line = f"{how}: {1e6 * half:.1f} µs for {asked.num_ops} ops, spread {spread(spent[5:]):.0%}"
        about = {"graph": graph, "ops": asked.num_ops, "seconds": half, "spread": spread(spent[5:])}
        yield {**about, "line": line}


def planned_call(setting: Setting) -> Rows:
    """What a planned call costs beyond streams by hand with the same copies and products, seconds of the caller."""
    ranks = 2 if setting.small else 8
    operator = AllGatherMatmul(64, 32, 64, "float16") if setting.small else AllGatherMatmul(2048, 2048, 8192, "float16")
    schedule = Schedule.of("any", tiles=(operator.m // ranks,), by="messages", own_block="first", fused=False)
    asked = operator.program(
        schedule, ranks
    )  # of one rank: a message and a product for each other, a product of its own
    workload = operator.workload(asked, schedule)
    inputs = fresh_inputs(asked, workload, 0)
    by_hand = two_streams_call_s(operator, ranks, 1)
    for graph in (True, False):
        alone = OneRank(setting.gpu, asked, workload, inputs, 0, StreamsOptions(graph=graph), "sum")
        bound = StreamsRun(alone.run.memory, alone.options, "sum", False, 0, None, alone.run.heard)
        spent, device = [], []
        for _ in range(10 if setting.small else 60):
            begin = time.perf_counter()
            device.append(bound.run())
            spent.append(time.perf_counter() - begin)
        ours_s, device_s = statistics.median(spent[3:]), statistics.median(device[3:])
        row = {"title": f"{operator.title}, {'a graph' if graph else 'op by op'}", "ranks": ranks, "graph": graph}
        row |= {"call_s": ours_s, "device_s": device_s, "spread": spread(spent[3:])}
        line = f"{row['title']}: {1e6 * ours_s:.1f} µs a call, {1e6 * device_s:.1f} µs on the device"
        if by_hand:
            row |= {"by_hand_s": by_hand[0], "by_hand_device_s": by_hand[1], "over_s": ours_s - by_hand[0]}
            line += f"; by hand {1e6 * by_hand[0]:.1f} µs, {1e6 * by_hand[1]:.1f} µs on the device"
        else:
            line += f"; {NO_PYTORCH}: nothing by hand"
        yield {**row, "line": line}


def concluded(setting: Setting) -> Rows:
    """Each figure that was asked for, beside what was found."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (setting.out / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "ended" not in row:
            found.setdefault(row["section"], []).append(row)
    yield from verdicts(found)


SIZES = (10, 13, 16, 18, 20, 22, 24, 26, 28)
# Instances of an algorithm, and the sizes (powers of two) at which as many are worth trying.
LANES = {
    "ring": ((1, 0, 20), (4, 16, 24), (16, 20, 28), (32, 24, 28)),
    "all pairs": ((1, 0, 28), (2, 18, 28), (4, 22, 28)),
}
ALGORITHMS = {"ring": "ring_all_reduce", "all pairs": "all_pairs_all_reduce"}
LARGEST = {"LL": 22, "LL128": 28, "Simple": 28}  # beyond, a protocol only takes time
LAYOUTS = [  # of Simple at large sizes: instances of the ring, what its channels hold, in how many slices
    (instances, Layout("Simple", place << 10, (place << 10) // slices))
    for instances in (16, 32)
    for place in (128, 256, 512, 1024)
    for slices in (1, 2, 4)
]


def interpreter(setting: Setting) -> Rows:
    """all_reduce of 8 virtual ranks by size and protocol, beside a plain sum kernel that moves the same bytes."""
    for power in (10, 14) if setting.small else SIZES:
        plain_s, added_s = plain_sums(setting, 1 << power)
        for name, lanes in LANES.items():
            for instances in [count for count, low, high in lanes if low <= power <= high]:
                for protocol in [each for each in PROTOCOLS if power <= LARGEST[each]]:
                    if setting.left_s > 3:
                        yield one_row(setting, name, instances, 1 << power, Layout(protocol), plain_s, added_s)
    for power in (14,) if setting.small else (26, 28):
        plain_s, added_s = plain_sums(setting, 1 << power)
        for instances, layout in LAYOUTS[: 2 if setting.small else None]:
            if setting.left_s > 3:
                yield one_row(setting, "ring", instances, 1 << power, layout, plain_s, added_s)
    for power in (14,) if setting.small else (24, 26, 28):
        if setting.left_s > 3:
            yield added_row(setting, 1 << power)
    yield {"clocks": clocks_now()}


def added_row(setting: Setting, num_bytes: int) -> dict[str, Any]:
    """x += y of one rank, a lane for each multiprocessor: what the plain kernel does, to the byte."""
    lanes = setting.gpu.facts()["multiprocessors"]
    size = num_bytes // lanes // 16 * 16 * lanes
    row = one_all_reduce(setting, added(lanes), size, Layout())
    plain_s, torch_s = fastest_sum_s(setting, size), plain_add(size)
    line = f"sums of one rank, {size} B: {1e6 * row['seconds']:.1f} µs, plain sum {1e6 * plain_s:.1f} µs"
    about = {"plain_sum_s": plain_s, "plain_per_s": 3 * size / min(plain_s, torch_s or plain_s), "torch_sum_s": torch_s}
    about["num_bytes"] = num_bytes
    return {"name": "sums", **row, **about, "line": line}


@cache
def added(lanes: int) -> Program:
    b = Builder("added", 1)
    b.buffer("x", "output", lanes), b.buffer("y", "input", lanes)
    for i in range(lanes):
        b.add(Kind.reduce, 0, b.lane(f"lane {i}", "net"), reads=[Region("y", i, 1)], writes=[Region("x", i, 1)])
    return b.build()


def plain_sums(setting: Setting, num_bytes: int) -> tuple[float, float | None]:
    """Seconds of our kernel, and of PyTorch's, for all ranks' sums: each buffer is summed over once, but for a part.
    The faster of both is what the interpreter is held against."""
    return fastest_sum_s(setting, summed_bytes(num_bytes)), plain_add(summed_bytes(num_bytes))


def summed_bytes(num_bytes: int) -> int:
    return max(num_bytes * 7 // 8 // 16 * 16 * 8, 4096)


def fastest_sum_s(setting: Setting, num_bytes: int) -> float:
    processors = setting.gpu.facts()["multiprocessors"]
    return min(plain_sum(setting.gpu, num_bytes, blocks * processors) for blocks in (1, 4))


@cache
def proved(name: str, ranks: int, instances: int) -> Program:
    made = build(name, ranks, instances=instances)
    verify(made).raise_if_bad()
    return made


def one_row(
    setting: Setting, name: str, instances: int, num_bytes: int, layout: Layout, plain_s: float, added_s: float | None
) -> dict[str, Any]:
    asked = proved(ALGORITHMS[name], 8, instances)
    row = one_all_reduce(setting, asked, num_bytes, layout)
    line = (
        f"{name:9} x{instances:<2} {row['protocol']:6} {num_bytes:>10} B  {1e6 * row['seconds']:>9.1f} µs  "
        f"{1e6 * row['per_step_s']:.2f} µs a step  {1e-9 * row['moved_per_s']:.0f} GB/s  "
        f"plain sum {1e6 * plain_s:.1f} µs"
    )
    line += "" if layout == Layout(layout.protocol) else f"  place {row['place_bytes']} slice {row['slice_bytes']} B"
    plain_per_s = 3 * summed_bytes(num_bytes) / min(plain_s, added_s or plain_s)
    about = {"plain_sum_s": plain_s, "plain_per_s": plain_per_s, "torch_sum_s": added_s}
    return {"name": name, "instances": instances, **row, **about, "line": line}


def one_all_reduce(setting: Setting, asked: Program, num_bytes: int, layout: Layout) -> dict[str, Any]:
    elements = max(num_bytes // 4 // asked.buffers[0].slots[0], 1)
    slots = {buffer.name: (Slot((elements,), "float32"),) * asked.num_ranks for buffer in asked.buffers}
    memory = DeviceMemory(setting.gpu, asked, Workload(slots))
    for rank in range(asked.num_ranks):
        for buffer in asked.buffers:
            spot = memory.spot(rank, buffer.name)
            setting.gpu.device.fill(memory.address(rank, buffer.name), 0x3E, spot.num_bytes)
    bound = InterpretedRun(memory, layout, QUIET)
    seconds = [bound.run() for _ in range(3 if setting.small else 10)][1:]
    lanes, rounds, fifo_bytes, _, slice_bytes, used = bound.bound.facts()
    steps = max(len(rows) for rows in asked.queues().values()) * rounds
    half = statistics.median(seconds)
    place_bytes = layout.sizes[0]
    num_moved = moved(asked, elements * 4)
    about = {"lanes": lanes, "threads": bound.bound.threads(), "rounds": rounds, "fifo_bytes": fifo_bytes}
    return {
        "protocol": PROTOCOLS[used],
        "num_bytes": num_bytes,
        "seconds": half,
        "per_step_s": half / steps,
        "moved_bytes": num_moved,
        "moved_per_s": num_moved / half,
        "spread": spread(seconds),
        **about,
        "place_bytes": place_bytes,
        "slice_bytes": slice_bytes,
    }


def moved(asked: Program, slot_bytes: int) -> int:
    """Bytes that all ops load and store, those of messages in their FIFOs among them."""
    total = 0
    for op in asked.ops():
        sides = len(op.reads) + len(op.writes) + (op.kind in RECVS) + (op.kind in SENDS) + (op.kind == Kind.reduce)
        region = (op.writes or op.reads)[:1]
        total += sides * sum(part.count * part.blocks for part in region)
    return total * slot_bytes


def products(setting: Setting) -> Rows:
    """Operators with 4 and 8 virtual ranks, tuned: every candidate that runs is held against float64."""
    m = 64 if setting.small else 2048
    operators = [MatmulAllReduce(m, m // 2, m, "float16"), AllGatherMatmul(m, m, m // 4, "float16")]
    for ranks in (2,) if setting.small else (4, 8):
        for operator in operators:
            if setting.left_s > 8:
                yield tuned(setting, operator, ranks, CudaExecutor(), 12)


def tuned(setting: Setting, operator: Any, ranks: int, executor: CudaExecutor, budget_s: float) -> dict[str, Any]:
    """One tuning, in a few numbers; its page beside the results."""
    name = f"{operator.name}-{operator.m}x{operator.k}x{operator.n}-{ranks}{'' if executor.real is None else '-alone'}"
    where = setting.pages / name
    machine = setting.linked(executor, ranks)
    budget_s = 1.0 if setting.small else min(budget_s, max(setting.left_s - 5, 3))
    probing = Budget(1e-3 if setting.small else 0.03, 2, 20)
    how: dict[str, Any] = {"executor": executor, "machine": machine, "probing": probing}
    found = tune(operator, ranks, out=where, rounds=5, budget_s=budget_s, **how)
    document = write_tuning(found, where).to_json()
    keys = ("schedule", "serial_s", "measured_s", "ideal_s", "ideal_gain", "max_rel_error", "serial_spread")
    row = {"title": operator.title, "ranks": ranks, "compute_s": found.compute_s, "comm_s": found.comm_s}
    row |= {key: document[key] for key in keys}
    row |= {"spread": document["measured_spread"], "bad": bool(found.judged.wrong)}
    wrong = ", ".join(f"{schedule.family} in {count} places" for schedule, count in found.judged.wrong.items())
    return {**row, "wrong": wrong, "line": line_of(row) + (f"; WRONG: {wrong}" if wrong else "")}


def line_of(row: dict[str, Any]) -> str:
    gain = "serial kept" if row["ideal_gain"] is None else f"{100 * row['ideal_gain']:.0f} % of the ideal gain"
    return (
        f"{row['title']}, {row['ranks']} ranks: serial {1e3 * row['serial_s']:.3f} ms, tuned "
        f"{1e3 * row['measured_s']:.3f} ms, {gain}, error {row['max_rel_error'] or 0:.1e}"
    )


def balanced(setting: Setting) -> list[Any]:
    """Operators whose product takes about as long as its transfers, with the number of ranks."""
    if setting.small:
        return [(AllGatherMatmul(64, 32, 64, "float16"), 2), (MatmulReduceScatter(64, 64, 64, "float16"), 2)]
    gathers = [AllGatherMatmul(16384, 4096, 8 * n, "float16") for n in (12288, 16384)]  # a rank has an eighth of n
    return [(operator, 8) for operator in (*gathers, MatmulReduceScatter(16384, 131072, 4096, "float16"))]


def alone(setting: Setting) -> Rows:
    """One rank real, its peers in host memory: shapes where product and transfer balance."""
    for operator, ranks in balanced(setting):
        if setting.left_s > 8:
            yield {
                "label": ONE_RANK,
                **tuned(setting, operator, ranks, CudaExecutor(real=0), 15),
                "clocks": clocks_now(),
            }


def pytorch(setting: Setting) -> Rows:
    """The same operators and transfers by PyTorch, on two streams, in chunks."""
    for operator, ranks in balanced(setting):
        for chunks in CHUNKS:
            if setting.left_s < 2:
                yield {"line": f"{operator.title}, {ranks} ranks, in chunks of 1/{chunks}: no time was left"}
            elif times := two_streams(operator, ranks, chunks):
                half = statistics.median(times)
                line = f"{operator.title}, {ranks} ranks: {1e3 * half:.3f} ms in chunks of 1/{chunks}"
                about = {"title": operator.title, "ranks": ranks, "chunks": chunks}
                yield {**about, "seconds": half, "spread": spread(times), "line": line}
            else:
                yield {"line": f"{NO_PYTORCH}: no rival was measured"}
                return


# In the order of their worth, should time run out.
SECTIONS = {
    "device": Section(device, 40),
    "engines": Section(engines, 30),
    "calls": Section(calls, 20),
    "refusals": Section(refusals, 15),
    "checks": Section(checks, 90),
    "corpus": Section(corpus, 45),
    "full_size": Section(full_size, 30),
    "families": Section(families, 25),
    "interpreter": Section(interpreter, 50),
    "alone": Section(alone, 110),
    "pytorch": Section(pytorch, 30),
    "planned_call": Section(planned_call, 20),
    "pieces": Section(pieces, 60),
    "beside": Section(beside, 60),
    "products": Section(products, 45),
    "schedules": Section(schedules, 90),
    "sanitized": Section(sanitized, 60),
    "verdicts": Section(concluded, 10),
}
