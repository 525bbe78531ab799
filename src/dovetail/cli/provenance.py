"""provenance: the operator and sizes that a program was made from, read from its file or from the command line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli import files
from dovetail.cli.operators import OperatorRequest, Verb
from dovetail.core import DovetailError, OperatorError

if TYPE_CHECKING:
    from dovetail.ir import Program, Workload
    from dovetail.store.provenance import MadeOf

KEY = "made_of"  # key of the provenance in a program's JSON
LINE = re.compile(r"^# made of (\{.*\})[ \t]*$", re.MULTILINE)  # the provenance in a program's text
EXAMPLE = '--operator "matmul_all_reduce --m 64 --k 32 --n 48", or --operator PLAN'
SHAPE = re.compile(r"\d+(x\d+)*(,\d+(x\d+)*)*")


def found(kind: str, content: Any) -> MadeOf | None:
    """Return the provenance in a file that `files.read` returned; None if it has none."""
    from dovetail.store.provenance import MadeOf

    if kind in files.PLANNED:
        return MadeOf.from_json(content)
    document = content.get(KEY) if kind == "program" else _in_text(content) if kind == "text" else None
    return None if document is None else MadeOf.from_json(document)


def with_made_of(text: str, form: str, made: MadeOf | None) -> str:
    """Return a program's text with its provenance added; unchanged in other forms than `text` and `json`."""
    if made is None or form not in ("text", "json"):
        return text
    document = json.dumps(made.to_json())
    return f"{text}# made of {document}\n" if form == "text" else f'{text[:-1]}, "{KEY}": {document}}}'


def read_operator(words: str) -> MadeOf:
    """Read the value of `--operator`: the path of a plan, of a tune result, or of a program with provenance; or an
    operator with options, as after `dovetail plan`.

    >>> read_operator("matmul_all_reduce --m 4 --k 6 --n 2").operator.title
    'matmul_all_reduce 4 × 6 × 2 float32'
    """
    from dovetail.store.provenance import MadeOf

    try:
        parts = shlex.split(words)
    except ValueError as error:
        raise OperatorError(f"--operator {words}", found=str(error), hint=EXAMPLE) from error
    if not parts:
        raise OperatorError("--operator is empty", hint=EXAMPLE)
    if len(parts) == 1 and Path(parts[0]).exists():
        made = found(*files.read(parts[0]))
        if made is None:
            raise OperatorError(
                f"{parts[0]} does not name its operator", hint='--operator PLAN, or --operator "OPERATOR …"'
            )
        return made
    command = Verb(_unchanged).command(parts[0])
    return MadeOf(command.main(parts[1:], prog_name=f"dovetail plan {parts[0]}", standalone_mode=False).operator())


def _unchanged(request: OperatorRequest) -> Any:
    """Return the request itself."""
    return request


def workload_of(
    program: Program, made: MadeOf | None, shapes: Sequence[str], dtype: str | None, place: str
) -> Workload | None:
    """Return a program's workload, from the shapes on the command line or from its provenance.

    Returns None if neither is given and the program has no kernels. Raises OperatorError, with a hint what to give, if
    it has kernels of unknown sizes.
    """
    from dovetail.store.provenance import shaped

    if shapes:
        return shaped(program, dict(map(_shape, shapes)), dtype or "float32")
    if made is not None:
        return made.workload(program)
    if not program.kernels:
        return None
    kernels = ", ".join(dict.fromkeys(kernel.name for kernel in program.kernels))
    each = " ".join(f"--shape {buffer.name}=…" for buffer in program.buffers)
    raise OperatorError(
        f"{place} does not contain the sizes of its kernels",
        found=f"kernels {kernels}",
        hint=f'--operator PLAN or "OPERATOR …" as after `dovetail plan`, or {each} (a slot in elements: 3072x8192)',
    )


def _shape(text: str) -> tuple[str, list[list[int]]]:
    """Return a buffer's name and the shapes of its slots.

    >>> _shape("B=32x48"), _shape("A=2,1")
    (('B', [[32, 48]]), ('A', [[2], [1]]))
    """
    name, equals, sides = text.rpartition("=")
    if not equals or not name or not SHAPE.fullmatch(sides):
        raise OperatorError(f"--shape {text}", hint="--shape BUFFER=3072x8192, or one for each rank: A=1536,1535")
    return name, [[int(side) for side in one.split("x")] for one in sides.split(",")]


def _in_text(text: str) -> Mapping[str, Any] | None:
    match = LINE.search(text)
    if match is None:
        return None
    try:
        document: Mapping[str, Any] = json.loads(match[1])
    except ValueError as error:
        raise DovetailError("the program's line `# made of {…}` is not JSON", found=str(error)) from error
    return document
