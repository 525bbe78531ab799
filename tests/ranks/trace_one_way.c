/* A ring in which each rank sends to the next and receives from the one before: exchanges among neighbours by both. */
#include <mpi.h>

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int before = (rank + size - 1) % size, next = (rank + 1) % size, taken = -1;
    double item = rank, given = -1;
    MPI_Comm ring;
    MPI_Request asked;
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &before, MPI_UNWEIGHTED, 1, &next, MPI_UNWEIGHTED, MPI_INFO_NULL,
                                   0, &ring);
    MPI_Neighbor_alltoall(&item, 1, MPI_DOUBLE, &given, 1, MPI_DOUBLE, ring);
    MPI_Ineighbor_allgather(&rank, 1, MPI_INT, &taken, 1, MPI_INT, ring, &asked);
    MPI_Wait(&asked, MPI_STATUS_IGNORE);
    MPI_Comm_free(&ring);
    MPI_Finalize();
    return taken != before || given != before;
}
