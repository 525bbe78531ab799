"""sources: load and call a user's Python file that writes an algorithm; errors name the line in the file."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from dovetail.core import DovetailError, OperatorError

if TYPE_CHECKING:
    from dovetail.collective import Algorithm
    from dovetail.ir import Folded, Program

MOST_EXPANDED = 1024  # ranks up to which an algorithm's ops are written out, rank by rank


class Terminated(SystemExit):
    """Raised when the command gets SIGTERM, perhaps in the middle of a user's file, which is not to blame."""


def is_source(place: str) -> bool:
    """Return whether a place is a Python file or the name of a shipped algorithm, rather than a program's file.

    >>> is_source("ring.py"), is_source("ring.py:make"), is_source("ring_all_reduce"), is_source("ring.xml")
    (True, True, True, False)
    """
    return place.endswith(".py") or ".py:" in place or (place != "-" and "." not in place and not Path(place).exists())


def written(place: str, ranks: int | None, options: Mapping[str, Any]) -> Algorithm | Program:
    """Return the Algorithm or Program that `place` defines: a shipped algorithm's name, FILE.py or FILE.py:NAME.

    NAME is an Algorithm, a Program, or a function of the number of ranks and the `options` that returns one. Default:
    the only Algorithm in the file, else `program`. Raises DovetailError, with the line, for an error in the file.
    """
    from dovetail.collective import ALGORITHMS, make_algorithm

    path, _, name = place.partition(".py:")
    if path == place and not place.endswith(".py"):
        if ranks is None and place in ALGORITHMS:
            raise OperatorError(f"{place} needs a number of ranks", hint="--ranks")
        return make_algorithm(place, ranks or 1, **options)
    file = Path(f"{path}.py" if name else place)
    with _errors_by_line(file):
        found = _chosen(_load(file), file, name)
    if _is_done(found):
        return _unchanged(found, file, ranks, options)
    with _errors_by_line(file):
        made = found(*_arguments(found, file, ranks), **_taken(found, file, options))
    if not _is_done(made):
        what = f"{found.__name__} in {file} returned {type(made).__name__}"
        raise DovetailError(what, hint="return an Algorithm, or a Program")
    return _of(ranks, made, f"what {found.__name__} in {file} returned")


def folded(place: str, ranks: int | None, nodes: int | None) -> Folded | None:
    """Return a shipped algorithm folded to the ops of rank 0; None if it has no such form, or its ranks are few."""
    from dovetail.collective.folded import FOLDED, FOLDED_FROM, build_folded

    if place not in FOLDED or ranks is None or ranks < FOLDED_FROM:
        return None
    return build_folded(place, ranks, nodes=nodes or 1)


def expanded(place: str, ranks: int | None, nodes: int | None) -> Program:
    """Return the compiled Program of what `place` defines (see `written`), with the ops of every rank.

    Raises OperatorError for more ranks than MOST_EXPANDED.
    """
    from dovetail.collective.folded import FOLDED
    from dovetail.ir import Program

    if ranks is not None and ranks > MOST_EXPANDED:
        what = f"{place} of {ranks} ranks is too large to write out rank by rank"
        hint = f"at most {MOST_EXPANDED} ranks; larger programs are folded, by {', '.join(FOLDED)}"
        if place in FOLDED:
            hint = (
                "it is folded on all ranks of equal servers or of a torus of two axes, "
                "without --fail, --contention, --target and --fifo-depth"
            )
        raise OperatorError(what, hint=hint)
    made = written(place, ranks, {} if nodes is None else {"nodes": nodes})
    return made if isinstance(made, Program) else made.compile()


def refuse_counts(place: str, ranks: int | None, nodes: int | None, num_bytes: str | None = None) -> None:
    """Raise OperatorError if --ranks, --nodes or --bytes is given for a file that has its own."""
    for flag, value, own in (("--ranks", ranks, "ranks"), ("--nodes", nodes, "ranks"), ("--bytes", num_bytes, "sizes")):
        if value is not None:
            raise OperatorError(f"{flag} is for algorithms", found=f"{place} is a file, which has its own {own}")


def settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of `NAME=VALUE` words: Python literals, else text.

    >>> settings(["root=1", "kind=fast"])
    {'root': 1, 'kind': 'fast'}
    """
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise OperatorError(f"--set {word}", hint="--set NAME=VALUE")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = value
    return found


def _load(file: Path) -> ModuleType:
    try:
        source = file.read_text(encoding="utf-8")
    except OSError as error:
        names = [entry.name for entry in file.parent.glob("*.py")] if file.parent.is_dir() else []
        close = difflib.get_close_matches(file.name, names, 1)
        hint = f"did you mean {file.parent / close[0]}?" if close else None
        raise DovetailError(f"cannot read {file}", found=error.strerror, hint=hint) from error
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    exec(compile(source, str(file), "exec"), module.__dict__)
    return module


def _chosen(module: ModuleType, file: Path, name: str) -> Any:
    """Return the Algorithm, Program or function of a name; see `written` for the default."""
    from dovetail.collective import Algorithm

    names = [word for word in vars(module) if not word.startswith("_")]
    algorithms = [word for word in names if isinstance(getattr(module, word), Algorithm)]
    if not name:
        name = algorithms[0] if len(algorithms) == 1 and "program" not in names else "program"
    found = getattr(module, name, None)
    if not _is_done(found) and not callable(found):
        what = f"{file} has no {name}" if found is None else f"{name} in {file} is {type(found).__name__}"
        hint = "define program(num_ranks), or give its name: FILE.py:NAME"
        raise DovetailError(what, found=f"algorithms {', '.join(algorithms)}" if algorithms else None, hint=hint)
    return found


def _is_done(value: Any) -> TypeGuard[Algorithm | Program]:
    from dovetail.collective import Algorithm
    from dovetail.ir import Program

    return isinstance(value, Algorithm | Program)


def _unchanged(
    value: Algorithm | Program, file: Path, ranks: int | None, options: Mapping[str, Any]
) -> Algorithm | Program:
    """Return an Algorithm or Program of the file unchanged. Raise OperatorError for options, which cannot apply."""
    if options:
        what = f"{value.name} in {file} is no function: it takes no {next(iter(options))}"
        raise OperatorError(what, hint="define program(num_ranks, …)")
    return _of(ranks, value, f"{value.name} in {file}")


def _of(ranks: int | None, value: Algorithm | Program, what: str) -> Algorithm | Program:
    if ranks not in (None, value.num_ranks):
        raise OperatorError(f"--ranks {ranks}", found=f"{what} is for {value.num_ranks} ranks")
    return value


def _arguments(make: Callable[..., Any], file: Path, ranks: int | None) -> tuple[int, ...]:
    if ranks is None:
        raise OperatorError(f"{make.__name__} in {file} needs a number of ranks", hint="--ranks")
    try:
        inspect.signature(make).bind_partial(ranks)
    except TypeError:
        raise OperatorError(
            f"{make.__name__} in {file} takes no number of ranks", hint="program(num_ranks, …)"
        ) from None
    return (ranks,)


def _taken(make: Callable[..., Any], file: Path, options: Mapping[str, Any]) -> Mapping[str, Any]:
    entries = inspect.signature(make).parameters.values()
    if not any(entry.kind == entry.VAR_KEYWORD for entry in entries):
        known = [entry.name for entry in entries][1:]
        for word in options:
            if word not in known:
                what = f"{make.__name__} in {file} takes no {word}"
                raise OperatorError(what, hint=f"it takes {', '.join(known) or 'the number of ranks only'}")
    return options


@contextmanager
def _errors_by_line(file: Path) -> Iterator[None]:
    """Let the user's code import from its own folder; turn its errors into DovetailError with the line."""
    folder = str(file.parent.resolve())
    sys.path.insert(0, folder)
    try:
        yield
    except DovetailError as error:
        if error.where is not None or (where := _line_of(error, file)) is None:
            raise
        raise type(error)(error.what, where=where, found=error.found, hint=error.hint) from error
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        raise DovetailError(
            f"{file} is not Python: {error.msg}", where=where, found=(error.text or "").strip()
        ) from error
    except Terminated:
        raise
    except (Exception, SystemExit) as error:
        what = f"{file} failed: {type(error).__name__}: {error}"
        raise DovetailError(what, where=_line_of(error, file), hint="--debug shows the traceback") from error
    finally:
        sys.path.remove(folder)


def _line_of(error: BaseException, file: Path) -> str | None:
    """Return the innermost line, of the file or of a file in its folder, in an error's traceback."""
    folder, found = file.parent.resolve(), None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(file) or Path(frame.filename).resolve().parent == folder:
            found = f"{frame.filename}:{frame.lineno}"
    return found
