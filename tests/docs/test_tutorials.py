"""The tutorials and migration pages, to the letter: programs are written, commands run, exact output is compared.

A block with `title=` is a file. Of `sh` blocks, `setup` is not run (it installs), `fails` must end with exit code 1,
and `torch` needs PyTorch. A `text` block is what the commands before it print, in some order of lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import needs
import pytest

BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCS = needs.ROOT / "docs"
QUICK = ("migrate/halo_exchange", "tutorials/collective")
LONG = ("tutorials/first_speed_up", "tutorials/mlp", "tutorials/stencil", "migrate/asynctp")
WITH_MPI = ("tutorials/trace", "tutorials/cluster")
pytestmark = pytest.mark.mpi


def follow(page: Path, folder: Path, env: dict[str, str]) -> int:
    """Do what a page says, in a folder; return the number of commands' blocks that were run."""
    printed, count = "", 0
    for language, info, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        words = info.split()
        if title := next((word.removeprefix("title=") for word in words if word.startswith("title=")), None):
            (folder / title).write_text(text, encoding="utf-8")
        elif language == "sh" and "setup" not in words:
            if "torch" in words:
                pytest.importorskip("torch")
            command = ["bash", "-e", "-c", text]
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250)
            assert done.returncode == ("fails" in words), f"{text}{done.stdout}{done.stderr}"
            printed, count = done.stdout + (done.stderr if "fails" in words else ""), count + 1
        elif language == "text":
            assert sorted(printed.splitlines()) == sorted(text.splitlines()), page
    return count


def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a newcomer's shell: this Python's commands first, and a cache of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DOVETAIL_", "PYTHON"))}
    path = f"{Path(sys.executable).parent}:{env['PATH']}"
    return env | {"PATH": path, "DOVETAIL_CACHE": str(tmp_path / "cache"), "NO_COLOR": "1", "COLUMNS": "120"}


@pytest.mark.parametrize("page", [*QUICK, *(pytest.param(page, marks=pytest.mark.thorough) for page in LONG)])
def test_it_runs_without_mpi(page, tmp_path):
    assert follow(DOCS / f"{page}.md", tmp_path, environment(tmp_path)) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("page", WITH_MPI)
def test_it_runs_with_mpi(page, tmp_path):
    needs.mpi("mpich")
    assert follow(DOCS / f"{page}.md", tmp_path, environment(tmp_path)) > 0


def test_what_a_page_prints_is_compared(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\necho one; echo two\n```\n\n```text\ntwo\none\n```\n")
    assert follow(page, tmp_path, environment(tmp_path)) == 1
    page.write_text("```sh\necho one\n```\n\n```text\ntwo\n```\n")
    with pytest.raises(AssertionError):
        follow(page, tmp_path, environment(tmp_path))
    page.write_text("```sh fails\ntrue\n```\n")
    with pytest.raises(AssertionError):
        follow(page, tmp_path, environment(tmp_path))


def test_every_page_of_these_shelves_is_followed():
    there = {f"{shelf}/{path.stem}" for shelf in ("tutorials", "migrate") for path in (DOCS / shelf).glob("*.md")}
    followed = {*QUICK, *LONG, *WITH_MPI}
    commands = {page for page in there if "\n```sh" in (DOCS / f"{page}.md").read_text(encoding="utf-8")}
    assert commands == followed
