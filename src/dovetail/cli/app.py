"""app: the command `dovetail`: its verbs, and the exit code of every way in which it can end."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from copy import copy
from functools import cache
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dovetail import __version__
from dovetail.cli import output
from dovetail.cli.accelerate import accelerate
from dovetail.cli.bench import bench
from dovetail.cli.cache import group as cache_group
from dovetail.cli.characterise import characterise
from dovetail.cli.compare import compare
from dovetail.cli.compile import compile
from dovetail.cli.diff import diff
from dovetail.cli.doctor import doctor
from dovetail.cli.launch import launch
from dovetail.cli.machines import machines
from dovetail.cli.operators import HELP, Verb
from dovetail.cli.plan import plan
from dovetail.cli.probe import probe
from dovetail.cli.reproduce import reproduce
from dovetail.cli.run import run
from dovetail.cli.show import show
from dovetail.cli.simulate import simulate
from dovetail.cli.sources import Terminated
from dovetail.cli.tile import tile
from dovetail.cli.trace import PASSES_ON
from dovetail.cli.trace import group as trace_group
from dovetail.cli.tune import tune
from dovetail.cli.verify import verify
from dovetail.core import DovetailError, PlanError, ProgramError

DONE, NO, MISUSE, INTERRUPTED = 0, 1, 2, 130
OF_OPERATORS = (
    Verb(tune, limits=True, balances=True, by_size=True),
    Verb(probe, alone="links", of_subjects=characterise),
    Verb(plan, limits=True, by_size=True, compares=True),
)
RIVER = ("tune", "bench", "probe", "plan", "simulate", "verify", "run", "compare", "compile", "tile")
ORDER = (*RIVER, "launch", "trace", "accelerate", "show", "diff", "machines", "cache", "doctor", "reproduce")
_ALLOCATIONS = 100_000  # between garbage collections; with Python's 700 they take a tenth of a short command's time
_UsageError: Any = typer.BadParameter.__bases__[0]  # a class of typer or of click, depending on typer's version
_ClickException: Any = _UsageError.__bases__[0]


class InOrder(TyperGroup):
    """The group of all verbs, listed in ORDER."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=ORDER.index)


app = typer.Typer(
    name="dovetail",
    cls=InOrder,
    help="Hides communication behind computation: finds, proves, runs and explains overlapped schedules.",
    epilog="Exit codes: 0 done; 1 the answer is no; 2 misuse or broken environment; 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)
for _verb in (bench, simulate, verify, run, compare, compile, tile, show, diff, machines, doctor, reproduce):
    app.command(_verb.__name__)(_verb)
app.command("launch", context_settings={**HELP, **PASSES_ON})(launch)
app.command("accelerate", context_settings={**HELP, **PASSES_ON})(accelerate)
for _group in OF_OPERATORS:
    app.add_typer(_group.group(), name=_group.name)
app.add_typer(trace_group(), name="trace", no_args_is_help=True)
app.add_typer(cache_group(), name="cache", no_args_is_help=True)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")] = False,
) -> None:
    """Declare the options that every verb takes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; never raises."""
    given = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        gc.set_threshold(_ALLOCATIONS)
    words, flags = _take_flags(given)
    output.quiet = "--quiet" in flags
    with output.plain_warnings():
        return _run(words, flags)


def _run(words: list[str], flags: set[str]) -> int:
    """Run the words of a command line and return the exit code."""
    previous = _end_on_sigterm()
    try:
        if "--version" in flags:
            print(f"dovetail {__version__}")
            return DONE
        verb = words[0] if words and words[0] in ORDER else None
        code = _command(verb)(words, prog_name="dovetail", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer reports an interrupt as an exit code
            raise KeyboardInterrupt
        return code if isinstance(code, int) else DONE
    except (KeyboardInterrupt, typer.Abort):
        return _print_error("Interrupted.", INTERRUPTED)
    except BaseException as error:
        if _reader_left(error):
            return DONE
        if "--debug" in flags:
            traceback.print_exc()
        return _print_error(*_verdict(error))
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


@cache
def _command(verb: str | None) -> Any:
    """Return the command with this verb, or with all. Typer takes a tenth of a short command's time to read all."""
    chosen = copy(app)
    if verb is not None:
        chosen.registered_commands = [each for each in app.registered_commands if each.name == verb]
        chosen.registered_groups = [each for each in app.registered_groups if each.name == verb]
    return typer.main.get_command(chosen)


def exit_code(error: DovetailError) -> int:
    """Return 1 if the answer is no (an invalid program, an impossible plan), 2 if input or environment is broken.

    >>> exit_code(ProgramError("it deadlocks")), exit_code(DovetailError("no such file"))
    (1, 2)
    """
    return NO if isinstance(error, ProgramError | PlanError) else MISUSE


def _verdict(error: BaseException) -> tuple[str, int]:
    """Return the text to print for an error, and the exit code."""
    if isinstance(error, DovetailError):
        return f"{type(error).__name__}: {error}", exit_code(error)
    if isinstance(error, _ClickException):
        return _usage(error), MISUSE
    if isinstance(error, OSError):
        place = f" {error.filename}" if error.filename else ""
        return f"EnvironmentFault: the system refused{place}\n  found       {error.strerror or error}", MISUSE
    if isinstance(error, MemoryError):
        return f"EnvironmentFault: not enough memory\n  found       {error}\n  try         a smaller operator", MISUSE
    if isinstance(error, SystemExit):
        return "", error.code if isinstance(error.code, int) else MISUSE
    found = f"{type(error).__name__}: {error}"
    return f"Bug: this is a fault of dovetail\n  found       {found}\n  try         --debug, and report it", MISUSE


def _usage(error: Any) -> str:
    """Return the text for a wrong command line; for a missing verb, the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "dovetail"
    return f"UsageError: {error.format_message()}\n  try         {where} --help"


def _print_error(text: str, code: int) -> int:
    try:
        if text:
            print(text, file=sys.stderr)
    except OSError:
        pass
    return code


def _reader_left(error: BaseException) -> bool:
    """Return whether the reader of stdout's pipe has closed it; if so, discard further output."""
    broken = isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError)
    if broken:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return broken


def _end_on_sigterm() -> Any:
    """Make SIGTERM raise Terminated, so that ranks are ended, too. Return the previous handler; None in a thread."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated(128 + number)

    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, end)


def _take_flags(words: list[str]) -> tuple[list[str], set[str]]:
    """Separate the options that every verb takes from the other words; words after `--` are left alone.

    >>> _take_flags(["plan", "--debug", "x", "--", "--debug"])
    (['plan', 'x', '--', '--debug'], {'--debug'})
    """
    end = words.index("--") if "--" in words else len(words)
    names = {"--debug": "--debug", "--quiet": "--quiet", "-q": "--quiet", "--version": "--version"}
    flags = {names[word] for word in words[:end] if word in names}
    return [word for word in words[:end] if word not in names] + words[end:], flags
