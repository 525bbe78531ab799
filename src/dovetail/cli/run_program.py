"""`dovetail run` of a program's file: proved, run on ranks at one size, checked, and timed as nccl-tests time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.cli import files, output
from dovetail.cli.trace import note_trace_in
from dovetail.core import save_json

if TYPE_CHECKING:
    from dovetail.ir import Program
    from dovetail.run.job import Job, JobResult
    from dovetail.run.mpi import MpiExecutor

SCHEMA = "dovetail.program_run/1"


class Ran(NamedTuple):
    """What was run, and what came of it."""

    program: Program
    collective: str | None
    num_bytes: int
    dtype: str
    result: JobResult

    @property
    def num_wrong(self) -> int | None:
        """Elements, on all ranks, that differ from float64 by more than rounding explains; None: not looked at."""
        return self.result["timed"].num_wrong


def run_program(
    place: str,
    content: tuple[str, Any],
    size: str,
    dtype: str,
    *,
    executor: MpiExecutor,
    rounds: int,
    budget: float,
    seed: int,
    json: bool,
    out: Path | None,
) -> int:
    """Run the Program in what `files.read` found at a place; exit code 1 where its result is wrong."""
    from dovetail.cli.compile import read_made
    from dovetail.core import parse_bytes
    from dovetail.run.timing import held_bytes, measuring_job

    made = read_made(place, content)
    made.certificate.raise_if_bad()
    job: Job = measuring_job(made.program, parse_bytes(size), dtype, rounds, budget, seed)
    with output.progress(f"running {rounds} rounds"):
        result = (executor.in_folder(out / "runs") if out else executor).execute(job)
    note_trace_in(executor.trace)
    num_bytes = held_bytes(made.program, job.variants[0].workload)
    ran = Ran(made.program, made.certificate.collective_found, num_bytes, dtype, result)
    timeline = None
    if out is not None:
        files.drop_if_empty(out / "runs")
        timeline = save_json(out / "measured.json", result["traced"].timelines[0].to_json())
    output.emit(summary(ran, timeline)) if json else _print(ran, timeline)
    return int(bool(ran.num_wrong))


def summary(ran: Ran, timeline: Path | None) -> dict[str, Any]:
    """The JSON document of a run; bandwidths are there where a collective was found."""
    timed = ran.result["timed"]
    head = {"schema": SCHEMA, "program": ran.program.name, "ranks": ran.program.num_ranks, "collective": ran.collective}
    sizes = {"num_bytes": ran.num_bytes, "dtype": ran.dtype, "measured_s": timed.median_s, "spread": timed.spread}
    rates = dict(zip(("algbw_gb_per_s", "busbw_gb_per_s"), _rates(ran) or (None, None), strict=True))
    checks = {"num_wrong": ran.num_wrong, "max_rel_error": timed.max_rel_error, "tolerance": timed.tolerance}
    runs = {"rounds": ran.result.rounds, "disturbed": ran.result.disturbed, **ran.result.load.to_json()}
    rest = {"facts": ran.result.facts, "timeline": timeline and str(timeline)}
    return {**head, **sizes, **rates, **checks, **runs, **rest}


def _rates(ran: Ran) -> tuple[float, float] | None:
    from dovetail.tune.timing import bandwidths, bus_factor

    if ran.collective is None:
        return None
    factor = bus_factor(ran.collective, ran.program.num_ranks)
    return bandwidths(ran.num_bytes, ran.result["timed"].median_s, factor)


def _print(ran: Ran, timeline: Path | None) -> None:
    from dovetail.report import percent

    timed, rates = ran.result["timed"], _rates(ran)
    headers, cells = ["bytes", "type", "time (µs)", "spread"], [str(ran.num_bytes), ran.dtype]
    cells += [f"{timed.median_s * 1e6:.2f}", percent(timed.spread)]
    if rates:
        headers, cells = [*headers, "algbw (GB/s)", "busbw (GB/s)"], [*cells, *(f"{rate:.3f}" for rate in rates)]
    headers, cells = [*headers, "#wrong"], [*cells, "–" if ran.num_wrong is None else str(ran.num_wrong)]
    print(f"{ran.program.name}: {ran.collective or 'no standard collective'} on {ran.program.num_ranks} ranks\n")
    aligns: list[Any] = ["right", "left", *["right"] * (len(cells) - 2)]
    output.table(headers, [cells], aligns)
    print(f"\n{_facts(ran)}" + (f"\n{timeline}" if timeline else ""))


def _facts(ran: Ran) -> str:
    """How it was timed, and whether what it left is right."""
    timed, result = ran.result["timed"], ran.result
    disturbed = f"; {result.disturbed} disturbed" if result.disturbed else ""
    library = " ".join(str(result.facts.get("mpi", "MPI")).split())
    lines = [f"Median of {result.rounds} rounds{disturbed}; on {library}.", *(f"{w}." for w in result.load.warnings)]
    if ran.num_wrong is None:
        return "\n".join([*lines, "Nothing was checked: the program has no post-condition."])
    error = f"largest error {timed.max_rel_error:.2g}, {timed.tolerance:.2g} allowed"
    verdict = f"{ran.num_wrong} elements are WRONG" if ran.num_wrong else "All that its post-conditions name is right"
    return "\n".join([*lines, f"{verdict}: {error}."])
