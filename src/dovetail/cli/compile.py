"""compile: `dovetail compile`: compile an algorithm to a proved Program, in the form that its runtime reads."""

from __future__ import annotations

import json as jsons
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dovetail.cli import files, output, provenance, sources
from dovetail.cli.options import Json, nearest
from dovetail.core import OperatorError

if TYPE_CHECKING:
    from dovetail.collective.msccl import Header
    from dovetail.ir import Certificate, Program
    from dovetail.store.provenance import MadeOf

FORMS = ("text", "json", "msccl", "azure", "rccl", "mscclpp")
SCHEMA = "dovetail.compiled/1"


class Made(NamedTuple):
    """A proved Program and what else its file or author declares.

    `protocol`: Simple, LL or LL128. `kind`: the collective that the author declares. `header`: of the MSCCL XML file
    that the Program was read from. `made_of`: its provenance, an operator and a schedule.
    """

    program: Program
    certificate: Certificate
    protocol: str
    kind: str | None = None
    header: Header | None = None
    made_of: MadeOf | None = None


def compile(
    prog: Annotated[
        str,
        typer.Argument(
            help="A shipped algorithm's name; FILE.py or FILE.py:NAME with program(num_ranks, …); or a program's file."
        ),
    ],
    ranks: Annotated[int | None, typer.Option("--ranks", help="Ranks to compile for.", min=1)] = None,
    to: Annotated[str, typer.Option("--to", help=f"Form: {', '.join(FORMS)}.")] = "text",
    out: Annotated[Path | None, typer.Option("--out", help="File to write to; else stdout.", dir_okay=False)] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Nodes that the ranks share evenly.", min=1)] = None,
    channels: Annotated[
        int | None, typer.Option("--channels", help="Channels over which messages are spread.", min=1)
    ] = None,
    instances: Annotated[
        int | None, typer.Option("--instances", help="Parallel copies of the algorithm, each on a part.", min=1)
    ] = None,
    protocol: Annotated[str | None, typer.Option("--protocol", help="Simple, LL or LL128.")] = None,
    in_place: Annotated[
        bool | None, typer.Option("--in-place/--out-of-place", help="Whether the result overwrites the input.")
    ] = None,
    batched: Annotated[
        bool, typer.Option("--batched", help="Give each instance contiguous slots, not every k-th slot.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the algorithm itself: NAME=VALUE.")
    ] = None,
    json: Json = False,
) -> None:
    """Compile an algorithm and prove the result. If the proof fails, print the faulty line and exit with code 1."""
    from dovetail.collective import PROTOCOLS

    form = nearest(to, FORMS, "form")
    used = None if protocol is None else nearest(protocol, PROTOCOLS, "protocol")
    asked = {"nodes": nodes, "channels": channels, "in_place": in_place}
    options = {word: value for word, value in asked.items() if value is not None} | sources.settings(settings or ())
    if sources.is_source(prog):
        made = _written_made(prog, ranks, options, used, (form, instances, batched))
    else:
        made = read_made(prog, files.read(prog), used)
        _check_unchanged(prog, made.program, ranks, options | ({} if instances is None else {"instances": instances}))
    made.certificate.raise_if_bad()
    _deliver(made, form, out, json)


def _written_made(
    prog: str, ranks: int | None, options: Mapping[str, Any], protocol: str | None, how: tuple[str, int | None, bool]
) -> Made:
    """Compile the algorithm in a user's Python file, or a shipped algorithm."""
    from dovetail.collective import KINDS
    from dovetail.ir import Program, verify

    made, (form, instances, batched) = sources.written(prog, ranks, options), how
    if isinstance(made, Program):
        return Made(made, verify(made), protocol or "Simple")
    used: Any = protocol or made.protocol
    runs = form in ("text", "json")
    program = made.compile(instances, used, replicate="batched" if batched else "interleaved", strided=runs)
    return Made(program, verify(program), used, made.spec.kind if made.spec.kind in KINDS else None)


def read_made(place: str, found: tuple[str, Any], protocol: str | None = None) -> Made:
    """Prove the Program in the file that `files.read` returned."""
    from dovetail.collective import msccl, mscclpp
    from dovetail.ir import verify

    kind, content = found
    if kind == "msccl":
        file = files.msccl_of(place, content)
        return Made(file.program, msccl.certify(file), protocol or file.protocol, header=file.header)
    if kind == "mscclpp":
        plan = files.mscclpp_of(place, content)
        return Made(plan.program, mscclpp.certify(plan), protocol or plan.protocol)
    program = files.program_from(kind, content, place)
    return Made(program, verify(program), protocol or "Simple", made_of=provenance.found(kind, content))


def _check_unchanged(place: str, program: Program, ranks: int | None, options: Mapping[str, Any]) -> None:
    """Raise OperatorError for options, which only algorithms take, and for another number of ranks than the file's."""
    if ranks not in (None, program.num_ranks):
        raise OperatorError(f"--ranks {ranks}", found=f"{place} is for {program.num_ranks} ranks")
    if options:
        raise OperatorError(f"{place} is a program: it takes no {next(iter(options))}", hint="give an algorithm")


def _deliver(made: Made, form: str, out: Path | None, as_json: bool) -> None:
    """Write the text to the file or to stdout, and a summary to stdout or stderr."""
    from dovetail.core import save_text
    from dovetail.report.units import num_bytes

    text, limit = _written(made, form)
    facts = _facts(made) | {"safe_up_to_bytes": limit}
    if out is not None:
        save_text(out, text)
    if limit is not None:
        output.warn(f"{f'{out}: ' if out else ''}valid on {form} up to {limit} bytes ({num_bytes(limit)}), not beyond")
    if as_json:
        place = {"out": str(out)} if out else {"program": made.program.to_json()} if form == "json" else {"text": text}
        output.emit({"schema": SCHEMA, "to": form, "protocol": made.protocol, **facts, **place})
    elif out is None:
        print(text, end="" if text.endswith("\n") else "\n")
        output.note(_render(facts, made.protocol))
    else:
        print(f"{out}: {_render(facts, made.protocol)}")


def _written(made: Made, form: str) -> tuple[str, int | None]:
    """Return the text and, for MSCCL XML, the largest buffer for which it completes on its runtime (None: any)."""
    from dovetail.collective import msccl, mscclpp
    from dovetail.ir import to_text
    from dovetail.ir.collectives import traits_of
    from dovetail.ir.text.document import json_text

    if form in ("text", "json"):
        text = to_text(made.program) if form == "text" else json_text(made.program)
        return provenance.with_made_of(text, form, made.made_of), None
    kind = made.kind and (traits_of(made.kind).even or made.kind)
    if form == "mscclpp":
        return jsons.dumps(mscclpp.write(made.program, kind), indent=1), None
    options: dict[str, Any] = {"protocol": made.protocol, "collective": kind, "header": made.header}
    xml = msccl.write_file(made.program, form, certificate=made.certificate, **options)
    limit = msccl.safe_up_to_bytes(xml.file, form)
    return xml.text, limit


def _facts(made: Made) -> dict[str, Any]:
    program, certificate = made.program, made.certificate
    ranks, lanes = (program.columns[name].tolist() for name in ("rank", "lane"))
    blocks = Counter(rank for rank, _ in set(zip(ranks, lanes, strict=True)))
    return {
        "name": program.name,
        "ranks": program.num_ranks,
        "collective_found": certificate.collective_found or made.kind,  # the proof searches up to 1024 ranks only
        "ops": program.num_ops,
        "threadblocks": max(blocks.values(), default=0),
        "channels": len({channel.id for channel in program.channels}),
        "min_fifo_depth": certificate.min_fifo_depth,
    }


def _render(facts: dict[str, Any], protocol: str) -> str:
    what = facts["collective_found"] or "proved"
    counts = [(facts[word], word) for word in ("ops", "threadblocks", "channels")]
    ops, blocks, channels = (f"{n} {word if n != 1 else word[:-1]}" for n, word in counts)
    return (
        f"{facts['name']}, {what} on {facts['ranks']} ranks: {ops}, {blocks} a rank at most, {channels}; {protocol}, "
        f"needs FIFO depth {facts['min_fifo_depth']}"
    )
