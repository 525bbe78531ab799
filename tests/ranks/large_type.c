/* Sends itself a datatype that a function of large counts made: MPI_Type_get_envelope is an error for it. */
#include <mpi.h>

int main(int argc, char** argv) {
    int given[2] = {1, 2}, taken[2] = {0, 0};
    MPI_Datatype both;
    MPI_Init(&argc, &argv);
    MPI_Type_contiguous_c(2, MPI_INT, &both);
    MPI_Type_commit(&both);
    MPI_Sendrecv(given, 1, both, 0, 0, taken, 1, both, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    MPI_Allreduce(MPI_IN_PLACE, given, 2, MPI_INT, MPI_SUM, MPI_COMM_SELF);
    MPI_Type_free(&both);
    MPI_Finalize();
    return taken[0] + taken[1] != 3;
}
