"""library: tables of calls between ranks: of the installed MPI library, or of Dovetail's shared memory."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, ClassVar

from dovetail import _native
from dovetail.core import EnvironmentFault, RunError, compile_c, find_tool, native_folder

SOURCE = native_folder("run") / "mpi_shim.c"


def build_shim() -> Path:
    """Return the MPI shim, compiled with the mpicc found; cached by source and compiler line."""
    mpicc = find_tool("mpicc")
    if mpicc is None:
        raise EnvironmentFault(
            "no MPI found: there is no mpicc beside this Python or on PATH",
            hint="pip install 'dovetail[mpi]'; or --on shared, on one host",
        )
    sources = sorted(SOURCE.parent.glob("mpi_*.[ch]"))
    return compile_c(mpicc, sources, "mpi_shim", "the MPI shim", about="-show")


ON_COMM = (  # functions whose first argument is a communicator, in the order of mpi_table.h
    *("rank", "size", "isend", "irecv", "borrow", "give_back", "group"),
    *("icollective", "icollective_v", "collective", "collective_v", "test", "wait", "cancel"),
)
_FUNCTIONS = (
    *("init", "finalize", "setup", "adopt", "find", "release"),
    *ON_COMM,
    *("abort", "library", "error_text"),
)


class _Table(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), *((name, ctypes.c_void_p) for name in _FUNCTIONS)]


class Calls:
    """A table of calls for the engine, which can also be called by name.

    Attributes
    ----------
    what : str
        The library's name in errors.
    executor : str
        The name of the executor that runs jobs by them.
    """

    what: ClassVar[str]
    executor: ClassVar[str]

    def __init__(self, table: _Table) -> None:
        self._table, self._functions = table, dict[str, Any]()

    @property
    def address(self) -> int:
        return ctypes.addressof(self._table)

    @property
    def lends(self) -> bool:
        """Whether messages may stay with their sender until they have been read."""
        return bool(self._table.borrow)

    @property
    def library(self) -> str:
        """Name and version of the library."""
        text = ctypes.create_string_buffer(256)
        self.call("library", text, 256)
        return text.value.decode()

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function of the table. Raises RunError if it fails."""
        if name not in self._functions:
            returns = None if name in ("abort", "library", "error_text") else ctypes.c_int
            self._functions[name] = ctypes.CFUNCTYPE(returns)(getattr(self._table, name))
        code = self._functions[name](*arguments)
        if name not in ("rank", "size") and code:
            text = ctypes.create_string_buffer(512)
            self.call("error_text", code, text, 512)
            raise RunError(f"{self.what} failed in {name}", found=text.value.decode())
        return int(code or 0)


class Shim(Calls):
    """The calls of an MPI library, through the loaded shim."""

    what, executor = "MPI", "mpi"

    def __init__(self, path: Path) -> None:
        super().__init__(_Table.in_dll(ctypes.CDLL(os.fspath(path), mode=ctypes.RTLD_GLOBAL), "dovetail_mpi_table"))
        versions = self._table.version, _native.mpi_table_version
        if versions[0] != versions[1]:
            found = f"{path.name} has table {versions[0]}, the native module knows {versions[1]}"
            what, hint = "the native module and its sources differ in version", "reinstall dovetail"
            raise EnvironmentFault(what, found=found, hint=hint)


class SharedCalls(Calls):
    """Dovetail's calls between the ranks of one host through shared memory, without MPI."""

    what, executor = "shared memory", "shared"

    def __init__(self, table: int = 0) -> None:
        super().__init__(_Table.from_address(table or _native.shared_table()))


class HostCalls(SharedCalls):
    """Dovetail's calls between the ranks of several hosts, by sockets, without MPI."""

    what = "the connection of the hosts"

    def __init__(self) -> None:
        super().__init__(_native.hosts_table())

    @property
    def lends(self) -> bool:
        """False: a message has to reach the other host."""
        return False
