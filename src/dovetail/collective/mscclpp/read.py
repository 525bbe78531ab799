"""read: MSCCL++ JSON → Program, with a lane for each threadblock, and header."""

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
    """Read an MSCCL++ execution plan: a file (a path), JSON text or object. `name`: the file name in source lines.

    The source line of an op is its gpu, threadblock and index. Raises ProgramError, with such a place, if it is no
    plan or cannot be judged. `certify` proves whether the plan is right.
    """
    document = load(source, name)
    how = cut(document)
    lowering = launch(document, how)
    return MscclppPlan(document, lowering, limits_of(document), notes_of(document, how))
