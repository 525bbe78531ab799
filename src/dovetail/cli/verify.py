"""verify: `dovetail verify`: prove a program, or show the counterexample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli import files, output, sources
from dovetail.cli.options import AlgorithmNodes, AlgorithmRanks, Json, nearest
from dovetail.core import FileError
from dovetail.core.collector import paused

if TYPE_CHECKING:
    from dovetail.ir import Certificate, Program


def verify(
    file: Annotated[
        str,
        typer.Argument(
            help="A program (JSON or text), MSCCL XML, an MSCCL++ plan, a plan, or - for stdin; or the name of a "
            "shipped algorithm, or FILE.py."
        ),
    ],
    target: Annotated[
        str | None, typer.Option("--target", help="Also check the limits of this runtime: msccl, azure or rccl.")
    ] = None,
    fifo_depth: Annotated[
        int | None,
        typer.Option(
            "--fifo-depth", help="Messages that each channel holds; overrides the program.", min=1, max=(1 << 31) - 1
        ),
    ] = None,
    ranks: AlgorithmRanks = None,
    nodes: AlgorithmNodes = None,
    json: Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for a page with the counterexample.", file_okay=False)
    ] = None,
) -> int:
    """Prove a program: bounds, deadlock, races, result, limits. Exit code 0 if proved, 1 if not, 2 if unreadable.

    A shipped algorithm of more than 64 ranks is proved folded, if it can be: from the ops of rank 0, for all ranks.
    For an MSCCL++ plan, `reuse` warns if a caller must wait before overwriting a buffer; the exit code stays 0.
    """
    from dovetail.ir import TARGETS

    name = None if target is None else nearest(target, TARGETS, "target")
    try:
        if sources.is_source(file):
            programs, certificate = proved_algorithm(file, ranks, nodes, name, fifo_depth)
        else:
            sources.refuse_counts(file, ranks, nodes)
            programs, certificate = proved(file, name, fifo_depth)
    except FileError as error:
        if json:
            output.emit(unreadable(file, error, name).to_json())
        raise
    page = None if out is None else _write_page(out, programs, certificate, file)
    if json:
        output.emit(certificate.to_json() | ({"page": str(page)} if page else {}))
    else:
        print(render(certificate) + (f"\n\n{page}" if page else ""))
    return 0 if certificate.ok else 1


@paused()
def proved_algorithm(
    place: str, ranks: int | None, nodes: int | None, target: str | None, fifo_depth: int | None
) -> tuple[list[Program], Certificate]:
    """Prove a shipped algorithm, or that of a user's Python file; return what `proved` returns.

    Ops of a folded program are those of rank 0. A target's limits, and a FIFO depth, are checked on every rank.
    """
    from dovetail.ir import verify as prove
    from dovetail.ir import verify_folded

    folded = sources.folded(place, ranks, nodes) if target is None and fifo_depth is None else None
    if folded is not None:
        return [folded.one], verify_folded(folded)
    program = sources.expanded(place, ranks, nodes)
    program = program if fifo_depth is None else program.with_depth(fifo_depth)
    return [program], prove(program, target)


@paused()
def proved(place: str, target: str | None = None, fifo_depth: int | None = None) -> tuple[list[Program], Certificate]:
    """Prove the program in a file; return the programs whose ops the certificate may name, and the certificate.

    An MSCCL file that serves both in place and out of place has two programs.
    """
    from dovetail.ir import verify as prove

    kind, content = files.read(place)
    if kind == "msccl":
        from dovetail.collective import msccl

        file = files.msccl_of(place, content)
        programs = [use.program for use in file.uses]
        verdict = msccl.certify(file, target, fifo_depth)
        return [p if fifo_depth is None else p.with_depth(fifo_depth) for p in programs], verdict
    if kind == "mscclpp":
        from dovetail.collective import mscclpp

        if fifo_depth is not None:
            output.warn("--fifo-depth is ignored: MSCCL++ plans write into other ranks' memory, without FIFOs")
        plan = files.mscclpp_of(place, content)
        verdict = mscclpp.certify(plan, target)
        return [] if verdict.ok else [mscclpp.launched(plan, loose=verdict.failed == "races")], verdict
    program = files.program_from(kind, content, place)
    program = program if fifo_depth is None else program.with_depth(fifo_depth)
    return [program], prove(program, target, against=files.reference_of(content) if kind == "plan" else None)


def unreadable(place: str, error: FileError, target: str | None) -> Certificate:
    """Return the certificate for a file that cannot be read: its bounds check fails, the others are not reached."""
    from dovetail.ir import Certificate, Check
    from dovetail.ir.proof.certificate import CHECKS

    checks = {name: Check(False, "not reached: the bounds check failed") for name in CHECKS}
    checks["bounds"] = Check(False, error.what, where=error.where or place, found=error.found, hint=error.hint)
    return Certificate(Path(place).stem, checks, target=target)


def render(certificate: Certificate) -> str:
    """Return the checks as a table, then each failure or warning with the ops that show it."""
    from dovetail.report import render_table

    rows = [
        [name, _word(name, check.ok) if not _skipped(check.message) else "–", check.message]
        for name, check in certificate.checks.items()
    ]
    parts = [render_table(["check", "verdict", "finding"], rows, terminal=output.is_terminal(), width=output.width())]
    for name, check in certificate.checks.items():
        if not check.ok and not _skipped(check.message):
            parts.append("\n".join(_failure(name, check)))
    parts.append(_verdict(certificate))
    return "\n\n".join(parts)


def _word(name: str, is_ok: bool) -> str:
    from dovetail.ir.proof.certificate import REUSE

    return "ok" if is_ok else "WARNS" if name == REUSE else "FAILS"


def _verdict(certificate: Certificate) -> str:
    from dovetail.report.units import num_bytes

    text = f"{certificate.program}: {'valid' if certificate.ok else 'NOT valid'}"
    if (limit := certificate.safe_up_to_bytes) is not None:
        text += f" up to {limit} bytes ({num_bytes(limit)}), not beyond"
    text += f"; it computes {certificate.collective_found}" if certificate.collective_found else ""
    if certificate.warning:
        return f"{text}; its caller must heed the warning on reuse"
    if certificate.min_fifo_depth:
        return f"{text}; least FIFO depth {certificate.min_fifo_depth}"
    deadlock = certificate.checks["deadlock"]
    return text if deadlock.ok or _skipped(deadlock.message) else f"{text}; no FIFO depth helps"


def _skipped(message: str) -> bool:
    return message.startswith("not reached")


def _failure(name: str, check: object) -> list[str]:
    facts = (("written at", "where"), ("found", "found"), ("try", "hint"))
    lines = [f"{name}: {check.message}"]  # type: ignore[attr-defined]
    lines += [f"  {title:<11} {getattr(check, key)}" for title, key in facts if getattr(check, key)]
    return lines + [f"    {line}" for line in check.schedule]  # type: ignore[attr-defined]


def _write_page(folder: Path, programs: list[Program], certificate: Certificate, place: str) -> Path | None:
    """Write a page with the minimal schedule that shows the first failure; return its path. None if no ops show it."""
    from dovetail.report import Summary, write_page
    from dovetail.report.counterexample import counterexample

    name = certificate.failed
    if name in (None, "bounds") or not programs or not certificate.checks[name].ops:
        return None
    check = certificate.checks[name]
    program = programs[-1 if check.message.startswith("in place") else 0]
    timeline = counterexample(program, check.ops, stuck=name == "deadlock")
    title = f"{certificate.program}: {check.message}"
    notes = ("\n".join(_failure(name, check)[1:]), "One tick of the timeline, drawn as 1 µs, is one op.")
    page = folder / f"{Path(place).stem or 'stdin'}.html"
    return write_page(page, title=title, timelines=[timeline], program=program, summary=Summary(notes=notes))
