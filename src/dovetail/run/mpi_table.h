/* The few MPI calls that the engine needs, as a table of C functions: one engine serves every MPI library. */
#ifndef DOVETAIL_MPI_TABLE_H
#define DOVETAIL_MPI_TABLE_H

#define DOVETAIL_MPI_TABLE_VERSION 3
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
    DT_UINT64
};
enum { DT_SUM, DT_PROD, DT_MIN, DT_MAX, DT_AVG }; /* an average is added here, and divided by the engine */
enum { DT_ALL_REDUCE, DT_ALL_GATHER, DT_REDUCE_SCATTER, DT_ALL_TO_ALL, DT_BROADCAST, DT_BARRIER };

/* Adds `count` elements of `src` into `dst`; given by the engine for types that MPI does not know. */
typedef void (*dt_reduce_fn)(int dtype, int op, const void* src, void* dst, long long count);

/* Every function returns 0, or an MPI error code for `error_text`. Handles and groups are small integers. */
typedef struct {
    int version;
    int (*init)(int* provided, dt_reduce_fn reduce);
    int (*finalize)(void);
    int (*rank)(void);
    int (*size)(void);
    int (*isend)(const void* data, long long num_bytes, int dst, int tag, int* handle);
    int (*irecv)(void* data, long long num_bytes, int src, int tag, int* handle);
    int (*group)(const int* ranks, int num_ranks, int* group);
    int (*icollective)(int kind, const void* src, void* dst, long long count, int dtype, int op, int group,
                       int* handle);
    int (*collective)(int kind, const void* src, void* dst, long long count, int dtype, int op, int group);
    int (*test)(int handle, int* done);
    int (*cancel)(int handle);
    double (*clock)(void);
    void (*abort)(int code);
    void (*library)(char* text, int size);
    void (*error_text)(int code, char* text, int size);
} dt_mpi_table;

#endif
