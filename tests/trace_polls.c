/* Polls in vain in many ways, alone, and tells how many calls of each kind it made. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

enum { MANY = 3000, FEW = 20, REQUESTS = 40 };

static long tests, probes, somes;

static int tested(MPI_Request* request) {
    int flag = 0;
    ++tests;
    MPI_Test(request, &flag, MPI_STATUS_IGNORE);
    return flag;
}

static void probe(void) {
    int flag = 0;
    ++probes;
    MPI_Iprobe(0, 9, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
}

/* More requests than fit beside a call's own: some of them are over at once, then none, then the rest. */
static void some(void) {
    MPI_Request requests[REQUESTS];
    int values[REQUESTS] = {0}, where[REQUESTS], count = 0, left = REQUESTS;
    for (int i = 0; i < REQUESTS; ++i) MPI_Irecv(&values[i], 1, MPI_INT, 0, i, MPI_COMM_SELF, &requests[i]);
    for (int i = 0; i < MANY; ++i, ++somes) MPI_Testsome(REQUESTS, requests, &count, where, MPI_STATUSES_IGNORE);
    for (int i = 0; i < REQUESTS; ++i) MPI_Send(&i, 1, MPI_INT, 0, i, MPI_COMM_SELF);
    for (; left > 0; left -= count, ++somes) MPI_Testsome(REQUESTS, requests, &count, where, MPI_STATUSES_IGNORE);
}

int main(int argc, char** argv) {
    MPI_Request request;
    int taken, given = 7;
    MPI_Init(&argc, &argv);
    MPI_Irecv(&taken, 1, MPI_INT, 0, 1, MPI_COMM_SELF, &request);
    for (int i = 0; i < MANY; ++i) tested(&request);
    for (int i = 0; i < MANY; ++i) probe();
    for (int i = 0; i < FEW; ++i) { /* work between them: these stay apart */
        usleep(1000);
        tested(&request);
    }
    for (int i = 0; i < FEW; ++i) { /* so do these: they take turns */
        tested(&request);
        probe();
    }
    MPI_Send(&given, 1, MPI_INT, 0, 1, MPI_COMM_SELF);
    while (!tested(&request)) continue;
    some();
    printf("{\"MPI_Test\": %ld, \"MPI_Iprobe\": %ld, \"MPI_Testsome\": %ld}\n", tests, probes, somes);
    MPI_Finalize();
    return 0;
}
