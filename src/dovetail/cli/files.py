"""Files of ours, told apart by their schema; `-` is stdin, and a folder is the plan in it."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.core import DovetailError, FileError, PlanError

if TYPE_CHECKING:
    from dovetail.collective.msccl import MscclFile
    from dovetail.collective.mscclpp import MscclppPlan
    from dovetail.ir import Program
    from dovetail.planner import Plan
    from dovetail.timeline import Timeline


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, the class that reads it (`module:Class`), and the function that puts it into words; a
    kind without them is shown by its keys."""

    name: str
    type: str = ""
    words: str = ""

    def read(self, content: Any) -> Any:
        """What a document of this kind holds."""
        with understood(DovetailError):
            return found(self.type).from_json(content)

    def described(self, content: Any) -> str:
        """A document of this kind in words."""
        return str(found(self.words)(self.read(content)) if self.words else keys(content))


KINDS = {
    "dovetail.program/1": Kind("program", "dovetail.ir:Program"),
    "dovetail.plan/2": Kind("plan", "dovetail.planner:Plan", "dovetail.planner.explain:explain"),
    "dovetail.timeline/1": Kind("timeline", "dovetail.timeline:Timeline", "dovetail.cli.simulate:render"),
    "dovetail.machine/1": Kind("machine", "dovetail.machine:Machine", "dovetail.cli.machines:render"),
    "dovetail.certificate/1": Kind("certificate", "dovetail.ir:Certificate", "dovetail.cli.verify:render"),
    "dovetail.comparison/1": Kind("comparison", "dovetail.timeline:Comparison", "dovetail.cli.compare:render"),
    "dovetail.selection/1": Kind("selection", "dovetail.store.selection:Selection", "dovetail.cli.show:selection"),
    "dovetail.tune/2": Kind("tune"),
    "dovetail.run/1": Kind("run"),
    "dovetail.program_run/1": Kind("run"),
    "dovetail.curve/1": Kind("curve"),
}
ANEW = "it was cut, or changed by hand: write it anew"
PLANNED = ("plan", "tune")  # kinds that say what was wished for, and how it is done
PROGRAMS = ("text", "program", "msccl", "mscclpp")  # kinds that are a program, and nothing beside it


@contextmanager
def understood(*kinds: type[DovetailError]) -> Iterator[None]:
    """While a file is read: errors of these kinds say that it is damaged, which is misuse (exit code 2) in every verb.

    >>> with understood(DovetailError):
    ...     raise DovetailError("expected 'program'", found="an empty text")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FileError: expected 'program'
      found       an empty text
    """
    try:
        yield
    except kinds as error:
        raise FileError(error.what, where=error.where, found=error.found, hint=error.hint) from error


def found(place: str) -> Any:
    """What is at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def keys(content: dict[str, Any]) -> str:
    """What has no words of its own: its keys and short values."""
    short = {key: value for key, value in content.items() if not isinstance(value, dict | list)}
    return "\n".join(f"{key:<20} {value}" for key, value in short.items())


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
    if kind not in PROGRAM_READERS:
        hint = "give a program (JSON or text), an algorithm (MSCCL XML, MSCCL++ JSON) or a plan"
        raise FileError(f"{place} holds no program", found=f"a {kind}", hint=hint)
    with understood(DovetailError):
        return PROGRAM_READERS[kind](content, place)


def msccl_of(place: str, content: Any) -> MscclFile:
    """The MSCCL XML file that `read` found at a place."""
    from dovetail.collective import msccl

    with understood(DovetailError):
        return msccl.read(content, name="stdin" if place == "-" else place)


def mscclpp_of(place: str, content: Any) -> MscclppPlan:
    """The MSCCL++ plan that `read` found at a place."""
    from dovetail.collective import mscclpp

    with understood(DovetailError):
        return mscclpp.read(content, name="stdin" if place == "-" else place)


def planned_program(document: dict[str, Any], place: str = "") -> Program:
    """The Program that a plan's operator and schedule make, not yet proved."""
    from dovetail.planner.plan import program_of

    return program_of(document)


def reference_of(document: dict[str, Any]) -> Program | None:
    """The plain program that says what is right for a plan's, None where its post-conditions do."""
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
    """The Plan in what `read` found at a place, proved anew."""
    from dovetail.planner import Plan

    if kind != "plan":
        raise DovetailError(
            f"{place} is not a plan", found=f"a {kind}", hint="`dovetail plan … --out FOLDER` writes one"
        )
    with understood(PlanError):  # a ProgramError says that its Program no longer holds
        return Plan.from_json(content)


def timeline_of(place: str) -> Timeline:
    """The Timeline in a file; of a plan, the predicted one."""
    from dovetail.timeline import Timeline

    kind, content = read(place)
    if kind == "plan":
        if not isinstance(content.get("predicted"), dict):
            raise FileError("malformed plan document", found=f"no predicted timeline in {place}")
        content = content["predicted"]
    elif kind != "timeline":
        raise DovetailError(f"{place} is not a timeline", found=f"a {kind}", hint="`dovetail run` writes one")
    with understood(DovetailError):
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
    raise DovetailError(f"{place} is no file of ours", found=found, hint=f"known: {', '.join(KINDS)}")


def _other_version(schema: str) -> str | None:
    """The schema that we read in place of one whose number alone differs."""
    return next((known for known in KINDS if known.rpartition("/")[0] == schema.rpartition("/")[0]), None)


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
