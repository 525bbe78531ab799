"""trace: `dovetail trace`: record an unmodified MPI program, and analyse what its ranks did."""

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
        bool, typer.Option("--python", help="Record the Python line of each MPI call; takes about 0.2 us a call.")
    ] = False,
    callers: Annotated[
        bool,
        typer.Option("--callers", help="Record the calls that lead to each MPI call, too; takes about 0.1 us a call."),
    ] = False,
    mpi: Annotated[
        str | None,
        typer.Option("--mpi", help="Trace programs of this MPI only: mpich, openmpi, abi, or the path of an mpicc."),
    ] = None,
) -> int:
    """Run a command, record the MPI calls of its ranks, and merge the records into one trace.

    The command follows `--`: a launcher, or a command that starts one (a script, `make`). Its output and exit code stay
    unchanged; the path of the trace is printed on stderr. If a rank is killed, the trace has its calls up to then.
    """
    from dovetail.trace.recorder.launch import run_traced

    command = list(context.args)
    if not command:
        raise DovetailError("no command to trace", hint="dovetail trace run -- mpirun -n 4 ./a.out")
    refuse_another(out)
    sites = [word for word, is_asked in (("python", python), ("callers", callers)) if is_asked]
    code = run_traced(command, out, sites=sites, mpi=mpi)
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
    """Merge the records of a run's processes into one trace file, with all times on one clock."""
    from dovetail.trace import merge as merged

    trace = merged(folder, out)
    print(trace.path)
    _note_trace(trace)


def stats(trace: TraceArgument, json: Json = False) -> None:
    """Show the time by call, the time in MPI by rank, the sizes of messages, and the bytes from rank to rank."""
    from dovetail.advise.conditions import conditions
    from dovetail.report.trace_tables import stats_text
    from dovetail.trace.analysis.stats import stats as added_up

    found = added_up(open_trace_of(trace))
    if json:
        output.emit({**found.to_json(), **conditions(found.meta, found.num_ranks).to_json()})
    else:
        print(stats_text(found, terminal=output.is_terminal(), width=output.width()))


def view(
    traces: Annotated[list[Path], typer.Argument(help="Traces, or folders of `trace run`, to show side by side.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.", dir_okay=False)] = Path("trace.html"),
) -> None:
    """Write an HTML page with a timeline of all calls and their statistics. The page works offline."""
    from dovetail.report.trace_page import write_trace_page

    titles = [path.parent.name if path.name == NAME and path.parent.name else path.name for path in traces]
    opened = [open_trace_of(path) for path in traces]
    print(write_trace_page(out, opened, titles))


def replay(
    trace: TraceArgument,
    machine: Annotated[
        str | None,
        typer.Option("--machine", help="A preset, or a machine's JSON file: messages and collectives cost as there."),
    ] = None,
    json: Json = False,
) -> None:
    """Predict the program's time by simulation, with messages as fast as traced, or as on a given machine."""
    from dovetail.advise.replay import replay as replayed
    from dovetail.cli.machines import find
    from dovetail.report.advice import replay_text

    with output.progress("replaying"):
        found = replayed(open_trace_of(trace).read(), None if machine is None else find(machine))
    if json:
        output.emit(found.to_json())
    else:
        print(replay_text(found))


def causes(trace: TraceArgument, json: Json = False) -> None:
    """List what made the ranks wait: who was late, doing what, where and when. Chains of waits lead to their roots."""
    from dovetail.advise.causes import causes as found_in
    from dovetail.advise.words import renaming
    from dovetail.report.causes import causes_text

    opened = open_trace_of(trace)
    with output.progress("following waits to their causes"):
        found = found_in(opened)
    if json:
        output.emit(found.to_json())
    else:
        text = causes_text(found, terminal=output.is_terminal(), width=output.width())
        print(renaming(opened.meta.get("words", {}))(text))


def advise(
    trace: TraceArgument,
    machine: Annotated[
        str | None, typer.Option("--machine", help="A preset, or a machine's JSON file, whose costs price changes.")
    ] = None,
    again: Annotated[
        list[Path] | None,
        typer.Option(
            "--again", help="Another run of the same program. Savings below the difference between runs are doubtful."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List changes to the program, the one that saves most first. Each saving is predicted by replaying the trace."""
    from dovetail.accelerate.advised import with_levers
    from dovetail.advise.advise import advise as advised
    from dovetail.cli.machines import find
    from dovetail.report.advice import advice_text

    with output.progress("weighing changes"):
        runs = [open_trace_of(run) for run in (trace, *(again or ()))]
        found = advised(runs[0], None if machine is None else find(machine), runs[1:])
        found = with_levers(found, runs[0], trace)
    if json:
        output.emit(found.to_json())
    else:
        print(advice_text(found))


def export(trace: Path, places: Mapping[str, Path | None]) -> None:
    """Write a trace in the formats of other tools."""
    from dovetail.trace.formats import FORMATS

    asked = {name: place for name, place in places.items() if place is not None}
    if not asked:
        flags = [f"{flag(name)} PATH" for name in places]
        raise DovetailError("nothing to write", hint=f"{', '.join(flags[:-1])} or {flags[-1]}")
    opened = open_trace_of(trace)
    for name, place in asked.items():
        path, notes = FORMATS[name]().write(place, opened)
        print(path)
        for note in notes:
            output.note(note)


def export_command() -> Any:
    """Return the command `trace export`, with one option per registered format."""
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
    """The verbs of `trace`. Formats of other packages are looked up only for `export`."""

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
    """Convert files of other tools to a trace: OTF2, tlog, or Chrome's format (PyTorch's profiler: a file per rank)."""
    from dovetail.trace import save_trace
    from dovetail.trace.formats import read_foreign

    trace = save_trace(out, read_foreign(files))
    print(trace.path)
    _note_trace(trace)


def refuse_another(folder: Path) -> None:
    """Raise DovetailError if the folder holds a trace: the merge would mix both runs."""
    if any(folder.glob("*.dvt")):
        raise DovetailError(f"{folder} holds a trace already", hint="choose another folder")


def note_trace_in(folder: Path | None) -> None:
    """Merge the records of a run's ranks in a folder, and print the trace's path on stderr."""
    if folder is not None:
        trace = _merged(folder)
        output.note(f"traced {trace.num_rows} rows of {trace.num_ranks} ranks: `dovetail trace view {trace.path}`")


def open_trace_of(path: Path) -> TraceFile:
    """Open a trace; of a folder, the merged trace, merging first if necessary."""
    from dovetail.trace import open_trace

    if path.is_dir():
        return open_trace(path / NAME) if (path / NAME).exists() else _merged(path)
    return open_trace(path)


def _merged(folder: Path) -> TraceFile:
    from dovetail.trace import merge as merged

    return merged(folder)


def _note_trace(trace: TraceFile) -> None:
    """Print how much a trace holds; warn of its faults."""
    from dovetail.trace.partial import partial_words

    output.note(f"{trace.num_rows} rows of {trace.num_ranks} ranks; `dovetail trace stats {trace.path}` adds them up")
    for text in (cut := list(partial_words(trace.meta))):
        output.warn(text)
    if (lost := trace.meta.get("lost")) and not cut:
        output.warn(f"{lost} events were lost: the buffers were full, or newer events overwrote them")
    for fault in trace.meta.get("faults", ()):
        output.warn(fault)


VERBS = ("run", "merge", "stats", "view", "replay", "causes", "advise", "export", "import")


def group() -> typer.Typer:
    """Return the verbs of `trace`."""
    about = "Trace an unmodified MPI program, and analyse what its ranks did."
    made = typer.Typer(cls=Verbs, help=about, context_settings=HELP)
    made.command("run", context_settings={**HELP, **PASSES_ON})(run)
    for verb in (merge, stats, view, replay, causes, advise):
        made.command(verb.__name__)(verb)
    made.command("import")(take)
    return made
