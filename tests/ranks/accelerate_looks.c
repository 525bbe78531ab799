/* Looks often whether a message has come that is sent later, and does nothing else. */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char** argv) {
    int rank, is_over = 0, data = 1, taken = 0;
    MPI_Request coming, going;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Irecv(&taken, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, &coming);
    for (int i = atoi(argv[1]); i > 0; --i) MPI_Test(&coming, &is_over, MPI_STATUS_IGNORE);
    MPI_Isend(&data, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, &going);
    MPI_Wait(&coming, MPI_STATUS_IGNORE);
    MPI_Wait(&going, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return is_over || taken != data;
}
