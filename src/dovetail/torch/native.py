"""native: the process group whose frequent calls need no Python, compiled once for each version of PyTorch."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dovetail.core import EnvironmentFault, cache_dir, compile_c, find_tool, native_folder
from dovetail.core.compiler import LIBRARIES
from dovetail.torch.group import DovetailGroup
from dovetail.torch.tensors import REDUCTIONS

NAME = "dovetail_torch"
VARIABLE = "DOVETAIL_TORCH_NATIVE"  # "0": the group in Python
MESSAGES = ("send", "recv", "recv_anysource")
SLOW = ("allreduce", "broadcast", "all_gather_single", "reduce_scatter_single", "barrier", *MESSAGES)  # as `slow_NAME`
HERE = (*SLOW, "_allgather_base", "_reduce_scatter_base")  # methods that C++ begins
_loaded_modules: list[Any] = []
_held: list[Any] = []  # of groups whose thread is inside a call: what that uses


@cache
def native_group() -> Any:
    """Return the class of groups with native calls; None without a C++ compiler, or if $DOVETAIL_TORCH_NATIVE is 0.

    The first call on a host compiles it, in about half a minute. A warning reports a compiler that fails.
    """
    compiler = find_tool("c++", "g++", "clang++")
    if compiler is None or os.environ.get(VARIABLE) == "0":
        return None
    try:
        module = _loaded(_library(compiler))
    except (EnvironmentFault, ImportError) as error:
        warnings.warn(f"process groups run in Python, which is slower: {error}", stacklevel=2)
        return None
    return _group_of(module)


def loaded() -> Any:
    """Return the native module if groups use it; else None."""
    return _loaded_modules[0] if _loaded_modules else None


def _group_of(module: Any) -> Any:
    class Methods(DovetailGroup):
        def _new_worker(self: Any) -> Any:
            door = self._ranks.door()
            worker = module.Worker(door)
            for (dtype, op), numbers in REDUCTIONS.items():
                self.reduces(dtype, op, *numbers)
            if not self._calls.checks:
                self.open_door(door, worker)
            return worker

        def setGroupName(self: Any, name: str) -> None:
            super().setGroupName(name)
            self.name_in_cpp(name)

        _set_group_name = setGroupName

        def _let_go(self: Any) -> None:
            self.shut_door()
            if not self._worker.close(0.2):
                _held.append((self._calls, self._ranks))
            super()._let_go()

    fast = {name: getattr(module.Group, name) for name in HERE}
    slow = {f"slow_{name}": getattr(DovetailGroup, name) for name in SLOW}
    return type("NativeGroup", (Methods, module.Group), {**fast, **slow, "__doc__": DovetailGroup.__doc__})


def _library(compiler: str) -> Path:
    """Return the compiled module. Raises EnvironmentFault if it does not compile."""
    folder = native_folder("torch")
    run = native_folder("run")
    sources = [folder / "module.cpp", *sorted(folder.glob("*.hpp")), run / "door.h", run / "mpi_table.h"]
    if not any(cache_dir(LIBRARIES).glob(f"{NAME}-*.so")):
        print(f"dovetail: compiling process groups for PyTorch {torch.__version__}, once", file=sys.stderr)  # noqa: T201
    return compile_c(compiler, sources, NAME, "process groups for PyTorch", flags=_flags(run.parent))


def _flags(native: Path) -> list[str]:
    here = Path(torch.__file__).parent
    headers = [native, here / "include", here / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    libraries = ("torch_python", "torch_cpu", "torch", "c10")
    return [
        *("-O2", "-g0", "-std=c++20", "-fvisibility=hidden", "-w"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f'-DTORCH_VERSION_OF_BUILD="{torch.__version__} {torch.version.git_version}"',
        *(f"-isystem{each}" for each in headers),
        f"-L{here / 'lib'}",
        *(f"-l{each}" for each in libraries),
    ]


def _loaded(library: Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(NAME, os.fspath(library))
    spec = importlib.util.spec_from_file_location(NAME, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    _loaded_modules.append(module)
    return module
