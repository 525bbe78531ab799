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
    is kept, and applied to later runs of the same command.
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
        return _check(command, known, check)
    ran = command.run(known.knobs if known else {})
    if not ran.counts:
        from dovetail.accelerate.running import why_uncounted

        output.warn(f"nothing is counted or changed: {why_uncounted(words, ran.code)}")
        return ran.code
    _report(ran, known)
    if known is None or not known.fits(ran.counts[0]):
        _learn(command, place, ran, known, learn, reorder)
    return ran.code


def _report(ran: Ran, known: Learned | None) -> None:
    from dovetail.report.acceleration import applied_text, counts_text, replacing_text, verdict_text

    output.note(f"dovetail accelerate: {counts_text(ran.counts[0], len(ran.counts) - 1)}")
    if ran.counts[0].replacing:
        output.note(replacing_text(ran.counts[0]))
    output.note(applied_text(known.knobs if known else {}, ran.counts[0].readback))
    if known and known.fits(ran.counts[0]):
        output.note(verdict_text(known, replaced=_has_replaced(ran)))


def _has_replaced(ran: Ran) -> bool:
    replacing = ran.counts[0].replacing
    return replacing is not None and any(row.moved for row in replacing.rows)


def _learn(command: Command, place: Item, ran: Ran, known: Learned | None, limit_s: float, reorder: bool) -> None:
    """Learn which knobs make the command faster, and save the result."""
    from dovetail.accelerate.learn import learn, save_settings
    from dovetail.accelerate.running import can_repeat
    from dovetail.report.acceleration import verdict_text

    if known is not None:  # this run may have had knobs
        place.path.unlink(missing_ok=True)
        output.note("these knobs were chosen on other ranks, hosts or another library: the next run learns again")
    elif ran.code or not can_repeat():
        why = (
            f"exit code {ran.code}" if ran.code else "the command's input is a file or a pipe, which further runs lack"
        )
        output.note(verdict_text(None, why))
    else:
        learned, why_not = learn(command, ran, limit_s, reorder=reorder, note=output.note)
        if learned:
            save_settings(place, learned, command.words)
        output.note(verdict_text(learned, why_not, replaced=_has_replaced(ran)))


def _check(command: Command, known: Learned | None, pairs: int) -> int:
    """Run the command alternately with the chosen knobs and as it is; print the ratio and the verdict."""
    from dovetail.accelerate.contest import FailedRun
    from dovetail.accelerate.learn import check
    from dovetail.accelerate.running import can_repeat
    from dovetail.report.acceleration import applied_text, check_text

    if not can_repeat():
        raise DovetailError("--check runs the command several times", found="its input is a file or a pipe")
    knobs = known.knobs if known else {}
    try:
        ratio = check(command, knobs, pairs)
    except FailedRun as failure:
        output.warn(str(failure))
        return failure.code
    print(applied_text(knobs))
    print(check_text(ratio, knobs, replaces=bool(command.replace)))
    return 0
