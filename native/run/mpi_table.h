/* The few MPI calls that the engine needs, as a table of C functions: one engine serves every MPI library. */
#ifndef DOVETAIL_MPI_TABLE_H
#define DOVETAIL_MPI_TABLE_H

#define DOVETAIL_MPI_TABLE_VERSION 9
#define DT_OTHER_SIZE (-1) /* a message shorter than its receive: MPI itself takes it without a word */

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
    DT_COMPLEX64, /* from here on for the library's collectives only */
    DT_COMPLEX128,
    DT_NUM_TYPES
};
enum { DT_SUM, DT_PROD, DT_MIN, DT_MAX, DT_AVG }; /* an average is added here, and divided by the caller */
enum {
    DT_ALL_REDUCE,
    DT_ALL_GATHER,
    DT_REDUCE_SCATTER,
    DT_ALL_TO_ALL,
    DT_BROADCAST,
    DT_BARRIER,
    DT_REDUCE,
    DT_GATHER,
    DT_SCATTER,
    DT_ALL_TO_NEXT, /* blocking only */
    DT_ALL_GATHER_V,
    DT_REDUCE_SCATTER_V,
    DT_ALL_TO_ALL_V,
    DT_NUM_KINDS
};

/* Adds `count` elements of `src` into `dst`; given by the engine for types that MPI does not know. */
typedef void (*dt_reduce_fn)(int dtype, int op, const void* src, void* dst, long long count);

/* A duplicate of a communicator, with requests and groups of its own; used by one thread at a time. */
typedef struct dt_comm dt_comm;

/* Every function returns 0, or an MPI error code for `error_text`. Handles and groups are small integers; group -1 is
   the whole communicator. `fortran` is a communicator of the user's, as MPI_Comm_c2f gives it. */
typedef struct {
    int version;
    /* Starts MPI where nobody has, and duplicates all ranks' communicator: all ranks call it. `level`: of thread
       support, 0 (single) to 3 (multiple); the one that is asked for, then the one that MPI has. */
    int (*init)(int* level, dt_reduce_fn reduce, dt_comm** world);
    int (*finalize)(void);
    /* Where MPI has begun, before any other call than `init`: its thread level, whether this is its main thread. */
    int (*setup)(int* provided, int* is_main, dt_reduce_fn reduce);
    /* A duplicate that ends with the user's own: then `ends` is called with `owner`, while the duplicate still serves,
       and `freed` when it no longer does. All its ranks call `adopt`. */
    int (*adopt)(int fortran, void* owner, void (*ends)(void* owner), void (*freed)(void* owner), dt_comm** comm);
    int (*find)(int fortran, void** owner); /* NULL where none was adopted */
    void (*release)(dt_comm* comm);         /* its memory, once it was freed */
    int (*rank)(const dt_comm* comm);
    int (*size)(const dt_comm* comm);
    /* `matched`: ended only once the receiver has asked for it, a synchronous send. */
    int (*isend)(dt_comm* comm, const void* data, long long num_bytes, int dst, int tag, int matched, int* handle);
    int (*irecv)(dt_comm* comm, void* data, long long num_bytes, int src, int tag, int* handle);
    /* As irecv, but a message that lies where this rank can read it stays there: see Transport::borrow. NULL: none do. */
    int (*borrow)(dt_comm* comm, void* data, long long num_bytes, int src, int tag, const void** lent, int* handle);
    int (*give_back)(dt_comm* comm, int handle, int* done);
    int (*group)(dt_comm* comm, const int* ranks, int num_ranks, int* group);
    /* `count` elements a rank, of the part where ranks cut the whole. In place: src == dst of an all_reduce, reduce or
       broadcast, or for an all_gather this rank's part of dst. */
    int (*icollective)(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op,
                       int root, int group, int* handle);
    /* `counts` of each member; of an all_to_all_v those sent to each, then those received from each. */
    int (*icollective_v)(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype,
                         int op, int group, int* handle);
    /* The same, blocking. */
    int (*collective)(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op, int root,
                      int group);
    int (*collective_v)(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype, int op,
                        int group);
    int (*test)(dt_comm* comm, int handle, int* done);
    int (*cancel)(dt_comm* comm, int handle); /* of a receive; the handle is then gone */
    void (*abort)(int code);
    void (*library)(char* text, int size);
    void (*error_text)(int code, char* text, int size);
} dt_mpi_table;

#endif
