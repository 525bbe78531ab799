"""What was found about a command is remembered, until a file changes that it depends on."""

import os
from pathlib import Path

import pytest

from dovetail.accelerate.remembered import remembered
from dovetail.accelerate.running import prepared
from dovetail.core import EnvironmentFault


@pytest.fixture
def ask(own_cache, tmp_path):
    """Ask about a program; return the answer, and how often it was looked for."""
    program, library, asked = tmp_path / "program", tmp_path / "library", []
    program.write_text("#!/bin/true\n")
    program.chmod(0o755)
    library.write_text("one")

    def find():
        asked.append(1)
        return {"number": len(asked)}, [library]

    def ask(*words, what="a question"):
        return remembered(what, [str(program), *words], find)["number"]

    ask.program, ask.library = program, library
    return ask


def test_the_first_answer_serves_as_long_as_nothing_changes(ask):
    assert (ask(), ask(), ask()) == (1, 1, 1)


def test_another_question_command_or_environment_is_asked_anew(ask, monkeypatch):
    assert (ask(), ask("--more"), ask(what="another")) == (1, 2, 3)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    assert ask() == 4


@pytest.mark.parametrize("changed", ["program", "library"])
def test_a_changed_file_is_asked_about_anew(ask, changed):
    assert ask() == 1
    path = getattr(ask, changed)
    os.utime(path, ns=(1, 1))
    assert (ask(), ask()) == (2, 2)
    if changed == "library":
        path.unlink()
        assert (ask(), ask()) == (3, 3)


def test_an_error_is_not_remembered(own_cache):
    def fails():
        raise EnvironmentFault("no")

    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="no"):
            remembered("a question", ["program"], fails)
    assert remembered("a question", ["program"], lambda: ("yes", [])) == "yes"


@pytest.mark.mpi
def test_a_second_run_asks_no_other_program(mpi, compiled, own_cache, monkeypatch):
    for name, value in mpi.env.items():
        monkeypatch.setenv(name, value)
    words = [*mpi.mpiexec(2), str(compiled(mpi, "accelerate_calls.c"))]
    first = prepared(words)
    assert first.gate is not None

    def refused(*args, **options):
        raise AssertionError(f"asks {args[0]}")

    with monkeypatch.context() as patch:
        patch.setattr("subprocess.run", refused)
        assert prepared(words) == first
    first.gate.unlink()
    assert prepared(words) == first
    assert first.gate.exists()


EMPTY = "#include <mpi.h>\nint main(void) { return MPI_Init(0, 0) || MPI_Finalize(); }\n"


@pytest.mark.mpi
def test_the_next_run_of_a_script_has_what_its_processes_asked_for(mpi, own_cache, compiled, tmp_path, monkeypatch):
    script, said = tmp_path / "job.sh", tmp_path / "said"
    program = compiled(mpi, "empty.c", EMPTY)
    launch = " ".join(map(str, [*mpi.mpiexec(1), program]))
    script.write_text(f'#!/bin/sh\necho "$DOVETAIL_ACCELERATE_{mpi.name.upper()}" >> {said}\nexec {launch}\n')
    script.chmod(0o755)
    for name in mpi.env:
        monkeypatch.setenv(name, mpi.env[name])
    counts = [prepared([str(script)]).run(shown=False).counts for _ in range(2)]
    assert [len(each) for each in counts] == [1, 1]
    first, second = said.read_text().splitlines()
    assert (first, Path(second).is_file()) == ("", True)
