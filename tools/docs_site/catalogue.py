"""A page for each algorithm and each operator that is shipped: picture, steps, bytes on the wire, predicted times."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dovetail as dt
from dovetail.collective import ALGORITHMS, KINDS, algorithms_for, build
from dovetail.core import DovetailError
from dovetail.cost import Curve, Prices, Segment, rate_key
from dovetail.cost.price import op_bytes
from dovetail.ir import SENDS, Kind, Program, is_one_of, verify
from dovetail.ir.compute_calls import op_works
from dovetail.ir.registry import BUILT_IN, operator_class
from dovetail.machine import Machine
from dovetail.report import num_bytes, seconds, svg
from dovetail.sim import simulate as advance
from dovetail.timeline import Timeline

ONE_NODE, TWO_NODES, ETHERNET = "h100-8", "ndv4-a100-8x2", "fast-ethernet-16"
SIZES = (1 << 10, 1 << 15, 1 << 20, 1 << 25)
DRAWN = 1 << 20  # bytes of the run in the picture
WIDTH = 820  # pixels of a picture
FLOP_PER_S, BYTES_PER_S = 2e9, 5e9  # assumed speed of one rank's loops
PRODUCT, DTYPE = (4096, 4096, 4096), "float16"
SMALL = ("100000", "256x256", "96x96x96")  # grids: a nest takes the one of as many axes as it has
HEAD = """# Algorithms and schedules

A page for each algorithm of a collective, and for each operator with all its families of schedules. Everything here is
*predicted*, on machines that are shipped with Dovetail; the pages are made by simulating the proved Programs.

"""


def pages(out: Path) -> None:
    """Write all pages and their index."""
    out.mkdir(parents=True, exist_ok=True)
    parts, names = [HEAD], []
    for kind in KINDS:
        rows = ["| algorithm | steps | sent by the busiest rank | |", "|---|---|---|---|"]
        for name in algorithms_for(kind):
            rows.append(_algorithm(out, name, kind))
            names.append(name)
        parts.append(f"## {kind}\n\n" + "\n".join(rows) + "\n")
    rows = ["| operator | families |", "|---|---|"]
    for name in BUILT_IN:
        if name not in KINDS:
            rows.append(_operator(out, name))
            names.append(f"operator_{name}")
    parts.append("## Operators\n\n" + "\n".join(rows) + "\n")
    parts.append("```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n")
    (out / "index.md").write_text("\n".join(parts), encoding="utf-8")


def _algorithm(out: Path, name: str, kind: str) -> str:
    """Write an algorithm's page; return its row of the index."""
    make: Any = ALGORITHMS[name]
    function = getattr(make, "func", make)
    several = "nodes" in inspect.signature(function).parameters
    ranks, options = (16, {"nodes": 2}) if several else (8, {})
    program = build(name, ranks, **options)
    steps, busiest = depth(program), _share(max(_sent_by_rank(program)), program)
    about = inspect.getdoc(function) or ""
    machine = TWO_NODES if several else ONE_NODE
    drawn = _run(program, machine, DRAWN)
    (out / f"{name}.svg").write_text(
        svg([drawn], program, title=f"{name}, {num_bytes(DRAWN)}", width=WIDTH), encoding="utf-8"
    )
    certificate = verify(program)
    facts = [
        ("ranks", f"{ranks}, on {options['nodes']} nodes" if several else str(ranks)),
        ("steps (messages in a row)", str(steps)),
        ("ops", str(program.num_ops)),
        ("messages", str(int(is_one_of(program.kind, SENDS).sum()))),
        ("sent by the busiest rank", busiest),
        ("sent by all ranks", _share(sum(_sent_by_rank(program)), program)),
        ("FIFO depth needed", str(certificate.min_fifo_depth)),
        ("proved", ", ".join(check for check, found in certificate.checks.items() if found.ok)),
    ]
    text = [
        f"# {name}\n",
        f"An algorithm of `{kind}`, here on {ranks} ranks. S is the larger of a rank's input and output.\n",
        about,
        "",
    ]
    text += ["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in facts), ""]
    text += [_picture(f"{name}.svg", f"{name} of {num_bytes(DRAWN)}, predicted on {machine}"), ""]
    text += ["## Predicted time\n", *_times(program, machine), "", "## The algorithm\n"]
    text += [f"```python\n{inspect.getsource(function).rstrip()}\n```\n"]
    words = f" --nodes {options['nodes']}" if several else ""
    text += [f"    dovetail compile {name} --ranks {ranks}{words}\n"]
    (out / f"{name}.md").write_text("\n".join(text), encoding="utf-8")
    return f"| [{name}]({name}.md) | {steps} | {busiest} | {about.partition('. ')[0].splitlines()[0]} |"


def depth(program: Program) -> int:
    """Return the most messages in a row, each of which waits for the one before."""
    prices = Prices.plain(program, latency_s=is_one_of(program.kind, SENDS).astype(float))
    return round(advance(program, prices).makespan_s)


def _times(program: Program, machine: str) -> Iterator[str]:
    """Yield the table of predicted times at several sizes, on the machine and on Ethernet."""
    places = (machine, ETHERNET)
    yield "| S | " + " | ".join(places) + " |"
    yield "|---|" + "---|" * len(places)
    for size in SIZES:
        yield f"| {num_bytes(size)} | " + " | ".join(seconds(_run(program, p, size).makespan_s) for p in places) + " |"


def _run(program: Program, machine: str, size: int) -> Timeline:
    return dt.simulate(program, machine, slot_bytes=max(1, size // _unit(program)), extrapolate=True)


def _unit(program: Program) -> int:
    """Return the slots of the larger of a rank's input and output."""
    held = [[b.slots[rank] for b in program.buffers if b.role != "scratch"] for rank in range(program.num_ranks)]
    return max(max(each) for each in held)


def _sent_by_rank(program: Program) -> list[int]:
    """Return the slots that each rank sends."""
    sent = np.zeros(program.num_ranks, np.int64)
    for op in program.ops():
        if op.chan_out >= 0 and op.kind in SENDS:
            regions = op.reads or op.writes
            sent[op.rank] += sum(region.num_slots for region in regions)
    return sent.tolist()


def _share(slots: int, program: Program) -> str:
    return f"{slots / _unit(program):.3g} S"


def _operator(out: Path, name: str) -> str:
    """Write an operator's page, with each of its families; return its row of the index."""
    kind: Any = operator_class(name)
    operator, machine, ranks, about = _case(name, kind)
    text = [f"# {name}\n", (inspect.getdoc(kind) or "").split("\n\n")[0].split("\n>>>")[0], "", about, ""]
    rows = ["| family | predicted | steps | sent by all ranks | over serial |", "|---|---|---|---|---|"]
    parts = []
    for family in kind.families:
        row, part = _family(out, operator, machine, ranks, family)
        rows.append(row)
        parts.append(part)
    (out / f"operator_{name}.md").write_text("\n".join([*text, *rows, "", *parts]), encoding="utf-8")
    return f"| [{name}](operator_{name}.md) | {', '.join(kind.families)} |"


def _case(name: str, kind: Any) -> tuple[Any, Machine, int, str]:
    """Return an operator of typical sizes, a machine that knows what it costs, the ranks, and a sentence on both."""
    if name.startswith(("all_gather", "all_to_all", "matmul")):
        machine, ranks = Machine.load("mi300x-8"), 8
        operator = kind(*PRODUCT, DTYPE) if "all_to_all" not in name else kind(*PRODUCT, dtype=DTYPE)
        return operator, machine, ranks, f"Of {' × '.join(map(str, PRODUCT))} {DTYPE} on {ranks} ranks of `mi300x-8`."
    operator, machine, ranks = _on_grid(kind), Machine.load("opteron-gbe-4"), 4
    machine = machine.with_costs(_speeds(operator, ranks))
    grid = " × ".join(map(str, operator.grid))
    speeds = f"{FLOP_PER_S / 1e9:.0f} GFLOP/s, {BYTES_PER_S / 1e9:.0f} GB/s"
    where = f"{ranks} ranks of `opteron-gbe-4`, where a rank's loops are assumed to do {speeds}"
    return operator, machine, ranks, f"Of {grid} points and {operator.steps} steps on {where}."


def _on_grid(kind: Any) -> Any:
    """Return the operator of a nest on a small grid of as many axes as it has; one step, if it has no time axis."""
    for grid in SMALL:
        for steps in (2, 1):
            try:
                return kind(grid, steps=steps)
            except DovetailError as error:
                refused = error
    raise refused


def _speeds(operator: Any, ranks: int) -> dict[str, Any]:
    """Return the rates of the operator's kernels, and of memory, by assumed speeds."""
    schedules = [operator.serial(ranks)]
    schedules += [operator.default_schedule(ranks)] if hasattr(operator, "default_schedule") else []
    kinds: list[str] = []
    for schedule in schedules:
        program = operator.program(schedule, ranks)
        kinds += [work.key for work in op_works(program, operator.workload(program, schedule)).values()]
    line = Curve("flop", (Segment(0.0, 0.0, 1 / FLOP_PER_S),), label="prior").to_json()
    memory = Curve("bytes", (Segment(0.0, 0.0, 1 / BYTES_PER_S),), label="prior").to_json()
    return {"memory": memory, **{rate_key(key): line for key in kinds if rate_key(key).count(":") == 2}}


def _family(out: Path, operator: Any, machine: Machine, ranks: int, family: str) -> tuple[str, str]:
    """Return a family's row of the table, and its section with a picture of two ranks."""
    try:
        made = dt.plan(operator, machine, ranks=ranks, schedule=family, extrapolate=True)
    except DovetailError as error:
        return f"| {family} | – | – | – | – |", f"## {family}\n\nNot predicted here: {error.what}.\n"
    picture = f"operator_{operator.name}_{family.replace(' ', '_')}.svg"
    program = made.program if made.predicted.num_spans == made.program.num_ops else None  # else a part was simulated
    title = f"{operator.name}, {family}: ranks 0 and 1 of {ranks}"
    (out / picture).write_text(svg([_first(made.predicted, 2)], program, title=title, width=WIDTH), encoding="utf-8")
    workload = made.operator.workload(made.program, made.schedule)
    sent = int(op_bytes(made.program, workload)[is_one_of(made.program.kind, SENDS)].sum())
    calls = int((made.program.kind == Kind.collective).sum()) // ranks
    wire = num_bytes(sent) if sent else f"{calls} library calls"
    gain = f"{made.serial_s / made.predicted_s:.2f}"
    row = f"| [{family}](#{family.lower()}) | {seconds(made.predicted_s)} | {depth(made.program)} | {wire} | {gain} |"
    return row, f"## {family}\n\n{made.explain()}.\n\n{_picture(picture, title)}\n"


def _first(timeline: Timeline, ranks: int) -> Timeline:
    """Return the spans of the first ranks alone."""
    kept = timeline.columns["rank"] < ranks
    return replace(timeline, num_ranks=ranks, columns={name: col[kept] for name, col in timeline.columns.items()})


def _picture(path: str, words: str) -> str:
    return f"```{{figure}} {path}\n:alt: {words}\n:figclass: picture\n\n{words}\n```"
