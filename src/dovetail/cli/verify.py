"""`dovetail verify`: prove a program, or show the counterexample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli import files, output
from dovetail.cli.options import Json, nearest

if TYPE_CHECKING:
    from dovetail.ir import Certificate


def verify(
    file: Annotated[str, typer.Argument(help="A program (JSON or text), a plan, or - for stdin.")],
    target: Annotated[str | None, typer.Option("--target", help="Runtime whose limits it must keep.")] = None,
    json: Json = False,
) -> int:
    """Prove a program: bounds, deadlock, races, result and limits. Exit code 0 if it holds, 1 if not."""
    from dovetail.ir import TARGETS
    from dovetail.ir import verify as prove

    name = None if target is None else nearest(target, TARGETS, "target")
    _, program, _ = files.program_of(file)
    certificate = prove(program, name)
    if json:
        output.emit(certificate.to_json())
    else:
        print(told(certificate))
    return 0 if certificate.ok else 1


def told(certificate: Certificate) -> str:
    """The five checks as a table, then what failed, with the ops that show it."""
    from dovetail.report import render_table

    rows = [
        [name, ("ok" if check.ok else "FAILS") if not _skipped(check.message) else "–", check.message]
        for name, check in certificate.checks.items()
    ]
    parts = [render_table(["check", "verdict", "finding"], rows, terminal=output.is_terminal(), width=output.width())]
    for name, check in certificate.checks.items():
        if not check.ok and not _skipped(check.message):
            parts.append("\n".join(_failure(name, check)))
    parts.append(f"{certificate.program}: {'valid' if certificate.ok else 'NOT valid'}")
    return "\n\n".join(parts)


def _skipped(message: str) -> bool:
    return message.startswith("not reached")


def _failure(name: str, check: object) -> list[str]:
    facts = (("written at", "where"), ("found", "found"), ("try", "hint"))
    lines = [f"{name}: {check.message}"]  # type: ignore[attr-defined]
    lines += [f"  {title:<11} {getattr(check, key)}" for title, key in facts if getattr(check, key)]
    return lines + [f"    {line}" for line in check.schedule]  # type: ignore[attr-defined]
