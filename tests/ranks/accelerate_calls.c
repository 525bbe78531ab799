/* Calls in known numbers; rank 1 is late for each of 64 barriers. Prints the value of the variable ARGV[1], and exits
   with code ARGV[2]. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char** argv) {
    const struct timespec late = {0, 1000000};
    double sums[8] = {1}, out[8];
    char bytes[5000] = "";
    int rank, flag;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < 10; ++i) MPI_Allreduce(sums, out, 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 3; ++i) MPI_Bcast(bytes, sizeof bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
    MPI_Allreduce(sums, out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF);
    MPI_Iallreduce(sums, out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < 7; ++i) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    for (int i = 0; i < 64; ++i) {
        if (rank == 1) nanosleep(&late, NULL);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    const char* value = argc > 1 ? getenv(argv[1]) : NULL;
    if (rank == 0) printf("%s\n", value ? value : "unset");
    MPI_Finalize();
    return argc > 2 ? atoi(argv[2]) : 0;
}
