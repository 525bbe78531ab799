"""accelerate: `dovetail accelerate`: make an unmodified MPI program faster by its library's own knobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli import output
from dovetail.core import DovetailError

if TYPE_CHECKING:
    from dovetail.accelerate.learn import Learned
    from dovetail.accelerate.running import Command, Ran
    from dovetail.store import Item


def accelerate(
    context: typer.Context,
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
    place = settings_item(words, reorder=reorder, replace=replace)
    known = recall_settings(place).warned()
    if print_env:
        print(exports(known.knobs if known else {}, words))
        return 0
    command = prepared(words, mpi, ("reorder" if reorder else "exact") if replace else "")
    if command.why_not:
        output.warn(f"nothing is counted or changed: {command.why_not}")
        return command.run().code
    if check:
        return _check(command, place, known, check)
    command = _as_learned(command, known)
    ran = command.run(known.knobs if known else {})
    if not ran.counts:
        from dovetail.accelerate.running import why_uncounted

        output.warn(f"nothing is counted or changed: {why_uncounted(words, ran.code)}")
        return ran.code
    fits = known is not None and known.fits(ran.counts[0])
    _report(ran, known, asked=replace)
    if known is not None and not fits:  # this run may have had knobs
        place.path.unlink(missing_ok=True)
        output.note("these knobs were chosen on other ranks, hosts or another library: the next run learns again")
    else:
        _learn(command, place, ran, known, learn, reorder)
    return ran.code


def _as_learned(command: Command, known: Learned | None) -> Command:
    """Return the command with what is known of its replaced collectives: where to start, or that none is replaced."""
    from dataclasses import replace

    from dovetail.accelerate.learn import LOST

    if known is None:
        return command
    return command.without_replacing() if known.replacing == LOST else replace(command, start=known.start)


def _report(ran: Ran, known: Learned | None, *, asked: bool) -> None:
    from dovetail.accelerate.learn import NOT_TRIED
    from dovetail.report.acceleration import applied_text, counts_text, judged_text, replacing_text, verdict_text

    output.note(f"dovetail accelerate: {counts_text(ran.counts[0], len(ran.counts) - 1)}")
    if ran.counts[0].replacing:
        output.note(replacing_text(ran.counts[0]))
    output.note(applied_text(known.knobs if known else {}, ran.counts[0].readback))
    if known is None or not known.fits(ran.counts[0]):
        return
    if known.verdict != NOT_TRIED:
        output.note(verdict_text(known, replaced=_has_replaced(ran)))
    if asked and known.replacing:
        output.note(judged_text(known))


def _has_replaced(ran: Ran) -> bool:
    replacing = ran.counts[0].replacing
    return replacing is not None and any(row.moved for row in replacing.rows)


def _learn(command: Command, place: Item, ran: Ran, known: Learned | None, limit_s: float, reorder: bool) -> None:
    """Learn what is not known yet: which knobs make the command faster, and whether replaced collectives do."""
    from dovetail.accelerate.learn import NOT_TRIED, learn, save_settings
    from dovetail.accelerate.replacement import judge_replacing
    from dovetail.accelerate.running import can_repeat
    from dovetail.report.acceleration import judged_text, verdict_text

    tries = known is None or known.verdict == NOT_TRIED
    judges = _has_replaced(ran) and not (known and known.replacing)
    if not tries and not judges:
        return
    if ran.code or not can_repeat():
        why = (
            f"exit code {ran.code}" if ran.code else "the command's input is a file or a pipe, which further runs lack"
        )
        output.note(verdict_text(None, why))
        return
    learned, why_not = known, ""
    if tries:
        found, why_not = learn(command.without_replacing(), ran, limit_s, reorder=reorder, note=output.note)
        learned = found.with_judgement_of(known) if found else None
        output.note(verdict_text(found, why_not, replaced=_has_replaced(ran)))
    if learned and judges:
        learned, why_not = judge_replacing(command, learned, ran, limit_s, output.note)
        output.note(why_not or judged_text(learned))
    if learned:
        save_settings(place, learned, command.words)


def _check(command: Command, place: Item, known: Learned | None, pairs: int) -> int:
    """Run the command alternately with the chosen knobs and as it is; print the ratio and the verdict; save it."""
    from dataclasses import replace

    from dovetail.accelerate.contest import FailedRun
    from dovetail.accelerate.learn import check, save_settings
    from dovetail.accelerate.replacement import judged
    from dovetail.accelerate.running import can_repeat
    from dovetail.report.acceleration import applied_text, check_text

    if not can_repeat():
        raise DovetailError("--check runs the command several times", found="its input is a file or a pipe")
    knobs = known.knobs if known else {}
    try:
        ratio, ran = check(replace(command, start=known.start if known else ()), knobs, pairs)
    except FailedRun as failure:
        output.warn(str(failure))
        return failure.code
    print(applied_text(knobs))
    print(check_text(ratio, knobs, replaces=bool(command.replace)))
    learned = judged(known, ratio, ran, replaces=_has_replaced(ran)) if knobs or command.replace else None
    if learned:
        save_settings(place, learned, command.words)
    return 0
