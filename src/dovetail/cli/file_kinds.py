"""file_kinds: the kinds of JSON documents that Dovetail writes, distinguished by schema (see `cli.files.KINDS`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dovetail.core import DovetailError, FileError
from dovetail.core.registry import at


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    `name`: in messages. `type`: the class that reads it, "module:Class". `words`: the function that describes it in
    words, "module:function"; default: its keys and short values are listed.
    """

    name: str
    type: str = ""
    words: str = ""

    def read(self, content: Any) -> Any:
        """Return the object in a document of this kind. Raise FileError if the document is damaged."""
        with understood(DovetailError):
            return at(self.type).from_json(content)

    def described(self, content: Any) -> str:
        """Return a document of this kind in words."""
        return str(at(self.words)(self.read(content)) if self.words else keys(content))


PROGRAM = Kind("program", "dovetail.ir:Program")
PLAN = Kind("plan", "dovetail.planner:Plan", "dovetail.planner.explain:explain")
TIMELINE = Kind("timeline", "dovetail.timeline:Timeline", "dovetail.cli.simulate:render")
MACHINE = Kind("machine", "dovetail.machine:Machine", "dovetail.cli.machines:render")
CERTIFICATE = Kind("certificate", "dovetail.ir:Certificate", "dovetail.cli.verify:render")
COMPARISON = Kind("comparison", "dovetail.timeline:Comparison", "dovetail.cli.compare:render")
SELECTION = Kind("selection", "dovetail.store.selection:Selection", "dovetail.cli.show:selection")
TUNE, RUN, CURVE = Kind("tune"), Kind("run"), Kind("curve")


@contextmanager
def understood(*kinds: type[DovetailError], place: str | None = None) -> Iterator[None]:
    """Turn errors of these kinds, raised while the file `place` is read, into FileError: exit code 2 in every verb.

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
        raise FileError(error.what, where=error.where or place, found=error.found, hint=error.hint) from error


def keys(content: dict[str, Any]) -> str:
    """Return the keys of a document and its short values, one per line."""
    short = {key: value for key, value in content.items() if not isinstance(value, dict | list)}
    return "\n".join(f"{key:<20} {value}" for key, value in short.items())
