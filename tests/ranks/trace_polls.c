/* Polls in vain in many ways, in isolation, and prints how many calls of each kind it made; then sends what datatypes
   describe that come and go. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

enum { MANY = 3000, FEW = 20, REQUESTS = 40 };

static long tests, probes, tests_of_some;

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

/* More requests than a call has room for on the stack: none of them is over, then all. */
static void some(void) {
    MPI_Request requests[REQUESTS];
    int values[REQUESTS] = {0}, where[REQUESTS], count = 0, left = REQUESTS;
    for (int i = 0; i < REQUESTS; ++i) MPI_Irecv(&values[i], 1, MPI_INT, 0, i, MPI_COMM_SELF, &requests[i]);
    for (int i = 0; i < MANY; ++i, ++tests_of_some)
        MPI_Testsome(REQUESTS, requests, &count, where, MPI_STATUSES_IGNORE);
    for (int i = 0; i < REQUESTS; ++i) MPI_Send(&i, 1, MPI_INT, 0, i, MPI_COMM_SELF);
    for (; left > 0; left -= count, ++tests_of_some)
        MPI_Testsome(REQUESTS, requests, &count, where, MPI_STATUSES_IGNORE);
}

/* The second datatype may have the handle of the first. */
static void types(void) {
    const int given[8] = {0};
    int taken[8];
    for (int count = 3; count <= 5; count += 2) {
        MPI_Datatype type;
        MPI_Type_contiguous(count, MPI_INT, &type);
        MPI_Type_commit(&type);
        MPI_Sendrecv(given, 1, type, 0, 7, taken, 1, type, 0, 7, MPI_COMM_SELF, MPI_STATUS_IGNORE);
        MPI_Type_free(&type);
    }
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
    types();
    printf("{\"MPI_Test\": %ld, \"MPI_Iprobe\": %ld, \"MPI_Testsome\": %ld}\n", tests, probes, tests_of_some);
    MPI_Finalize();
    return 0;
}
