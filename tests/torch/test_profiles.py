"""Profiles of torch.profiler on two ranks, made anew: what they show of our calls, and what `trace import` reads."""

import json

import needs
import numpy as np
import pytest
from forked_ranks import Job, ranks_of, run_jobs

pytestmark = [pytest.mark.needs("torch"), pytest.mark.mpi]
PROGRAM = needs.RANKS / "torch_profile_ranks.py"
STEPS = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The profiles of the process group in Python, and of the native one: {form: folder}."""
    made = {form: tmp_path_factory.mktemp(form) for form in ("python", "native")}
    jobs = [
        Job([PROGRAM, folder], ranks_of(2, DOVETAIL_TORCH_NATIVE="0" if form == "python" else ""))
        for form, folder in made.items()
    ]
    for ended, form in zip(run_jobs(jobs, limit_s=150), made, strict=True):
        assert ended.codes == [0, 0], ended.printed[-3000:]
        assert f"{form.capitalize()}Group" in ended.printed
    return made


def read(folder, name):
    from dovetail.trace.exchange.chrome import read_chrome

    return read_chrome([folder / f"{name}.{rank}.json" for rank in range(2)])


def spans(folder, name):
    """The names of our spans on rank 0."""
    document = json.loads((folder / f"{name}.0.json").read_text())
    return [e["name"] for e in document["traceEvents"] if e.get("name", "").startswith("dovetail::") and e["ph"] == "X"]


@pytest.mark.parametrize("form", ["python", "native"])
@pytest.mark.parametrize("backend", ["gloo", "dovetail"])
def test_a_late_rank_is_found(folders, form, backend):
    from dovetail.advise.advise import advise

    trace = read(folders[form], f"{backend}.late")
    rows = trace.of_kind("collective")
    assert np.count_nonzero(rows) == 2 * STEPS
    assert set(trace.columns["num_bytes"][rows].tolist()) == {4000}
    assert {comm.ranks for comm in trace.comms} == {(0, 1)}
    assert trace.meta["faults"] == []
    assert "MPI_Allreduce" in trace.names
    found = [it for it in advise(trace).findings if it.kind == "imbalance"]
    assert found
    assert found[0].root[0] == 1


def test_a_call_beside_work_is_two(folders):
    for backend, form in (("gloo", "python"), ("dovetail", "native")):
        trace = read(folders[form], f"{backend}.begun")
        names = [trace.names[name] for name in trace.columns["name"][trace.of_kind("collective", "done")]]
        assert names.count("MPI_Iallreduce") + names.count("MPI_Allreduce") == 2 * STEPS
        assert names.count("MPI_Iallreduce") == names.count("MPI_Wait") >= STEPS // 2


@pytest.mark.parametrize("form", ["python", "native"])
def test_spans_name_call_bytes_group_and_algorithm(folders, form):
    wanted = [("broadcast", 4000), ("all_gather", 8000), ("reduce_scatter", 8000), ("barrier", 0), ("all_reduce", 2000)]
    texts = [f"dovetail::{what} {size} B, group 0, by library" for what, size in wanted]
    assert spans(folders[form], "dovetail.kinds") == texts
    (title,) = [name for name in spans(folders[form], "dovetail.operator") if "linear" in name and "," in name]
    assert title == "dovetail::linear_all_reduce 128 B, group 0, by serial"


def test_a_clock_that_is_ahead_is_set_back(folders, tmp_path):
    for rank in range(2):
        document = json.loads((folders["native"] / f"dovetail.late.{rank}.json").read_text())
        for event in document["traceEvents"]:
            event["ts"] = event.get("ts", 0) + 3e6 * rank
        (tmp_path / f"moved.{rank}.json").write_text(json.dumps(document))
    trace = read(tmp_path, "moved")
    ends = [trace.columns["end_s"][trace.of_kind("collective") & (trace.columns["rank"] == rank)] for rank in range(2)]
    assert np.abs(ends[0] - ends[1]).max() < 1.0
