"""Files of ours, told apart by their schema; `-` is stdin, and a folder is the plan in it."""

from __future__ import annotations

import difflib
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.core import DovetailError, ProgramError

if TYPE_CHECKING:
    from dovetail.collective.msccl import MscclFile
    from dovetail.collective.mscclpp import MscclppPlan
    from dovetail.ir import Program
    from dovetail.plan import Plan
    from dovetail.timeline import Timeline

KINDS = {
    "dovetail.program/1": "program",
    "dovetail.plan/1": "plan",
    "dovetail.timeline/1": "timeline",
    "dovetail.machine/1": "machine",
    "dovetail.certificate/1": "certificate",
    "dovetail.comparison/1": "comparison",
    "dovetail.tune/1": "tune",
    "dovetail.curve/1": "curve",
    "dovetail.run/1": "run",
    "dovetail.program_run/1": "run",
    "dovetail.selection/1": "selection",
}
PROGRAMS = ("text", "program", "msccl", "mscclpp")  # kinds that are a program, and nothing beside it


def read(place: str) -> tuple[str, Any]:
    """Kind and content of a file: a JSON document, ("text", the text of a program), or ("msccl", XML or its path).

    Raises DovetailError where it cannot be read or is none of ours.
    """
    path = Path(place)
    if place != "-" and path.is_dir():
        if not (path / "plan.json").exists():
            raise DovetailError(f"{path} is a folder without a plan.json", hint="name a file, or the folder of a plan")
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
    """Kind of the file, its Program (JSON, text, an algorithm, or the one that a plan makes), and its content."""
    kind, content = read(place)
    return kind, program_from(kind, content, place), content


def program_from(kind: str, content: Any, place: str) -> Program:
    """The Program in what `read` found at a place."""
    from dovetail.ir import Program, parse

    if kind == "text":
        return parse(content, place)
    if kind == "program":
        return Program.from_json(content)
    if kind == "msccl":
        return msccl_of(place, content).program
    if kind == "mscclpp":
        return mscclpp_of(place, content).program
    if kind in ("plan", "tune"):
        return planned_program(content)
    hint = "give a program (JSON or text), an algorithm (MSCCL XML, MSCCL++ JSON) or a plan"
    raise ProgramError(f"{place} holds no program", found=f"a {kind}", hint=hint)


def msccl_of(place: str, content: Any) -> MscclFile:
    """The MSCCL XML file that `read` found at a place."""
    from dovetail.collective import msccl

    return msccl.read(content, name="stdin" if place == "-" else place)


def mscclpp_of(place: str, content: Any) -> MscclppPlan:
    """The MSCCL++ plan that `read` found at a place."""
    from dovetail.collective import mscclpp

    return mscclpp.read(content, name="stdin" if place == "-" else place)


def planned_program(document: dict[str, Any]) -> Program:
    """The Program that a plan's wish and choices make, not yet proved."""
    from dovetail.core import PlanError
    from dovetail.matmul import MatmulAllReduce
    from dovetail.plan import Choices

    try:
        wish = MatmulAllReduce.from_json(document["wish"])
        return Choices.from_json(document["choices"]).program(wish, int(document["ranks"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanError("malformed plan document", found=f"{type(error).__name__}: {error}") from error


def plan_of(place: str) -> Plan:
    """The Plan in a file, proved anew."""
    return plan_from(*read(place), place)


def plan_from(kind: str, content: Any, place: str) -> Plan:
    """The Plan in what `read` found at a place, proved anew."""
    from dovetail.plan import Plan

    if kind != "plan":
        raise DovetailError(
            f"{place} is not a plan", found=f"a {kind}", hint="`dovetail plan … --out FOLDER` writes one"
        )
    return Plan.from_json(content)


def timeline_of(place: str) -> Timeline:
    """The Timeline in a file; of a plan, the predicted one."""
    from dovetail.timeline import Timeline

    kind, content = read(place)
    if kind == "plan":
        return Timeline.from_json(content["predicted"])
    if kind != "timeline":
        raise DovetailError(f"{place} is not a timeline", found=f"a {kind}", hint="`dovetail run` writes one")
    return Timeline.from_json(content)


def drop_if_empty(folder: Path) -> None:
    """Remove a folder in which jobs left nothing, as all do that went well."""
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
        raise DovetailError(f"{place} is not JSON", found=str(error)) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema in KINDS:
        return KINDS[schema], document
    if isinstance(document, dict) and schema is None and "gpus" in document:
        return "mscclpp", document
    found = "no `schema`, and no `gpus` as an MSCCL++ plan has" if schema is None else f"schema {schema!r}"
    raise DovetailError(f"{place} is no file of ours", found=found, hint=f"known: {', '.join(KINDS)}")


def _is_xml(path: Path) -> bool:
    """By its first character, or by its name where it is empty; without reading it whole."""
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
