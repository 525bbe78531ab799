"""doctor: `dovetail doctor`: which executors work here, and why the others do not."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dovetail.cli import output
from dovetail.cli.options import Json, Launch
from dovetail.core import DovetailError, EnvironmentFault, Say

if TYPE_CHECKING:
    from dovetail.ir import Program, Workload

SCHEMA = "dovetail.doctor/1"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    `ok`: it works. `needed`: Dovetail cannot do without it. `found`: what was found. `hint`: what to do.
    """

    name: str
    ok: bool
    needed: bool
    found: str
    hint: str = ""

    @property
    def verdict(self) -> str:
        return "ok" if self.ok else "FAILS" if self.needed else "absent"


def doctor(launch: Launch = None, json: Json = False) -> int:
    """Try every executor and what it needs. Exit code 0 if everything that Dovetail needs works, else 2.

    An MPI must work where there is one; without any, the ranks of one host do.
    """
    with output.progress("checking") as say:
        findings = list(examine(launch, say))
    ok = all(finding.ok for finding in findings if finding.needed)
    if json:
        output.emit({"schema": SCHEMA, "ok": ok, "checks": [asdict(finding) for finding in findings]})
    else:
        output.table(["what", "verdict", "found"], [[f.name, f.verdict, f.found] for f in findings])
        for finding in findings:
            if finding.hint:
                print(f"\n{finding.name}: {finding.hint}")
    return 0 if ok else 2


def examine(launch: str | None, say: Say) -> Iterator[Finding]:
    """Run all checks; a check comes after those it depends on. MPI is needed where there is one: ranks of one host
    need none."""
    mpi = has_mpi(launch)
    steps = [
        ("native engine", True, native),
        ("BLAS", True, blas),
        ("cache folder", True, cache),
        ("executor local", True, local),
        ("executor shared", True, lambda: on_ranks("shared")),
        ("mpicc", mpi, mpicc),
        ("launcher", mpi, lambda: launcher(launch)),
        ("executor mpi", mpi, lambda: on_ranks("mpi", launch)),
        ("MPI thread level", False, lambda: level(launch)),
        ("executor cuda", False, cuda),
        ("testbed (root, ip, tc)", False, testbed),
    ]
    for index, (name, needed, look) in enumerate(steps):
        say(name, index / len(steps))
        yield examined(name, needed, look)


def examined(name: str, needed: bool, look: Callable[[], str | tuple[str, str]]) -> Finding:
    """Run one check. `look` returns what it found, perhaps with a hint, or raises an error: the finding."""
    try:
        found = look()
        return Finding(name, True, needed, *([found] if isinstance(found, str) else found))
    except DovetailError as error:
        what = f"{error.what}: {error.found}" if error.found else error.what
        return Finding(name, False, needed, what.splitlines()[0], error.hint or "")
    except Exception as error:  # a broken installation may raise anything
        return Finding(name, False, needed, f"{type(error).__name__}: {error}".splitlines()[0], "reinstall dovetail")


def native() -> str:
    import dovetail.sim  # loads the compiled module
    from dovetail import __version__

    return f"the compiled module of {dovetail.__name__} {__version__} loads"


def blas() -> str:
    """Return the BLAS that the engine calls, and how many threads it may use."""
    from importlib.metadata import version

    from dovetail.run.engine import blas_functions

    blas_functions()
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    cores = len(os.sched_getaffinity(0))
    limit = f"limited to {threads} threads" if threads else "threads shared among the ranks of a host"
    return f"sgemm and dgemm of OpenBLAS {version('scipy-openblas32')}; {cores} cores; {limit}"


def cache() -> str | tuple[str, str]:
    """Return the cache folder; if another one is used instead of the wanted one, the warning that says why."""
    from dovetail.core import cache_dir, warn_once

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_once.cache_clear()
        place = str(cache_dir())
    if not seen:
        return place
    why, _, hint = str(seen[0].message).partition(" Try: ")
    return why, hint


def local() -> str:
    """Run a small operator on two threads and check its result."""
    from dovetail.run import fresh_inputs
    from dovetail.run.check import check_outputs, raise_if_bad
    from dovetail.run.local import execute_local

    program, workload = tiny()
    inputs = fresh_inputs(program, workload, seed=0)
    begin = time.perf_counter()
    outputs, _ = execute_local(program, workload, inputs)
    spent = time.perf_counter() - begin
    raise_if_bad(check_outputs(program, workload, inputs, outputs))
    return f"2 ranks as threads, result checked, {_ms(spent)}"


def has_mpi(launch: str | None) -> bool:
    """Return whether there is anything of an MPI here, or the user names a launcher."""
    from dovetail.core import find_tool

    return bool(launch or os.environ.get("DOVETAIL_LAUNCH") or find_tool("mpicc", "mpiexec", "mpirun"))


def mpicc() -> str:
    from dovetail.core import find_tool
    from dovetail.run.ranks.library import build_shim

    shim = build_shim()
    return f"{find_tool('mpicc')} compiles; {shim.name}"


def launcher(launch: str | None) -> str:
    from dovetail.run.mpi.executor import default_launch

    source = "--launch" if launch else "$DOVETAIL_LAUNCH" if os.environ.get("DOVETAIL_LAUNCH") else "found"
    return f"{launch or default_launch()} ({source})"


def on_ranks(name: str, launch: str | None = None) -> str:
    """Run the same small operator on two ranks of an executor and check its result."""
    from dovetail.run.executor import executor_on
    from dovetail.run.job import Job, Variant

    program, workload = tiny()
    begin = time.perf_counter()
    job = Job((Variant("tiny", program, workload, check=True),), rounds=1, warmup=0)
    result = executor_on(name, launch=launch).execute(job)
    spent = time.perf_counter() - begin
    library = " ".join(str(result.facts.get("mpi")).split())
    return f"{library}: 2 ranks, result checked, {_ms(spent)}"


LEVEL_COSTS = 1.25  # times as long, from which a lower level is recommended
LEVEL_BYTES = 8


def level(launch: str | None) -> str | tuple[str, str]:
    """Time the library's all_reduce in C programs of two ranks, at the least level of thread support and the highest.

    Returns both, and where the level alone costs, what to do.
    """
    from dovetail.prober.baselines import baselines
    from dovetail.run.mpi.executor import default_launch
    from dovetail.run.options import LEVEL_REMEDY, Level

    asked: tuple[Level, Level] = ("single", "multiple")
    with baselines(launch or default_launch()) as program:
        timed = [program.time("all_reduce", [LEVEL_BYTES], 2, level=each, rounds=9, most_s=1.0) for each in asked]
    if not all(timed):
        raise EnvironmentFault("the library's all_reduce could not be timed", hint="does the launcher start 2 ranks?")
    plain_s, many_s = (min(each[LEVEL_BYTES].seconds) for each in timed)  # undisturbed
    found = f"all_reduce of {LEVEL_BYTES} B: {_ms(plain_s)} by MPI_Init, {_ms(many_s)} at MPI_THREAD_MULTIPLE"
    if many_s < LEVEL_COSTS * plain_s:
        return found
    cost = f"MPI_THREAD_MULTIPLE alone makes it {many_s / plain_s:.1f} times as slow; mpi4py asks for it by default."
    return found, f"{cost} {LEVEL_REMEDY}"


NEVER_RUN = "not yet run on any device: graphs, the interpreter, one real rank, ranks on several devices"


def cuda() -> str:
    """Run the same operator with both ranks on one CUDA device. The finding names what no device has run yet."""
    from dovetail.run import fresh_inputs
    from dovetail.run.check import check_outputs, raise_if_bad
    from dovetail.run.cuda.device import Gpu
    from dovetail.run.cuda.runs import run_streams

    program, workload = tiny()
    gpu = Gpu()
    inputs = fresh_inputs(program, workload, seed=0)
    begin = time.perf_counter()
    outputs, _ = run_streams(program, workload, inputs, gpu=gpu)
    spent = time.perf_counter() - begin
    raise_if_bad(check_outputs(program, workload, inputs, outputs))
    facts = gpu.facts()
    driver = f"driver of CUDA {facts['driver_version'] / 1000:.1f}"
    about = f"{facts['device']}, {driver}, {facts['multiprocessors']} multiprocessors"
    return f"{about}, {gpu.blas.path}: 2 virtual ranks, result checked, {_ms(spent)}; {NEVER_RUN}"


def testbed() -> str:
    """Check what shaped links between network namespaces need (tools/testbed)."""
    if os.geteuid() != 0:
        raise EnvironmentFault("not root", hint="only shaped links need root; everything else works without")
    absent = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if absent:
        raise EnvironmentFault(f"no {', '.join(absent)}", hint="apt-get install iproute2 util-linux")
    return "root, ip, tc and unshare are there"


def tiny() -> tuple[Program, Workload]:
    """Return a small program on two ranks and its workload: the last schedule of the first operator with `pilot`."""
    from dovetail.ir.abilities import BalancedSizes
    from dovetail.ir.registry import OPERATORS, operator_class
    from dovetail.machine import load
    from dovetail.planner.costs import Costs

    kinds = map(operator_class, OPERATORS.usable)
    kind = next(found for found in kinds if issubclass(found, BalancedSizes))
    costs, _ = Costs.of(kind.pilot(2, "float32"), load("shared-memory-2"), 2)
    *_, schedule = costs.operator.schedules(costs)
    program = costs.operator.program(schedule, 2)
    return program, costs.operator.workload(program, schedule)


def _ms(seconds: float) -> str:
    from dovetail.report import seconds as text

    return text(seconds)
