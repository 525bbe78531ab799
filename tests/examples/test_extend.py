"""The packages of examples/extend, installed as a distribution would be, go through every verb."""

import inspect
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sim_executor import SimExecutor, two_hosts

import dovetail as dt
from dovetail.cli.files import KINDS
from dovetail.core import DovetailError, save_json
from dovetail.cost import Curve, Segment
from dovetail.ir import Schedule
from dovetail.run import execute
from dovetail.trace import open_trace
from dovetail.trace.formats import FORMATS

pytestmark = pytest.mark.usefixtures("examples_installed")
SIZES = ("--n", "8", "--width", "4")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_operator_is_right(ranks):
    import dovetail_smooth

    operator = dt.Smooth(10, 4)
    x = np.random.default_rng(1).random((10, 4))
    for schedule in (operator.serial(ranks), Schedule.of("overlap", first="inner")):
        program = operator.program(schedule, ranks)
        parts = {"x": [x[low:high] for low, high in operator.blocks(ranks)]}
        found = execute(program, parts, workload=operator.workload(program, schedule)).outputs["y"]
        np.testing.assert_allclose(np.concatenate(found), dovetail_smooth.smooth(x))


def test_the_operator_goes_through_the_verbs(call, tmp_path):
    """plan, verify, simulate and run, on the executor of another package too."""
    machine = ("--machine", save_json(tmp_path / "machine.json", machine_of_two().to_json()))
    plan = tmp_path / "p"
    for words in (("plan", "smooth", *SIZES, *machine, "--out", plan), ("verify", plan), ("simulate", plan, *machine)):
        code, _, err = call(*words)
        assert code == 0, err
    for on in ("threads", "numpy", "asyncio"):
        code, out, err = call("run", plan, "--on", on, "--rounds", "1", "--json")
        assert code == 0, err
        found = json.loads(out)
        assert found["max_rel_error"] <= found["tolerance"]
    assert found["facts"]["mpi"] == "tasks of asyncio"


def machine_of_two():
    """A pretended machine that knows what the kernel costs."""
    curve = Curve("rows", (Segment(0.0, 1e-6, 1e-9),), label="prior").to_json()
    return two_hosts().with_costs({f"kernel:smooth:width={width}:float64": curve for width in (4, 8)})


def test_the_operator_is_tuned_and_called(tmp_path):
    import dovetail_smooth

    ran = SimExecutor(machine_of_two())
    found = dt.tune(dt.Smooth(64, 8), 2, out=tmp_path, executor=ran, machine=machine_of_two(), seed=7)
    assert {row.schedule.family for row in found.plan.rivals} | {found.plan.family} == {"serial", "overlap"}
    x = np.random.default_rng(1).random((10, 4))
    np.testing.assert_allclose(dt.plan(dt.Smooth(10, 4), machine_of_two(), ranks=1).run(x), dovetail_smooth.smooth(x))


def test_a_call_of_one_array_takes_what_any_call_takes():
    """How many arrays it has, its operator says; by name or by place, one too few or too many is a TypeError."""
    assert str(inspect.signature(dt.smooth)) == "(x, comm, *, out=None) -> 'Any'"
    assert "`x`: of two axes" in dt.smooth.__doc__
    for wrong in ((), (1,), (1, 2, 3)):
        with pytest.raises(TypeError, match="argument"):
            dt.smooth(*wrong)


def test_the_executor_finds_what_is_wrong(call, tmp_path, monkeypatch):
    import dovetail_asyncio

    machine = save_json(tmp_path / "machine.json", machine_of_two().to_json())
    assert call("plan", "smooth", *SIZES, "--machine", machine, "--out", tmp_path / "p")[0] == 0
    right = dovetail_asyncio.Bound.once
    monkeypatch.setattr(dovetail_asyncio.Bound, "once", lambda self: (right(self), self.held[1]["y"].fill(0))[0])
    assert call("run", tmp_path / "p", "--on", "asyncio", "--rounds", "1")[0] == 1


def test_the_trace_format_goes_out_and_in(call, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("rank,thread,name,start_s,end_s\n0,0,solve,0.0,0.5\n1,0,wait,0.25,1.0\n1,0,solve,1.0,1.5\n")
    assert call("trace", "import", table, "-o", tmp_path / "t.dovetail")[0] == 0
    trace = open_trace(tmp_path / "t.dovetail").read()
    assert (trace.num_ranks, set(trace.names), trace.num_rows) == (2, {"solve", "wait"}, 3)
    assert call("trace", "export", tmp_path / "t.dovetail", "--csv", tmp_path / "again.csv")[0] == 0
    assert (tmp_path / "again.csv").read_text() == table.read_text()
    assert "A table of calls and intervals" in call("trace", "export", "--help")[1]
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DovetailError, match="no table of intervals"):
        FORMATS["csv"]().read([tmp_path / "bad.csv"])


def test_a_kind_of_file_of_a_package_is_shown(call, tmp_path, monkeypatch):
    """Its name is its schema; one of another version is named as such, one that is broken is misuse."""
    rows = [("mine.table/2", "of_a_package:TABLE"), ("mine.broken/1", "of_a_package:NONE")]
    table = SimpleNamespace(name="table", described=lambda content: f"{content['rows']} rows")
    monkeypatch.setitem(sys.modules, "of_a_package", SimpleNamespace(TABLE=table))
    monkeypatch.setattr(KINDS, "others", dict(rows))
    place = save_json(tmp_path / "t.json", {"schema": "mine.table/2", "rows": 3})
    assert call("show", place)[:2] == (0, "3 rows\n")
    for schema, said in (("mine.table/1", "a table of another version"), ("mine.broken/1", "cannot be imported")):
        code, _, err = call("show", save_json(tmp_path / "t.json", {"schema": schema}))
        assert code == 2
        assert said in err
