"""counter: the library that counts the MPI calls of an unmodified program's ranks, compiled for the program's MPI."""

from __future__ import annotations

import sys
from pathlib import Path

from dovetail.core import EnvironmentFault, native_folder
from dovetail.ir.collectives import kind_of_mpi, traits_of
from dovetail.trace.recorder.gate import HEADERS, Gate, build_gate
from dovetail.trace.recorder.launch import Library, compile_wrappers, compiler_for
from dovetail.trace.recorder.mpi_calls import HELPERS, Call
from dovetail.trace.recorder.mpi_wrappers import wrappers

SOURCES = native_folder("accelerate")
CLOCK = HEADERS.parent / "clock.h"
COUNTER = Gate(
    "accelerate_gate",
    "dovetail accelerate",
    "counted",
    "DOVETAIL_ACCELERATE_",
    "dovetail.accelerate.counter",
    is_below=True,
)
REPLACED = ("Barrier", "Allreduce", "Allgather", "Alltoall")  # calls with an entry in replace.h
LOOKS = ("Test", "Testall", "Testany", "Testsome", "Iprobe", "Improbe", "Request_get_status")  # calls that never wait
_HELPERS = (
    *HELPERS,
    *("Comm_get_parent", "Comm_create_keyval", "Comm_set_attr", "Pack", "Unpack", "Type_get_extent"),
    *("T_init_thread", "T_finalize", "T_cvar_get_index", "T_cvar_get_info", "T_cvar_handle_alloc"),
    *("T_cvar_handle_free", "T_cvar_read"),
)  # MPI functions that counter.h calls itself
_MOVES = ("dm_send(", "dm_recv(", "dm_one_sided(", "dm_collective(")


def counted(number: int, name: str, call: Call, real: str) -> list[str]:
    """Return the lines of a wrapper that counts a call.

    >>> from dovetail.trace.recorder.mpi_calls import calls
    >>> barrier = next(call for call in calls() if call.name == "Barrier")
    >>> counted(7, "Barrier", barrier, "real_Barrier(comm)")[2:5]
    ['dm_collective(0, 0, comm);', 'call.is_joint = 1;', 'uint64_t arrival;']
    """
    if call.name in ("Init", "Init_thread"):
        after = "if (!code) dc_after_init();"
        return [
            "dm_leave_alone();",
            "dm_inside = 1;",
            f"const int code = {real};",
            "dm_inside = 0;",
            after,
            "return code;",
        ]
    if call.name == "Finalize":
        return ["if (!dm_leave_alone()) dc_before_finalize();", f"return {real};"]
    if name in LOOKS:
        return [
            f"if (dm_leave_alone()) return {real};",
            f"const uint64_t begun = dc_begin_look({number});",
            f"const int code = {real};",
            f"dc_end_look({number}, begun);",
            "return code;",
        ]
    moves = call.before if call.before and any(word in call.before for word in _MOVES) and not call.found else ""
    joint = joint_when(call.name)
    return [
        f"if (dm_leave_alone()) return {real};",
        "dc_call call = {0, 0, 0, 0};",
        *([moves.removeprefix("dm_root(root); ")] if moves else []),
        *([f"call.is_joint = {joint};"] if joint else []),
        "uint64_t arrival;",
        "const uint64_t begun = dc_begin(&call, &arrival);",
        f"const int code = {real.replace('real_', 'dx_', 1) if name in REPLACED else real};",
        f"dc_end({number}, &call, begun, arrival);",
        "return code;",
    ]


def joint_when(name: str) -> str:
    """Return the C condition under which no rank can leave a call before all have entered it; "" if there is none.

    Every rank needs data of every other one. The v-variants are left out: some of their counts may be 0.
    """
    kind = kind_of_mpi(name)
    traits = traits_of(kind)
    if traits.rooted or name not in traits.mpi:
        return ""
    return "call.num_bytes > 0" if traits.moves else "1"


def build_counter(library: Library, near: Path | None = None) -> Path:
    """Compile the counting wrappers for an MPI library with its mpicc, unless they are cached; return their path.

    `near`: another folder to look for the mpicc. Raises EnvironmentFault if there is no mpicc for the library, or if it
    fails.
    """
    headers = [*sorted(SOURCES.glob("*.h")), *sorted(HEADERS.glob("mpi_*.h")), CLOCK]
    mpicc = compiler_for(library, near)
    flags = [f"-I{SOURCES}"]
    return compile_wrappers(
        mpicc, lambda header: wrappers(header, counted, "counter.h", _HELPERS), "mpi_counter", headers, flags
    )


def build_counter_gate() -> Path:
    """Compile the library that processes preload, unless it is cached; return its path."""
    return build_gate(None, COUNTER)


def _main(kind: str, folder: str) -> int:
    """Print the path of the counting wrappers for a library of `kind` in `folder`; the gate runs this command."""
    try:
        sys.stdout.write(f"{build_counter(Library(kind, Path(folder)))}\n")
    except EnvironmentFault as error:
        sys.stderr.write(f"dovetail accelerate: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:3]))
