/* A few calls: MPI_Allreduce once, then `MPI_Waitall` of no requests as a Fortran program makes it, ARGV[1] times. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

void mpi_waitall_(int* count, void* requests, void* statuses, int* code);

int main(int argc, char** argv) {
    int rank, sum = 1, none = 0, code = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; argc > 1 && i < atoi(argv[1]); ++i) {
        MPI_Request request = MPI_REQUEST_NULL;
        int many = 1;
        mpi_waitall_(&none, &request, NULL, &code);
        mpi_waitall_(&many, &request, NULL, &code);
    }
    if (rank == 0) printf("%d\n", sum);
    MPI_Finalize();
    return code;
}
