"""presets: machines shipped as JSON beside this file. None was measured on your hardware."""

from __future__ import annotations

from importlib import resources
from typing import Any

from dovetail.core import load_json


def presets() -> tuple[str, ...]:
    """Return the names of the machines shipped with the package.

    >>> presets()
    ('a100-8', 'atlas-a2-8', 'h100-8', 'mi300x-8', 'shared-memory-2', 'two-hosts-100mbit', 'two-hosts-1gbit')
    """
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def preset_document(name: str) -> dict[str, Any]:
    with resources.as_file(resources.files(__name__) / f"{name}.json") as path:
        return load_json(path, "machine")
