"""presets: machines shipped as JSON beside this file, and families of them. None was measured on your hardware."""

from __future__ import annotations

from importlib import resources
from typing import Any

from dovetail.core import load_json
from dovetail.machine.presets.families import FAMILIES, family_document


def presets() -> tuple[str, ...]:
    """Return the names of the machines shipped with the package.

    >>> presets()[:4]
    ('a100-8', 'atlas-a2-8', 'cygnus-4', 'dgx1-v100-8')
    """
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def families() -> tuple[str, ...]:
    """Return the names of machines that are generated, with letters for the numbers in them.

    >>> families()
    ('ndv4-a100-8xN', 'h100-8xN', 'torus-AxB[xC…]', 'fat-tree-LEAVESxHOSTS[xSPINES]')
    """
    return tuple(FAMILIES)


def generated_document(name: str) -> dict[str, Any] | None:
    """Return the document of a machine of a family; None if the name is of none. Raises ValueError for bad numbers."""
    return family_document(name, preset_document)


def preset_document(name: str) -> dict[str, Any]:
    """Return the document of a preset that is shipped as JSON."""
    with resources.as_file(resources.files(__name__) / f"{name}.json") as path:
        return load_json(path, "machine")
