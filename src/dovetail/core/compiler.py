"""C sources compiled at run time into a shared library, once: it is then found in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dovetail.core.cache import cache_dir
from dovetail.core.errors import EnvironmentFault


def find_tool(*names: str) -> str | None:
    """The first of `names` beside this Python (a wheel's), else on PATH."""
    beside = os.fspath(Path(sys.prefix) / "bin")
    for name in names:
        path = shutil.which(name, path=beside) or shutil.which(name)
        if path:
            return path
    return None


def compile_c(
    compiler: str,
    sources: Sequence[Path],
    name: str,
    what: str,
    *,
    about: str = "--version",
    flags: Sequence[str] = (),
) -> Path:
    """The shared library that `compiler` makes of `sources` (headers among them), kept as `name` with a key.

    The key is of the sources, the compiler, its flags and what it answers to `about`: another is another library.
    EnvironmentFault, naming `what` was to be compiled, where the compiler fails.
    """
    line = subprocess.run([compiler, about], capture_output=True, text=True, check=False).stdout
    text = b"".join(source.read_bytes() for source in sources)
    key = hashlib.sha256(text + "\0".join([compiler, line, *flags]).encode()).hexdigest()[:16]
    target = cache_dir() / f"{name}-{key}.so"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        units = [source for source in sources if source.suffix == ".c"]
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(partial), *map(str, units), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            found = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise EnvironmentFault(f"{compiler} could not compile {what}", found=found[0], hint="is gcc installed?")
        partial.replace(target)
    return target
