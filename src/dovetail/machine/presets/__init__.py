"""Presets: machines shipped as JSON beside this file. None was measured where you run."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

from dovetail.core import MachineError, load_json
from dovetail.machine.machine import Machine


def presets() -> tuple[str, ...]:
    """Names of the machines shipped with the package.

    >>> presets()
    ('a100-8', 'atlas-a2-8', 'h100-8', 'mi300x-8', 'shared-memory-2', 'two-hosts-100mbit', 'two-hosts-1gbit')
    """
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def load(name_or_path: str | Path) -> Machine:
    """The preset of that name, or the machine in that JSON file.

    >>> load("atlas-a2-8").ranks
    8
    >>> load("atlas-a2")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.MachineError: no machine 'atlas-a2'
      found       presets a100-8, atlas-a2-8, h100-8, mi300x-8, shared-memory-2, two-hosts-100mbit, two-hosts-1gbit
      try         did you mean 'atlas-a2-8'? Or give the path of a machine's JSON file
    """
    name = str(name_or_path)
    if name in presets():
        with resources.as_file(resources.files(__name__) / f"{name}.json") as path:
            return Machine.from_json(load_json(path, "machine"))
    if isinstance(name_or_path, Path) or name.endswith(".json") or Path(name).is_file():
        if not Path(name).exists():
            hint = "`dovetail machines` lists those that are known"
            raise MachineError(f"cannot read machine {name}", found="no such file", hint=hint)
        return Machine.from_json(load_json(name_or_path, "machine"))
    near = difflib.get_close_matches(name, presets(), 1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'? Or give" if near else "give"
    raise MachineError(
        f"no machine '{name}'",
        found=f"presets {', '.join(presets())}",
        hint=f"{hint} the path of a machine's JSON file",
    )
