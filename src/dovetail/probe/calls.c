/* What blocking collectives of the MPI library take as programs call them: one after another, each rank the root in
   turn, and those with a root again with always the same, which need not wait for the others between two.
   `calls MOST_BYTES`: rank 0 prints a line for each, NAME BYTES REPEAT SECONDS, where BYTES is the largest buffer of
   any rank, and NAME ends with `_again` where the root stays. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 3, LEAST_TRIPS = 3, MOST_TRIPS = 2000 };
enum { BARRIER, BCAST, REDUCE, ALLREDUCE, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLGATHERV };
enum { ALLTOALL = ALLGATHERV + 1, ALLTOALLV, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN, NUM_CALLS };
static const char* const names[NUM_CALLS] = {
    "Barrier",  "Bcast",     "Reduce",     "Allreduce", "Gather",    "Gatherv",        "Scatter",
    "Scatterv", "Allgather", "Allgatherv", "Alltoall",  "Alltoallv", "Reduce_scatter", "Reduce_scatter_block",
    "Scan",     "Exscan",
};
static const double LONG_ENOUGH_S = 5e-3; /* of a loop, to be told from what the machine does beside it */

static MPI_Comm world;
static int size;
static char *given, *taken;
static int *counts, *places, *words; /* bytes of each rank's part, where they begin, and in elements */

static void set_parts(int num_bytes) {
    for (int i = 0; i < size; ++i) {
        words[i] = num_bytes / size / (int)sizeof(float);
        counts[i] = words[i] * (int)sizeof(float);
        places[i] = i * counts[i];
    }
}

static void call(int which, int num_bytes, int root) {
    const int part = counts[0], word = words[0], num_words = num_bytes / (int)sizeof(float);
    switch (which) {
        case BARRIER:
            MPI_Barrier(world);
            break;
        case BCAST:
            MPI_Bcast(taken, num_bytes, MPI_BYTE, root, world);
            break;
        case REDUCE:
            MPI_Reduce(given, taken, num_words, MPI_FLOAT, MPI_SUM, root, world);
            break;
        case ALLREDUCE:
            MPI_Allreduce(given, taken, num_words, MPI_FLOAT, MPI_SUM, world);
            break;
        case GATHER:
            MPI_Gather(given, part, MPI_BYTE, taken, part, MPI_BYTE, root, world);
            break;
        case GATHERV:
            MPI_Gatherv(given, part, MPI_BYTE, taken, counts, places, MPI_BYTE, root, world);
            break;
        case SCATTER:
            MPI_Scatter(given, part, MPI_BYTE, taken, part, MPI_BYTE, root, world);
            break;
        case SCATTERV:
            MPI_Scatterv(given, counts, places, MPI_BYTE, taken, part, MPI_BYTE, root, world);
            break;
        case ALLGATHER:
            MPI_Allgather(given, part, MPI_BYTE, taken, part, MPI_BYTE, world);
            break;
        case ALLGATHERV:
            MPI_Allgatherv(given, part, MPI_BYTE, taken, counts, places, MPI_BYTE, world);
            break;
        case ALLTOALL:
            MPI_Alltoall(given, part, MPI_BYTE, taken, part, MPI_BYTE, world);
            break;
        case ALLTOALLV:
            MPI_Alltoallv(given, counts, places, MPI_BYTE, taken, counts, places, MPI_BYTE, world);
            break;
        case REDUCE_SCATTER:
            MPI_Reduce_scatter(given, taken, words, MPI_FLOAT, MPI_SUM, world);
            break;
        case REDUCE_SCATTER_BLOCK:
            MPI_Reduce_scatter_block(given, taken, word, MPI_FLOAT, MPI_SUM, world);
            break;
        case SCAN:
            MPI_Scan(given, taken, num_words, MPI_FLOAT, MPI_SUM, world);
            break;
        default:
            MPI_Exscan(given, taken, num_words, MPI_FLOAT, MPI_SUM, world);
    }
}

static int has_root(int which) { return which == BCAST || which == REDUCE || (which >= GATHER && which <= SCATTERV); }

/* Seconds of one of so many calls, of the slowest rank. */
static double each_s(int which, int num_bytes, int trips, int again) {
    double most;
    MPI_Barrier(world);
    double spent = MPI_Wtime();
    for (int i = 0; i < trips; ++i) call(which, num_bytes, again ? 0 : i % size);
    spent = (MPI_Wtime() - spent) / trips;
    MPI_Allreduce(&spent, &most, 1, MPI_DOUBLE, MPI_MAX, world);
    return most;
}

static void measure(int which, int num_bytes, int repeat, int rank, int again) {
    set_parts(num_bytes);
    each_s(which, num_bytes, size, again); /* to warm up */
    const double trips = LONG_ENOUGH_S / each_s(which, num_bytes, LEAST_TRIPS * size, again);
    const int count = trips > MOST_TRIPS ? MOST_TRIPS : trips < LEAST_TRIPS ? LEAST_TRIPS : (int)trips;
    const double seconds = each_s(which, num_bytes, (count + size - 1) / size * size, again);
    if (rank != 0) return;
    printf("%s%s %d %d %.9f\n", names[which], again ? "_again" : "", num_bytes, repeat, seconds);
    fflush(stdout); /* who waits for the next line sees that this one is over */
}

int main(int argc, char** argv) {
    int rank;
    const int most = argc > 1 ? atoi(argv[1]) : 0;
    MPI_Init(&argc, &argv);
    world = MPI_COMM_WORLD;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    given = calloc(1, (size_t)most + 1), taken = calloc(1, (size_t)most + 1);
    counts = calloc((size_t)size * 3, sizeof(int)), places = counts + size, words = places + size;
    if (!given || !taken || !counts) MPI_Abort(world, 1);
    for (int repeat = 0; repeat < REPEATS; ++repeat)
        for (int which = 0; which < NUM_CALLS; ++which)
            for (int num_bytes = 8 * size; num_bytes <= most; num_bytes *= 4)
                for (int again = 0; again <= has_root(which); ++again) measure(which, num_bytes, repeat, rank, again);
    MPI_Finalize();
    return 0;
}
