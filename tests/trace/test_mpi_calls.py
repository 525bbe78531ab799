"""Unchanged MPI programs are traced: calls, messages and communicators match the program, on every MPI."""

from __future__ import annotations

import json
import subprocess

import needs
import numpy as np
import pytest
from counting_shim import build_shim, counted_by
from traced_programs import ONCE, SOURCE, compiled, traced

from dovetail.cli import main
from dovetail.core import EnvironmentFault
from dovetail.trace import Trace, open_trace
from dovetail.trace.analysis.matching import messages
from dovetail.trace.analysis.sites import call_sites
from dovetail.trace.analysis.stats import stats
from dovetail.trace.decode import KINDS
from dovetail.trace.recorder.launch import Library, build_wrappers, flavour, library_of
from dovetail.trace.recorder.mpi_calls import calls as traced_calls
from dovetail.trace.recorder.mpi_wrappers import prototypes

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", params=["mpich", "abi", "openmpi"])
def program(request, tmp_path_factory):
    """The program compiled for an MPI library, and its environment."""
    mpi = needs.mpi("openmpi" if request.param == "openmpi" else "mpich")
    mpicc = mpi.bin / ("mpicc_abi" if request.param == "abi" else "mpicc")
    if not mpicc.exists():
        pytest.skip(f"needs mpich: no {mpicc.name}")
    target = tmp_path_factory.mktemp("program") / f"program-{request.param}"
    built = subprocess.run([mpicc, SOURCE, "-o", target], capture_output=True, text=True, env=mpi.env, check=False)
    assert built.returncode == 0, built.stderr
    return request.param, mpi, target


@pytest.fixture(scope="module")
def mpicc_of():
    """The compiler of each MPI library."""
    mpich, openmpi = needs.MPIS["mpich"].bin, needs.MPIS["openmpi"].bin
    return {"mpich": mpich / "mpicc", "abi": mpich / "mpicc_abi", "openmpi": openmpi / "mpicc"}


def counted(trace: Trace) -> dict[str, int]:
    return {call.name: call.count for call in stats(trace).calls}


def test_every_call_is_traced(program, tmp_path):
    kind, mpi, target = program
    assert library_of([*mpi.mpiexec(4), str(target)]).kind == kind
    code, trace = traced(mpi, tmp_path, 4, target)
    assert code == 0
    found = counted(trace)
    tests = found.pop("MPI_Test")
    assert tests >= 4
    once = {f"MPI_{name}": 4 for name in ONCE} | {"MPI_Startall": 20}
    more = {
        "Isend": 20,
        "Irecv": 28,
        "Wait": 12,
        "Waitall": 20,
        "Waitany": 40,
        "Request_free": 8,
        "Send": 10,
        "Recv": 2,
    }
    more |= {"Comm_free": 8, "Win_fence": 12}
    assert found == once | {f"MPI_{name}": count for name, count in more.items()}
    assert trace.meta["lost"] == 0
    assert trace.meta["faults"] == []
    assert not trace.columns["is_open"].any()


def test_a_library_that_counts_calls_agrees(program, mpicc_of, tmp_path):
    kind, mpi, target = program
    shim = build_shim(mpi, mpicc_of[kind], tmp_path, {call.name for call in traced_calls()})
    theirs = counted_by(shim, mpi, tmp_path / "counts", 3, target)
    found = counted(traced(mpi, tmp_path / "out", 3, target)[1])
    assert theirs.pop("MPI_Test") >= 3
    assert found.pop("MPI_Test") >= 3
    assert found == theirs


def test_messages_match_their_receives(program, tmp_path):
    _, mpi, target = program
    _, trace = traced(mpi, tmp_path, 4, target)
    assert trace.meta["clocks"]["messages"] == 4 * (5 + 1 + 5 + 1 + 2 + 2) + 2
    assert trace.meta["clocks"]["without_partner"] == 0
    assert trace.meta["clocks"]["received_before_sent"] == 0
    found = messages(trace)
    has_status = found.sent_name != trace.names.index("MPI_Ineighbor_alltoall")
    taken = trace.columns["num_bytes"][found.received_row]
    assert taken[has_status].tolist() == found.num_bytes[has_status].tolist(), "as in the statuses"
    to_right = [8, 16, 24, 32, 40, 12, *[16] * 5, 8]
    both = [trace.names.index(f"MPI_{name}") for name in ("Neighbor_allgather", "Ineighbor_alltoall")]
    is_near = np.isin(found.sent_name, both)
    for rank in range(4):
        mine = (found.src == rank) & (found.dst == (rank + 1) % 4) & ~is_near
        assert sorted(found.num_bytes[mine].tolist()) == sorted(to_right)
        for name in both:
            near = (found.src == rank) & (found.sent_name == name)
            assert sorted(found.dst[near].tolist()) == sorted(((rank + 1) % 4, (rank - 1) % 4)), "its messages"
            assert found.num_bytes[near].tolist() == [8, 8]
            assert (found.received_s[near] > found.sent_s[near]).all()
    others = ((found.dst - found.src) % 4 != 1) & ~is_near
    pairs = zip(found.src[others], found.dst[others], found.num_bytes[others], strict=True)
    assert sorted(tuple(map(int, pair)) for pair in pairs) == [(2, 0, 40), (3, 1, 40)]


def test_neighbours_that_receive_only_are_not_sent_to(tmp_path):
    mpi = needs.mpi("mpich")
    target = compiled(mpi, needs.RANKS / "trace_one_way.c", tmp_path / "one_way")
    code, trace = traced(mpi, tmp_path / "out", 3, target)
    assert code == 0
    assert trace.meta["clocks"]["without_partner"] == 0
    found = messages(trace)
    ways = zip(found.sent_name, found.src, found.dst, found.num_bytes, strict=True)
    names = [trace.names.index(f"MPI_{name}") for name in ("Neighbor_alltoall", "Ineighbor_allgather")]
    assert sorted(tuple(map(int, way)) for way in ways) == sorted(
        (name, rank, (rank + 1) % 3, num_bytes)
        for name, num_bytes in zip(names, (8, 4), strict=True)
        for rank in range(3)
    )
    assert (found.received_s > found.sent_s).all()


def test_a_datatype_of_large_counts_has_its_bytes(tmp_path):
    mpi = needs.mpi("mpich")
    code, trace = traced(mpi, tmp_path / "out", 1, compiled(mpi, needs.RANKS / "large_type.c", tmp_path / "large"))
    assert code == 0
    assert messages(trace).num_bytes.tolist() == [8]


def test_collectives_have_their_bytes_and_root(program, tmp_path):
    _, mpi, target = program
    _, trace = traced(mpi, tmp_path, 4, target)
    expected = {  # on ranks 0 and 1: bytes that each contributes and receives
        "MPI_Bcast": ([0, 32], [32, 0]),
        "MPI_Gather": ([16, 16], [64, 0]),
        "MPI_Allgather": ([16, 16], [64, 64]),
        "MPI_Alltoallv": ([32, 32], [32, 32]),
        "MPI_Reduce_scatter_block": ([64, 64], [16, 16]),
        "MPI_Allreduce": ([8, 8], [8, 8]),
        "MPI_Iallreduce": ([24, 24], [24, 24]),
    }
    assert trace.meta["lost"] == 0
    assert trace.meta["faults"] == []
    col, collective = trace.columns, trace.of_kind("collective")
    for name, (given, taken) in expected.items():
        rows = [
            np.flatnonzero(collective & (col["name"] == trace.names.index(name)) & (col["rank"] == r)) for r in (0, 1)
        ]
        assert [col["num_bytes"][r].tolist() for r in rows] == [[n] for n in given], name
        assert [col["received_bytes"][r].tolist() for r in rows] == [[n] for n in taken], name
    roots = col["peer"][collective & (col["name"] == trace.names.index("MPI_Bcast"))]
    assert roots.tolist() == [1] * 4
    on = col["comm"][collective & (col["name"] == trace.names.index("MPI_Allreduce")) & (col["rank"] == 2)]
    assert trace.comms[int(on[0])].ranks == (2, 0)


def test_one_sided_calls_have_target_and_bytes(program, tmp_path):
    _, mpi, target = program
    _, trace = traced(mpi, tmp_path, 2, target)
    col = trace.columns
    for kind, num_bytes in (("put", 48), ("get", 56)):
        rows = trace.of_kind(kind)
        assert col["num_bytes"][rows].tolist() == [num_bytes] * 2
        assert sorted(zip(col["rank"][rows].tolist(), col["peer"][rows].tolist(), strict=True)) == [(0, 1), (1, 0)]
        assert all(trace.comms[c].is_window for c in col["comm"][rows].tolist())


def test_call_sites_are_lines_of_the_program(program, tmp_path):
    _, mpi, target = program
    _, trace = traced(mpi, tmp_path, 2, target)
    about = trace.meta["ranks"][0]
    code = [(m["start"], m["end"]) for m in about["maps"] if m["map"] == str(target)]
    sites = trace.columns["arg"][(trace.columns["rank"] == 0) & (trace.columns["kind"] != KINDS.index("point"))]
    assert all(any(start <= site < end for start, end in code) for site in sites.tolist())


@pytest.mark.parametrize("how", ["kill", "abort", "exit"])
def test_ranks_that_never_finalize_leave_a_trace(program, tmp_path, how):
    _, mpi, target = program
    code, trace = traced(mpi, tmp_path, 2, target, how)
    assert code or how == "exit"
    found = counted(trace)
    assert found["MPI_Barrier"] == 2
    assert found["MPI_Isend"] == 10
    assert "MPI_Finalize" not in found
    assert not any(rank["finalized"] for rank in trace.meta["ranks"])
    assert {fault.split(" (")[0] for fault in trace.meta["faults"]} == {"rank 0", "rank 1"}
    first = trace.meta["faults"][0]
    if how == "kill":
        assert first.startswith("rank 1 ")
        assert first.endswith("was killed by signal 9 (SIGKILL), after MPI_Barrier")
    if how == "abort":
        assert first.startswith("rank 1 ")
        assert "called MPI_Abort" in first
        assert found["MPI_Abort"] == 1  # in MPICH this call returns
    if how in ("kill", "abort"):
        # rank 1 may end before rank 0 has left their last barrier
        assert stats(trace).ranks[0].open_calls in (("MPI_Barrier",), ("MPI_Recv",), ())


def test_a_rank_that_cannot_be_traced_delays_no_other(program, tmp_path):
    """Planted: rank 1 cannot create its trace file; rank 0's trace is complete."""
    _, mpi, target = program
    one = 'test "$PMI_RANK$OMPI_COMM_WORLD_RANK" = 1 && export DOVETAIL_TRACE_DIR=/dev/null/none; exec "$0"'
    code, trace = traced(mpi, tmp_path / "out", 2, "sh", "-c", one, target)
    assert code == 0
    assert [rank["rank"] for rank in trace.meta["ranks"] if rank["finalized"]] == [0]
    assert counted(trace)["MPI_Finalize"] == 1


PYTHON = """
from mpi4py import MPI
import numpy as np
import dovetail.trace as trace
comm = MPI.COMM_WORLD
given, taken = np.full(8, comm.rank, "f8"), np.empty(8)
for i in range(3):
    with trace.interval("round", i):
        comm.Sendrecv(given, 1 - comm.rank, 0, taken, 1 - comm.rank, 0)
        comm.Allreduce(given, taken)
comm.send({"a": 7}, 1 - comm.rank)
assert comm.recv()["a"] == 7
"""


def test_python_programs_and_their_own_intervals(mpi, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PYTHON)
    code, trace = traced(mpi, tmp_path / "out", 2, mpi.python, script)
    assert code == 0
    found = {name.removesuffix("_c"): count for name, count in counted(trace).items()}
    assert (found["MPI_Sendrecv"], found["MPI_Allreduce"], found["MPI_Init_thread"]) == (6, 6, 2)
    assert trace.meta["clocks"]["messages"] == 8
    assert trace.meta["clocks"]["without_partner"] == 0
    assert found["round"] == 6


LINES = """
import threading
from mpi4py import MPI  # MPI_Init_thread
import numpy as np
comm, x, y = MPI.COMM_WORLD, np.ones(3), np.ones(1)

def total():
    comm.Allreduce(MPI.IN_PLACE, x)  # MPI_Allreduce

for _ in range(3):
    total()
comm.Barrier()  # MPI_Barrier
request = MPI.COMM_SELF.Irecv(x)  # MPI_Irecv
thread = threading.Thread(target=lambda: MPI.COMM_SELF.Send(y, 0))  # MPI_Send
thread.start(), thread.join()
request.Wait()  # MPI_Wait
"""


def test_lines_of_python(tmp_path):
    """With the option each call, on any thread, has its Python line; without it, the address is in mpi4py's library."""
    mpi, script = needs.mpi("mpich"), tmp_path / "lines.py"
    script.write_text(LINES)
    marked = {line.split("# ")[1]: f"lines.py:{i}" for i, line in enumerate(LINES.splitlines(), 1) if "# " in line}
    for wanted in (True, False):
        out = tmp_path / str(wanted)
        code, trace = traced(mpi, out, 2, mpi.python, script, options=["--python"] if wanted else [])
        assert code == 0
        rows = np.flatnonzero(trace.columns["part"] == 0)
        names = [trace.names[name].removesuffix("_c") for name in trace.columns["name"][rows].tolist()]
        reported = dict(zip(names, call_sites(trace, rows), strict=True))
        assert counted(trace)["MPI_Barrier"] == 2
        if wanted:
            assert {name: reported[name] for name in marked} == marked
        else:
            assert all(reported[name].startswith("MPI.") for name in marked), reported


def test_the_table_has_all_calls_with_requests_windows_or_messages(mpi):
    """Each call that mpi.h declares with a request, a window or a message is traced, or listed here as an exception."""
    header = subprocess.run(
        [mpi.mpicc, "-E", "-x", "c", "-"], input="#include <mpi.h>\n", text=True, capture_output=True, check=True
    ).stdout
    known = {call.name for call in traced_calls()}
    asked = ("MPI_Request", "MPI_Message", "MPI_Win ", "MPI_Comm *")
    left_out = {
        name
        for name, params in prototypes(header).items()
        if any(word in param for param in params for word in asked)
        and not {name, name.removesuffix("_c")} & known
        and not name.startswith(("File_", "T_", "Grequest"))
        and not any(word in name for word in ("attr", "errhandler", "info", "name", "f2c", "c2f", "toint", "fromint"))
    }
    assert left_out <= NOT_TRACED, left_out - NOT_TRACED


NOT_TRACED = {
    *("Comm_get_parent", "Comm_join", "Comm_spawn_multiple", "Intercomm_create_from_groups", "Comm_set_name"),
    *("Win_attach", "Win_detach", "Win_get_group", "Win_shared_query", "Win_shared_query_c", "Win_call_errhandler"),
    *("Request_get_status_all", "Request_get_status_any", "Request_get_status_some"),
    *("Comm_ishrink", "Comm_iagree", "Comm_shrink", "Comm_idup_with_info", "Comm_iflush_buffer", "Comm_iflush"),
    *("Buffer_iflush", "Comm_flush_buffer", "Session_iflush_buffer"),
    *("Status_f2f08", "Status_f082f"),
}


def test_an_mpicc_of_another_library_is_refused(mpi, monkeypatch):
    assert flavour(str(mpi.mpicc)) == mpi.name
    other = Library("openmpi" if mpi.name == "mpich" else "mpich")
    monkeypatch.setattr("dovetail.trace.recorder.launch.find_tool", lambda name: str(mpi.mpicc))
    with pytest.raises(EnvironmentFault, match="no mpicc for"):
        build_wrappers(other)


def test_the_command(mpi, tmp_path, capfd, monkeypatch):
    """`trace run`, then stats and exports, as a user types them."""
    for name, value in mpi.env.items():
        monkeypatch.setenv(name, value)
    script, out = tmp_path / "program.py", tmp_path / "out"
    script.write_text(PYTHON)
    line = [*mpi.mpiexec(2), str(mpi.python), str(script)]
    assert main(["trace", "run", "-o", str(out), "--", *line]) == 0
    reported = capfd.readouterr()
    assert (reported.out, str(out / "trace.dovetail") in reported.err.splitlines()) == ("", True)
    assert main(["trace", "run", "-o", str(out), "--", *line]) == 2
    assert "holds a trace already" in capfd.readouterr().err
    assert main(["trace", "stats", str(out)]) == 0
    text = capfd.readouterr().out
    assert "MPI_Allreduce" in text
    assert "from \\ to" in text
    assert main(["trace", "stats", str(out), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "dovetail.trace_stats/1"
    assert document["matrix_messages"] == [[0, 4], [4, 0]]
    assert main(["trace", "advise", str(out), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["schema"] == "dovetail.advice/1"
    assert main(["trace", "advise", str(out), "--machine", "shared-memory-2"]) == 0
    assert "Replayed unchanged" in capfd.readouterr().out
    assert main(["trace", "export", str(out), "--perfetto", str(tmp_path / "p.json")]) == 0
    events = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events) == 8


def test_merging_steps_halves_the_messages_and_keeps_the_sum(mpi, tmp_path, capfd, monkeypatch):
    """The example solves Laplace's equation before and after merging two steps; one page shows both traces."""
    for name, value in mpi.env.items():
        monkeypatch.setenv(name, value)
    source, target = needs.ROOT / "examples" / "jacobi_folded.c", tmp_path / "jacobi"
    subprocess.run([mpi.mpicc, "-O1", "-g", source, "-o", target], env=mpi.env, check=True)
    sums, found = [], []
    for fold in (1, 2):
        line = [*mpi.mpiexec(2), str(target), "64", "20", str(fold)]
        assert main(["trace", "run", "-o", str(tmp_path / f"fold{fold}"), "--", *line]) == 0
        sums.append(capfd.readouterr().out.split()[0])
        found.append(stats(open_trace(tmp_path / f"fold{fold}" / "trace.dovetail")))
    assert sums[0] == sums[1]
    assert [int(each.matrix_messages.sum()) for each in found] == [40, 20]
    assert found[0].matrix_bytes.tolist() == found[1].matrix_bytes.tolist()
    page = tmp_path / "both.html"
    assert main(["trace", "view", str(tmp_path / "fold1"), str(tmp_path / "fold2"), "-o", str(page)]) == 0
    assert "fold1 and fold2" in page.read_text()
    capfd.readouterr()
