"""Tests marked `needs(cause, …)` skip where a cause is missing; where CI promises things, no other skip passes."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import needs
import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a script's background, say; programs would inherit that
    signal.signal(signal.SIGINT, lambda number, frame: None)
# Threads of a BLAS otherwise turn for a tenth of a second before they sleep, in each of the thousand processes started.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
# Open MPI otherwise sleeps for a second in each MPI_Init before it finds that it has no use for libfabric; the testbed
# asks for the same.
os.environ.setdefault("OMPI_MCA_btl", "self,sm,tcp")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """For `make test`, two workers: file by file, and all files that start ranks or hosts on one of them."""
    from xdist.scheduler import LoadFileScheduling

    marks = ("mark.mpi", "mark.testbed")
    sources = {path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")}
    ranks = {f"tests/{name}" for name, source in sources.items() if any(mark in source for mark in marks)}

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "ranks" if file in ranks else file

    return ByFile(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        needs.need(*mark.args)


@pytest.fixture(params=sorted(needs.MPIS))
def mpi(request: pytest.FixtureRequest) -> needs.Mpi:
    """Each MPI in turn."""
    return needs.mpi(request.param)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was compiled in caches of tests' own."""
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture
def call(capsys):
    """Run a command line in this process: exit code, stdout, stderr."""
    from dovetail.cli import main

    def _call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return _call


@pytest.fixture
def own_cache(libraries: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """A cache of the test's own, with nothing in it but libraries that tests before it have compiled."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("DOVETAIL_CACHE", str(place))
    link_libraries(libraries, place / "libraries")
    yield place
    link_libraries(place / "libraries", libraries)


def link_libraries(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700, exist_ok=True)
    for library in source.glob("*.so"):
        if not (target / library.name).exists():
            (target / library.name).hardlink_to(library)


@pytest.fixture(scope="session")
def probed_links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that `dovetail probe links` leaves, for two ranks."""
    needs.need("mpich")
    place = tmp_path_factory.mktemp("probed")
    line = [sys.executable, "-m", "dovetail", "probe", "links", "--ranks", "2"]
    done = subprocess.run(line, env=os.environ | {"DOVETAIL_CACHE": str(place)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place


CALM = """
import sys
from functools import partial
from dovetail.cli import main
from dovetail.prober import links
from dovetail.prober import take
from dovetail.prober import operator_costs as operator
from dovetail.tuner import machines

take.AGAIN = 0
links.should_probe_again = operator.should_probe_again = machines.is_doubted = lambda *_: False
machines.spot_check = partial(machines.spot_check, tolerance=9.0)
machines.spot_check_operator = partial(machines.spot_check_operator, tolerance=9.0)
sys.exit(main())
"""


@pytest.fixture
def dovetail_with_links(probed_links: Path, own_cache: Path, tmp_path: Path):
    """`dovetail …`, in a folder of the test's own. It finds these links in its cache, and looks whether the machine is
    still the same: calm or busy, it is."""
    shutil.copytree(probed_links, own_cache, dirs_exist_ok=True)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", CALM, *words]
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
