"""Warnings of Dovetail are paragraphs on stderr, each printed once; those of a user's file stay Python's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

from dovetail.cli import doctor, output
from dovetail.core import cache_dir, warn_once

USERS = """import warnings
from dovetail.collective import Algorithm
warnings.warn("of the user", RuntimeWarning)
p = Algorithm("mine", "all_gather", 2)
for r in range(2):
    p.chunk(r, "input", 0).copy(r, "output", r).copy(1 - r, "output", r)
"""


@pytest.fixture
def unsafe(tmp_path, monkeypatch):
    """A cache folder that everybody can write to."""
    place = tmp_path / "unsafe"
    place.mkdir()
    place.chmod(0o777)
    monkeypatch.setenv("DOVETAIL_CACHE", str(place))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return place


def dovetail_command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dovetail", *map(str, words)], capture_output=True, text=True)


@pytest.mark.parametrize("flags", [[], ["--quiet"]])
def test_a_warning_is_one_paragraph(unsafe, flags):
    done = dovetail_command("machines", *flags)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Warning: nothing is loaded from the cache {unsafe}, because ")


def test_each_text_is_printed_once_and_pythons_handler_comes_back(capsys):
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        inside = warnings.showwarning
        with output.plain_warnings():
            for text in ("one", "two", "one"):
                warn_once.cache_clear()
                warn_once(text)
        assert warnings.showwarning is inside
    assert warnings.showwarning is before
    assert capsys.readouterr().err == "Warning: one\nWarning: two\n"


def test_a_warning_of_a_users_file_has_its_line(own_cache, tmp_path):
    (tmp_path / "mine.py").write_text(USERS)
    done = dovetail_command("compile", tmp_path / "mine.py")
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'mine.py'}:3: RuntimeWarning: of the user" in done.stderr


def test_programs_get_pythons_warnings(unsafe):
    warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="nothing is loaded from the cache"):
        cache_dir()


def test_doctor_names_the_folder_that_is_not_used(unsafe, tmp_path):
    found = doctor.examined("cache folder", True, doctor.cache)
    assert str(unsafe) in found.found
    assert f"{tmp_path / 'dovetail'} is used instead" in found.found
    assert "set DOVETAIL_CACHE" in found.hint
    assert doctor.cache() == (found.found, found.hint)


def test_doctor_names_the_folder(own_cache):
    assert doctor.cache() == str(own_cache.resolve())


def test_sigterm_is_not_blamed_on_a_users_file(own_cache, tmp_path):
    source = tmp_path / "loop.py"
    source.write_text("import pathlib\npathlib.Path(__file__).with_name('begun').touch()\nwhile True: pass\n")
    line = [sys.executable, "-m", "dovetail", "compile", str(source), "--ranks", "2"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(job.pid, signal.SIGTERM)
        try:
            out, err = job.communicate(timeout=60)
        finally:
            job.kill()
    assert (job.returncode, out, err) == (143, "", "")


def test_the_exit_of_a_users_file_is_its_own(call, own_cache, tmp_path):
    (tmp_path / "quit.py").write_text("import sys\nsys.exit(143)\n")
    code, _, err = call("compile", tmp_path / "quit.py", "--ranks", "2")
    assert code == 2
    assert "quit.py failed: SystemExit: 143" in err
    assert "quit.py:2" in err
