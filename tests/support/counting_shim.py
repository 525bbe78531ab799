"""A library that only counts MPI calls, to hold traces against: `LD_PRELOAD`ed, it knows nothing of the tracer."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

from needs import Mpi

from dovetail.trace.recorder.mpi_wrappers import prototypes

HEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static __thread int inside;
"""
TELL = """
static void print_counts(void) {
    char path[4000];
    snprintf(path, sizeof path, "%s/%d.json", getenv("COUNT_DIR"), (int)getpid());
    FILE* file = fopen(path, "w");
    const char* comma = "";
    fputc('{', file);
    for (int i = 0; i < COUNT; ++i)
        if (count[i]) fprintf(file, "%s\\"MPI_%s\\": %lu", comma, names[i], count[i]), comma = ", ";
    fputs("}\\n", file);
    fclose(file);
}
"""


def build_shim(mpi: Mpi, mpicc: Path, folder: Path, names: set[str], *, before_others: bool = False) -> Path:
    """The library, for calls of these names; `before_others`: it goes on to the library preloaded after it."""
    asked = [mpicc, "-E", "-x", "c", "-"]
    header = subprocess.run(asked, input="#include <mpi.h>\n", text=True, capture_output=True, check=True).stdout
    declared = {name: params for name, params in prototypes(header).items() if name in names}
    table = ", ".join(f'"{name}"' for name in declared)
    lines = [HEAD, f"enum {{ COUNT = {len(declared)} }};", f"static const char* names[] = {{{table}}};"]
    lines += ["static unsigned long count[COUNT];", TELL]
    for i, (name, params) in enumerate(declared.items()):
        typed = ", ".join(_named(param, k) for k, param in enumerate(params)) or "void"
        passed = ", ".join(f"p{k}" for k in range(len(params)))
        prints = "print_counts();" if name == "Finalize" else ""
        lines.append(f"int MPI_{name}({typed}) {{ if (!inside) ++count[{i}]; {prints} ++inside;")
        if before_others:
            lines.append(f"    static __typeof__(&MPI_{name}) next;")
            lines.append(f'    if (!next) *(void**)&next = dlsym(RTLD_NEXT, "MPI_{name}");')
        lines.append(f"    const int code = {'next' if before_others else f'PMPI_{name}'}({passed});")
        lines.append("    --inside; return code; }")
    source, target = folder / "shim.c", folder / "shim.so"
    source.write_text("\n".join(lines))
    built = subprocess.run(
        [mpicc, "-shared", "-fPIC", source, "-ldl", "-o", target], capture_output=True, text=True, env=mpi.env
    )
    assert built.returncode == 0, built.stderr
    return target


def _named(param: str, number: int) -> str:
    """A parameter's declaration with the name p0, p1, …"""
    from dovetail.trace.recorder.mpi_wrappers import _renamed

    return _renamed(param, f"p{number}")


def counted_by(shim: Path, mpi: Mpi, folder: Path, ranks: int, *command: object) -> dict[str, int]:
    """How often the ranks of a command make each call."""
    folder.mkdir()
    prefix = mpi.mpiexec(ranks)
    if mpi.name == "openmpi":
        prefix += ["-x", "LD_PRELOAD", "-x", "COUNT_DIR"]
    env = mpi.env | {"LD_PRELOAD": str(shim), "COUNT_DIR": str(folder)}
    done = subprocess.run(
        [*prefix, *map(str, command)], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    total: Counter[str] = Counter()
    for file in folder.glob("*.json"):
        total.update(json.loads(file.read_text()))
    return dict(total)
