"""`dovetail compile`: an algorithm to a proved Program, in the form that its runtime reads."""

from __future__ import annotations

import json as jsons
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import output, sources
from dovetail.cli.options import Json, nearest

if TYPE_CHECKING:
    from dovetail.ir import Certificate, Program

FORMS = ("text", "json", "msccl", "azure", "rccl")
SCHEMA = "dovetail.compiled/1"


def compile(
    prog: Annotated[
        str, typer.Argument(help="A shipped algorithm's name, or FILE.py or FILE.py:NAME, with program(num_ranks, …).")
    ],
    ranks: Annotated[int | None, typer.Option("--ranks", help="Ranks to compile for.", min=1)] = None,
    to: Annotated[str, typer.Option("--to", help=f"Form: {', '.join(FORMS)}.")] = "text",
    out: Annotated[Path | None, typer.Option("--out", help="File to write to; else stdout.", dir_okay=False)] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Nodes that the ranks lie on.", min=1)] = None,
    channels: Annotated[int | None, typer.Option("--channels", help="Channels to spread over.", min=1)] = None,
    instances: Annotated[int | None, typer.Option("--instances", help="Parallel copies of the whole.", min=1)] = None,
    protocol: Annotated[str | None, typer.Option("--protocol", help="Simple, LL or LL128.")] = None,
    in_place: Annotated[bool | None, typer.Option("--in-place/--out-of-place", help="Where the result goes.")] = None,
    batched: Annotated[bool, typer.Option("--batched", help="Instances have runs of slots, not every k-th.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE for what else it takes.")] = None,
    json: Json = False,
) -> None:
    """Compile an algorithm and prove what comes out; exit code 1, with the line, where it does not hold."""
    from dovetail.ir import Program, verify

    form = nearest(to, FORMS, "form")
    asked = {"nodes": nodes, "channels": channels, "in_place": in_place}
    options = {word: value for word, value in asked.items() if value is not None} | sources.settings(settings or ())
    made = sources.written(prog, ranks, options)
    if isinstance(made, Program):
        program, used = made, protocol or "Simple"
    else:
        from dovetail.collective import PROTOCOLS

        used = nearest(protocol or made.protocol, PROTOCOLS, "protocol")
        how: Any = "batched" if batched else "interleaved"
        runs = form in ("text", "json")
        program = made.compile(instances, used, replicate=how, strided=runs)  # type: ignore[arg-type]
    certificate = verify(program)
    certificate.raise_if_bad()
    _deliver(program, certificate, form, used, out, json)


def _deliver(
    program: Program, certificate: Certificate, form: str, protocol: str, out: Path | None, as_json: bool
) -> None:
    """The text to the file or stdout, and what it is to stdout or stderr."""
    from dovetail.core import save_text

    facts = _facts(program, certificate)
    text = _written(program, form, protocol, certificate.collective_found)
    if out is not None:
        save_text(out, text)
    if as_json:
        place = {"out": str(out)} if out else {"program": program.to_json()} if form == "json" else {"text": text}
        output.emit({"schema": SCHEMA, "to": form, "protocol": protocol, **facts, **place})
    elif out is None:
        print(text, end="" if text.endswith("\n") else "\n")
        output.note(_told(facts, protocol))
    else:
        print(f"{out}: {_told(facts, protocol)}")


def _written(program: Program, form: str, protocol: str, found: str | None) -> str:
    from dovetail.ir import to_text

    if form == "text":
        return to_text(program)
    if form == "json":
        return jsons.dumps(program.to_json())
    from dovetail.collective import msccl

    words = msccl.COLLECTIVES[form]
    kind = "custom" if "custom" in words and found not in words else None
    return msccl.write(program, form, protocol=protocol, collective=kind)


def _facts(program: Program, certificate: Certificate) -> dict[str, Any]:
    lanes: dict[int, int] = {}
    for rank, _ in program.queues():
        lanes[rank] = lanes.get(rank, 0) + 1
    return {
        "name": program.name,
        "ranks": program.num_ranks,
        "collective_found": certificate.collective_found,
        "ops": program.num_ops,
        "threadblocks": max(lanes.values(), default=0),
        "channels": len({channel.id for channel in program.channels}),
        "min_fifo_depth": certificate.min_fifo_depth,
    }


def _told(facts: dict[str, Any], protocol: str) -> str:
    what = facts["collective_found"] or "proved"
    counts = [(facts[word], word) for word in ("ops", "threadblocks", "channels")]
    ops, blocks, channels = (f"{n} {word if n != 1 else word[:-1]}" for n, word in counts)
    return (
        f"{facts['name']}, {what} on {facts['ranks']} ranks: {ops}, {blocks} a rank at most, {channels}; {protocol}, "
        f"needs FIFO depth {facts['min_fifo_depth']}"
    )
