/* The MPI calls that the engine needs, as a table of C functions: one engine works with every MPI library. */
#ifndef DOVETAIL_MPI_TABLE_H
#define DOVETAIL_MPI_TABLE_H

#define DOVETAIL_MPI_TABLE_VERSION 10
#define DT_OTHER_SIZE (-1) /* a message shorter than its receive, which is no error in MPI */

enum {
    DT_FLOAT16,
    DT_BFLOAT16,
    DT_FLOAT32,
    DT_FLOAT64,
    DT_INT8,
    DT_UINT8,
    DT_INT32,
    DT_INT64,
    DT_INT16,
    DT_UINT16,
    DT_UINT32,
    DT_UINT64,
    DT_COMPLEX64, /* these two for the library's collectives only */
    DT_COMPLEX128,
    DT_NUM_TYPES
};
enum { DT_SUM, DT_PROD, DT_MIN, DT_MAX, DT_AVG }; /* DT_AVG: summed here, divided by the caller */

/* The kinds of collectives, in the order of the table in ir/collectives.py. Their numbers and names come from this
   list. all_to_next has no non-blocking form. */
// clang-format off
#define DT_KINDS(kind) \
    kind(ALL_REDUCE, "all_reduce") \
    kind(ALL_GATHER, "all_gather") \
    kind(REDUCE_SCATTER, "reduce_scatter") \
    kind(ALL_TO_ALL, "all_to_all") \
    kind(BROADCAST, "broadcast") \
    kind(BARRIER, "barrier") \
    kind(REDUCE, "reduce") \
    kind(GATHER, "gather") \
    kind(SCATTER, "scatter") \
    kind(ALL_TO_NEXT, "all_to_next") \
    kind(ALL_GATHER_V, "all_gather_v") \
    kind(REDUCE_SCATTER_V, "reduce_scatter_v") \
    kind(ALL_TO_ALL_V, "all_to_all_v")
// clang-format on
#define DT_NUMBER(name, text) DT_##name,
enum { DT_KINDS(DT_NUMBER) DT_NUM_KINDS };
#undef DT_NUMBER

/* Reduces `count` elements of `src` into `dst`: the engine's function, for types that MPI does not have. */
typedef void (*dt_reduce_fn)(int dtype, int op, const void* src, void* dst, long long count);

/* A duplicate of a communicator, with requests and groups of its own; used by one thread at a time. */
typedef struct dt_comm dt_comm;

/* Every function returns 0, or an MPI error code for `error_text`. Handles and groups are small integers. Group -1 is
   the whole communicator. `fortran`: the user's communicator, as a number of MPI_Comm_c2f. */
typedef struct {
    int version;
    /* Starts MPI unless it has begun, and duplicates MPI_COMM_WORLD: all ranks call it. `level`: of thread
       support, 0 (single) to 3 (multiple): first the one asked for, on return the one that MPI has. */
    int (*init)(int* level, dt_reduce_fn reduce, dt_comm** world);
    int (*finalize)(void);
    /* If MPI has begun, before any call except `init`: gets its thread level, and whether this is its main thread. */
    int (*setup)(int* provided, int* is_main, dt_reduce_fn reduce);
    /* Makes a duplicate that is freed with the user's. Then `ends` is called with `owner` while the duplicate is valid,
       and `freed` when it no longer is. All its ranks call `adopt`. */
    int (*adopt)(int fortran, void* owner, void (*ends)(void* owner), void (*freed)(void* owner), dt_comm** comm);
    int (*find)(int fortran, void** owner); /* NULL if none was adopted */
    void (*release)(dt_comm* comm);         /* its memory, after `freed` */
    int (*rank)(const dt_comm* comm);
    int (*size)(const dt_comm* comm);
    /* `matched`: a synchronous send, which ends only once a receive has matched it. */
    int (*isend)(dt_comm* comm, const void* data, long long num_bytes, int dst, int tag, int matched, int* handle);
    int (*irecv)(dt_comm* comm, void* data, long long num_bytes, int src, int tag, int* handle);
    /* As irecv, but a message that lies where this rank can read it stays there: see Transport::borrow. NULL: none do.
     */
    int (*borrow)(dt_comm* comm, void* data, long long num_bytes, int src, int tag, const void** lent, int* handle);
    int (*give_back)(dt_comm* comm, int handle, int* done);
    int (*group)(dt_comm* comm, const int* ranks, int num_ranks, int* group);
    /* `count`: elements; of one rank's part if ranks divide the whole. In place: src == dst of an all_reduce, reduce or
       broadcast, or for an all_gather this rank's part of dst. */
    int (*icollective)(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op,
                       int root, int group, int* handle);
    /* `counts`: by member; of an all_to_all_v those sent to each, then those received from each. */
    int (*icollective_v)(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype,
                         int op, int group, int* handle);
    /* The same, blocking. */
    int (*collective)(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op, int root,
                      int group);
    int (*collective_v)(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype, int op,
                        int group);
    int (*test)(dt_comm* comm, int handle, int* done);
    int (*wait)(dt_comm* comm, int handle);   /* for a collective, while another thread may begin one; NULL: test it */
    int (*cancel)(dt_comm* comm, int handle); /* of a receive; frees the handle */
    void (*abort)(int code);
    void (*library)(char* text, int size);
    void (*error_text)(int code, char* text, int size);
} dt_mpi_table;

#endif
