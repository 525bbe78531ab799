"""Memory that processes of one host share: who may open it, and what remains of it."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail import _native

OPENS = """
import ctypes, os, sys
from dovetail import _native
if sys.argv[2]:
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try:
    found = _native.Segment.open(sys.argv[1])
except RuntimeError as error:
    sys.exit(f"refused: {error}")
word = ctypes.c_int64.from_address(found.address)
print(found.num_bytes, word.value)
word.value += 1
"""
both_kinds = pytest.mark.parametrize("named", [False, True], ids=["anonymous", "named"])
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def opened(name: str, user: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", OPENS, name, user]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def visible() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("dovetail-*")}


@both_kinds
def test_another_process_opens_it_until_it_is_hidden(named):
    made = _native.Segment.make(1 << 20, named)
    word = ctypes.c_int64.from_address(made.address)
    assert word.value == 0
    word.value = 41
    done = opened(made.name)
    assert (done.stdout.split(), word.value) == ([str(1 << 20), "41"], 42), done.stderr
    name = made.name
    made.hide()
    assert made.name == ""
    assert "refused" in opened(name).stderr
    assert word.value == 42  # whoever has it open keeps it


def test_a_name_of_other_memory_is_refused():
    """The number in its path may by then be another file of that process."""
    one, other = _native.Segment.make(4096), _native.Segment.make(4096)
    forged = one.name[: one.name.index("/memfd:")] + other.name[other.name.index("/memfd:") :]
    with pytest.raises(RuntimeError, match="Stale"):
        _native.Segment.open(forged)
    assert _native.Segment.open(one.name).num_bytes == 4096


@both_kinds
@as_root
def test_another_user_cannot_open_it(named):
    """And one that is opened as root, but was made by another user, is refused as well."""
    made = _native.Segment.make(4096, named)
    assert "refused" in opened(made.name, "65534").stderr


def test_a_segment_of_another_user_is_refused(monkeypatch):
    """Root could open it."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    made = _native.Segment.make(4096, True)
    os.chown(f"/dev/shm{made.name}", 65534, 65534)
    with pytest.raises(RuntimeError, match="another user"):
        _native.Segment.open(made.name)


def test_named_memory_is_seen_by_its_user_alone_and_only_until_it_is_hidden():
    before = visible()
    made = _native.Segment.make(4096, True)
    (name,) = visible() - before
    assert f"/{name}" == made.name
    assert Path("/dev/shm", name).stat().st_mode & 0o777 == 0o600
    del made
    assert visible() - before == set()


def test_nothing_remains_of_a_process_that_was_killed():
    before = visible()
    text = (
        "import time\nfrom dovetail import _native\nmade = _native.Segment.make(1 << 20)\n"
        "print(made.name, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        found = _native.Segment.open(name)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert found.num_bytes == 1 << 20
    with pytest.raises(RuntimeError):
        _native.Segment.open(name)
    assert visible() - before == set()


NAMED = """
import sys
from dovetail import _native
made = _native.Segment.make(4096, True)
print(made.name, flush=True)
sys.stdin.read()"""


def test_what_a_killed_process_left_is_swept_by_the_next_one():
    """Not what a living one has, nor what another user owns, nor files that only look alike."""
    pipe, paths = subprocess.PIPE, []
    start = lambda: subprocess.Popen([sys.executable, "-c", NAMED], stdin=pipe, stdout=pipe, text=True)  # noqa: E731
    with start() as dead, start() as living:
        for child in (dead, living):
            paths.append(Path(f"/dev/shm{child.stdout.readline().strip()}"))
        left, used = paths
        alike = [left.with_name(name) for name in ("dovetail-notes", f"{left.name}x", f"dovetail-1-{left.name[-8:]}")]
        theirs = left.with_name(left.name[:-1] + "f" if left.name[-1] != "f" else left.name[:-1] + "e")
        for path in (*alike, *([theirs] if os.geteuid() == 0 else [])):
            path.touch(0o600)
        if os.geteuid() == 0:
            os.chown(theirs, 65534, 65534)
        try:
            dead.send_signal(signal.SIGKILL)
            dead.wait()
            assert left.exists()
            subprocess.run([sys.executable, "-c", NAMED.replace("True", "False")], stdin=subprocess.DEVNULL, check=True)
            assert not left.exists()
            assert all(path.exists() for path in (used, *alike))
            assert theirs.exists() == (os.geteuid() == 0)
        finally:
            for path in (*alike, theirs):
                path.unlink(missing_ok=True)
        living.stdin.close()
    assert not used.exists()


@as_root
def test_a_full_dev_shm_is_reported():
    """It would be SIGBUS at the first touch. Anonymous memory has no such limit."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    text = "from dovetail._native import Segment\nprint(Segment.make(1 << 21).num_bytes)\nSegment.make(1 << 21, True)"
    inner = f"mount -t tmpfs -o size=1m tmpfs /dev/shm || exit 77; exec {sys.executable} -c '{text}'"
    done = subprocess.run(["unshare", "-m", "sh", "-c", inner], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("needs a mount namespace")
    assert done.stdout.strip() == str(1 << 21)
    assert "posix_fallocate: No space left on device" in done.stderr
