/* The MPI side of mpi_table.h: compiled with the mpicc at hand, loaded by the ranks. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mpi_table.h"

static MPI_Comm world = MPI_COMM_NULL;
static MPI_Request* requests;
static int *expected, num_requests, *free_handles, num_free; /* expected: bytes of a receive, -1 for others */
static MPI_Comm* groups;
static int num_groups;
static dt_reduce_fn reduce_fn;
static MPI_Datatype half_types[2];
static MPI_Op half_ops[4];

static void reduce_half(void* src, void* dst, int count, int dtype, int op) { reduce_fn(dtype, op, src, dst, count); }

#define HALF_OP(name, op)                                                                     \
    static void name(void* src, void* dst, int* count, MPI_Datatype* type) {                  \
        reduce_half(src, dst, *count, *type == half_types[0] ? DT_FLOAT16 : DT_BFLOAT16, op); \
    }
HALF_OP(half_sum, DT_SUM)
HALF_OP(half_prod, DT_PROD)
HALF_OP(half_min, DT_MIN)
HALF_OP(half_max, DT_MAX)

static int make_half_types(void) {
    MPI_User_function* functions[4] = {half_sum, half_prod, half_min, half_max};
    int code;
    for (int i = 0; i < 2; i++) {
        if ((code = MPI_Type_contiguous(2, MPI_BYTE, &half_types[i]))) return code;
        if ((code = MPI_Type_commit(&half_types[i]))) return code;
    }
    for (int i = 0; i < 4; i++)
        if ((code = MPI_Op_create(functions[i], 1, &half_ops[i]))) return code;
    return 0;
}

static int dt_init(int* provided, dt_reduce_fn reduce) {
    int code, ready;
    if ((code = MPI_Initialized(&ready))) return code;
    if (ready)
        code = MPI_Query_thread(provided);
    else
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, provided);
    if (code) return code;
    if ((code = MPI_Comm_dup(MPI_COMM_WORLD, &world))) return code;
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    reduce_fn = reduce;
    return make_half_types();
}

static int dt_finalize(void) {
    int done;
    MPI_Finalized(&done);
    return done ? 0 : MPI_Finalize();
}

static int dt_rank(void) {
    int rank;
    MPI_Comm_rank(world, &rank);
    return rank;
}
static int dt_size(void) {
    int size;
    MPI_Comm_size(world, &size);
    return size;
}

static int take_handle(void) {
    if (!num_free) {
        int grown = num_requests ? 2 * num_requests : 64;
        requests = realloc(requests, (size_t)grown * sizeof *requests);
        free_handles = realloc(free_handles, (size_t)grown * sizeof *free_handles);
        expected = realloc(expected, (size_t)grown * sizeof *expected);
        if (!requests || !free_handles || !expected) abort();
        for (int i = grown - 1; i >= num_requests; i--) free_handles[num_free++] = i;
        num_requests = grown;
    }
    int handle = free_handles[--num_free];
    expected[handle] = -1;
    return handle;
}

static int dt_isend(const void* data, long long num_bytes, int dst, int tag, int* handle) {
    if (num_bytes > INT_MAX) return MPI_ERR_COUNT;
    *handle = take_handle();
    return MPI_Isend(data, (int)num_bytes, MPI_BYTE, dst, tag, world, &requests[*handle]);
}

static int dt_irecv(void* data, long long num_bytes, int src, int tag, int* handle) {
    if (num_bytes > INT_MAX) return MPI_ERR_COUNT;
    *handle = take_handle();
    expected[*handle] = (int)num_bytes;
    return MPI_Irecv(data, (int)num_bytes, MPI_BYTE, src, tag, world, &requests[*handle]);
}

static int dt_group(const int* ranks, int num_ranks, int* group) {
    MPI_Group all, part;
    MPI_Comm comm;
    int code;
    if ((code = MPI_Comm_group(world, &all))) return code;
    if ((code = MPI_Group_incl(all, num_ranks, ranks, &part))) return code;
    if ((code = MPI_Comm_create_group(world, part, 0, &comm))) return code;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Group_free(&all);
    MPI_Group_free(&part);
    groups = realloc(groups, (size_t)(num_groups + 1) * sizeof *groups);
    if (!groups) abort();
    groups[num_groups] = comm;
    *group = num_groups++;
    return 0;
}

static MPI_Datatype type_of(int dtype) {
    switch (dtype) {
        case DT_FLOAT16:
            return half_types[0];
        case DT_BFLOAT16:
            return half_types[1];
        case DT_FLOAT32:
            return MPI_FLOAT;
        case DT_FLOAT64:
            return MPI_DOUBLE;
        case DT_INT8:
            return MPI_INT8_T;
        case DT_UINT8:
            return MPI_UINT8_T;
        case DT_INT16:
            return MPI_INT16_T;
        case DT_UINT16:
            return MPI_UINT16_T;
        case DT_INT32:
            return MPI_INT32_T;
        case DT_UINT32:
            return MPI_UINT32_T;
        case DT_UINT64:
            return MPI_UINT64_T;
        default:
            return MPI_INT64_T;
    }
}

static MPI_Op op_of(int op, int dtype) {
    static const int plain = DT_FLOAT32;
    if (op == DT_AVG) op = DT_SUM;
    if (dtype < plain) return half_ops[op];
    return op == DT_SUM ? MPI_SUM : op == DT_PROD ? MPI_PROD : op == DT_MIN ? MPI_MIN : MPI_MAX;
}

static int dt_icollective(int kind, const void* src, void* dst, long long count, int dtype, int op, int group,
                          int* handle) {
    if (count > INT_MAX) return MPI_ERR_COUNT;
    MPI_Comm comm = group < 0 ? world : groups[group];
    MPI_Datatype type = type_of(dtype);
    int n = (int)count;
    *handle = take_handle();
    MPI_Request* request = &requests[*handle];
    switch (kind) {
        case DT_ALL_REDUCE:
            return MPI_Iallreduce(src == dst ? MPI_IN_PLACE : src, dst, n, type, op_of(op, dtype), comm, request);
        case DT_ALL_GATHER:
            return MPI_Iallgather(src, n, type, dst, n, type, comm, request);
        case DT_REDUCE_SCATTER:
            return MPI_Ireduce_scatter_block(src, dst, n, type, op_of(op, dtype), comm, request);
        case DT_ALL_TO_ALL:
            return MPI_Ialltoall(src, n, type, dst, n, type, comm, request);
        case DT_BROADCAST:
            return MPI_Ibcast(dst, n, type, 0, comm, request);
        default:
            return MPI_Ibarrier(comm, request);
    }
}

static int dt_collective(int kind, const void* src, void* dst, long long count, int dtype, int op, int group) {
    if (count > INT_MAX) return MPI_ERR_COUNT;
    MPI_Comm comm = group < 0 ? world : groups[group];
    MPI_Datatype type = type_of(dtype);
    int n = (int)count;
    switch (kind) {
        case DT_ALL_REDUCE:
            return MPI_Allreduce(src == dst ? MPI_IN_PLACE : src, dst, n, type, op_of(op, dtype), comm);
        case DT_ALL_GATHER:
            return MPI_Allgather(src, n, type, dst, n, type, comm);
        case DT_REDUCE_SCATTER:
            return MPI_Reduce_scatter_block(src, dst, n, type, op_of(op, dtype), comm);
        case DT_ALL_TO_ALL:
            return MPI_Alltoall(src, n, type, dst, n, type, comm);
        case DT_BROADCAST:
            return MPI_Bcast(dst, n, type, 0, comm);
        default:
            return MPI_Barrier(comm);
    }
}

static int dt_test(int handle, int* done) {
    MPI_Status status;
    int num_bytes = 0, code = MPI_Test(&requests[handle], done, &status);
    if (code || !*done) return code;
    free_handles[num_free++] = handle;
    if (expected[handle] < 0) return 0;
    MPI_Get_count(&status, MPI_BYTE, &num_bytes);
    return num_bytes == expected[handle] ? 0 : DT_OTHER_SIZE;
}

static int dt_cancel(int handle) {
    int code = MPI_Cancel(&requests[handle]);
    MPI_Request_free(&requests[handle]);
    free_handles[num_free++] = handle;
    return code;
}

static double dt_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void dt_abort(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

static void dt_library(char* text, int size) {
    char full[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(full, &length);
    full[strcspn(full, "\n,")] = 0;
    snprintf(text, (size_t)size, "%s", full);
}

static void dt_error_text(int code, char* text, int size) {
    char full[MPI_MAX_ERROR_STRING] = "the message has another size than its receive";
    int length;
    if (code != DT_OTHER_SIZE) MPI_Error_string(code, full, &length);
    snprintf(text, (size_t)size, "%s", full);
}

const dt_mpi_table dovetail_mpi_table = {
    DOVETAIL_MPI_TABLE_VERSION,
    dt_init,
    dt_finalize,
    dt_rank,
    dt_size,
    dt_isend,
    dt_irecv,
    dt_group,
    dt_icollective,
    dt_collective,
    dt_test,
    dt_cancel,
    dt_clock,
    dt_abort,
    dt_library,
    dt_error_text,
};
