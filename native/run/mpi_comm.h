/* Duplicates of the user's communicators: mpi_table.h documents these functions of a dt_comm. */
#ifndef DOVETAIL_MPI_COMM_H
#define DOVETAIL_MPI_COMM_H

#include <mpi.h>

#include "mpi_table.h"

int dt_watch(void); /* once, before the first dt_adopt */
int dt_duplicate(MPI_Comm theirs, dt_comm** comm);
int dt_adopt(int fortran, void* owner, void (*ends)(void*), void (*freed)(void*), dt_comm** comm);
int dt_find(int fortran, void** owner);
void dt_release(dt_comm* comm);
int dt_rank(const dt_comm* comm);
int dt_size(const dt_comm* comm);
int dt_isend(dt_comm* comm, const void* data, long long num_bytes, int dst, int tag, int matched, int* handle);
int dt_irecv(dt_comm* comm, void* data, long long num_bytes, int src, int tag, int* handle);
int dt_test(dt_comm* comm, int handle, int* done);
int dt_cancel(dt_comm* comm, int handle);
int dt_group(dt_comm* comm, const int* ranks, int num_ranks, int* group);
int dt_icollective(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op, int root,
                   int group, int* handle);
int dt_collective(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op, int root,
                  int group);
int dt_icollective_v(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype, int op,
                     int group, int* handle);
int dt_collective_v(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype, int op,
                    int group);

#endif
