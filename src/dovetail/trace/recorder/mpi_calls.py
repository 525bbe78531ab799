"""mpi_calls: the table of traced MPI calls: their parameters, in order, and the data that each moves.

Parameters have the names of the MPI standard. `before` and `after` are C code that calls functions of mpi_frame.h. The
types of parameters, and the variants for large counts (`MPI_Send_c`), come from the installed mpi.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Call(NamedTuple):
    """One MPI call and what its wrapper does.

    Attributes
    ----------
    name, params : str
        Name without `MPI_`, and names of the parameters.
    before, after : str
        C code before and after the library's call.
    made : str
        C expression: the handle of the request that the call creates.
    status : str
        A status parameter that the wrapper replaces if the program passes MPI_STATUS_IGNORE.
    waits : str
        C expression: the number of requests that the call waits for or tests.
    found : str
        C expression, for calls that only test: whether the test succeeded. Only then `before` and `after` run.
    """

    name: str
    params: str
    before: str = ""
    after: str = ""
    made: str = ""
    status: str = ""
    waits: str = ""
    found: str = ""


MADE = "dm_made(*request)"
SEND = "dm_send(dm_bytes(count, datatype), dest, tag, comm);"
_IS_SENT = "if (dest != MPI_PROC_NULL)"
SAMPLED_SEND = f"{_IS_SENT} dm_sample_sent(buf, count, datatype); {SEND}"
RECV = "dm_recv(dm_bytes(count, datatype), source, tag, comm);"
DONE = "dm_done(status, 0);"
BOTH = (
    f"{_IS_SENT} dm_sample_sent(sendbuf, sendcount, sendtype);"
    " dm_send(dm_bytes(sendcount, sendtype), dest, sendtag, comm);"
    " dm_recv(dm_bytes(recvcount, recvtype), source, recvtag, comm);"
)
REPLACE = (
    f"{_IS_SENT} dm_sample_sent(buf, count, datatype);"
    " dm_send(dm_bytes(count, datatype), dest, sendtag, comm);"
    " dm_recv(dm_bytes(count, datatype), source, recvtag, comm);"
)
_TO = "buf count datatype dest tag comm"
_FROM = "buf count datatype source tag comm"
_PAIR = "sendbuf sendcount sendtype dest sendtag recvbuf recvcount recvtype source recvtag comm"
_ONE = "buf count datatype dest sendtag source recvtag comm"
_PARTS = "partitions * dm_bytes(count, datatype)"
MESSAGES = (
    *(Call(name, _TO, SAMPLED_SEND) for name in ("Send", "Bsend", "Ssend", "Rsend")),
    *(Call(name, f"{_TO} request", SAMPLED_SEND, made=MADE) for name in ("Isend", "Ibsend", "Issend", "Irsend")),
    *(Call(f"{name}_init", f"{_TO} request", SEND, made=MADE) for name in ("Send", "Bsend", "Ssend", "Rsend")),
    Call("Recv", f"{_FROM} status", RECV, DONE, status="status"),
    Call("Irecv", f"{_FROM} request", RECV, made=MADE),
    Call("Recv_init", f"{_FROM} request", RECV, made=MADE),
    Call("Sendrecv", f"{_PAIR} status", BOTH, DONE, status="status"),
    Call("Isendrecv", f"{_PAIR} request", BOTH, made=MADE),
    Call("Sendrecv_replace", f"{_ONE} status", REPLACE, DONE, status="status"),
    Call("Isendrecv_replace", f"{_ONE} request", REPLACE, made=MADE),
    Call("Probe", "source tag comm status", "dm_recv(0, source, tag, comm);"),
    Call("Iprobe", "source tag comm flag status", found="*flag"),
    Call("Mprobe", "source tag comm message status", "dm_recv(0, source, tag, comm);",
         made="dm_made_message(*message)"),
    Call("Improbe", "source tag comm flag message status", "dm_recv(0, source, tag, comm);",
         made="dm_made_message(*message)", found="*flag"),
    Call("Mrecv", "buf count datatype message status", "dm_message(DM_HANDLE(*message));", DONE, status="status"),
    Call("Imrecv", "buf count datatype message request", made=MADE),
    Call("Psend_init", "buf partitions count datatype dest tag comm info request",
         f"dm_send({_PARTS}, dest, tag, comm);", made=MADE),
    Call("Precv_init", "buf partitions count datatype source tag comm info request",
         f"dm_recv({_PARTS}, source, tag, comm);", made=MADE),
    Call("Pready", "partition request"),
    Call("Pready_range", "partition_low partition_high request"),
    Call("Pready_list", "length array_of_partitions request"),
    Call("Parrived", "request partition flag", found="*flag"),
    Call("Buffer_attach", "buffer size"),
    Call("Buffer_detach", "buffer_addr size"),
)  # fmt: skip
_MANY = "array_of_requests"
_OVER_ALL = "for (int i = 0; i < count; ++i) dm_over(&wait, i, i, {});"
_OVER_SOME = "for (int i = 0; i < *outcount; ++i) dm_over(&wait, array_of_indices[i], i, 0);"
WAITS = (
    Call("Wait", "request status", "dm_ask_all(&wait, 1);", "dm_over(&wait, 0, 0, 1);", waits="1"),
    Call("Test", "request flag status", "", "dm_over(&wait, 0, 0, 0);", waits="1", found="*flag"),
    Call(
        "Waitall", f"count {_MANY} array_of_statuses", "dm_ask_all(&wait, count);", _OVER_ALL.format(1), waits="count"
    ),
    Call("Testall", f"count {_MANY} flag array_of_statuses", "", _OVER_ALL.format(0), waits="count", found="*flag"),
    Call("Waitany", f"count {_MANY} index status", "", "dm_over(&wait, *index, 0, 0);", waits="count"),
    Call("Testany", f"count {_MANY} index flag status", "", "dm_over(&wait, *index, 0, 0);", waits="count",
         found="*flag"),
    Call("Waitsome", f"incount {_MANY} outcount array_of_indices array_of_statuses", "", _OVER_SOME, waits="incount"),
    Call("Testsome", f"incount {_MANY} outcount array_of_indices array_of_statuses", "", _OVER_SOME, waits="incount",
         found="*outcount > 0"),
    Call("Request_get_status", "request flag status", found="*flag"),
    Call("Start", "request", "dm_request(*request, 0);"),
    Call("Startall", f"count {_MANY}", f"for (int i = 0; i < count; ++i) dm_request({_MANY}[i], i);"),
    Call("Request_free", "request", "dm_request(*request, 0);"),
    Call("Cancel", "request", "dm_request(*request, 0); dm_cancels = 1;"),
)  # fmt: skip


class Collective(NamedTuple):
    """A collective; its non-blocking and persistent forms are derived from it.

    `sent`, `received`: C expressions, the bytes that this rank sends and receives. `root`: it has a root. `sampled`: C
    code that samples what this rank gives.
    """

    name: str
    params: str
    sent: str = "0"
    received: str = "0"
    root: bool = False
    sampled: str = ""
    to_each: str = ""
    from_each: str = ""


_UNIFORM = "sendbuf sendcount sendtype recvbuf recvcount recvtype"
_GIVEN, _GOT = "dm_bytes(sendcount, sendtype)", "dm_bytes(recvcount, recvtype)"
_ALL, _REDUCED = "dm_peers(comm)", "dm_bytes(count, datatype)"
_HERE = "sendbuf == MPI_IN_PLACE"
_ROOT, _LEAF = "dm_is_root(root, comm)", "root != MPI_PROC_NULL && root != MPI_ROOT"
_OUT, _IN = "dm_degree(comm, 1)", "dm_degree(comm, 0)"
_V = "sendbuf sendcounts sdispls sendtype recvbuf recvcounts rdispls recvtype"
_SENT_V = "dm_bytes(DM_SUM(sendcounts, {}), sendtype)"
_GOT_V = "dm_bytes(DM_SUM(recvcounts, {}), recvtype)"
_SAMPLED = "if ({}) dm_sample({}, {}, {});"
_SAMPLE_ALL = _SAMPLED.format(f"!({_HERE})", "sendbuf", "sendcount", "sendtype")
_SAMPLE_BLOCK = _SAMPLED.format(f"({_LEAF}) && !({_HERE})", "sendbuf", "sendcount", "sendtype")
_SAMPLE_LEAF = _SAMPLED.format(_LEAF, f"{_HERE} ? recvbuf : sendbuf", "count", "datatype")
_SAMPLE_TERM = _SAMPLED.format("1", f"{_HERE} ? recvbuf : sendbuf", "count", "datatype")
_SAMPLE_ROOT = _SAMPLED.format(_ROOT, "buffer", "count", "datatype")
_SAMPLE_PARTS = _SAMPLED.format(_ROOT, "sendbuf", f"{_ALL} * (int64_t)sendcount", "sendtype")
_W = "sendbuf sendcounts sdispls sendtypes recvbuf recvcounts rdispls recvtypes"
MPI_COLLECTIVES = (
    Collective("Barrier", "comm"),
    Collective("Bcast", "buffer count datatype root comm", f"{_ROOT} ? {_REDUCED} : 0",
               f"{_ROOT} || root == MPI_PROC_NULL ? 0 : {_REDUCED}", root=True, sampled=_SAMPLE_ROOT),
    Collective("Gather", f"{_UNIFORM} root comm", f"({_LEAF}) && !({_HERE}) ? {_GIVEN} : 0",
               f"{_ROOT} ? {_ALL} * {_GOT} : 0", root=True, sampled=_SAMPLE_BLOCK),
    Collective("Gatherv", "sendbuf sendcount sendtype recvbuf recvcounts displs recvtype root comm",
               f"({_LEAF}) && !({_HERE}) ? {_GIVEN} : 0",
               f"{_ROOT} ? dm_bytes(DM_SUM(recvcounts, {_ALL}), recvtype) : 0", root=True, sampled=_SAMPLE_BLOCK),
    Collective("Scatter", f"{_UNIFORM} root comm", f"{_ROOT} ? {_ALL} * {_GIVEN} : 0",
               f"({_LEAF}) && recvbuf != MPI_IN_PLACE ? {_GOT} : 0", root=True, sampled=_SAMPLE_PARTS),
    Collective("Scatterv", "sendbuf sendcounts displs sendtype recvbuf recvcount recvtype root comm",
               f"{_ROOT} ? dm_bytes(DM_SUM(sendcounts, {_ALL}), sendtype) : 0",
               f"({_LEAF}) && recvbuf != MPI_IN_PLACE ? {_GOT} : 0", root=True),
    Collective("Allgather", f"{_UNIFORM} comm", f"{_HERE} ? {_GOT} : {_GIVEN}", f"{_ALL} * {_GOT}",
               sampled=_SAMPLE_ALL),
    Collective("Allgatherv", "sendbuf sendcount sendtype recvbuf recvcounts displs recvtype comm",
               f"{_HERE} ? dm_bytes(recvcounts[dm_rank(comm)], recvtype) : {_GIVEN}",
               f"dm_bytes(DM_SUM(recvcounts, {_ALL}), recvtype)", sampled=_SAMPLE_ALL),
    Collective("Alltoall", f"{_UNIFORM} comm", f"{_ALL} * ({_HERE} ? {_GOT} : {_GIVEN})", f"{_ALL} * {_GOT}"),
    Collective("Alltoallv", f"{_V} comm", f"{_HERE} ? {_GOT_V.format(_ALL)} : {_SENT_V.format(_ALL)}",
               _GOT_V.format(_ALL)),
    Collective("Alltoallw", f"{_W} comm",
               f"{_HERE} ? DM_SUM_W(recvcounts, recvtypes, {_ALL}) : DM_SUM_W(sendcounts, sendtypes, {_ALL})",
               f"DM_SUM_W(recvcounts, recvtypes, {_ALL})"),
    Collective("Reduce", "sendbuf recvbuf count datatype op root comm", f"{_LEAF} ? {_REDUCED} : 0",
               f"{_ROOT} ? {_REDUCED} : 0", root=True, sampled=_SAMPLE_LEAF),
    Collective("Allreduce", "sendbuf recvbuf count datatype op comm", _REDUCED, _REDUCED, sampled=_SAMPLE_TERM),
    Collective("Scan", "sendbuf recvbuf count datatype op comm", _REDUCED, _REDUCED),
    Collective("Exscan", "sendbuf recvbuf count datatype op comm", _REDUCED, _REDUCED),
    Collective("Reduce_scatter", "sendbuf recvbuf recvcounts datatype op comm",
               "dm_bytes(DM_SUM(recvcounts, dm_group_size(comm)), datatype)",
               "dm_bytes(recvcounts[dm_rank(comm)], datatype)"),
    Collective("Reduce_scatter_block", "sendbuf recvbuf recvcount datatype op comm",
               "dm_group_size(comm) * dm_bytes(recvcount, datatype)", "dm_bytes(recvcount, datatype)"),
    Collective("Neighbor_allgather", f"{_UNIFORM} comm", f"{_OUT} * {_GIVEN}", f"{_IN} * {_GOT}",
               to_each=_GIVEN, from_each=_GOT),
    Collective("Neighbor_allgatherv", "sendbuf sendcount sendtype recvbuf recvcounts displs recvtype comm",
               f"{_OUT} * {_GIVEN}", f"dm_bytes(DM_SUM(recvcounts, {_IN}), recvtype)",
               to_each=_GIVEN, from_each="dm_bytes(recvcounts[dm_i], recvtype)"),
    Collective("Neighbor_alltoall", f"{_UNIFORM} comm", f"{_OUT} * {_GIVEN}", f"{_IN} * {_GOT}",
               to_each=_GIVEN, from_each=_GOT),
    Collective("Neighbor_alltoallv", f"{_V} comm", f"dm_bytes(DM_SUM(sendcounts, {_OUT}), sendtype)",
               f"dm_bytes(DM_SUM(recvcounts, {_IN}), recvtype)",
               to_each="dm_bytes(sendcounts[dm_i], sendtype)", from_each="dm_bytes(recvcounts[dm_i], recvtype)"),
    Collective("Neighbor_alltoallw", f"{_W} comm", f"DM_SUM_W(sendcounts, sendtypes, {_OUT})",
               f"DM_SUM_W(recvcounts, recvtypes, {_IN})",
               to_each="dm_bytes(sendcounts[dm_i], sendtypes[dm_i])",
               from_each="dm_bytes(recvcounts[dm_i], recvtypes[dm_i])"),
)  # fmt: skip
_ORIGIN = "origin_addr origin_count origin_datatype"
_TARGET = "target_rank target_disp target_count target_datatype"
_MOVED = "dm_bytes(origin_count, origin_datatype)"
_PUT = f"dm_one_sided(DVT_PUT, {_MOVED}, target_rank, win);"
_FETCH = "dm_one_sided(DVT_PUT, {0}, target_rank, win); dm_one_sided(DVT_GET, {0}, target_rank, win);"
_FETCHED = _FETCH.format("dm_bytes(target_count, target_datatype)")
_RESULT = "result_addr result_count result_datatype"
_ALL_OF = "dm_one_sided(DVT_WINDOW, 0, -1, win);"
_ONE_OF = "dm_one_sided(DVT_WINDOW, 0, rank, win);"
_NEW = "dm_define_window(*win);"
ONE_SIDED = (
    Call("Put", f"{_ORIGIN} {_TARGET} win", _PUT),
    Call("Get", f"{_ORIGIN} {_TARGET} win", _PUT.replace("PUT", "GET")),
    Call("Accumulate", f"{_ORIGIN} {_TARGET} op win", _PUT),
    Call("Get_accumulate", f"{_ORIGIN} {_RESULT} {_TARGET} op win", _FETCHED),
    Call("Rput", f"{_ORIGIN} {_TARGET} win request", _PUT, made=MADE),
    Call("Rget", f"{_ORIGIN} {_TARGET} win request", _PUT.replace("PUT", "GET"), made=MADE),
    Call("Raccumulate", f"{_ORIGIN} {_TARGET} op win request", _PUT, made=MADE),
    Call("Rget_accumulate", f"{_ORIGIN} {_RESULT} {_TARGET} op win request", _FETCHED, made=MADE),
    Call("Fetch_and_op", "origin_addr result_addr datatype target_rank target_disp op win",
         _FETCH.format("dm_bytes(1, datatype)")),
    Call("Compare_and_swap", "origin_addr compare_addr result_addr datatype target_rank target_disp win",
         _FETCH.format("dm_bytes(1, datatype)")),
    *(Call(f"Win_{name}", f"{params} win".strip(), _ALL_OF) for name, params in {
        "fence": "assert", "lock_all": "assert", "unlock_all": "", "flush_all": "", "flush_local_all": "", "start":
        "group assert", "complete": "", "post": "group assert", "wait": "", "sync": ""}.items()),
    Call("Win_test", "win flag", _ALL_OF, found="*flag"),
    Call("Win_lock", "lock_type rank assert win", _ONE_OF),
    *(Call(f"Win_{name}", "rank win", _ONE_OF) for name in ("unlock", "flush", "flush_local")),
    Call("Win_create", "base size disp_unit info comm win", "", _NEW),
    Call("Win_allocate", "size disp_unit info comm baseptr win", "", _NEW),
    Call("Win_allocate_shared", "size disp_unit info comm baseptr win", "", _NEW),
    Call("Win_create_dynamic", "info comm win", "", _NEW),
    Call("Win_free", "win", f"{_ALL_OF.replace('win)', '*win)')} dm_forget_window(*win);"),
)  # fmt: skip
_BYTES_OF, _FILE = "buf count datatype", "dm_file(dm_bytes(count, datatype));"
FILES = (
    Call("File_open", "comm filename amode info fh"),
    Call("File_close", "fh"),
    Call("File_delete", "filename info"),
    Call("File_sync", "fh"),
    *(Call(f"File_{name}", "fh size") for name in ("set_size", "preallocate")),
    Call("File_set_view", "fh disp etype filetype datarep info"),
    *(Call(f"File_{name}", "fh offset whence") for name in ("seek", "seek_shared")),
    *(
        Call(f"File_{how}{where}", f"fh {'offset ' * (where[:3] == '_at')}{_BYTES_OF} {last}", _FILE, made=made)
        for verb in ("read", "write")
        for how, last, made in ((verb, "status", ""), (f"i{verb}", "request", MADE))
        for where in ("", "_at", "_all", "_at_all", "_shared")
    ),
    *(
        Call(f"File_{verb}_{where}_{half}", f"fh {params}", _FILE if half == "begin" else "")
        for verb in ("read", "write")
        for where in ("all", "at_all", "ordered")
        for half, params in (
            ("begin", f"{'offset ' * (where == 'at_all')}{_BYTES_OF}"),
            ("end", "buf status"),
        )
    ),
    *(Call(f"File_{verb}_ordered", f"fh {_BYTES_OF} status", _FILE) for verb in ("read", "write")),
)
_MAKERS = {
    "Comm_dup": "comm newcomm",
    "Comm_dup_with_info": "comm info newcomm",
    "Comm_split": "comm color key newcomm",
    "Comm_split_type": "comm split_type key info newcomm",
    "Comm_create": "comm group newcomm",
    "Comm_create_group": "comm group tag newcomm",
    "Comm_create_from_group": "group stringtag info errhandler newcomm",
    "Cart_create": "old_comm ndims dims periods reorder newcomm",
    "Cart_sub": "comm remain_dims newcomm",
    "Graph_create": "old_comm nnodes index edges reorder newcomm",
    "Dist_graph_create": "old_comm n sources degrees destinations weights info reorder newcomm",
    "Dist_graph_create_adjacent": (
        "old_comm indegree sources sourceweights outdegree destinations destweights info reorder newcomm"
    ),
    "Intercomm_create": "local_comm local_leader peer_comm remote_leader tag newcomm",
    "Intercomm_merge": "intercomm high newcomm",
    "Comm_spawn": "command argv maxprocs info root comm newcomm array_of_errcodes",
    "Comm_accept": "port_name info root comm newcomm",
    "Comm_connect": "port_name info root comm newcomm",
}
_FREED = "dm_forget_comm(*comm);"
COMMUNICATORS = (
    *(Call(name, params, after="if (!code) dm_made_comm(*newcomm);") for name, params in _MAKERS.items()),
    Call("Comm_idup", "comm newcomm request", made=MADE),
    Call("Comm_free", "comm", _FREED),
    Call("Comm_disconnect", "comm", _FREED),
)
_BLOCKS = "count array_of_blocklengths array_of_displacements"
_GRID = "array_of_gsizes array_of_distribs array_of_dargs array_of_psizes order oldtype newtype"
DATATYPES = (
    *(Call(f"Type_{name}", f"{params} oldtype newtype".strip()) for name, params in {
        "contiguous": "count", "vector": "count blocklength stride", "create_hvector": "count blocklength stride",
        "indexed": _BLOCKS, "create_hindexed": _BLOCKS, "dup": "",
        "create_indexed_block": "count blocklength array_of_displacements",
        "create_hindexed_block": "count blocklength array_of_displacements",
        "create_subarray": "ndims array_of_sizes array_of_subsizes array_of_starts order",
    }.items()),
    Call("Type_create_struct", f"{_BLOCKS} array_of_types newtype"),
    Call("Type_create_darray", f"size rank ndims {_GRID}"),
    Call("Type_create_resized", "oldtype lb extent newtype"),
    Call("Type_commit", "datatype"),
    Call("Type_free", "datatype"),
)  # fmt: skip
BOUNDS = (
    Call("Init", "argc argv"),
    Call("Init_thread", "argc argv required provided"),
    Call("Session_init", "info errhandler session"),
    Call("Finalize", ""),
    Call("Abort", "comm errorcode"),
)  # `mpi_wrappers` handles these separately
HELPERS = (
    *("Type_size", "Comm_rank", "Comm_size", "Comm_remote_size", "Comm_test_inter"),
    *("Comm_group", "Comm_remote_group"),
    *("Group_size", "Group_translate_ranks", "Group_free", "Win_get_group", "Get_count", "Get_elements_x"),
    "Status_set_elements_x",
    "Test_cancelled",
    *("Query_thread", "Get_library_version"),
    *("Topo_test", "Cartdim_get", "Graph_neighbors_count", "Dist_graph_neighbors_count"),
    *("Cart_shift", "Graph_neighbors", "Dist_graph_neighbors"),
)  # MPI functions that the wrappers call themselves


def calls() -> Iterator[Call]:
    """Yield every traced call."""
    yield from (*BOUNDS, *MESSAGES, *WAITS)
    for kind in MPI_COLLECTIVES:
        detail = f"dm_collective({kind.sent}, {kind.received}, comm);"
        root = "dm_root(root);" if kind.root else ""
        before, sampled = (" ".join(filter(None, (root, more, detail))) for more in ("", kind.sampled))
        later = f"I{kind.name.lower()}", f"{kind.params} request"
        if kind.to_each:
            given = f"{kind.to_each}, {kind.sent}, {kind.received}, comm"
            after = f"DM_FROM_NEAR({kind.from_each}, comm);"
            yield Call(kind.name, kind.params, f"DM_TO_NEAR({given});", after)
            yield Call(*later, f"DM_BEGIN_NEAR({kind.from_each}, {given});", made=MADE)
        else:
            yield Call(kind.name, kind.params, sampled)
            yield Call(*later, sampled, made=MADE)
        yield Call(f"{kind.name}_init", f"{kind.params} info request", before, made=MADE)
    yield from (*ONE_SIDED, *COMMUNICATORS, *DATATYPES, *FILES)
