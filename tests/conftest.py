"""Tests marked `needs(cause, …)` skip where a cause is missing; where CI promises things, no other skip passes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import needs
import pytest
from thorough import THOROUGH

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a script's background, say; programs would inherit that
    signal.signal(signal.SIGINT, lambda number, frame: None)
CALM = needs.SUPPORT / "calm.py"
# Threads of a BLAS otherwise turn for a tenth of a second before they sleep, in each of the thousand processes started.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
# Open MPI otherwise sleeps for a second in each MPI_Init before it finds that it has no use for libfabric; the testbed
# asks for the same.
os.environ.setdefault("OMPI_MCA_btl", "self,sm,tcp")


WEEK_S = 7 * 24 * 3600
FOR_MPI = ("mpi_", "accelerate_")  # begin the names of libraries that many tests need
RANKS = "ranks"  # the group of all tests that start ranks or hosts
LONG = ("tests/run/test_sanitizers.py",)  # files that take more than a minute: begun last, one core would wait for them


# Besides those marked, `make thorough` alone runs tests whose names begin so: they run with one MPI, or one sanitizer,
# in any case.
TWICE = (
    "tests/accelerate/test_accelerate.py::test_a_first_run_is_reported_and_remembered[openmpi",
    "tests/accelerate/test_from.py::test_a_program_of_messages_runs_as_it_is[openmpi",
    "tests/accelerate/test_remembered.py::test_a_second_run_asks_no_other_program[openmpi",
    "tests/bench/test_testbed.py::TestReal::test_executors_on_hosts_are_on_one_clock[openmpi",
    "tests/accelerate/test_accelerate.py::test_chosen_knobs_reach_the_ranks_but_not_over_the_users[openmpi",
    "tests/bench/test_testbed.py::TestReal::test_links_have_their_speed_and_no_other[openmpi",
    "tests/call/test_begin.py::test_all_calls[openmpi",
    "tests/call/test_begin.py::test_mpi_for_one_thread_at_a_time[openmpi",
    "tests/call/test_collectives.py::TestRanks::test_a_rank_that_stopped_waiting_keeps_its_memory[openmpi",
    "tests/call/test_collectives.py::TestRanks::test_all_calls[openmpi",
    "tests/call/test_nests.py::test_on_communicators[openmpi",
    "tests/call/test_one_rank_fails.py::test_all_ranks_raise[openmpi",
    "tests/call/test_one_rank_fails.py::test_collectives_without_comparison_of_arguments[openmpi",
    "tests/call/test_pipeline.py::TestRanks::test_from_python[mpich-3",
    "tests/call/test_pipeline.py::TestRanks::test_from_python[openmpi-3",
    "tests/call/test_pipeline.py::TestRanks::test_from_python[openmpi-4",
    "tests/call/test_pipeline.py::TestRanks::test_program_without_python[openmpi",
    "tests/call/test_products.py::test_products[openmpi",
    "tests/loops/test_nest_fuzz.py::test_random_nests_on_ranks[openmpi",
    "tests/pipeline/test_tiles.py::test_on_communicators[openmpi",
    "tests/run/test_check.py::test_a_job_counts_wrong_elements_on_all_ranks[openmpi",
    "tests/run/test_embedded.py::test_plans_on_communicators[openmpi",
    "tests/run/test_faults.py::test_bad_array_of_one_rank_is_refused_by_all[openmpi-inf",
    "tests/run/test_faults.py::test_bad_array_of_one_rank_is_refused_by_all[openmpi-nan",
    "tests/run/test_faults.py::test_bad_array_of_one_rank_is_refused_by_all[openmpi-shape",
    "tests/run/test_levels.py::test_every_door[openmpi-s",
    "tests/run/test_shared.py::test_arrays_of_all_ranks_of_mpi[openmpi",
    "tests/run/test_levels.py::test_jobs_ask_for_what_they_need[openmpi",
    "tests/run/test_mpi.py::TestJobs::test_products_are_right[openmpi",
    "tests/store/test_store.py::test_every_entry_point_on_ranks[openmpi",
    "tests/test_conformance.py::test_operators_are_called_on_ranks[openmpi",
    "tests/tiling/test_mpi_code.py::test_equals_plain_loops[openmpi",
    "tests/tiling/test_mpi_code.py::test_gives_the_numbers_of_the_nest[openmpi",
    "tests/tiling/test_nest_code.py::test_gives_the_numbers_of_the_nest[openmpi",
    "tests/tiling/test_nest_code.py::test_planted_faults_are_seen[openmpi",
    "tests/tiling/test_nest_code.py::test_sweep_after_sweep[openmpi",
    "tests/trace/test_callers.py::test_calls_of_one_line_are_told_apart_by_who_called[openmpi",
    "tests/trace/test_mpi_wrappers.py::test_a_planted_fault_is_found[openmpi",
    "tests/trace/test_mpi_wrappers.py::test_sanitizers_report_nothing[mpich-address",
    "tests/trace/test_mpi_wrappers.py::test_sanitizers_report_nothing[openmpi",
    "tests/trace/test_payload.py::test_the_recorder_sees_since_when_data_were_ready[openmpi",
    "tests/trace/test_to_program.py::test_a_dozen_programs[openmpi",
    "tests/tuner/test_collectives.py::test_tune_then_bench[openmpi",
)


class AtOnce:
    """Prints each failure as soon as it is known: a run that is ended early has said what failed."""

    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.terminal.write_line(f"\n{report.nodeid} failed ({report.when})")
            self.terminal.write_line(report.longreprtext[-1000:])


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if "CI" in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(AtOnce(config.pluginmanager.get_plugin("terminalreporter")))


@pytest.hookimpl(tryfirst=True)  # xdist's own then appends the group to the test's name
def pytest_collection_modifyitems(config, items):
    """For `make test`, tests that start ranks or hosts are one group, which begins first; then long files."""
    if not THOROUGH:
        items[:] = [item for item in items if not is_thorough(item)]
    if not config.getoption("loadgroup", False):
        return
    for item in items:
        if starts_ranks(item):
            item.add_marker(pytest.mark.xdist_group(RANKS))
    items.sort(key=lambda item: 0 if starts_ranks(item) else 1 if item.nodeid.startswith(LONG) else 2)


def is_thorough(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("thorough")) or item.nodeid.startswith(TWICE)


def starts_ranks(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in ("mpi", "testbed"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """For `make test`, two workers: all tests that start ranks or hosts on one of them, the others file by file."""
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = super()._split_scope(nodeid)
            return group if group == RANKS else nodeid.split("::", 1)[0]

    return ByFile(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        needs.need(*mark.args)


@pytest.fixture(params=sorted(needs.MPIS))
def mpi(request: pytest.FixtureRequest) -> needs.Mpi:
    """Each MPI in turn."""
    return needs.mpi(request.param)


@pytest.fixture(scope="session")
def libraries() -> Path:
    """What tests compiled in caches of their own within the last week. Each name has a key of source and compiler."""
    place = needs.ROOT / "build" / "test_libraries"
    place.mkdir(parents=True, exist_ok=True)
    for library in place.rglob("*.so"):
        with suppress(FileNotFoundError):  # the other worker does the same
            if library.stat().st_mtime < time.time() - WEEK_S:
                library.unlink()
    return place


@pytest.fixture
def call(capsys):
    """Run a command line in this process: exit code, stdout, stderr."""
    from dovetail.cli import main

    def _call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return _call


@pytest.fixture
def own_cache(request, libraries: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """A cache of the test's own, with nothing in it but libraries for MPI, and what this file's tests have compiled."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("DOVETAIL_CACHE", str(place))
    own = libraries / "-".join(request.path.relative_to(needs.ROOT).with_suffix("").parts)
    copy_libraries(libraries, place / "libraries", FOR_MPI)
    copy_libraries(own, place / "libraries")
    yield place
    copy_libraries(place / "libraries", libraries, FOR_MPI)
    copy_libraries(place / "libraries", own)


def copy_libraries(source: Path, target: Path, prefixes: tuple[str, ...] = ("",)) -> None:
    """Copies, so that a test which spoils its own does no harm to others; whole at once, as workers share them."""
    target.mkdir(mode=0o700, exist_ok=True)
    for library in source.glob("*.so"):
        is_there = any((folder / library.name).exists() for folder in (target, target.parent))
        if library.name.startswith(prefixes) and not is_there:
            partial = target / f"{library.name}.{os.getpid()}"
            with suppress(FileNotFoundError):
                shutil.copy2(library, partial)
                partial.replace(target / library.name)


@pytest.fixture(scope="module")
def examples_installed(tmp_path_factory: pytest.TempPathFactory):
    """The packages of examples/extend, as if pip had installed them, until the end of the module."""
    from registered import examples_installed

    with examples_installed(tmp_path_factory.mktemp("site")):
        yield


@pytest.fixture(scope="session")
def probed_links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that a quick `dovetail probe links` leaves, for two ranks."""
    needs.need("mpich")
    place = tmp_path_factory.mktemp("probed")
    line = [sys.executable, CALM, "probe", "links", "--ranks", "2"]
    done = subprocess.run(line, env=os.environ | {"DOVETAIL_CACHE": str(place)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def dovetail_with_links(probed_links: Path, own_cache: Path, tmp_path: Path):
    """`dovetail …`, in a folder of the test's own. It finds these links in its cache, and looks whether the machine is
    still the same: calm or busy, it is."""
    shutil.copytree(probed_links, own_cache, dirs_exist_ok=True)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, CALM, *words]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _refuse_broken_promise((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _refuse_broken_promise((yield))


def _refuse_broken_promise(report):
    """Turn a skip into a failure unless its reason, `needs CAUSE: why`, names a cause that CI does not promise."""
    if not (needs.PROMISED and report.skipped) or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2].removeprefix("Skipped: ")
    words = reason.replace(":", " ").split()
    cause = words[1] if words[:1] == ["needs"] and len(words) > 1 else None
    if cause not in needs.CAUSES or cause in needs.PROMISED:
        report.outcome = "failed"
        report.longrepr = f"skipped where {','.join(sorted(needs.PROMISED))} are promised: {reason}"
    return report
