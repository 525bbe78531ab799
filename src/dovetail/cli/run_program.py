"""run_program: `dovetail run` of a program's file: prove, run at one size, check, and time it as nccl-tests does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.cli import files, output
from dovetail.cli.trace import note_trace_in
from dovetail.core import save_json

if TYPE_CHECKING:
    from dovetail.ir import Program
    from dovetail.run.executor import Executor
    from dovetail.run.job import Job, JobResult

SCHEMA = "dovetail.program_run/1"


class Ran(NamedTuple):
    """A program that was run, its title, collective and sizes, and the result."""

    program: Program
    title: str | None
    collective: str | None
    num_bytes: int
    dtype: str
    result: JobResult

    @property
    def num_wrong(self) -> int | None:
        """Return the elements, over all ranks, whose error exceeds the tolerance; None: not checked."""
        return self.result["timed"].num_wrong


class Asked(NamedTuple):
    """The options that give the sizes of a program's slots: --size, --dtype, --operator, --shape."""

    size: str | None
    dtype: str | None
    operator: str | None
    shapes: Sequence[str]


def run_program(
    place: str,
    content: tuple[str, Any],
    asked: Asked,
    *,
    executor: Executor,
    rounds: int,
    budget: float,
    seed: int,
    json: bool,
    out: Path | None,
) -> int:
    """Run the Program in the file that `files.read` returned; print the result. Return exit code 1 if it is wrong."""
    from dovetail.run.timing import held_bytes

    job, named = _asked_job(place, content, asked, (rounds, budget, seed))
    with output.progress(f"running {rounds} rounds"):
        result = (executor.in_folder(out / "runs") if out else executor).execute(job)
    note_trace_in(executor.trace)
    first = job.variants[0]
    dtypes = dict.fromkeys(slot.dtype for slots in first.workload.slots.values() for slot in slots)
    about = held_bytes(first.program, first.workload), ", ".join(dtypes)
    ran, timeline = Ran(first.program, *named, *about, result), None
    if out is not None:
        files.drop_if_empty(out / "runs")
        kept = result["traced"].timelines
        timeline = save_json(out / "measured.json", kept[0].to_json()) if kept else None
    output.emit(summary(ran, timeline)) if json else _print(ran, timeline)
    return int(bool(ran.num_wrong))


def _asked_job(
    place: str, content: tuple[str, Any], asked: Asked, how: tuple[int, float, int]
) -> tuple[Job, tuple[str | None, str | None]]:
    """Return the job to run, and the program's title and collective (None if unknown)."""
    from dovetail.cli import provenance
    from dovetail.cli.compile import read_made
    from dovetail.core import OperatorError, parse_bytes
    from dovetail.passes import two_sided
    from dovetail.run.timing import even_slots, held_bytes, measuring_job

    read = read_made(place, content)
    read.certificate.raise_if_bad()
    program, made = (
        two_sided(read.program),
        read.made_of if asked.operator is None else provenance.read_operator(asked.operator),
    )
    held = provenance.workload_of(program, made, asked.shapes, asked.dtype, place)
    if held is not None:
        _warn_of_unused(asked)
        schedule, against = (made.schedule, made.reference(program)) if made and not asked.shapes else (None, None)
        title = made.operator.title if made and not asked.shapes else None
        return measuring_job(program, held, *how, schedule=schedule, against=against), (title, None)
    num_bytes, dtype = parse_bytes(asked.size or "1M"), asked.dtype or "float32"
    if num_bytes < 1:
        raise OperatorError("--size must be at least 1 byte", found=str(asked.size))
    even = even_slots(program, num_bytes, dtype)
    if asked.size is not None and (fits := held_bytes(program, even)) != num_bytes:
        output.note(f"{fits} bytes are run, not {num_bytes}: each slot has equally many whole elements of {dtype}.")
    return measuring_job(program, even, *how), (None, read.certificate.collective_found)


def _warn_of_unused(asked: Asked) -> None:
    """Warn of options that have no effect because the sizes are known."""
    if asked.size is not None:
        output.warn("--size is ignored: the sizes of this program are known")
    if asked.dtype is not None and not asked.shapes:
        output.warn("--dtype is ignored: this program's file names its element type")
    if asked.shapes and asked.operator:
        output.warn("--operator is ignored: --shape gives all sizes")


def summary(ran: Ran, timeline: Path | None) -> dict[str, Any]:
    """Return the JSON document of a run, with bandwidths if the program is a known collective."""
    timed = ran.result["timed"]
    head = {"schema": SCHEMA, "program": ran.program.name, "ranks": ran.program.num_ranks, "collective": ran.collective}
    head |= {"operator": ran.title}
    sizes = {"num_bytes": ran.num_bytes, "dtype": ran.dtype, "measured_s": timed.median_s, "spread": timed.spread}
    rates = dict(zip(("algbw_gb_per_s", "busbw_gb_per_s"), _rates(ran) or (None, None), strict=True))
    checks = {"num_wrong": ran.num_wrong, "max_rel_error": timed.max_rel_error, "tolerance": timed.tolerance}
    runs = {"rounds": ran.result.rounds, "disturbed": ran.result.disturbed, **ran.result.load.to_json()}
    rest = {"facts": ran.result.facts, "timeline": timeline and str(timeline)}
    return {**head, **sizes, **rates, **checks, **runs, **rest}


def _rates(ran: Ran) -> tuple[float, float] | None:
    from dovetail.tuner.timing import bandwidths, bus_factor

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
    what = ran.title or f"{ran.program.name}: {ran.collective or 'no standard collective'}"
    print(f"{what} on {ran.program.num_ranks} ranks\n")
    aligns: list[Any] = ["right", "left", *["right"] * (len(cells) - 2)]
    output.table(headers, [cells], aligns)
    print(f"\n{_facts(ran)}" + (f"\n{timeline}" if timeline else ""))


def _facts(ran: Ran) -> str:
    """Return sentences on how the run was timed, and whether its result is right."""
    timed, result = ran.result["timed"], ran.result
    disturbed = f"; {result.disturbed} disturbed" if result.disturbed else ""
    library = " ".join(str(result.facts.get("mpi", "MPI")).split())
    lines = [f"Median of {result.rounds} rounds{disturbed}; on {library}.", *(f"{w}." for w in result.load.warnings)]
    if ran.num_wrong is None:
        return "\n".join([*lines, "Nothing was checked: the program has no post-condition."])
    error = f"largest error {timed.max_rel_error:.2g}, {timed.tolerance:.2g} allowed"
    verdict = f"{ran.num_wrong} elements are WRONG" if ran.num_wrong else "The result meets all post-conditions"
    return "\n".join([*lines, f"{verdict}: {error}."])
