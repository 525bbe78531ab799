"""accelerate: `dovetail accelerate`: make an unmodified MPI program faster by its library's own knobs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli import output
from dovetail.core import DovetailError

if TYPE_CHECKING:
    from dovetail.accelerate.contest import Ratio
    from dovetail.accelerate.expected import Prospects
    from dovetail.accelerate.learn import Learned
    from dovetail.accelerate.running import Command, Ran
    from dovetail.store import Item


@dataclass
class _Run:
    """One use of the command, and the lines that it has printed."""

    command: Command
    place: Item
    known: Learned | None
    limit_s: float
    reorder: bool
    source: Path | None = None
    prospects: Prospects | None = None
    ran: Ran | None = None
    ratio: Ratio | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def replaces(self) -> bool:
        """Whether the user asked for replaced collectives."""
        return bool(self.command.replace)

    def note(self, text: str) -> None:
        """Print on stderr, and keep for the report."""
        output.note(text)
        self.lines += text.splitlines()

    def print(self, text: str) -> None:
        """Print on stdout, and keep for the report."""
        print(text)
        self.lines += text.splitlines()


def accelerate(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Start with what a trace of the command shows; skip what cannot gain."),
    ] = None,
    check: Annotated[
        int, typer.Option("--check", help="Compare N runs with the chosen knobs and N as it is, alternating.", min=0)
    ] = 0,
    learn: Annotated[
        float, typer.Option("--learn", help="Seconds that a first run may spend on further runs; 0: none.", min=0)
    ] = 60.0,
    reorder: Annotated[
        bool, typer.Option("--reorder", help="Also knobs that may change the order of floating-point sums.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Replace collectives of one host's ranks by exchanges in shared memory where faster."
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Write the report to a file: .json, or .html, with the trace of --from."),
    ] = None,
    print_env: Annotated[
        bool, typer.Option("--print-env", help="Run nothing; print the chosen knobs for a shell script.")
    ] = False,
    mpi: Annotated[
        str | None,
        typer.Option("--mpi", help="Count programs of this MPI only: mpich, openmpi, abi, or the path of an mpicc."),
    ] = None,
) -> int:
    """Run a command, count the MPI calls of its ranks, and apply the knobs of its MPI library that make it faster.

    The command follows `--`; its output and exit code stay unchanged, and the report goes to stderr. After a first run
    the command is run again, without output, to try knobs: only if enough runs fit into `--learn` seconds. The result
    is kept, and applied to later runs of the same command. So is the verdict on replaced collectives.
    """
    from dovetail.accelerate.learn import recall_settings, settings_item
    from dovetail.accelerate.running import prepared
    from dovetail.report.acceleration import exports

    words = list(context.args)
    if not words:
        raise DovetailError("no command to accelerate", hint="dovetail accelerate -- mpirun -n 4 ./a.out")
    _check_report(report)
    if print_env:
        known = recall_settings(settings_item(words, reorder=reorder, replace=replace)).warned()
        print(exports(known.knobs if known else {}, words))
        return 0
    command = prepared(words, mpi, ("reorder" if reorder else "exact") if replace else "")
    place = settings_item(words, reorder=reorder, replace=replace, library=command.library)
    known = recall_settings(place).warned()
    if command.why_not:
        output.warn(f"nothing is counted or changed: {command.why_not}")
        return command.run().code
    run = _Run(command, place, known, learn, reorder, source)
    code = _skipped(run, check) if source else None
    if code is None and known and not check and not report and known.gains_nothing(replaces=bool(command.replace)):
        code = _left(run, known)
    if code is None:
        code = _check(run, check) if check else _accelerated(run)
    if report is not None:
        _write(run, report)
    return code


def _skipped(run: _Run, check: int) -> int | None:
    """Print what the trace shows; if no lever can gain, run the command as it is, and return its exit code."""
    from dovetail.accelerate.expected import measured, prospects
    from dovetail.accelerate.traced import counts_of_trace, level_of
    from dovetail.advise.thread_level import level_notes
    from dovetail.cli.trace import open_trace_of
    from dovetail.report.prospects import nothing_text, predicted_text, prospects_text

    assert run.source is not None
    trace = open_trace_of(run.source)
    found = prospects(counts_of_trace(trace), level_of(trace), run.command.words, reorder=run.reorder)
    run.note(f"dovetail accelerate: {prospects_text(found, 'traced')}")
    for text in level_notes(trace):
        run.note(text)
    if found.can_gain(replaces=True):
        found = measured(found, run.command, run.limit_s / 2, output.note)
        run.note(predicted_text(found))
    run.prospects = found
    if found.can_gain(replaces=run.replaces):
        return None
    run.note(nothing_text(found))
    return 0 if check else run.command.run(counted=False).code


def _left(run: _Run, known: Learned) -> int:
    """Run the command as it is, since earlier runs have shown that nothing is to be gained; return its exit code."""
    from dovetail.report.acceleration import judged_text, verdict_text

    code = run.command.run(counted=False).code
    run.note("dovetail accelerate: the command ran as it is, without counters: --report counts it, --check judges anew")
    if run.replaces:
        run.note(judged_text(known))
    run.note(verdict_text(replace(known, spent_s=0.0)))
    return code


def _accelerated(run: _Run) -> int:
    """Run the command with what is known, print what its ranks spent, and learn what is not known."""
    known = run.known
    command = _as_learned(run.command, known)
    run.ran = ran = command.run(known.knobs if known else {})
    if not ran.counts:
        from dovetail.accelerate.running import why_uncounted

        output.warn(f"nothing is counted or changed: {why_uncounted(command.words, ran.code)}")
        return ran.code
    _note_misfit(run)
    fits = known is not None and known.fits(ran.counts[0])
    _report(run)
    if known is not None and not fits:  # this run may have had knobs
        run.place.path.unlink(missing_ok=True)
        run.note("these knobs were chosen on other ranks, hosts or another library: the next run learns again")
    else:
        _learn(run, command)
    return ran.code


def _note_misfit(run: _Run) -> None:
    """Forget the prospects if the trace is of other ranks, hosts or another library than the run."""
    if run.prospects is None or run.ran is None:
        return
    seen, traced = run.ran.counts[0], run.prospects.counts
    about = [(each.ranks, len(each.hosts), each.library.split()[0]) for each in (seen, traced)]
    if about[0] != about[1]:
        run.note(f"the trace is of {traced.ranks} ranks on {len(traced.hosts)} hosts: its predictions do not hold here")
        run.prospects = None


def _as_learned(command: Command, known: Learned | None) -> Command:
    """Return the command with what is known of its replaced collectives: where to start, or that none is replaced."""
    from dovetail.accelerate.learn import IDLE, LOST

    if known is None:
        return command
    return command.without_replacing() if known.replacing in (IDLE, LOST) else replace(command, start=known.start)


def _report(run: _Run) -> None:
    from dovetail.accelerate.learn import NOT_TRIED, WON
    from dovetail.report.acceleration import (
        applied_text,
        counts_text,
        judged_text,
        plain_text,
        replacing_text,
        verdict_text,
    )

    assert run.ran is not None
    known, counts = run.known, run.ran.counts[0]
    run.note(f"dovetail accelerate: {counts_text(counts, len(run.ran.counts) - 1)}")
    if counts.replacing:
        run.note(replacing_text(counts))
    run.note(applied_text(known.knobs if known else {}, counts.readback))
    if known is None or not known.fits(counts):
        return
    if known.verdict == WON:
        run.note(plain_text(known.knobs, run.command.words))
    if known.verdict != NOT_TRIED:
        run.note(verdict_text(known, replaced=_has_replaced(run.ran)))
    if run.replaces and known.replacing:
        run.note(judged_text(known))


def _has_replaced(ran: Ran) -> bool:
    replacing = ran.counts[0].replacing
    return replacing is not None and any(row.moved for row in replacing.rows)


def _learn(run: _Run, command: Command) -> None:
    """Learn what is not known yet: which knobs make the command faster, and whether replaced collectives do."""
    from dovetail.accelerate.learn import IDLE, NOT_TRIED, save_settings
    from dovetail.accelerate.replacement import judge_replacing
    from dovetail.accelerate.running import can_repeat
    from dovetail.report.acceleration import judged_text, verdict_text

    assert run.ran is not None
    ran, known = run.ran, run.known
    tries = known is None or known.verdict == NOT_TRIED
    judges = _has_replaced(ran) and not (known and known.replacing)
    if not tries and not judges:
        return
    if ran.code or not can_repeat():
        why = (
            f"exit code {ran.code}" if ran.code else "the command's input is a file or a pipe, which further runs lack"
        )
        run.note(verdict_text(None, why))
        return
    learned, why_not = known, ""
    if tries:
        learned = _try_knobs(run, command)
    if learned and judges:
        learned, why_not = judge_replacing(command, learned, ran, run.limit_s, output.note)
        run.note(why_not or judged_text(learned))
    if learned and run.replaces and not learned.replacing and not _has_replaced(ran):
        learned = replace(learned, replacing=IDLE)
    if learned:
        save_settings(run.place, learned, command.words)
        run.known = learned


def _try_knobs(run: _Run, command: Command) -> Learned | None:
    """Try knobs: those that the trace shows, or else those that the run's counts show."""
    from dovetail.accelerate.knobs import promising
    from dovetail.accelerate.learn import WON, learn
    from dovetail.report.acceleration import plain_text, verdict_text

    assert run.ran is not None
    counts, prospects = run.ran.counts[0], run.prospects
    found = prospects.worth_trying if prospects else promising(counts, command.words, reorder=run.reorder)
    learned, why_not = learn(command.without_replacing(), run.ran, run.limit_s, found, output.note)
    run.note(verdict_text(learned, why_not, replaced=_has_replaced(run.ran)))
    if learned and learned.verdict == WON:
        run.note(plain_text(learned.knobs, command.words))
    return learned.with_judgement_of(run.known) if learned else None


def _check(run: _Run, pairs: int) -> int:
    """Run the command alternately with the chosen knobs and as it is; print the ratio and the verdict; save it."""
    from dovetail.accelerate.contest import FailedRun
    from dovetail.accelerate.learn import check, save_settings
    from dovetail.accelerate.replacement import judged
    from dovetail.accelerate.running import can_repeat
    from dovetail.report.acceleration import applied_text, check_text, plain_text
    from dovetail.report.prospects import compared_text

    if not can_repeat():
        raise DovetailError("--check runs the command several times", found="its input is a file or a pipe")
    known, command = run.known, run.command
    knobs = known.knobs if known else _predicted_knobs(run)
    try:
        ratio, ran = check(replace(command, start=known.start if known else ()), knobs, pairs)
    except FailedRun as failure:
        output.warn(str(failure))
        return failure.code
    run.ran, run.ratio = ran, ratio
    run.print(applied_text(knobs))
    if knobs:
        run.print(plain_text(knobs, command.words))
    if run.prospects:
        run.print(compared_text(run.prospects.saves_s(knobs, replaces=run.replaces), ratio))
    run.print(check_text(ratio, knobs, replaces=run.replaces))
    learned = judged(known, ratio, ran, replaces=_has_replaced(ran)) if knobs or command.replace else None
    if learned:
        save_settings(run.place, learned, command.words)
        run.known = learned
    return 0


def _predicted_knobs(run: _Run) -> dict[str, str]:
    """Return the knobs that are predicted to save most; none without a trace, or if shared memory saves more."""
    best = run.prospects.best(memory=False) if run.prospects else None
    memory = run.prospects.best(memory=True) if run.prospects and run.replaces else None
    return dict(best.knobs) if best and (memory is None or best.saves_s > memory.saves_s) else {}


def _check_report(path: Path | None) -> None:
    if path is not None and path.suffix not in (".json", ".html"):
        raise DovetailError(f"--report {path}: its name ends in neither .json nor .html")


def _write(run: _Run, path: Path) -> None:
    """Write the report to a file."""
    from dovetail.cli.trace import open_trace_of
    from dovetail.core import save_json
    from dovetail.report.acceleration_page import document, write_acceleration_page

    counts = run.ran.counts[0] if run.ran and run.ran.counts else None
    found = document(run.command.words, counts, run.known, run.prospects, run.ratio, run.lines)
    if path.suffix == ".json":
        save_json(path, found)
    else:
        trace = open_trace_of(run.source) if run.source else None
        write_acceleration_page(path, found, trace)
    output.note(f"report: {path}")
