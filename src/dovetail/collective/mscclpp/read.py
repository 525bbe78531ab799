"""read: MSCCL++ JSON → Program, a lane for each threadblock, with the facts of its header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.collective.mscclpp.document import load
from dovetail.collective.mscclpp.launch import launch
from dovetail.collective.mscclpp.limits import limits_of, notes_of
from dovetail.collective.mscclpp.memory import cut
from dovetail.collective.mscclpp.plan import MscclppPlan
from dovetail.core.collector import paused


@paused()
def read(source: str | bytes | Path | Mapping[str, Any], *, name: str | None = None) -> MscclppPlan:
    """Read an MSCCL++ execution plan: a file (a path), a JSON text, or the object; lines are called by `name`.

    Ops have their gpu, threadblock and place there as their source line. ProgramError, with that place, for what is no
    plan or cannot be judged. Whether the plan is right is for `certify` to say.
    """
    document = load(source, name)
    how = cut(document)
    lowering = launch(document, how)
    return MscclppPlan(document, lowering, limits_of(document), notes_of(document, how))
