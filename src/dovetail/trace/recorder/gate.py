"""gate: a library that processes preload. At the first MPI call it detects the MPI and loads its wrappers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.core import EnvironmentFault, compile_c, find_tool, native_folder
from dovetail.trace.recorder.mpi_calls import calls
from dovetail.trace.recorder.mpi_wrappers import fortran_entries

HEADERS = native_folder("trace/mpi")
# For thousands of short functions: at -O2 they take twice as long to compile, and no less to run. Calls passed on must
# be tail calls, by which a wrapper sees the program's return address.
QUICKLY = ("-O1", "-foptimize-sibling-calls")


@dataclass(frozen=True)
class Gate:
    """What distinguishes the gates of two tools.

    Attributes
    ----------
    name : str
        Name of the compiled library.
    who, done : str
        Prefix of messages, and what the tool does to a process: "traced".
    prefix : str
        Prefix of its environment variables.
    builder : str
        Module that compiles wrappers in a process that needs others; it prints their path.
    includes : sequence of str
        Headers with further entries.
    is_below : bool
        Where another tool defines MPI calls, let the tool see them first, and wrap what it calls by PMPI.
    """

    name: str
    who: str
    done: str
    prefix: str
    builder: str
    includes: tuple[str, ...] = ()
    is_below: bool = False


TRACER = Gate(
    "mpi_gate",
    "dovetail trace",
    "traced",
    "DOVETAIL_TRACE_",
    "dovetail.trace.recorder.launch",
    ("gate_ends.h", "gate_io.h"),
)


def gate_source(gate: Gate = TRACER) -> str:
    """Return the C source: an entry per call of the table, for its C, large-count (`_c`), Fortran and PMPI forms.

    >>> "DG_ENTRY(MPI_Send_c, (long a0, long a1, long a2, long a3, long a4, long a5)," in gate_source()
    True
    """
    entries = dict(_entries())
    names = [name for name in entries if name.startswith(("MPI_", "PMPI_"))]
    head = ["#define _GNU_SOURCE", "#include <stddef.h>", f"#define DG_BELOW {int(gate.is_below)}"]
    words = {"WHO": gate.who, "DONE": gate.done, "ENV": gate.prefix, "BUILDER": gate.builder}
    head += [f'#define DG_{name} "{text}"' for name, text in words.items()]
    head += [f"long {name}({_typed(entries[name])});" for name in names]
    head += ["static struct { const char* name; void* entry; int is_missing; } dg_c_calls[] = {"]
    head += [f'    {{"{name}", (void*)&{name}, 0}},' for name in names]
    head += ["};", f"enum {{ NUM_C_CALLS = {len(names)} }};"]
    head += [f'#include "{name}"' for name in ("gate.h", *gate.includes)]
    made = [f"DG_ENTRY({name}, ({_typed(count)}), ({_args(count)}))" for name, count in entries.items()]
    return "\n".join([*head, *made, ""])


def build_gate(near: Path | None, gate: Gate = TRACER) -> Path:
    """Compile the library, unless it is cached; return its path.

    `near`: the folder of dovetail_trace.h and libdovetail_trace, for a gate that records by them. Raises
    EnvironmentFault without a C compiler.
    """
    compiler = find_tool("cc", "gcc", "clang")
    if compiler is None:
        raise EnvironmentFault("no C compiler for the library that processes load", hint="install gcc or clang")
    flags = [*QUICKLY, "-U_FORTIFY_SOURCE", "-fvisibility=hidden", f"-I{HEADERS}", "-pthread", *_linked(near)]
    flags += ["-Wl,-Bsymbolic", "-Wl,--hash-style=both", "-ldl"]  # the older table has the number of symbols
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "gate.c"
        source.write_text(gate_source(gate), encoding="utf-8")
        sources = [source, *sorted(HEADERS.glob("gate*.h"))]
        return compile_c(compiler, sources, gate.name, "the library that processes load", flags=flags)


def _linked(near: Path | None) -> Sequence[str]:
    return [f"-I{near}", f"-L{near}", "-ldovetail_trace", f"-Wl,-rpath,{near}"] if near else []


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
