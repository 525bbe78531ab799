"""The recorder in a program that closes all descriptors: none of its own files is read, written or closed by it."""

import shutil
import subprocess

import pytest
from needs import ROOT

from dovetail.trace import merge

SOURCES = [*ROOT.glob("native/trace/*.c"), ROOT / "native/test/closed.c"]
EVENTS = 3000


@pytest.fixture
def program(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs compiler: no C compiler")
    command = [compiler, "-std=gnu11", "-O2", "-pthread", f"-I{ROOT / 'native'}", *SOURCES, "-o", tmp_path / "closed"]
    subprocess.run([*map(str, command)], check=True)
    return tmp_path / "closed"


@pytest.mark.parametrize(("limit", "last"), [(1024, 1000), (64, 50)])
def test_a_program_may_close_all_descriptors_and_reuse_their_numbers(program, tmp_path, monkeypatch, limit, last):
    """Also where few descriptors are allowed, so that the recorder's have low numbers. Tracing goes on."""
    monkeypatch.setenv("DOVETAIL_TRACE_BUFFER", "16384")  # the recorder needs its file again and again
    words = [program, "traced", tmp_path / "own", EVENTS, last]
    command = ["bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash", *words]
    done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{last - 2} of {last - 2}, offset 4, 10 bytes: 12345 6 7\n"
    trace = merge(tmp_path / "traced").read()
    assert trace.num_rows == 3 * 2 * (EVENTS + 1)
    (about,) = trace.meta["ranks"]
    assert about["finalized"]
    assert about["load"]["time_s"][-1] >= trace.columns["end_s"].max() * 0.9
