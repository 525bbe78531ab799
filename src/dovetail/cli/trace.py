"""`dovetail trace`: record an MPI program as it stands, and see what its ranks did."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dovetail.cli import output
from dovetail.cli.operators import HELP, Context, command_of, flag
from dovetail.cli.options import Json
from dovetail.core import DovetailError

if TYPE_CHECKING:
    from dovetail.trace import TraceFile

PASSES_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
NAME = "trace.dovetail"
TraceArgument = Annotated[Path, typer.Argument(help="A trace, or the folder of `trace run`.")]


def run(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the trace.", file_okay=False)] = Path(
        "dovetail-trace"
    ),
    python: Annotated[
        bool, typer.Option("--python", help="Note the Python line of each MPI call, at some 0.2 us a call.")
    ] = False,
    mpi: Annotated[
        str | None,
        typer.Option("--mpi", help="Trace programs of this MPI only: mpich, openmpi, abi, or the path of an mpicc."),
    ] = None,
) -> int:
    """Run a command, tracing the MPI calls of its ranks, and merge what they leave behind.

    The command stands after `--`: a launcher, or what starts one (a script, `make`). Its output and exit code are kept;
    where the trace is goes to stderr. What a rank did before it was killed is in the trace.
    """
    from dovetail.trace.recorder.launch import run_traced

    command = list(context.args)
    if not command:
        raise DovetailError("no command to trace", hint="dovetail trace run -- mpirun -n 4 ./a.out")
    refuse_another(out)
    code = run_traced(command, out, python=python, mpi=mpi)
    if code and not any(out.glob("*.dvt")):
        output.warn(f"the command ended with exit code {code} before any process of it called MPI: there is no trace")
        return code
    trace = _merged(out)
    output.note(str(trace.path))
    _note_trace(trace)
    return code


def merge(
    folder: Annotated[Path, typer.Argument(help="The folder of `trace run`.", file_okay=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; FOLDER/trace.dovetail.")] = None,
) -> None:
    """Merge what the processes of a run left in a folder, on one clock, into one file."""
    from dovetail.trace import merge as merged

    trace = merged(folder, out)
    print(trace.path)
    _note_trace(trace)


def stats(trace: TraceArgument, json: Json = False) -> None:
    """Time by call, time in MPI by rank, sizes of messages, and who sends how much to whom."""
    from dovetail.report.trace_tables import stats_text
    from dovetail.trace.analysis.stats import stats as added_up

    found = added_up(_open(trace))
    if json:
        output.emit(found.to_json())
    else:
        print(stats_text(found, terminal=output.is_terminal(), width=output.width()))


def view(
    traces: Annotated[list[Path], typer.Argument(help="Traces, or folders of `trace run`, to be seen side by side.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.", dir_okay=False)] = Path("trace.html"),
) -> None:
    """Write a page that shows what the ranks did, call by call, and what it adds up to; it works offline."""
    from dovetail.report.trace_page import write_trace_page

    titles = [path.parent.name if path.name == NAME and path.parent.name else path.name for path in traces]
    opened = [_open(path) for path in traces]
    print(write_trace_page(out, opened, titles))


def replay(
    trace: TraceArgument,
    machine: Annotated[
        str | None,
        typer.Option("--machine", help="A preset, or a machine's JSON file, whose messages and collectives it has."),
    ] = None,
    json: Json = False,
) -> None:
    """Predict the program's time by simulation, with messages as traced, or as slow as on a given machine."""
    from dovetail.advise.replay import replay as replayed
    from dovetail.cli.machines import find
    from dovetail.report.advice import replay_text

    with output.progress("replaying"):
        found = replayed(_open(trace).read(), None if machine is None else find(machine))
    if json:
        output.emit(found.to_json())
    else:
        print(replay_text(found))


def advise(
    trace: TraceArgument,
    machine: Annotated[
        str | None, typer.Option("--machine", help="A preset, or a machine's JSON file, whose curve prices changes.")
    ] = None,
    again: Annotated[
        list[Path] | None,
        typer.Option(
            "--again", help="Another run of the same program; what saves less than runs differ by is doubtful."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """What to change, first what saves most: each change is weighed by replaying the trace with it in the simulator."""
    from dovetail.advise.advise import advise as advised
    from dovetail.cli.machines import find
    from dovetail.report.advice import advice_text

    with output.progress("weighing changes"):
        runs = [_open(run) for run in (trace, *(again or ()))]
        found = advised(runs[0], None if machine is None else find(machine), runs[1:])
    if json:
        output.emit(found.to_json())
    else:
        print(advice_text(found))


def export(trace: Path, places: Mapping[str, Path | None]) -> None:
    """Write a trace in the form of another tool."""
    from dovetail.trace.formats import FORMATS

    asked = {name: place for name, place in places.items() if place is not None}
    if not asked:
        flags = [f"{flag(name)} PATH" for name in places]
        raise DovetailError("nothing to write", hint=f"{', '.join(flags[:-1])} or {flags[-1]}")
    opened = _open(trace)
    for name, place in asked.items():
        path, notes = FORMATS[name]().write(place, opened)
        print(path)
        for note in notes:
            output.note(note)


def export_command() -> Any:
    """The command `trace export`, with an option for each format that there is."""
    from dovetail.trace.formats import FORMATS

    def run(trace: Path, **places: Path | None) -> None:
        export(trace, {name: places[name.replace("-", "_")] for name in formats})

    formats = {name: FORMATS[name] for name in FORMATS.usable if FORMATS[name].help}
    by_name = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(
            name.replace("-", "_"),
            by_name,
            default=None,
            annotation=Annotated[Path | None, typer.Option(flag(name), help=kind.help)],
        )
        for name, kind in formats.items()
    ]
    first = inspect.Parameter("trace", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=TraceArgument)
    run.__signature__ = inspect.Signature([first, *options])  # type: ignore[attr-defined]
    run.__annotations__, run.__doc__ = {}, export.__doc__
    return command_of(run, "export")


class Verbs(TyperGroup):
    """The verbs of `trace`; packages' formats are looked for when `export` is asked for."""

    def list_commands(self, ctx: Context) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: Context, cmd_name: str) -> Any:
        return export_command() if cmd_name == "export" else super().get_command(ctx, cmd_name)


def take(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="traces.otf2, trace.log, Chrome's format (.json, .json.gz), or a file of a package's format."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The trace to write.", dir_okay=False)] = Path(NAME),
) -> None:
    """Make a trace of what other tools wrote: OTF2, tlog, Chrome's format; of PyTorch's profiler a file a rank."""
    from dovetail.trace import save_trace
    from dovetail.trace.formats import read_foreign

    trace = save_trace(out, read_foreign(files))
    print(trace.path)
    _note_trace(trace)


def refuse_another(folder: Path) -> None:
    """Traces of two runs in one folder would be taken for one."""
    if any(folder.glob("*.dvt")):
        raise DovetailError(f"{folder} holds a trace already", hint="choose another folder")


def note_trace_in(folder: Path | None) -> None:
    """Merge what the ranks of a run left in a folder, and say on stderr where it is."""
    if folder is not None:
        trace = _merged(folder)
        output.note(f"traced {trace.num_rows} rows of {trace.num_ranks} ranks: `dovetail trace view {trace.path}`")


def _open(path: Path) -> TraceFile:
    """The trace at a place; what a run left in a folder is merged first."""
    from dovetail.trace import open_trace

    if path.is_dir():
        return open_trace(path / NAME) if (path / NAME).exists() else _merged(path)
    return open_trace(path)


def _merged(folder: Path) -> TraceFile:
    from dovetail.trace import merge as merged

    return merged(folder)


def _note_trace(trace: TraceFile) -> None:
    """Note how much a trace holds; warn of what is wrong with it."""
    output.note(f"{trace.num_rows} rows of {trace.num_ranks} ranks; `dovetail trace stats {trace.path}` adds them up")
    if lost := trace.meta.get("lost"):
        output.warn(f"{lost} events were lost: there was no room for them, or newer ones took their place")
    for fault in trace.meta.get("faults", ()):
        output.warn(fault)


VERBS = ("run", "merge", "stats", "view", "replay", "advise", "export", "import")


def group() -> typer.Typer:
    """The verbs of `trace`."""
    about = "Trace an MPI program as it stands, and see what its ranks did."
    made = typer.Typer(cls=Verbs, help=about, context_settings=HELP)
    made.command("run", context_settings={**HELP, **PASSES_ON})(run)
    for verb in (merge, stats, view, replay, advise):
        made.command(verb.__name__)(verb)
    made.command("import")(take)
    return made
