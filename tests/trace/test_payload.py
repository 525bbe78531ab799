"""What ranks give to collectives has a checksum, and the time that mpi4py takes to pickle is recorded."""

from __future__ import annotations

import needs
import numpy as np
import pytest
from traced_programs import compiled, traced

from dovetail.trace.analysis.sites import call_sites
from dovetail.trace.analysis.stats import stats
from dovetail.trace.decode import KINDS

pytestmark = pytest.mark.mpi

PICKLES = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
for i in range(3):
    got = comm.allgather({"array": np.full(1000, i), "i": i})
    assert [g["i"] for g in got] == [i, i] and got[1]["array"][7] == i
    assert comm.bcast([i, "text"]) == [i, "text"]
if OWN:
    import pickle
    MPI.pickle.__init__(lambda it, *more: b"own" + pickle.dumps(it), lambda data: pickle.loads(bytes(data)[3:]))
    assert comm.allgather(i) == [i, i]
"""


@pytest.mark.parametrize("own", [False, True])
def test_pickling_is_recorded(tmp_path, own):
    """On the program's line, from the first traced call on: each rank's first object is pickled before it.

    A program's own functions still work, set before the first call or after it.
    """
    mpi, script = needs.mpi("mpich"), tmp_path / "pickles.py"
    lines = PICKLES.replace("OWN", str(own)).splitlines()
    if own:
        at = lines.index("comm = MPI.COMM_WORLD")
        lines[at:at] = ["import marshal", "MPI.pickle.__init__(lambda it, *p: marshal.dumps(it), marshal.loads)"]
        lines = [line.replace("np.full(1000, i)", "[i] * 9") for line in lines]
    script.write_text("\n".join(lines))
    code, trace = traced(mpi, tmp_path / "out", 2, mpi.python, script, options=["--python"])
    assert code == 0
    counted = {call.name: call.count for call in stats(trace).calls}
    found = {name: count for name, count in counted.items() if name.startswith("pickle")}
    rows = np.flatnonzero(trace.columns["part"] == 0)
    names = [trace.names[name] for name in trace.columns["name"][rows].tolist()]
    places = {place for name, place in zip(names, call_sites(trace, rows), strict=True) if name.startswith("pickle")}
    if not own:
        assert found == {"pickle dumps": 3, "pickle dumps array": 2 * 2, "pickle loads": 2 * (2 * 3 + 3)}
        assert places == {"pickles.py:6", "pickles.py:8"}


SAMPLED = """
#include <mpi.h>
static double same[4096], grows[4096], all[8192];
int main(int argc, char** argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Datatype every_second;
    MPI_Type_vector(1024, 1, 2, MPI_DOUBLE, &every_second);
    MPI_Type_commit(&every_second);
    for (int i = 0; i < 3; ++i) {
        for (int k = 0; k < 4096; ++k) same[k] = k, grows[k] = k + i;
        MPI_Bcast(same, 4096, MPI_DOUBLE, 1, MPI_COMM_WORLD);
        MPI_Reduce(grows, all, 4096, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        MPI_Allgather(same, 4096, MPI_DOUBLE, all, 4096, MPI_DOUBLE, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, grows, 4096, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Scatter(same, 1024, MPI_DOUBLE, all, 1024, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        MPI_Gather(same, 1, every_second, all, 1024, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (rank) {
            MPI_Send(grows, 4096, MPI_DOUBLE, 0, 1, MPI_COMM_WORLD);
        } else {
            MPI_Recv(all, 4096, MPI_DOUBLE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        MPI_Sendrecv(same, 4096, MPI_DOUBLE, 1 - rank, 2, all, 4096, MPI_DOUBLE, 1 - rank, 2, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Send((void*)8, 4096, MPI_DOUBLE, MPI_PROC_NULL, 3, MPI_COMM_WORLD); /* not to be read */
        MPI_Exscan(same, all, 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Type_free(&every_second);
    return MPI_Finalize();
}
"""


def test_what_ranks_give_to_collectives_has_a_checksum(mpi, tmp_path):
    """Equal for equal data; none for what a rank does not give, for small data, and for derived datatypes."""
    source = tmp_path / "sampled.c"
    source.write_text(SAMPLED)
    code, trace = traced(mpi, tmp_path / "out", 2, compiled(mpi, source, tmp_path / "sampled"))
    assert code == 0
    col = trace.columns
    at = np.flatnonzero(col["kind"] == KINDS.index("collective"))
    sums: dict[tuple[str, int], list[int]] = {}
    for rank, name, checksum in zip(*(col[key][at].tolist() for key in ("rank", "name", "tag")), strict=True):
        sums.setdefault((trace.names[name].removeprefix("MPI_"), rank), []).append(checksum)
    same = sums["Allgather", 0][0]
    assert same > 0
    assert [sums[key] for key in (("Bcast", 1), ("Allgather", 0), ("Allgather", 1))] == [[same] * 3] * 3
    assert len(set(sums["Scatter", 0])) == 1
    assert all(len(set(sums[name, rank])) == 3 for name in ("Reduce", "Allreduce") for rank in (0, 1))
    silent = [("Bcast", 0), ("Scatter", 1), ("Gather", 0), ("Exscan", 0)]
    assert all(sums[key] == [0, 0, 0] for key in silent)
    assert col["received_bytes"][at].max() == 65536
    sends = np.flatnonzero(col["kind"] == KINDS.index("send"))
    assert set(col["num_bytes"][sends].tolist()) == {32768}
    by_tag = {tag: col["received_bytes"][sends[col["tag"][sends] == tag]].tolist() for tag in (1, 2, 3)}
    assert (len(set(by_tag[1])), len(set(by_tag[2])), by_tag[3]) == (3, 1, [0] * 6)
    assert by_tag[2][0] > 0


READY = """
#include <mpi.h>
#include <stdlib.h>
static double edge[8];
int main(int argc, char** argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double *made = calloc(8, 8), *same = calloc(8, 8), *large = calloc(1000000, 8);
    for (int i = 1; i <= 20; ++i) {
        if (rank == 0) edge[3] = i;
        MPI_Barrier(MPI_COMM_WORLD);
        for (double end = MPI_Wtime() + 0.001; MPI_Wtime() < end;) continue;
        made[0] = i;
        for (int k = 0; k < 3 && rank == 0; ++k)
            MPI_Send(k == 0 ? edge : k == 1 ? made : same, 8, MPI_DOUBLE, 1, k, MPI_COMM_WORLD);
        for (int k = 0; k < 3 && rank == 1; ++k)
            MPI_Recv(made, 8, MPI_DOUBLE, 0, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (rank == 0) MPI_Send(large, 1000000, MPI_DOUBLE, 1, 3, MPI_COMM_WORLD);
    if (rank == 1) MPI_Recv(large, 1000000, MPI_DOUBLE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    free(large); /* looked at no longer: its memory is gone */
    for (double end = MPI_Wtime() + 0.01; MPI_Wtime() < end;) continue;
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Finalize();
}
"""


def test_the_recorder_sees_since_when_data_were_ready(mpi, tmp_path, monkeypatch):
    """What was written before the barrier, not what is written before the send, nor what never changes."""
    source = tmp_path / "ready.c"
    source.write_text(READY)
    monkeypatch.setenv("DOVETAIL_TRACE_READY", "1")
    code, trace = traced(mpi, tmp_path / "out", 2, compiled(mpi, source, tmp_path / "ready"))
    assert code == 0
    col = trace.columns
    ready = [col["ready_s"][trace.of_kind("send") & (col["tag"] == tag)] for tag in range(3)]
    assert [len(those) for those in ready] == [20, 20, 20]
    assert np.count_nonzero(ready[0] >= 0.001) >= 15
    assert np.count_nonzero(ready[1] < 0.001) >= 15, "seen by the send before at the earliest"
    assert not ready[2].any()
