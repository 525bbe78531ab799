/* Calls of every kind, whose traces tests know beforehand. `trace_program HOW`: how it ends. */
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 5, TAG = 7 };

static int rank, size, left, right;
static double given[64], taken[64];

static void messages(void) {
    MPI_Request both[2], more[2];
    MPI_Status status;
    int flag = 0, index;
    for (int i = 0; i < ROUNDS; ++i) {
        MPI_Irecv(taken, 64, MPI_DOUBLE, i % 2 ? MPI_ANY_SOURCE : left, TAG, MPI_COMM_WORLD, &both[0]);
        MPI_Isend(given, i + 1, MPI_DOUBLE, right, TAG, MPI_COMM_WORLD, &both[1]);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    }
    MPI_Sendrecv(given, 3, MPI_INT, right, 1, taken, 3, MPI_INT, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send_init(given, 2, MPI_DOUBLE, right, 2, MPI_COMM_WORLD, &more[0]);
    MPI_Recv_init(taken, 2, MPI_DOUBLE, left, 2, MPI_COMM_WORLD, &more[1]);
    for (int i = 0; i < ROUNDS; ++i) {
        MPI_Startall(2, more);
        MPI_Waitany(2, more, &index, &status);
        MPI_Waitany(2, more, &index, &status);
    }
    MPI_Request_free(&more[0]);
    MPI_Request_free(&more[1]);
    MPI_Irecv(taken, 1, MPI_DOUBLE, left, 3, MPI_COMM_WORLD, &both[0]);
    MPI_Send(given, 1, MPI_DOUBLE, right, 3, MPI_COMM_WORLD);
    while (MPI_Test(&both[0], &flag, MPI_STATUS_IGNORE), !flag) usleep(20); /* ranks may share a core */
    MPI_Send(given, 1, MPI_DOUBLE, MPI_PROC_NULL, 3, MPI_COMM_WORLD);
    MPI_Irecv(taken, 1, MPI_DOUBLE, left, 98, MPI_COMM_WORLD, &both[0]); /* taken back: nobody sends it */
    MPI_Cancel(&both[0]);
    MPI_Wait(&both[0], MPI_STATUS_IGNORE);
}

static void collectives(void) {
    MPI_Comm pair, ring;
    MPI_Request request;
    const int ones[64] = {1, 1, 1, 1, 1, 1, 1, 1};
    const int places[64] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int dims[1] = {size}, wraps[1] = {1};
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &pair); /* in the reverse order */
    MPI_Bcast(given, 4, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    MPI_Gather(given, 2, MPI_DOUBLE, taken, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, taken, 2, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Alltoallv(given, ones, places, MPI_DOUBLE, taken, ones, places, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Reduce_scatter_block(given, taken, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(given, taken, 1, MPI_DOUBLE, MPI_SUM, pair);
    MPI_Iallreduce(given, taken, 3, MPI_DOUBLE, MPI_SUM, pair, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (size >= 4) { /* a message on the other communicator: by its ranks, 0 is the highest of this parity */
        int here;
        MPI_Comm_rank(pair, &here);
        if (here == 0) MPI_Send(given, 5, MPI_DOUBLE, 1, 4, pair);
        if (here == 1) MPI_Recv(taken, 5, MPI_DOUBLE, 0, 4, pair, MPI_STATUS_IGNORE);
    }
    MPI_Cart_create(MPI_COMM_WORLD, 1, dims, wraps, 0, &ring);
    MPI_Neighbor_allgather(given, 1, MPI_DOUBLE, taken, 1, MPI_DOUBLE, ring);
    MPI_Ineighbor_alltoall(given, 1, MPI_DOUBLE, taken, 1, MPI_DOUBLE, ring, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&ring);
    MPI_Comm_free(&pair);
}

static void one_sided(void) {
    MPI_Win window;
    MPI_Win_create(taken, sizeof taken, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_fence(0, window);
    MPI_Put(given, 6, MPI_DOUBLE, right, 0, 6, MPI_DOUBLE, window);
    MPI_Win_fence(0, window);
    MPI_Get(given, 7, MPI_DOUBLE, right, 0, 7, MPI_DOUBLE, window);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
}

int main(int argc, char** argv) {
    const char* how = argc > 1 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    left = (rank + size - 1) % size, right = (rank + 1) % size;
    messages();
    collectives();
    one_sided();
    MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(how, "kill") == 0 && rank == 1) kill(getpid(), SIGKILL);
    if (strcmp(how, "abort") == 0 && rank == 1) MPI_Abort(MPI_COMM_WORLD, 5);
    if (strcmp(how, "exit") == 0) _exit(0);
    if (*how) MPI_Recv(taken, 1, MPI_DOUBLE, right, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE); /* nobody sends it */
    MPI_Finalize();
    return 0;
}
