"""Tests marked `needs(cause, …)` skip where a cause is missing; where CI promises things, no other skip passes."""

import signal

import needs
import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a script's background, say; programs would inherit that
    signal.signal(signal.SIGINT, lambda number, frame: None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        needs.need(*mark.args)


@pytest.fixture(params=sorted(needs.MPIS))
def mpi(request: pytest.FixtureRequest) -> needs.Mpi:
    """Each MPI in turn."""
    return needs.mpi(request.param)


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
