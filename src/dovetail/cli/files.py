"""files: read Dovetail's files and recognise their kind by the schema. `-` is stdin; a folder means its plan.json."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.file_kinds import Kind, understood
from dovetail.core import DovetailError, FileError, PlanError, Registry

if TYPE_CHECKING:
    from dovetail.collective.msccl import MscclFile
    from dovetail.collective.mscclpp import MscclppPlan
    from dovetail.ir import Program
    from dovetail.planner import Plan
    from dovetail.timeline import Timeline


KINDS = Registry[Kind](
    "dovetail.file_kinds",  # an entry point's name is a schema, as in "mine.table/1"
    "a file kind",
    {
        "dovetail.program/1": "dovetail.cli.file_kinds:PROGRAM",
        "dovetail.plan/2": "dovetail.cli.file_kinds:PLAN",
        "dovetail.timeline/1": "dovetail.cli.file_kinds:TIMELINE",
        "dovetail.machine/1": "dovetail.cli.file_kinds:MACHINE",
        "dovetail.certificate/1": "dovetail.cli.file_kinds:CERTIFICATE",
        "dovetail.comparison/1": "dovetail.cli.file_kinds:COMPARISON",
        "dovetail.selection/1": "dovetail.cli.file_kinds:SELECTION",
        "dovetail.selection/2": "dovetail.cli.file_kinds:SELECTION",
        "dovetail.tune/2": "dovetail.cli.file_kinds:TUNE",
        "dovetail.run/1": "dovetail.cli.file_kinds:RUN",
        "dovetail.program_run/1": "dovetail.cli.file_kinds:RUN",
        "dovetail.curve/1": "dovetail.cli.file_kinds:CURVE",
    },
    ("name", "described"),
    classes=False,
    error=FileError,
)
ANEW = "it was cut, or changed by hand: write it anew"
PLANNED = ("plan", "tune")  # kinds that contain an operator and its schedule
PROGRAMS = ("text", "program", "msccl", "mscclpp")  # kinds that contain a program only


def read(place: str) -> tuple[str, Any]:
    """Return the kind and content of a file.

    The content is a JSON document, the text of a program (kind "text"), or MSCCL XML or its path (kind "msccl").
    Raises DovetailError if the file cannot be read, or is of no known kind.
    """
    path = Path(place)
    if place != "-" and path.is_dir():
        if not (path / "plan.json").exists():
            raise DovetailError(f"{path} is a folder without a plan.json", hint="give a file, or the folder of a plan")
        path = path / "plan.json"
    if place != "-" and _is_xml(path):
        return "msccl", path
    if place == "-":
        text = sys.stdin.read()
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise DovetailError(f"cannot read {path}", found=error.strerror, hint=_nearest_file(path)) from error
        except UnicodeDecodeError as error:
            raise DovetailError(f"{path} is not text", found=str(error)) from error
    return _kind_of(text, "stdin" if place == "-" else str(path))


def program_of(place: str) -> tuple[str, Program, Any]:
    """Return a file's kind, its Program (of a plan: the one that its schedule makes), and its content."""
    kind, content = read(place)
    return kind, program_from(kind, content, place), content


def program_from(kind: str, content: Any, place: str) -> Program:
    """Return the Program in what `read` returned for a place. Raise FileError if there is none, or it is damaged."""
    if kind not in PROGRAM_READERS:
        hint = "give a program (JSON or text), an algorithm (MSCCL XML, MSCCL++ JSON) or a plan"
        raise FileError(f"{place} holds no program", found=f"a {kind}", hint=hint)
    with understood(DovetailError):
        return PROGRAM_READERS[kind](content, place)


def msccl_of(place: str, content: Any) -> MscclFile:
    """Parse the MSCCL XML that `read` returned for a place. Raise FileError if it is damaged."""
    from dovetail.collective import msccl

    with understood(DovetailError):
        return msccl.read(content, name="stdin" if place == "-" else place)


def mscclpp_of(place: str, content: Any) -> MscclppPlan:
    """Parse the MSCCL++ plan that `read` returned for a place. Raise FileError if it is damaged."""
    from dovetail.collective import mscclpp

    with understood(DovetailError):
        return mscclpp.read(content, name="stdin" if place == "-" else place)


def planned_program(document: dict[str, Any], place: str = "") -> Program:
    """Return the Program that a plan's operator and schedule make; it is not yet proved."""
    from dovetail.planner.plan import program_of

    return program_of(document)


def reference_of(document: dict[str, Any]) -> Program | None:
    """Return the reference program that a plan's program must equal; None if post-conditions define the result."""
    from dovetail.planner.plan import reference_of as found

    return found(document)


def _parsed(text: str, place: str) -> Program:
    from dovetail.ir import parse

    return parse(text, place)


def _program(document: dict[str, Any], place: str) -> Program:
    from dovetail.ir import Program

    return Program.from_json(document)


PROGRAM_READERS: dict[str, Callable[[Any, str], Program]] = {
    "text": _parsed,
    "program": _program,
    "msccl": lambda content, place: msccl_of(place, content).program,
    "mscclpp": lambda content, place: mscclpp_of(place, content).program,
    "plan": planned_program,
    "tune": planned_program,
}


def plan_from(kind: str, content: Any, place: str) -> Plan:
    """Return the Plan in what `read` returned for a place, and prove its program again."""
    from dovetail.planner import Plan

    if kind != "plan":
        raise DovetailError(
            f"{place} is not a plan", found=f"a {kind}", hint="`dovetail plan … --out FOLDER` writes one"
        )
    with understood(PlanError, place=place):  # a ProgramError means that its Program is no longer valid
        return Plan.from_json(content)


def timeline_of(place: str) -> Timeline:
    """Return the Timeline in a file; of a plan, the predicted one. Raise DovetailError if there is none."""
    from dovetail.timeline import Timeline

    kind, content = read(place)
    if kind == "plan":
        if not isinstance(content.get("predicted"), dict):
            raise FileError("malformed plan document", found=f"no predicted timeline in {place}")
        content = content["predicted"]
    elif kind != "timeline":
        raise DovetailError(f"{place} is not a timeline", found=f"a {kind}", hint="`dovetail run` writes one")
    with understood(DovetailError, place=place):
        return Timeline.from_json(content)


def drop_if_empty(folder: Path) -> None:
    """Remove the folder of jobs if it is empty, as it is unless a job failed."""
    with suppress(OSError):
        folder.rmdir()


def _kind_of(text: str, place: str) -> tuple[str, Any]:
    start = text.lstrip()
    if start.startswith("<"):
        return "msccl", text
    if not start.startswith(("{", "[")):
        return "text", text
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DovetailError(f"{place} is not JSON", found=str(error), hint=ANEW) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, str) and schema in KINDS:
        return KINDS[schema].name, document
    if isinstance(document, dict) and schema is None and "gpus" in document:
        return "mscclpp", document
    if isinstance(schema, str) and (known := _other_version(schema)):
        kind = KINDS[known].name
        what = f"{place} is a {kind} of another version of dovetail"
        raise DovetailError(what, found=f"schema {schema!r}; this one reads {known!r}", hint=f"make the {kind} anew")
    found = "no `schema`, and no `gpus` as an MSCCL++ plan has" if schema is None else f"schema {schema!r}"
    raise DovetailError(f"{place} is no file of Dovetail's", found=found, hint=f"known: {', '.join(KINDS)}")


def _other_version(schema: str) -> str | None:
    """Return the known schema that differs from this one in the version number only; None if there is none."""
    return next((known for known in KINDS if known.rpartition("/")[0] == schema.rpartition("/")[0]), None)


def _is_xml(path: Path) -> bool:
    """Return whether a file is XML, by its first character or, if it is empty, by its name."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError:
        return False
    return start.startswith(b"<") or (path.suffix == ".xml" and not start.startswith((b"{", b"program")))


def _nearest_file(path: Path) -> str | None:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return None
    close = difflib.get_close_matches(path.name, names, 1)
    return f"did you mean {path.parent / close[0]}?" if close else None
