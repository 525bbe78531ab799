"""fingerprint: a hash of all that determines an operator's Programs, so that any change of it is noticed."""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Protocol, runtime_checkable

import dovetail
from dovetail.core import json_text
from dovetail.ir import Operator

PACKAGE = Path(dovetail.__file__).parent
_IMPORTED = re.compile(rb"^[ \t]*(?:from|import) +dovetail(?:\.(\w+))?", re.MULTILINE)


@runtime_checkable
class Fingerprinted(Protocol):
    """An operator whose Programs depend on more than its JSON document and the source code of its class."""

    def fingerprint(self) -> str:
        """Return a text of all that the JSON document leaves out, such as the source text of a nest."""


def fingerprint_of(operator: Operator) -> str | None:
    """Return a hash of all that determines an operator's Programs, except schedule and ranks.

    It covers the operator's JSON document, its own `fingerprint` (see `Fingerprinted`), and the source code of its
    class and of what that imports. Returns None if a source cannot be read, for example of a class defined in a
    notebook; the operator's Programs are not saved then.

    >>> from dovetail.matmul import MatmulAllReduce
    >>> one, other = (fingerprint_of(MatmulAllReduce(4, 6, n)) for n in (2, 3))
    >>> one == other, one == fingerprint_of(MatmulAllReduce(4, 6, 2))
    (False, True)
    """
    own = operator.fingerprint() if isinstance(operator, Fingerprinted) else ""
    modules = [kind.__module__ for kind in type(operator).__mro__]
    try:
        about = [operator.to_json(), own, type(operator).__qualname__, _sources(tuple(dict.fromkeys(modules)))]
    except (OSError, KeyError, AttributeError):
        return None
    return sha256(json_text(about, canonical=True).encode()).hexdigest()


@cache
def _sources(modules: tuple[str, ...]) -> str:
    """Return the digest of Dovetail's version and of source code: of every subpackage of Dovetail that has one of these
    modules or is imported by one; of modules outside Dovetail, their files."""
    found = sha256(dovetail.__version__.encode())
    packages = {name.split(".")[1] for name in modules if name.startswith("dovetail.")}
    for name in modules:
        if name.partition(".")[0] not in {"dovetail", *sys.stdlib_module_names}:
            text = Path(str(sys.modules[name].__file__)).read_bytes()
            found.update(text)
            packages |= _named(text)
    done = set[str]()
    while todo := sorted(packages - done):
        for package in todo:
            for text in _texts(package):
                found.update(text)
                packages |= _named(text)
        done.update(todo)
    return found.hexdigest()


def _named(text: bytes) -> set[str]:
    """Return the subpackages of Dovetail that a source imports; all of them if it imports `dovetail` itself."""
    packages = {package.decode() for package in _IMPORTED.findall(text)}
    return packages if "" not in packages else {place.name for place in PACKAGE.iterdir() if place.is_dir()}


def _texts(package: str) -> list[bytes]:
    """Return the Python sources of a subpackage."""
    found = []
    for folder, _, names in os.walk(PACKAGE / package):
        found += [os.path.join(folder, name) for name in names if name.endswith(".py")]
    return [Path(path).read_bytes() for path in sorted(found)]
