"""machines: `dovetail machines`: list, show and plot machines, and import the topology files of other tools."""

from __future__ import annotations

import codecs
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import output
from dovetail.cli.options import Json
from dovetail.core import MachineError

if TYPE_CHECKING:
    from dovetail.cost import Curve
    from dovetail.ir import Operator
    from dovetail.machine import Machine

SCHEMA = "dovetail.machines/1"
RATES = {"bytes": ((1e9, "GB/s"), (1e6, "MB/s")), "flop": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"))}
NO_COSTS = "No costs: the machine can be shown and plotted; plans and simulations need costs (`Machine.with_costs`)."
THIS = "this"


ACTIONS = ("list", "show", "plot", "import")


def machines(
    what: Annotated[
        str, typer.Argument(help="list, show, plot, import; or the name of a machine, which is shown.")
    ] = "list",
    name: Annotated[
        str | None,
        typer.Argument(help="A preset, a probed machine, `this` (the one probed last), or a machine's JSON file."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write the machine's topology and curves to this HTML page.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="With import: write the machine to this JSON file.")] = None,
    json: Json = False,
) -> None:
    """List the known machines; show one's cost curves; plot its topology and curves; import hwloc's or NCCL's XML."""
    action, named = (what, name) if what in ACTIONS else ("show", what)
    if action == "list":
        if plot or named:
            raise MachineError("a list has no page, and takes no name", hint="dovetail machines plot NAME")
        rows = list(known())
        output.emit({"schema": SCHEMA, "machines": rows}) if json else _list(rows)
        return
    if named is None or (what not in ACTIONS and name is not None):
        raise MachineError(f"dovetail machines {what} needs one machine", hint=f"dovetail machines {action} NAME")
    machine = _imported(named, out) if action == "import" else find(named)
    page = plot or (Path(f"{machine.name}.html") if action == "plot" else None)
    if page:
        write_plot(machine, page)
    output.emit(machine.to_json()) if json else print(render(machine))
    for path in filter(None, (out, page)):
        output.note(f"\n{path}")


def _imported(path: str, out: Path | None) -> Machine:
    """Return the machine of a topology file; write it to `out`."""
    from dovetail.machine.topology_xml import read_topology

    machine = read_topology(path)
    if out:
        machine.save(out)
    return machine


def find(name: str, operator: Operator | None = None, ranks: int = 0) -> Machine:
    """Return the machine with this name: a probed machine, `this`, a preset, or a machine's JSON file.

    `NAME without rank:5, link:3-4`: what is left of that machine. A probed machine has the cached costs of an
    `operator` on `ranks` ranks.
    """
    from dovetail.machine import load

    return load(name, lambda base: _find(base, operator, ranks))


def _find(name: str, operator: Operator | None, ranks: int) -> Machine:
    from dovetail.cli.probed import with_costs
    from dovetail.machine import Machine
    from dovetail.store.machines import saved_machines

    saved = list(saved_machines()) if not name.endswith(".json") else []
    for _, machine in saved:
        if machine.name == name:
            return machine if operator is None else with_costs(machine, operator, ranks)
    _refuse_xml(name)
    if name == THIS:
        if not saved:
            raise MachineError("this machine was not probed yet", hint="dovetail probe links")
        last = saved[0][1]
        return last if operator is None else with_costs(last, operator, ranks)
    return Machine.load(name)


def _refuse_xml(name: str) -> None:
    """Raise MachineError, with the command that imports it, if `name` is a file of XML."""
    try:
        if not Path(name).is_file():
            return
        with Path(name).open("rb") as file:
            start = file.read(256).removeprefix(codecs.BOM_UTF8).lstrip()
    except OSError:  # unreadable: `Machine.load` says so
        return
    if start.startswith(b"<"):
        out = shlex.quote(f"{Path(name).stem}.json")
        hint = f"dovetail machines import {shlex.quote(name)} --out {out}"
        raise MachineError(f"{name} is not a machine's JSON file", found="XML, such as hwloc and NCCL write", hint=hint)


def known() -> Iterator[dict[str, Any]]:
    """Yield a row for each machine: presets, families of them, then the machines probed here."""
    from dovetail.machine import load, presets
    from dovetail.machine.presets import families
    from dovetail.store.machines import saved_machines

    for name in presets():
        machine = load(name)
        yield _row(machine, str(machine.provenance.get("label", "preset")), None)
    for name in families():
        yield _family(name)
    for path, machine in saved_machines():
        yield _row(machine, "measured", path)


def render(machine: Machine) -> str:
    """Return ranks, links, facts and cost curves of a machine as text."""
    from dovetail.cost import CostModel
    from dovetail.prober.take import probed_beside_load
    from dovetail.report import render_table

    model = CostModel.of(machine)
    nodes = f"{machine.num_nodes} node{'s' if machine.num_nodes > 1 else ''}"
    kinds = ", ".join(sorted({link.kind for link in machine.links})) or "shm"
    lines = [f"{machine.name}: {machine.ranks} ranks on {nodes}, links {kinds}"]
    lines += [f"  {key:<18} {value}" for key, value in machine.provenance.items() if isinstance(value, str)]
    facts = [f"  {key:<18} {' '.join(str(v).split())}" for key, v in machine.facts.items() if not isinstance(v, dict)]
    head = "\n".join(lines + facts)
    if not model.curves:
        return f"{head}\n\n{NO_COSTS}"
    headers = ["cost", "origin", "from", "to", "at least", "at most", "rate", "median error", "largest"]
    aligns: list[Any] = ["left", "left", *["right"] * 7]
    rows = [_curve_row(key, curve) for key, curve in sorted(model.curves.items())]
    table = render_table(headers, rows, aligns, terminal=output.is_terminal(), width=output.width())
    notes = [f"Assumed: {line}." for line in model.assumptions()]
    notes += [f"{text[:1].upper()}{text[1:]}." for text in probed_beside_load(machine.costs)]
    return "\n\n".join(filter(None, [head, table, "\n".join(notes)]))


def write_plot(machine: Machine, path: Path) -> Path:
    """Write a page with the topology and a plot of each cost curve; return its path."""
    from dovetail.report import Provenance
    from dovetail.report.topology import write_machine

    command = f"dovetail machines plot {shlex.quote(machine.name)} --plot {shlex.quote(str(path))}"
    return write_machine(path, machine, Provenance(command, machine.name, ""))


def _curve_row(key: str, curve: Curve) -> list[str]:
    from dovetail.report import num_bytes, percent, seconds, significant

    size = num_bytes if curve.x_unit == "bytes" else lambda x: significant(x) if x < 1e6 else f"{x:.3g}"
    ends = [size(curve.low), size(curve.high) if math.isfinite(curve.high) else "any"]
    if key.startswith("cil:"):
        costs = [f"x {significant(float(curve.seconds(x)))}" for x in (curve.low, curve.high) if math.isfinite(x)]
    else:
        costs = [seconds(float(curve.seconds(x))) for x in (curve.low, curve.high) if math.isfinite(x)]
    errors = [percent(curve.median_error), percent(curve.max_error)]
    ends[1] = f"{ends[1]} {_unit(curve)}".strip()
    return [key, curve.label, *ends, *[*costs, "–"][:2], _rate(key, curve), *errors]


def _rate(key: str, curve: Curve) -> str:
    """Return the rate of large sizes, 1 / slope at the end of the last segment; `–` for factors and flat ends."""
    from dovetail.report import significant

    last = curve.segments[-1]
    end = curve.high if math.isfinite(curve.high) else last.start
    slope = last.slope + 2 * last.bend * (end - last.start)
    rate = 1 / slope if slope > 0 else math.inf
    if key.startswith("cil:") or not math.isfinite(rate):
        return "–"
    scales = RATES.get(curve.x_unit, ((1.0, f"{curve.x_unit}/s"),))
    scale, unit = next((pair for pair in scales if rate >= 0.9995 * pair[0]), scales[-1])
    return f"{significant(rate / scale)} {unit}"


def _unit(curve: Curve) -> str:
    return "" if curve.x_unit == "bytes" else curve.x_unit


def _list(rows: list[dict[str, Any]]) -> None:
    cells = [[row["name"], _count(row["ranks"]), _count(row["nodes"]), row["origin"], row["about"]] for row in rows]
    output.table(["machine", "ranks", "nodes", "origin", "about"], cells, ["left", "right", "right", "left", "left"])


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _family(name: str) -> dict[str, Any]:
    """Return the row of machines that are generated; how many ranks and nodes they have follows from the name."""
    about = "generated: put numbers for the letters"
    row = {"name": name, "ranks": None, "nodes": None, "origin": "preset, not measured here", "about": about}
    return row | {"path": None}


def _row(machine: Machine, origin: str, path: Path | None) -> dict[str, Any]:
    facts = machine.facts
    about = str(facts.get("device") or facts.get("cpu") or machine.provenance.get("source", ""))
    row = {"name": machine.name, "ranks": machine.ranks, "nodes": machine.num_nodes, "origin": origin, "about": about}
    return row | {"path": None if path is None else str(path)}
