/* Small programs with one fault each in how they communicate, and their repaired twins: `trace_faults NAME 0` has the
   fault, `trace_faults NAME 1` does not. Prints the seconds between two barriers, of the slowest rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 1 << 21 };
static int rank, size, repaired, rounds;
static char *given, *taken;

static double now(void) { return MPI_Wtime(); }

/* Computing that takes so long, whatever it shares its core with; of more ranks than there may be cores, a nap. */
static void work(double us) {
    if (size > 2 && us >= 500) {
        const struct timespec nap = {(time_t)(us * 1e-6), (long)(us * 1e3) % 1000000000};
        nanosleep(&nap, NULL);
        return;
    }
    const double end = now() + us * 1e-6;
    while (now() < end) continue;
}

static void swap(int num_bytes, int tag) {
    MPI_Sendrecv(given, num_bytes, MPI_CHAR, rank ^ 1, tag, taken, num_bytes, MPI_CHAR, rank ^ 1, tag, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

/* Each of many sums by itself, or all in one. */
static void merge(void) {
    double x[1000] = {0}, y[1000];
    work(300);
    for (int i = 0; i < (repaired ? 1 : 1000); ++i)
        MPI_Allreduce(x + i, y + i, repaired ? 1000 : 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* A message for each of many small parts, or one for all. */
static void block(void) {
    const int parts = repaired ? 1 : 200, num_bytes = 1600 / parts;
    work(200);
    for (int i = 0; i < parts; ++i)
        if (rank == 0)
            MPI_Send(given + i * num_bytes, num_bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        else
            MPI_Recv(taken + i * num_bytes, num_bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* A border exchanged for every step, or twice as much for every second step. */
static void temporal_block(void) {
    for (int step = 0; step < 20; ++step) {
        if (!repaired || step % 2 == 0) swap(repaired ? 512 : 256, 0);
        work(4);
    }
}

/* Rank 1 takes what comes late first, while rank 2 cannot go on before its own message is taken. */
static void post_earlier(void) {
    MPI_Request both[2];
    if (rank == 0) {
        work(3000);
        MPI_Send(given, 64, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
    } else if (rank == 2) {
        MPI_Ssend(given, 64, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        work(3000);
    } else if (repaired) {
        MPI_Irecv(taken, 64, MPI_CHAR, 0, 0, MPI_COMM_WORLD, &both[0]);
        MPI_Irecv(taken + 64, 64, MPI_CHAR, 2, 0, MPI_COMM_WORLD, &both[1]);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    } else {
        MPI_Recv(taken, 64, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Recv(taken + 64, 64, MPI_CHAR, 2, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* What the neighbour sends is waited for before, or after, work that does not need it; each is late in turn. */
static void overlap(int round) {
    MPI_Request both[2];
    MPI_Irecv(taken, 64, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &both[0]);
    MPI_Isend(given, 64, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &both[1]);
    if (!repaired) MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    work((round + rank) % 2 ? 3000 : 1000);
    if (repaired) MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
}

/* The same with a sum over all. */
static void nonblocking(int round) {
    MPI_Request sum;
    double x = 1, y;
    if (repaired)
        MPI_Iallreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &sum);
    else
        MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    work((round + rank) % 2 ? 3000 : 1000);
    if (repaired) MPI_Wait(&sum, MPI_STATUS_IGNORE);
}

/* A large message is sent to a rank that is busy, and its sender has work of its own. */
static void rendezvous(void) {
    MPI_Request sent;
    if (rank == 0) {
        if (repaired)
            MPI_Isend(given, 1 << 20, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &sent);
        else
            MPI_Send(given, 1 << 20, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        work(3000);
        if (repaired) MPI_Wait(&sent, MPI_STATUS_IGNORE);
    } else {
        work(3000);
        MPI_Recv(taken, 1 << 20, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The same with a message that a larger eager limit would let go: the twin is run with one. */
static void eager(void) {
    if (rank == 0) {
        MPI_Send(given, 20000, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        work(3000);
    } else {
        work(3000);
        MPI_Recv(taken, 20000, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A large message and much work beside it; the twin lets the library get on now and then. */
static void progress(void) {
    MPI_Request both[2];
    int over = 0;
    MPI_Irecv(taken, MOST, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &both[0]);
    MPI_Isend(given, MOST, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &both[1]);
    for (int i = 0; i < 50; ++i) {
        work(5000);
        if (repaired) MPI_Testall(2, both, &over, MPI_STATUSES_IGNORE);
    }
    if (!over) MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
}

/* One rank has twice the work, or all have the same. */
static void imbalance(void) {
    double x = 1, y;
    work(repaired ? 3000 : 2000 + 2000 * (rank % 2));
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* One of four ranks takes longer for the same work. */
static void slow_rank(void) {
    double x = 1, y;
    work(rank == 2 && !repaired ? 5000 : 2500);
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Around a ring; the link from 1 to 2 is as slow as the network makes it. */
static void slow_link(void) {
    work(500);
    MPI_Sendrecv(given, 16384, MPI_CHAR, (rank + 1) % size, 0, taken, 16384, MPI_CHAR, (rank + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void one(const char* name, int round) {
    if (!strcmp(name, "merge")) merge();
    if (!strcmp(name, "block")) block();
    if (!strcmp(name, "temporal_block")) temporal_block();
    if (!strcmp(name, "post_earlier")) post_earlier();
    if (!strcmp(name, "overlap")) overlap(round);
    if (!strcmp(name, "nonblocking")) nonblocking(round);
    if (!strcmp(name, "rendezvous")) rendezvous();
    if (!strcmp(name, "eager")) eager();
    if (!strcmp(name, "progress")) progress();
    if (!strcmp(name, "imbalance")) imbalance();
    if (!strcmp(name, "slow_rank")) slow_rank();
    if (!strcmp(name, "slow_link")) slow_link();
}

int main(int argc, char** argv) {
    if (argc < 4) return 2;
    const char* name = argv[1];
    repaired = atoi(argv[2]), rounds = atoi(argv[3]);
    given = calloc(1, MOST), taken = calloc(1, MOST);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    one(name, 0); /* to warm up */
    MPI_Barrier(MPI_COMM_WORLD);
    double spent = now(), most;
    for (int round = 0; round < rounds; ++round) one(name, round);
    spent = now() - spent;
    MPI_Reduce(&spent, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%s %d: %.6f s\n", name, repaired, most);
    MPI_Finalize();
    return 0;
}
