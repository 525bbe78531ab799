"""Programs that are read from the cache instead of being built again."""

import importlib
import os
import resource
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType

import pytest

from dovetail import operator_of
from dovetail.core import EnvironmentFault, save_json, warn_once
from dovetail.ir import Schedule, verify
from dovetail.ir.posts import Posts
from dovetail.loops import array, loop, nest, problems
from dovetail.loops.grid.repeat_steps import is_same
from dovetail.matmul import MatmulAllReduce
from dovetail.stencil.operator import StencilOperator
from dovetail.store import fingerprint
from dovetail.store import program_cache as written
from dovetail.store.fingerprint import fingerprint_of
from dovetail.store.selection import Choice, Point, Selection, rows_of, save_selection
from dovetail.store.store import PROGRAMS
from dovetail.store.tuned_schedules import save_schedule

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


@pytest.fixture
def unwilling(monkeypatch):
    """After this is called, stencil operators cannot build Programs."""

    def refuse(*asked):
        raise AssertionError("the Program is written again")

    return lambda: monkeypatch.setattr(StencilOperator, "program", refuse)


def test_a_cached_program_is_the_same_and_proved_again(own_cache, unwilling):
    first = written.program_of(OPERATOR, HOW, 2)
    assert is_same(first, OPERATOR.program(HOW, 2))
    unwilling()
    again = written.program_of(OPERATOR, HOW, 2)
    assert is_same(first, again)
    assert again.lines == first.lines
    assert verify(again, against=OPERATOR.reference(HOW, 2)).ok
    assert len([*own_cache.glob(FOLDER)]) == 1


@pytest.mark.usefixtures("own_cache")
def test_a_program_of_another_operator_or_schedule_is_not_used():
    written.program_of(OPERATOR, HOW, 2)
    assert not is_same(written.program_of(OPERATOR, HOW.with_parameters(depth=4), 2), OPERATOR.program(HOW, 2))
    one, other = (fingerprint_of(smoothed(weight)) for weight in (0.5, 0.25))  # of one name
    assert one != other


def test_a_program_that_tuning_saved_is_read(own_cache, unwilling):
    program = OPERATOR.program(HOW, 2)
    written.save_program(OPERATOR, Schedule.from_json(HOW.to_json()), 2, program)
    unwilling()
    assert is_same(written.program_of(OPERATOR, HOW, 2), program)


def test_any_operator_with_its_post_conditions(own_cache, monkeypatch):
    """The post-conditions of a product are stored too; a proof of one Program is not used for another."""
    operator = MatmulAllReduce(64 * 4, 8, 8)
    schedule = Schedule.of("uniform", tiles=(8,) * 32, by="ring")
    program = operator.program(schedule, 4)
    assert program.num_ops >= written.MANY
    assert program.posts
    assert written.recall_program(operator, schedule, 4) == (None, "")
    written.save_program(operator, schedule, 4, program)
    again = written.recall_program(operator, schedule, 4).value
    assert again == program
    written.save_proof(operator, schedule, program, in_order=False)
    assert written.known_of(operator, schedule, again) == (True, False)
    posts = Posts.of(program.posts)
    ranks = posts.columns["post_rank"].copy()
    ranks[0] ^= 1
    other = replace(program, posts=Posts(posts.buffers, posts.kernels, posts.columns | {"post_rank": ranks}))
    assert written.known_of(operator, schedule, other) == (False, None)
    assert len([*own_cache.glob(FOLDER)]) == 1


def test_few_ops_are_not_kept(own_cache):
    written.program_of(OPERATOR, HOW.with_parameters(depth=0, tile=None), 2)
    assert not [*own_cache.glob(FOLDER)]


def test_the_oldest_are_removed(own_cache, monkeypatch):
    monkeypatch.setattr(written, "PROGRAMS", replace(PROGRAMS, most=2))
    for steps in (16, 24, 32):
        operator = operator_of(problems.jacobi2d)("128x8", steps=steps)
        written.program_of(operator, HOW, 2)
        for age, path in enumerate(sorted(own_cache.glob(FOLDER), key=os.path.getmtime)):
            os.utime(path, (age, age))
    assert len([*own_cache.glob(FOLDER)]) == 2
    assert written.recall_program(OPERATOR, HOW, 2).value is not None


class TestFingerprint:
    """The fingerprint changes with everything on which Programs depend."""

    def test_changes_with_sources(self, tmp_path, monkeypatch):
        """The sources of the operator's packages and of all that they import count, no others."""
        package = tmp_path / "dovetail"
        shutil.copytree(fingerprint.PACKAGE, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        monkeypatch.setattr(fingerprint, "PACKAGE", package)

        def found():
            fingerprint._sources.cache_clear()
            return fingerprint_of(OPERATOR)

        seen = [found()]
        for place in ("stencil/sweeps.py", "loops/nest.py", "ir/build.py", "core/units.py"):
            with (package / place).open("a") as file:
                file.write("# changed\n")
            seen.append(found())
        assert len(set(seen)) == 5
        (package / "report/page/late.py").write_text("# changed\n")
        assert found() == seen[-1]
        fingerprint._sources.cache_clear()

    def test_changes_with_the_file_of_another_package(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        text = "from dovetail.matmul import MatmulAllReduce\nclass Mine(MatmulAllReduce):\n    name = 'mine'\n"
        seen = set()
        for more in ("", "# changed\n"):
            (tmp_path / "strangers.py").write_text(text + more)
            monkeypatch.delitem(sys.modules, "strangers", raising=False)
            fingerprint._sources.cache_clear()
            seen.add(fingerprint_of(importlib.import_module("strangers").Mine(4, 6, 2)))
        assert len(seen) == 2

    def test_a_class_without_source_has_no_fingerprint(self, own_cache, monkeypatch):
        class Typed(MatmulAllReduce):
            __module__ = "typed"

        monkeypatch.setitem(sys.modules, "typed", ModuleType("typed"))
        operator, schedule = Typed(4, 6, 2), MatmulAllReduce(4, 6, 2).serial(2)
        assert fingerprint_of(operator) is None
        monkeypatch.setattr(written, "MANY", 0)
        assert written.program_of(operator, schedule, 2) == operator.program(schedule, 2)
        written.save_proof(operator, schedule, operator.program(schedule, 2), in_order=True)
        assert written.known_of(operator, schedule, operator.program(schedule, 2)) == (False, None)
        assert not [*own_cache.glob("pro*/*")]


class TestKnown:
    """A proved Program is not proved again if it is exactly the same."""

    @pytest.fixture
    def program(self, own_cache):
        program = OPERATOR.program(HOW, 2)
        assert written.known_of(OPERATOR, HOW, program) == (False, None)
        written.save_proof(OPERATOR, HOW, program, in_order=True)
        assert written.known_of(OPERATOR, HOW, program) == (True, True)
        written.save_proof(OPERATOR, HOW, program, in_order=False)
        assert written.known_of(OPERATOR, HOW, program) == (True, False)
        assert len([*own_cache.glob("proofs/*")]) == 1
        return program

    @pytest.mark.parametrize("column", ["read_offset", "write_count", "lane", "chan_out", "call", "dep"])
    def test_a_proof_is_not_used_if_an_op_differs(self, program, column):
        changed = program.columns[column].copy()
        changed[-1] += 1
        other = replace(program, columns=program.columns | {column: changed})
        assert written.known_of(OPERATOR, HOW, other) == (False, None)

    def test_a_proof_is_not_used_if_tables_differ(self, program):
        first, *others = program.buffers
        other = replace(program, buffers=(first._replace(slots=(65, 64)), *others))
        assert written.known_of(OPERATOR, HOW, other) == (False, None)

    def test_a_proof_is_not_used_for_another_operator_schedule_or_library(self, program, tmp_path, monkeypatch):
        assert written.known_of(smoothed(0.5), HOW, program) == (False, None)
        assert written.known_of(OPERATOR, HOW.with_parameters(tile=4), program) == (False, None)
        (tmp_path / "other.so").write_bytes(b"another compiler's")
        monkeypatch.setattr("dovetail._native._core.__file__", str(tmp_path / "other.so"))
        assert written.known_of(OPERATOR, HOW, program) == (False, None)

    def test_proofs_of_few_ops_are_not_saved(self, own_cache):
        how = HOW.with_parameters(depth=0, tile=None)
        written.save_proof(OPERATOR, how, OPERATOR.program(how, 2), in_order=False)
        assert not [*own_cache.glob("pro*/*")]


@contextmanager
def room_for(num_bytes):
    """Limit the size of files to `num_bytes`: further writes fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_disk_that_fills_up_leaves_no_incomplete_files(own_cache, is_there):
    """Earlier files stay; failures that matter are reported; Programs are written again once there is room."""
    program, hosts = OPERATOR.program(HOW, 2), ["a", "b"]
    table = Selection({}, rows_of("all_reduce", 2, 1, [(Choice("ring_all_reduce"), Point(4096, 1e-5))], "float32"))
    writers = [
        lambda: save_schedule(OPERATOR, HOW, "X", hosts),
        lambda: save_selection(table, "X", hosts),
        lambda: written.save_program(OPERATOR, HOW, 2, program),
        lambda: written.save_proof(OPERATOR, HOW, program, in_order=True),
    ]
    for write in writers if is_there else ():
        write()
    before = {path: path.read_bytes() for path in own_cache.rglob("*") if path.is_file()}
    warn_once.cache_clear()
    with room_for(50):
        for write in writers:
            with pytest.warns(RuntimeWarning, match="File too large"):
                write()
        with pytest.raises(EnvironmentFault, match="File too large") as reported:
            save_json(own_cache / "plan.json", table.to_json())
        assert "free some space" in (reported.value.hint or "")
    assert {path: path.read_bytes() for path in own_cache.rglob("*") if path.is_file()} == before
    assert written.known_of(OPERATOR, HOW, program).is_proved == is_there
    assert is_same(written.program_of(OPERATOR, HOW, 2), program)
