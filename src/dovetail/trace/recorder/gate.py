"""gate: the library that traced processes preload. At the first MPI call it detects the MPI and loads its wrappers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from dovetail.core import EnvironmentFault, compile_c, find_tool, native_folder
from dovetail.trace.recorder.mpi_calls import calls
from dovetail.trace.recorder.mpi_wrappers import fortran_entries

HEADERS = native_folder("trace/mpi")


def gate_source() -> str:
    """Return the C source: an entry per call of the table, for its C, large-count (`_c`), Fortran and PMPI forms.

    >>> "DG_ENTRY(MPI_Send_c, (long a0, long a1, long a2, long a3, long a4, long a5)," in gate_source()
    True
    """
    entries = dict(_entries())
    names = [name for name in entries if name.startswith(("MPI_", "PMPI_"))]
    head = ["#define _GNU_SOURCE", "#include <stddef.h>"]
    head += [f"long {name}({_typed(entries[name])});" for name in names]
    head += ["static struct { const char* name; void* entry; int is_missing; } dg_c_calls[] = {"]
    head += [f'    {{"{name}", (void*)&{name}, 0}},' for name in names]
    head += ["};", f"enum {{ NUM_C_CALLS = {len(names)} }};", '#include "gate.h"']
    made = [f"DG_ENTRY({name}, ({_typed(count)}), ({_args(count)}))" for name, count in entries.items()]
    return "\n".join([*head, *made, ""])


def build_gate(near: Path) -> Path:
    """Compile the library, unless it is cached; return its path.

    `near`: the folder of dovetail_trace.h and libdovetail_trace. Raises EnvironmentFault without a C compiler.
    """
    compiler = find_tool("cc", "gcc", "clang")
    if compiler is None:
        raise EnvironmentFault("no C compiler for the library that traced processes load", hint="install gcc or clang")
    flags = ["-O2", "-fvisibility=hidden", f"-I{HEADERS}", f"-I{near}", f"-L{near}", "-pthread"]
    flags += ["-ldovetail_trace", f"-Wl,-rpath,{near}", "-Wl,-Bsymbolic", "-ldl"]
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "gate.c"
        source.write_text(gate_source(), encoding="utf-8")
        sources = [source, *sorted(HEADERS.glob("gate*.h"))]
        return compile_c(compiler, sources, "mpi_gate", "the library that traced processes load", flags=flags)


def _entries() -> Iterator[tuple[str, int]]:
    """Yield each entry's name and number of arguments."""
    for call in calls():
        count = len(call.params.split())
        for name in (call.name, f"{call.name}_c"):
            yield f"MPI_{name}", count
            yield f"PMPI_{name}", count
        yield from fortran_entries(call.name, call)


def _typed(count: int) -> str:
    return ", ".join(f"long a{i}" for i in range(count)) or "void"


def _args(count: int) -> str:
    return ", ".join(f"a{i}" for i in range(count))
