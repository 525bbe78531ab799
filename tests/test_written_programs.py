"""Programs that are read where they were written before."""

import os
import resource
from contextlib import contextmanager
from dataclasses import replace

import pytest

from dovetail import operator_of
from dovetail.core import EnvironmentFault, save_json
from dovetail.ir import Schedule, verify
from dovetail.loops import array, loop, nest, problems
from dovetail.loops.repeat_steps import is_same
from dovetail.store import program_cache as written
from dovetail.store.selection import Choice, Point, Selection, keep, rows_of
from dovetail.store.tuned_schedules import keep_schedule

HOW = Schedule.of("any", cut=(2,), depth=8, overlapped=None, tile=2)
OPERATOR = operator_of(problems.jacobi2d)("128x8", steps=24)
FOLDER = "programs/*.npz"


def smoothed(weight):
    @nest(u=array("n", "m", time=True, boundary="fixed"))
    def smooth(u, steps):
        for t in loop(steps):
            for i in loop(1, u.shape[0] - 1):
                for j in loop(u.shape[1]):
                    u[t + 1, i, j] = weight * (u[t, i - 1, j] + u[t, i + 1, j])

    return operator_of(smooth)("128x8", steps=24)


class Unwilling:
    """The same operator, that writes nothing."""

    nest, to_json = OPERATOR.nest, staticmethod(OPERATOR.to_json)


def test_is_the_same_and_proved_anew(own_cache):
    first = written.program_of(OPERATOR, HOW, 2)
    again = written.program_of(Unwilling(), HOW, 2)
    assert is_same(first, OPERATOR.program(HOW, 2))
    assert is_same(first, again)
    assert again.lines == first.lines
    assert verify(again, against=OPERATOR.plain(HOW, 2)).ok
    assert len([*own_cache.glob(FOLDER)]) == 1


@pytest.mark.usefixtures("own_cache")
def test_not_of_another_operator_or_schedule():
    written.program_of(OPERATOR, HOW, 2)
    assert not is_same(written.program_of(OPERATOR, HOW.with_parameters(depth=4), 2), OPERATOR.program(HOW, 2))
    keys = {written._key(smoothed(weight), HOW, 2) for weight in (0.5, 0.25)}  # of one name
    assert len(keys) == 2


def test_what_tuning_has_written_is_read(own_cache):
    written.keep_program(OPERATOR, Schedule.from_json(HOW.to_json()), 2, OPERATOR.program(HOW, 2))
    assert is_same(written.program_of(Unwilling(), HOW, 2), OPERATOR.program(HOW, 2))
    assert len([*own_cache.glob(FOLDER)]) == 1


def test_few_ops_are_not_kept(own_cache):
    written.program_of(OPERATOR, HOW.with_parameters(depth=0, tile=None), 2)
    assert not [*own_cache.glob(FOLDER)]


def test_a_broken_file_is_written_anew(own_cache):
    written.program_of(OPERATOR, HOW, 2)
    (place,) = own_cache.glob(FOLDER)
    for text in (b"", b"PK\3\4", place.read_bytes()[:-100]):
        place.write_bytes(text)
        assert is_same(written.program_of(OPERATOR, HOW, 2), OPERATOR.program(HOW, 2))
        assert written._read(place) is not None


def test_the_oldest_go(own_cache, monkeypatch):
    monkeypatch.setattr(written, "KEPT", 2)
    for steps in (16, 24, 32):
        operator = operator_of(problems.jacobi2d)("128x8", steps=steps)
        written.program_of(operator, HOW, 2)
        for age, path in enumerate(sorted(own_cache.glob(FOLDER), key=os.path.getmtime)):
            os.utime(path, (age, age))
    assert len([*own_cache.glob(FOLDER)]) == 2
    assert written._read(written._folder() / f"{written._key(OPERATOR, HOW, 2)}.npz") is not None


class TestWhatIsKnown:
    """A Program that was proved need not be proved again, as long as it is the same, to the last op."""

    @pytest.fixture
    def program(self, own_cache):
        program = OPERATOR.program(HOW, 2)
        assert written.known_of(OPERATOR, HOW, program) == (False, None)
        written.keep_proof(OPERATOR, HOW, program, in_order=True)
        assert written.known_of(OPERATOR, HOW, program) == (True, True)
        written.keep_proof(OPERATOR, HOW, program, in_order=False)
        assert written.known_of(OPERATOR, HOW, program) == (True, False)
        assert len([*own_cache.glob("programs/*")]) == 1
        return program

    @pytest.mark.parametrize("column", ["read_offset", "write_count", "lane", "chan_out", "call", "dep"])
    def test_not_of_one_that_differs_in_an_op(self, program, column):
        changed = program.columns[column].copy()
        changed[-1] += 1
        other = replace(program, columns=program.columns | {column: changed})
        assert written.known_of(OPERATOR, HOW, other) == (False, None)

    def test_not_of_one_whose_tables_differ(self, program):
        first, *others = program.buffers
        other = replace(program, buffers=(first._replace(slots=(65, 64)), *others))
        assert written.known_of(OPERATOR, HOW, other) == (False, None)

    def test_not_of_another_operator_schedule_or_library(self, program, tmp_path, monkeypatch):
        assert written.known_of(smoothed(0.5), HOW, program) == (False, None)
        assert written.known_of(OPERATOR, HOW.with_parameters(tile=4), program) == (False, None)
        (tmp_path / "other.so").write_bytes(b"another compiler's")
        monkeypatch.setattr("dovetail._native._core.__file__", str(tmp_path / "other.so"))
        assert written.known_of(OPERATOR, HOW, program) == (False, None)

    def test_nothing_by_a_broken_note(self, program):
        place = written._note(OPERATOR, HOW, program)
        for text in ("", "free", "0" * 64 + " free", place.read_text() + "more"):
            place.write_text(text)
            assert written.known_of(OPERATOR, HOW, program) == (False, None)

    def test_few_ops_leave_no_note(self, own_cache):
        how = HOW.with_parameters(depth=0, tile=None)
        written.keep_proof(OPERATOR, how, OPERATOR.program(how, 2), in_order=False)
        assert not [*own_cache.glob("programs/*")]


@contextmanager
def room_for(num_bytes):
    """Files may have this many bytes: the kernel refuses the rest, as where a disk is full halfway."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_disk_that_is_full_halfway_leaves_no_half_files(own_cache, is_there):
    """What was there before stays; what cannot be done without says so; Programs are written once there is room."""
    program, hosts = OPERATOR.program(HOW, 2), ["a", "b"]
    table = Selection({}, rows_of("all_reduce", 2, 1, [(Choice("ring_all_reduce"), Point(4096, 1e-5))], "float32"))
    loud = [
        lambda: keep_schedule(OPERATOR, HOW, "X", hosts),
        lambda: keep(table, "X", hosts),
        lambda: save_json(own_cache / "plan.json", table.to_json()),
    ]
    silent = [
        lambda: written.keep_program(OPERATOR, HOW, 2, program),
        lambda: written.keep_proof(OPERATOR, HOW, program, in_order=True),
    ]
    for write in (*loud, *silent) if is_there else ():
        write()
    before = {path: path.read_bytes() for path in own_cache.rglob("*") if path.is_file()}
    with room_for(50):
        for write in loud:
            with pytest.raises(EnvironmentFault, match="File too large") as told:
                write()
            assert "free some space" in (told.value.hint or "")
        for write in silent:
            write()
    assert {path: path.read_bytes() for path in own_cache.rglob("*") if path.is_file()} == before
    assert written.known_of(OPERATOR, HOW, program).is_proved == is_there
    assert is_same(written.program_of(OPERATOR, HOW, 2), program)
