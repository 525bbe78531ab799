"""compiler: compile C sources at run time into a shared library, and cache it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from dovetail.core.cache import cache_dir, is_cached
from dovetail.core.codec import replacing
from dovetail.core.errors import EnvironmentFault

LIBRARIES = "libraries"  # folder of compiled libraries in the cache
_PACKAGE = Path(__file__).parents[1]


def find_tool(*names: str) -> str | None:
    """Return the path of the first tool found, beside this Python or on PATH; None if there is none."""
    beside = os.fspath(Path(sys.prefix) / "bin")
    for name in names:
        path = shutil.which(name, path=beside) or shutil.which(name)
        if path:
            return path
    return None


def native_folder(room: str) -> Path:
    """Return the folder of the C sources of `room` that are compiled on the user's host (with its MPI, for example).

    In a checkout this is `native/ROOM`; an installed package has a copy, `dovetail/_native/ROOM`.
    """
    in_place = _PACKAGE.parents[1] / "native" / room
    return in_place if _PACKAGE.parent.name == "src" and in_place.is_dir() else _PACKAGE / "_native" / room


def compile_c(
    compiler: str,
    sources: Sequence[Path],
    name: str,
    what: str,
    *,
    about: str = "--version",
    flags: Sequence[str] = ("-O2",),
) -> Path:
    """Compile C or C++ sources to a shared library, unless it is cached; return its path.

    Parameters
    ----------
    compiler : str
        Path of the compiler.
    sources : sequence of path
        C or C++ files, which are compiled, and the headers they include.
    name : str
        Name of the library in the cache; a hash of sources, flags, compiler and `about`'s output is added.
    what : str
        What is compiled, for errors.
    about : str
        Option by which the compiler prints its version.
    flags : sequence of str
        Options of the compiler.

    Raises
    ------
    EnvironmentFault
        If the compiler fails, or the cache cannot be written.
    """
    text = b"".join(source.read_bytes() for source in sources)
    key = _key(text, compiler, _answer(compiler, about), *flags)
    target = cache_dir(LIBRARIES) / f"{name}-{key}.so"
    with _one_at_a_time(target, sources[0]) as is_missing:
        if is_missing:
            try:
                with replacing(target, 0o700) as partial:
                    _compile(compiler, sources, flags, partial, what)
            except OSError as error:
                raise _no_room(target, error) from error
    return target


def _compile(compiler: str, sources: Sequence[Path], flags: Sequence[str], target: Path, what: str) -> None:
    """Run the compiler; write the library to `target`, whose mode stays. Raise EnvironmentFault if it fails."""
    mode = target.stat().st_mode
    units = [str(source) for source in sources if source.suffix in (".c", ".cpp")]
    command = [compiler, "-shared", "-fPIC", "-o", str(target), *units, *flags, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        full = next((line for line in lines if os.strerror(errno.ENOSPC) in line), None)
        hint = f"free some space in {target.parent}, or for temporary files" if full else "is gcc installed?"
        raise EnvironmentFault(f"{compiler} could not compile {what}", found=full or lines[-1], hint=hint)
    target.chmod(mode)  # a linker may have changed it


def _no_room(target: Path, error: OSError) -> EnvironmentFault:
    hint = "free some space there, or set DOVETAIL_CACHE to another folder"
    return EnvironmentFault(f"cannot write {target}", found=error.strerror or str(error), hint=hint)


@contextmanager
def _one_at_a_time(target: Path, source: Path) -> Iterator[bool]:
    """Yield whether `target` must be made. Of several processes that need it at once, one makes it; the others wait.

    On a file system without locks each process compiles its own.
    """
    if is_cached(target):
        yield False
        return
    with source.open("rb") as held:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield not is_cached(target)


def compile_for_here(text: str, name: str, what: str) -> Path:
    """Compile generated C for this host's CPU; return the library's path.

    The compiler may not fuse or reorder floating-point operations. The C source is saved beside the library. Raises
    EnvironmentFault if there is no compiler, or if it fails.
    """
    compiler = find_tool("cc", "gcc", "clang")
    if compiler is None:
        raise EnvironmentFault(f"no C compiler to compile {what}", hint="install gcc or clang")
    source = cache_dir(LIBRARIES) / f"{name}-{_key(text.encode())}.c"
    if not is_cached(source):
        try:
            with replacing(source) as partial:
                partial.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _no_room(source, error) from error
    flags = ("-O3", "-march=native", "-ffp-contract=off", "-fwrapv", f'-DDOVETAIL_CPU="{_cpu()}"')
    return compile_c(compiler, [source], name, what, flags=flags)


def _key(text: bytes, *more: str) -> str:
    return hashlib.sha256(text + "".join(more).encode()).hexdigest()[:16]


@cache
def _answer(compiler: str, about: str) -> str:
    """Return what the compiler prints for the option `about`."""
    return subprocess.run([compiler, about], capture_output=True, text=True, check=False).stdout


@cache
def _cpu() -> str:
    """Return a hash of this CPU's features: hosts with other CPUs may share the cache, but not the libraries."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.machine(), platform.processor()]
    about = dict.fromkeys(line for line in lines if line.startswith(("flags", "Features", "model name")))
    return _key("".join(about or lines[:2]).encode())
