/* Rank 1 tests for a message, and sleeps between tests; rank 0 waits for the answer. Repaired: rank 1 waits. */
#include <unistd.h>

#include "steps.h"

static void step(int i) {
    MPI_Request request;
    int there = 0;
    if (rank == 0) {
        work(2);
        MPI_Send(&i, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(&i, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Irecv(&i, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &request);
#ifdef REPAIRED
        (void)there;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
#else
        while (MPI_Test(&request, &there, MPI_STATUS_IGNORE), !there) usleep(5000);
#endif
        MPI_Send(&i, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
}
