/* An entry from Fortran as MPI libraries have it: Open MPI's answers a wait for no requests without a call in C, and
   goes on to PMPI otherwise; MPICH's always goes on to its call in C. */
#include <mpi.h>

void mpi_waitall_(int* count, void* requests, void* statuses, int* code) {
    (void)statuses;
#ifdef OPEN_MPI
    *code = *count ? PMPI_Waitall(*count, requests, MPI_STATUSES_IGNORE) : MPI_SUCCESS;
#else
    *code = MPI_Waitall(*count, requests, MPI_STATUSES_IGNORE);
#endif
}
