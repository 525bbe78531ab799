/* Duplicates of the user's communicators: made, found and freed with these; messages and collectives on them. */
#include "mpi_comm.h"

#include <limits.h>
#include <stdlib.h>

#include "mpi_types.h"

struct dt_comm {
    MPI_Comm comm;
    int rank, size;
    void* owner;
    void (*ends)(void*);
    void (*freed)(void*);
    MPI_Request* requests;
    int *expected, *free_handles, num_requests, num_free; /* expected: bytes of a receive, -1 for others */
    int** layouts;                                        /* by handle: counts that its request reads, or NULL */
    MPI_Comm* groups;
    int num_groups;
    int* counts; /* 4 for each rank: counts and displacements of both sides */
};

static int keyval = MPI_KEYVAL_INVALID, ending;

/* Called when the user frees their communicator. When MPI ends, it frees the duplicate too. */
static int on_free(MPI_Comm theirs, int key, void* value, void* extra) {
    dt_comm* comm = value;
    (void)key, (void)extra;
    if (ending || theirs == MPI_COMM_SELF) return MPI_SUCCESS;
    comm->ends(comm->owner);
    int code = MPI_Comm_free(&comm->comm);
    for (int i = 0; i < comm->num_groups; i++) MPI_Comm_free(&comm->groups[i]);
    comm->freed(comm->owner);
    return code;
}

/* MPI deletes attributes of MPI_COMM_SELF before it ends anything else. */
static int on_end(MPI_Comm self, int key, void* value, void* extra) {
    (void)self, (void)key, (void)value, (void)extra;
    ending = 1;
    return MPI_SUCCESS;
}

int dt_watch(void) {
    int code, end_key;
    if (keyval != MPI_KEYVAL_INVALID) return 0;
    if ((code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_end, &end_key, NULL))) return code;
    if ((code = MPI_Comm_set_attr(MPI_COMM_SELF, end_key, NULL))) return code;
    return MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_free, &keyval, NULL);
}

int dt_duplicate(MPI_Comm theirs, dt_comm** made) {
    dt_comm* comm = calloc(1, sizeof *comm);
    int code = comm ? MPI_Comm_dup(theirs, &comm->comm) : MPI_ERR_NO_MEM;
    if (code) {
        free(comm);
        return code;
    }
    MPI_Comm_set_errhandler(comm->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm->comm, &comm->rank);
    MPI_Comm_size(comm->comm, &comm->size);
    comm->counts = malloc(4 * sizeof(int) * (size_t)comm->size);
    if (!comm->counts) abort();
    *made = comm;
    return 0;
}

int dt_adopt(int fortran, void* owner, void (*ends)(void*), void (*freed)(void*), dt_comm** comm) {
    MPI_Comm theirs = MPI_Comm_f2c(fortran);
    int code = dt_duplicate(theirs, comm);
    if (code) return code;
    (*comm)->owner = owner;
    (*comm)->ends = ends;
    (*comm)->freed = freed;
    return MPI_Comm_set_attr(theirs, keyval, *comm);
}

int dt_find(int fortran, void** owner) {
    dt_comm* comm = NULL;
    int found = 0, code = MPI_Comm_get_attr(MPI_Comm_f2c(fortran), keyval, &comm, &found);
    *owner = found ? comm->owner : NULL;
    return code;
}

void dt_release(dt_comm* comm) {
    free(comm->requests);
    free(comm->expected);
    free(comm->layouts);
    free(comm->free_handles);
    free(comm->groups);
    free(comm->counts);
    free(comm);
}

int dt_rank(const dt_comm* comm) { return comm->rank; }
int dt_size(const dt_comm* comm) { return comm->size; }

static int take_handle(dt_comm* comm) {
    if (!comm->num_free) {
        int grown = comm->num_requests ? 2 * comm->num_requests : 64;
        comm->requests = realloc(comm->requests, (size_t)grown * sizeof *comm->requests);
        comm->free_handles = realloc(comm->free_handles, (size_t)grown * sizeof *comm->free_handles);
        comm->expected = realloc(comm->expected, (size_t)grown * sizeof *comm->expected);
        comm->layouts = realloc(comm->layouts, (size_t)grown * sizeof *comm->layouts);
        if (!comm->requests || !comm->free_handles || !comm->expected || !comm->layouts) abort();
        for (int i = grown - 1; i >= comm->num_requests; i--) comm->free_handles[comm->num_free++] = i;
        comm->num_requests = grown;
    }
    int handle = comm->free_handles[--comm->num_free];
    comm->expected[handle] = -1;
    comm->layouts[handle] = NULL;
    return handle;
}

int dt_isend(dt_comm* comm, const void* data, long long num_bytes, int dst, int tag, int matched, int* handle) {
    if (num_bytes > INT_MAX) return MPI_ERR_COUNT;
    *handle = take_handle(comm);
    return (matched ? MPI_Issend : MPI_Isend)(data, (int)num_bytes, MPI_BYTE, dst, tag, comm->comm,
                                              &comm->requests[*handle]);
}

int dt_irecv(dt_comm* comm, void* data, long long num_bytes, int src, int tag, int* handle) {
    if (num_bytes > INT_MAX) return MPI_ERR_COUNT;
    *handle = take_handle(comm);
    comm->expected[*handle] = (int)num_bytes;
    return MPI_Irecv(data, (int)num_bytes, MPI_BYTE, src, tag, comm->comm, &comm->requests[*handle]);
}

int dt_test(dt_comm* comm, int handle, int* done) {
    MPI_Status status;
    int num_bytes = 0, code = MPI_Test(&comm->requests[handle], done, &status);
    if (code || !*done) return code;
    comm->free_handles[comm->num_free++] = handle;
    free(comm->layouts[handle]);
    if (comm->expected[handle] < 0) return 0;
    MPI_Get_count(&status, MPI_BYTE, &num_bytes);
    return num_bytes == comm->expected[handle] ? 0 : DT_OTHER_SIZE;
}

/* The library counts a cancelled receive as ended once it has been tested: that may take some polls, but is not waited
   for, because its sender may have died within the message. */
int dt_cancel(dt_comm* comm, int handle) {
    int code, done = 0;
    if (comm->requests[handle] == MPI_REQUEST_NULL) return 0; /* it has ended with an error */
    code = MPI_Cancel(&comm->requests[handle]);
    for (int polls = 0; !done && polls < 100; polls++)
        if (MPI_Test(&comm->requests[handle], &done, MPI_STATUS_IGNORE)) break;
    if (comm->requests[handle] != MPI_REQUEST_NULL) MPI_Request_free(&comm->requests[handle]);
    comm->free_handles[comm->num_free++] = handle;
    return code;
}

int dt_group(dt_comm* comm, const int* ranks, int num_ranks, int* group) {
    MPI_Group all, part;
    MPI_Comm made;
    int code;
    if ((code = MPI_Comm_group(comm->comm, &all))) return code;
    if ((code = MPI_Group_incl(all, num_ranks, ranks, &part))) return code;
    if ((code = MPI_Comm_create_group(comm->comm, part, 0, &made))) return code;
    MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    MPI_Group_free(&all);
    MPI_Group_free(&part);
    comm->groups = realloc(comm->groups, (size_t)(comm->num_groups + 1) * sizeof *comm->groups);
    if (!comm->groups) abort();
    comm->groups[comm->num_groups] = made;
    *group = comm->num_groups++;
    return 0;
}

static MPI_Comm of_group(const dt_comm* comm, int group) { return group < 0 ? comm->comm : comm->groups[group]; }

/* The source of an all_gather: MPI_IN_PLACE if it is at `start` in the result already. */
static const void* own_part(const void* src, void* dst, long long start, int dtype) {
    return src == (char*)dst + start * dt_bytes(dtype) ? MPI_IN_PLACE : src;
}

static int rank_in(MPI_Comm comm) {
    int rank;
    MPI_Comm_rank(comm, &rank);
    return rank;
}

int dt_icollective(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op, int root,
                   int group, int* handle) {
    MPI_Comm on = of_group(comm, group);
    MPI_Datatype type = dt_type(dtype);
    int n = (int)count;
    if (count > INT_MAX) return MPI_ERR_COUNT;
    *handle = take_handle(comm);
    MPI_Request* request = &comm->requests[*handle];
    switch (kind) {
        case DT_ALL_REDUCE:
            return MPI_Iallreduce(src == dst ? MPI_IN_PLACE : src, dst, n, type, dt_op(op, dtype), on, request);
        case DT_ALL_GATHER:
            src = own_part(src, dst, count * rank_in(on), dtype);
            return MPI_Iallgather(src, n, type, dst, n, type, on, request);
        case DT_REDUCE_SCATTER:
            return MPI_Ireduce_scatter_block(src, dst, n, type, dt_op(op, dtype), on, request);
        case DT_ALL_TO_ALL:
            return MPI_Ialltoall(src, n, type, dst, n, type, on, request);
        case DT_BROADCAST:
            return MPI_Ibcast(dst, n, type, root, on, request);
        case DT_REDUCE:
            if (comm->rank == root && src == dst) src = MPI_IN_PLACE;
            return MPI_Ireduce(src, dst, n, type, dt_op(op, dtype), root, on, request);
        case DT_GATHER:
            return MPI_Igather(src, n, type, dst, n, type, root, on, request);
        case DT_SCATTER:
            return MPI_Iscatter(src, n, type, dst, n, type, root, on, request);
        default:
            return MPI_Ibarrier(on, request);
    }
}

static int to_next(const dt_comm* comm, const void* src, void* dst, int n, MPI_Datatype type) {
    int next = comm->rank + 1 < comm->size ? comm->rank + 1 : MPI_PROC_NULL;
    int before = comm->rank ? comm->rank - 1 : MPI_PROC_NULL;
    int come = comm->rank ? n : 0; /* rank 0 receives nothing: it may have no array for it */
    return MPI_Sendrecv(src, n, type, next, 0, dst, come, type, before, 0, comm->comm, MPI_STATUS_IGNORE);
}

int dt_collective(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op, int root,
                  int group) {
    MPI_Comm on = of_group(comm, group);
    MPI_Datatype type = dt_type(dtype);
    int n = (int)count;
    if (count > INT_MAX) return MPI_ERR_COUNT;
    switch (kind) {
        case DT_ALL_REDUCE:
            return MPI_Allreduce(src == dst ? MPI_IN_PLACE : src, dst, n, type, dt_op(op, dtype), on);
        case DT_ALL_GATHER:
            src = own_part(src, dst, count * rank_in(on), dtype);
            return MPI_Allgather(src, n, type, dst, n, type, on);
        case DT_REDUCE_SCATTER:
            return MPI_Reduce_scatter_block(src, dst, n, type, dt_op(op, dtype), on);
        case DT_ALL_TO_ALL:
            return MPI_Alltoall(src, n, type, dst, n, type, on);
        case DT_BROADCAST:
            return MPI_Bcast(dst, n, type, root, on);
        case DT_REDUCE:
            if (comm->rank == root && src == dst) src = MPI_IN_PLACE;
            return MPI_Reduce(src, dst, n, type, dt_op(op, dtype), root, on);
        case DT_GATHER:
            return MPI_Gather(src, n, type, dst, n, type, root, on);
        case DT_SCATTER:
            return MPI_Scatter(src, n, type, dst, n, type, root, on);
        case DT_ALL_TO_NEXT:
            return to_next(comm, src, dst, n, type);
        default:
            return MPI_Barrier(on);
    }
}

/* Sets MPI's counts and displacements; returns 0 if an int cannot hold them. */
static int lay_out(const long long* counts, int size, int* narrow, int* starts) {
    long long total = 0;
    for (int i = 0; i < size; i++) {
        narrow[i] = (int)counts[i];
        starts[i] = (int)total;
        total += counts[i];
        if (total > INT_MAX) return 0;
    }
    return 1;
}

/* The arguments of a v-variant in MPI: counts and displacements of parts sent and of parts received. */
typedef struct {
    MPI_Comm on;
    MPI_Datatype type;
    int rank, *to, *at, *from, *there;
} layout;

/* Returns 0 if an int cannot hold the counts. `ints`: room for 4 ints for each member. */
static int lay_out_v(MPI_Comm on, int kind, const long long* counts, int dtype, int* ints, layout* v) {
    int n;
    MPI_Comm_size(on, &n);
    *v = (layout){on, dt_type(dtype), rank_in(on), ints, ints + n, ints + 2 * n, ints + 3 * n};
    if (!lay_out(counts, n, v->to, v->at)) return 0;
    return kind != DT_ALL_TO_ALL_V || lay_out(counts + n, n, v->from, v->there);
}

int dt_icollective_v(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype, int op,
                     int group, int* handle) {
    MPI_Comm on = of_group(comm, group);
    int* ints = malloc(4 * sizeof(int) * (size_t)comm->size);
    layout v;
    if (!ints) abort();
    if (!lay_out_v(on, kind, counts, dtype, ints, &v)) {
        free(ints);
        return MPI_ERR_COUNT;
    }
    *handle = take_handle(comm);
    comm->layouts[*handle] = ints;
    MPI_Request* request = &comm->requests[*handle];
    if (kind == DT_REDUCE_SCATTER_V) return MPI_Ireduce_scatter(src, dst, v.to, v.type, dt_op(op, dtype), on, request);
    if (kind == DT_ALL_GATHER_V) {
        src = own_part(src, dst, v.at[v.rank], dtype);
        return MPI_Iallgatherv(src, v.to[v.rank], v.type, dst, v.to, v.at, v.type, on, request);
    }
    return MPI_Ialltoallv(src, v.to, v.at, v.type, dst, v.from, v.there, v.type, on, request);
}

int dt_collective_v(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype, int op,
                    int group) {
    MPI_Comm on = of_group(comm, group);
    layout v;
    if (!lay_out_v(on, kind, counts, dtype, comm->counts, &v)) return MPI_ERR_COUNT;
    if (kind == DT_REDUCE_SCATTER_V) return MPI_Reduce_scatter(src, dst, v.to, v.type, dt_op(op, dtype), on);
    if (kind == DT_ALL_GATHER_V) {
        src = own_part(src, dst, v.at[v.rank], dtype);
        return MPI_Allgatherv(src, v.to[v.rank], v.type, dst, v.to, v.at, v.type, on);
    }
    return MPI_Alltoallv(src, v.to, v.at, v.type, dst, v.from, v.there, v.type, on);
}
