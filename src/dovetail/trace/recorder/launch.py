"""launch: trace an unmodified program: each process preloads the gate, which loads wrappers for its MPI."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail import _native
from dovetail.core import EnvironmentFault, compile_c, find_tool
from dovetail.trace.ended import ENDS
from dovetail.trace.recorder.gate import HEADERS, QUICKLY, TRACER, Gate, build_gate
from dovetail.trace.recorder.mpi_wrappers import wrappers

SONAMES = {"libmpi_abi.so": "abi", "libmpi.so.12": "mpich", "libmpich.so.12": "mpich", "libmpi.so.40": "openmpi"}
SITES = {"python": "-DDM_PYTHON", "callers": "-DDM_CALLERS"}  # what call sites may be, and the flags of the wrappers
TITLES = {"abi": "the MPI ABI", "mpich": "MPICH", "openmpi": "Open MPI"}
_ASK_PYTHON = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(open('/proc/self/maps').read())"
)
_MARKS = {"openmpi": "OPEN_MPI", "mpich": "MPICH_VERSION", "abi": "MPI_ABI_VERSION"}
_LIBRARY = re.compile(r"(?:(/[^\s]*)/)?(libmpi_abi\.so|libmpi(?:ch)?\.so\.12|libmpi\.so\.40)")


@dataclass(frozen=True)
class Library:
    """The MPI library that a program uses: its kind (key of TITLES), and the folder it is loaded from, if known."""

    kind: str
    folder: Path | None = None


def library_of(command: Sequence[str]) -> Library:
    """Return the MPI library of a command: of the first word that is a program with MPI, else of the launcher.

    Raises EnvironmentFault if there is none.
    """
    for word in command:
        path = executable(word)
        if path is not None and (found := used_by(path)) is not None:
            return found
    launcher = executable(command[0])
    if launcher is None:
        raise EnvironmentFault(f"there is no command {command[0]}")
    mpicc = find_beside(launcher.parent, "mpicc")
    kind = flavour(mpicc) if mpicc else None
    if kind is None:
        hint = "programs must be linked with a shared MPI library, or be Python with mpi4py"
        raise EnvironmentFault("no program in this command uses MPI", found=" ".join(command), hint=hint)
    return Library(kind)


def build_wrappers(library: Library, near: Path | None = None, *, sites: Collection[str] = ()) -> Path:
    """Compile the tracer's wrappers for an MPI library with its mpicc, unless they are cached; return their path.

    `near`: another folder to look for the mpicc. `sites`: what call sites are, of `SITES`. Raises EnvironmentFault if
    there is no mpicc for the library, or if it fails.
    """
    native = trace_folder()
    flags = [flag for word, flag in SITES.items() if word in sites]
    flags += ["-DDM_READY"] if os.environ.get("DOVETAIL_TRACE_READY") else []  # see native/trace/mpi/mpi_ready.h
    flags += [f"-I{native}", f"-L{native}", "-ldovetail_trace", f"-Wl,-rpath,{native}", "-Wl,--as-needed"]
    sources = [*sorted(HEADERS.glob("mpi_*.h")), *sorted(native.glob("*.h"))]
    return compile_wrappers(compiler_for(library, near), wrappers, "mpi_trace", sources, flags)


def compile_wrappers(
    mpicc: str, written: Callable[[str], str], name: str, headers: Sequence[Path], more: Sequence[str]
) -> Path:
    """Compile the C source that `written` makes of the preprocessed mpi.h, unless it is cached; return its path.

    `headers`: what the source includes. `more`: flags of the compiler. Raises EnvironmentFault if the mpicc fails.
    """
    asked = [mpicc, "-E", "-x", "c", "-"]
    header = subprocess.run(asked, input="#include <mpi.h>\n", text=True, capture_output=True, check=False).stdout
    flags = [*QUICKLY, "-fno-plt", "-fvisibility=hidden", "-Werror=implicit-function-declaration", f"-I{HEADERS}"]
    flags += ["-Wl,-Bsymbolic-functions", *more]  # a wrapper's call of another wrapper must not reach another tool
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "mpi_wrappers.c"
        source.write_text(written(header), encoding="utf-8")
        what = "the wrappers of MPI calls"
        return compile_c(mpicc, [source, *headers], name, what, about="-show", flags=flags)


def trace_folder() -> Path:
    """Return the folder of `dovetail_trace.h` and `libdovetail_trace`."""
    return Path(str(_native._core.__file__)).parent


def environment(
    preloaded: Path, folder: Path, base: Mapping[str, str] = os.environ, gate: Gate = TRACER
) -> dict[str, str]:
    """Return the environment in which processes load the library `preloaded` and write their records to `folder`.

    It comes before the libraries that the user preloads; a gate that stands below other tools comes after them.
    """
    before = base.get("LD_PRELOAD")
    both = (before, str(preloaded)) if gate.is_below else (str(preloaded), before)
    preload = ":".join(filter(None, both))
    return {**base, "LD_PRELOAD": preload, f"{gate.prefix}DIR": str(folder.resolve())}


def run_traced(command: Sequence[str], folder: Path, *, sites: Collection[str] = (), mpi: str | None = None) -> int:
    """Run a command with its MPI ranks traced into `folder`; return its exit code.

    Each process loads the wrappers for the MPI library that it uses.

    Parameters
    ----------
    command : sequence of str
        The command line.
    folder : path
        Where processes write their traces.
    sites : collection of str
        What call sites are, beside the addresses of calls: "python", lines of Python; "callers", with the calls that
        led there.
    mpi : str, optional
        Trace only programs that use this library: a key of `TITLES`, or the path of an mpicc.

    Raises
    ------
    EnvironmentFault
        If the wrappers cannot be compiled, the folder cannot be made, or the command cannot be run.
    """
    settings = settings_of(TRACER, command, mpi, lambda library, near: build_wrappers(library, near, sites=sites))
    settings |= {"DOVETAIL_TRACE_SITES": ",".join(sites)} if sites else {}
    gate = build_gate(trace_folder())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "give another folder: -o DIR"
        raise EnvironmentFault(f"cannot make the folder {folder}", found=error.strerror, hint=hint) from error
    env = environment(gate, folder) | settings
    try:
        process = subprocess.Popen(forwarded(command, settings), env=env)
        code = process.wait()
    except OSError as error:
        raise EnvironmentFault(f"cannot run {command[0]}", found=error.strerror) from error
    finally:
        for note in folder.glob(".wrappers-*"):
            note.unlink(missing_ok=True)
    if code < 0:
        note_end(folder, process.pid, -code)
    return code if code >= 0 else 128 - code


def settings_of(
    gate: Gate, command: Sequence[str], mpi: str | None, build: Callable[[Library, Path | None], Path]
) -> dict[str, str]:
    """Return the gate's environment variables: the wrappers compiled so far, and how to compile others.

    `mpi`: wrap only programs that use this library (see `run_traced`). `build`: compiles wrappers for a library, with
    an mpicc beside it or in another folder.
    """
    settings = {f"{gate.prefix}BUILD": sys.executable}
    launcher = executable(command[0])
    near = launcher.parent if launcher else None
    if mpi is not None:
        kind, beside = _chosen(mpi)
        settings[f"{gate.prefix}ONLY"] = kind
        library: Library | None = Library(kind, beside)
    else:
        library = next((found for word in command if (path := executable(word)) and (found := used_by(path))), None)
    if library is not None:  # compile before the ranks start, so that an error starts none
        settings[f"{gate.prefix}{library.kind.upper()}"] = str(build(library, near))
    return settings


def _chosen(mpi: str) -> tuple[str, Path | None]:
    """Return the kind of the library that a user names, and the folder of the library if an mpicc was given."""
    if mpi in TITLES:
        return mpi, None
    path = executable(mpi)
    kind = flavour(str(path)) if path else None
    if path is None or kind is None:
        hint = f"--mpi {', --mpi '.join(TITLES)}, or the path of an mpicc"
        raise EnvironmentFault(
            f"--mpi {mpi} names no MPI", found="no such compiler" if path is None else None, hint=hint
        )
    return kind, path.parent.parent / "lib"


def note_end(folder: Path, pid: int, signal: int) -> None:
    """Record the signal that ended a process, as the gate of a traced parent does."""
    line = json.dumps({"pid": pid, "signal": signal, "host": socket.gethostname(), "real_ns": time.time_ns()})
    with (folder / ENDS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def is_open_mpis(word: str) -> bool:
    """Return whether the first word of a command is Open MPI's launcher, which passes variables on by `-x`."""
    launcher = executable(word)
    if launcher is None or launcher.name not in ("mpirun", "mpiexec", "prterun"):
        return False
    asked = subprocess.run([str(launcher), "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in asked.stdout or "prte" in asked.stdout.lower()


def forwarded(
    command: Sequence[str], settings: Iterable[str] = (), gate: Gate = TRACER, *, by_x: bool | None = None
) -> list[str]:
    """Return the command with the options (-x) by which Open MPI's launcher passes variables to other hosts.

    `by_x`: whether it is such a launcher; None: ask it.
    """
    if not (is_open_mpis(command[0]) if by_x is None else by_x):
        return list(command)
    names = ["LD_PRELOAD", f"{gate.prefix}DIR", *(name for name in os.environ if name.startswith(gate.prefix))]
    options = [word for name in dict.fromkeys([*names, *settings]) for word in ("-x", name)]
    return [command[0], *options, *command[1:]]


def find_beside(folder: Path, name: str) -> str | None:
    """Return the path of an executable `name` in `folder`; None if there is none."""
    path = folder / name
    return str(path) if os.access(path, os.X_OK) and path.is_file() else None


def flavour(mpicc: str) -> str | None:
    """Return the kind of MPI library that an mpicc compiles for, by macros of its mpi.h; None if unknown."""
    asked = [mpicc, "-E", "-dM", "-x", "c", "-"]
    done = subprocess.run(asked, input="#include <mpi.h>\n", text=True, capture_output=True, check=False)
    macros = set(re.findall(r"#define (\w+)", done.stdout))
    return next((kind for kind, mark in _MARKS.items() if mark in macros), None)


def compiler_for(library: Library, near: Path | None) -> str:
    """Return the mpicc for a library: beside it, in `near`, or installed. Raise EnvironmentFault if there is none."""
    names = ("mpicc_abi", "mpicc") if library.kind == "abi" else ("mpicc", f"mpicc.{library.kind}")  # Debian's names
    folders = [place.parent / "bin" for place in (library.folder,) if place] + [place for place in (near,) if place]
    beside = [find_beside(folder, name) for folder in folders for name in names]
    for mpicc in [*beside, *map(find_tool, names)]:
        if mpicc and flavour(mpicc) == library.kind:
            return mpicc
    tried = ", ".join(dict.fromkeys(filter(None, [*beside, *map(find_tool, names)]))) or "no mpicc"
    hint = "the wrappers are compiled with the mpicc of the program's MPI; put it on PATH"
    raise EnvironmentFault(f"no mpicc for {TITLES[library.kind]}", found=tried, hint=hint)


def executable(word: str) -> Path | None:
    path = shutil.which(word) if os.sep not in word else word
    return Path(path) if path and os.path.isfile(path) and os.access(path, os.X_OK) else None


def used_by(path: Path) -> Library | None:
    """Return the MPI library that a program is linked with, or that mpi4py loads; None for other programs."""
    try:
        with path.open("rb") as file:
            start = file.read(256)
    except OSError:
        return None
    if start.startswith(b"#!"):
        words = start[2:].split(b"\n")[0].decode(errors="replace").split()
        words = words[1:] if words and Path(words[0]).name == "env" else words
        interpreter = executable(words[0]) if words else None
        return _of_python(interpreter) if interpreter and _is_python(interpreter) else None
    if not start.startswith(b"\x7fELF"):
        return None
    if _is_python(path):
        return _of_python(path)
    return next(_libraries(_output(["ldd", str(path)])), None)


def linked(path: Path) -> list[Path]:
    """Return the shared libraries that a program is linked with, as the loader finds them."""
    return [Path(found) for found in re.findall(r"=> (/\S+)", _output(["ldd", str(path)]))]


def _is_python(path: Path) -> bool:
    return path.name.startswith("python")


def _of_python(python: Path) -> Library | None:
    return next(_libraries(_output([str(python), "-c", _ASK_PYTHON])), None)


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _libraries(text: str) -> Iterator[Library]:
    """Yield the MPI libraries in a list of paths (from ldd or /proc/self/maps), those with a folder first.

    >>> list(_libraries("libmpi.so.12 => /opt/mpi/lib/libmpi.so.12 (0x7f)"))[0]
    Library(kind='mpich', folder=PosixPath('/opt/mpi/lib'))
    """
    found = [Library(SONAMES[name], Path(folder) if folder else None) for folder, name in _LIBRARY.findall(text)]
    yield from sorted(found, key=lambda library: library.folder is None)


def _main(kind: str, folder: str, sites: str) -> int:
    """Print the path of the wrappers for a library of `kind` in `folder`; the gate runs this command."""
    try:
        sys.stdout.write(f"{build_wrappers(Library(kind, Path(folder)), sites=sites.split(','))}\n")
    except EnvironmentFault as error:
        sys.stderr.write(f"dovetail trace: programs of {TITLES[kind]} are not traced: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
