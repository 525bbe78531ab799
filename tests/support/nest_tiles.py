"""Write random nests as MPI programs of tiles (`dovetail tile --emit-c`), and have these check themselves on ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import nest_cases as cases
from needs import MPIS
from nest_cases import Case
from nest_fuzz import refused

from dovetail.core import DovetailError

MPI = MPIS["mpich"]


def emitted(case: Case, folder: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The C program of a random tile's volume and mapped dimension."""
    rng, name, source = Random(case.seed), f"case_{next(cases.COUNT)}", folder / "tiles.c"
    (folder / f"{name}.py").write_text(cases.HEAD + cases.function_text(case, name))
    grid = "x".join(str(size) for _, size in case.sizes)
    words = ["tile", f"{folder / name}.py:{name}", "--grid", grid, "--dtype", case.dtype, "--emit-c", str(source)]
    words += ["--steps", str(case.steps)] if case.steps is not None else []
    words += ["--volume", str(rng.randint(2, 60)), "--map", str(rng.randrange(len(case.sizes)))]
    source.unlink(missing_ok=True)
    command = [sys.executable, "-m", "dovetail", *words]
    return source, subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def in_tiles(case: Case, folder: Path) -> str | None:
    """None: what 1 to 3 ranks compute tile by tile has the bits of the loops as they were written."""
    source, done = emitted(case, folder)
    if done.returncode:
        return result_of(case, done)
    program = source.with_suffix("")
    compile_it = [str(MPI.mpicc), "-O1", "-ffp-contract=off", "-o", str(program), str(source), "-lm"]
    made = subprocess.run(compile_it, env=MPI.env, capture_output=True, text=True, check=False, timeout=60)
    if made.returncode:
        return f"mpicc refuses the program: {made.stderr[:400]}"
    command = [*MPI.mpiexec(1 + case.seed % 3), str(program), "check"]
    ran = subprocess.run(command, env=MPI.env, capture_output=True, text=True, check=False, timeout=60)
    if ran.returncode or "\n0 of " not in f"\n{ran.stdout}":
        return f"tiles: {ran.returncode}: {ran.stdout}{ran.stderr}"[:600]
    return None


def result_of(case: Case, done: subprocess.CompletedProcess[str]) -> str:
    """A refusal of the command, or its traceback."""
    words = done.stderr.strip() or done.stdout.strip()
    if "Traceback" in words or done.returncode not in (1, 2):
        return f"exit code {done.returncode}: {words[-600:]}"
    return refused(DovetailError(words.removeprefix("error: ")), case)
