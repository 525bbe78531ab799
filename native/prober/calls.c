/* Measures blocking calls of the MPI library. Usage: calls MOST_BYTES KIND:RANK:RANK ...

   Collectives are called in a loop, with another root in each call. Rooted ones are also measured with the same root in
   all calls, which is faster if the root need not wait for the others between two calls. Messages are measured as a
   ping-pong between two ranks, and in both directions at once.

   Rank 0 prints a line per measurement: NAME BYTES REPEAT SECONDS. BYTES: the largest buffer of any rank. NAME ends
   with
   `_again` if all calls have the same root, and with `:KIND`, the kind of the link, for messages. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_REPEATS = 3, MOST_REPEATS = 9, LEAST_TRIPS = 3, MOST_TRIPS = 2000 };
enum { BARRIER, BCAST, REDUCE, ALLREDUCE, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLGATHERV };
enum { ALLTOALL = ALLGATHERV + 1, ALLTOALLV, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN, ALLTOALLW, NUM_CALLS };
enum { SEND = NUM_CALLS, SENDRECV, ALL };
static const char* const names[ALL] = {
    "Barrier",  "Bcast",     "Reduce",     "Allreduce", "Gather",    "Gatherv",        "Scatter",
    "Scatterv", "Allgather", "Allgatherv", "Alltoall",  "Alltoallv", "Reduce_scatter", "Reduce_scatter_block",
    "Scan",     "Exscan",    "Alltoallw",  "Send",      "Sendrecv",
};
static const double LONG_ENOUGH_S = 1e-3; /* of a loop: much longer than reading the clock */
static const double LONGEST_S = 20e-3;    /* no larger sizes are measured once a call takes this long */
static const double MOST_S = 12;          /* no repeat begins after this time, except the first LEAST_REPEATS */

static MPI_Comm world;
static int rank, size;
static int pair[2];      /* the two ranks that exchange messages */
static const char* kind; /* kind of the link between them */
static char *given, *taken;
static int *counts, *places, *words; /* each rank's part: bytes, offset in bytes, number of floats */
static int *ones, *starts;           /* for Alltoallw: one of `columns` per rank, and its offset in bytes */
static MPI_Datatype *columns, *rows; /* each rank's part of a matrix of doubles, which Alltoallw transposes */

static void set_parts(int num_bytes) {
    for (int i = 0; i < size; ++i) {
        words[i] = num_bytes / size / (int)sizeof(float);
        counts[i] = words[i] * (int)sizeof(float);
        places[i] = i * counts[i];
    }
}

/* Makes the datatypes of Alltoallw: a rank sends columns of a matrix, which arrive as contiguous rows. */
static void make_columns(int num_bytes) {
    int side = 1;
    while (2 * side * size * side * (int)sizeof(double) <= num_bytes) side *= 2;
    const int row = num_bytes / side / (int)sizeof(double), part = row / size;
    for (int i = 0; i < size; ++i) {
        ones[i] = 1;
        starts[i] = i * part * (int)sizeof(double);
        MPI_Type_vector(side, part, row, MPI_DOUBLE, &columns[i]);
        MPI_Type_contiguous(side * part, MPI_DOUBLE, &rows[i]);
        MPI_Type_commit(&columns[i]), MPI_Type_commit(&rows[i]);
        places[i] = i * side * part * (int)sizeof(double);
    }
}

static void free_columns(void) {
    for (int i = 0; i < size; ++i) MPI_Type_free(&columns[i]), MPI_Type_free(&rows[i]);
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
        case EXSCAN:
            MPI_Exscan(given, taken, num_words, MPI_FLOAT, MPI_SUM, world);
            break;
        default:
            MPI_Alltoallw(given, ones, starts, columns, taken, ones, places, rows, world);
    }
}

/* Sends a message from the first rank of the pair to the second, or back; for SENDRECV in both directions at once. */
static void message(int which, int num_bytes, int back) {
    if (rank != pair[0] && rank != pair[1]) return;
    const int here = rank == pair[1], other = pair[!here];
    if (which == SENDRECV)
        MPI_Sendrecv(given, num_bytes, MPI_BYTE, other, 1, taken, num_bytes, MPI_BYTE, other, 1, world,
                     MPI_STATUS_IGNORE);
    else if (here == back)
        MPI_Send(given, num_bytes, MPI_BYTE, other, 1, world);
    else
        MPI_Recv(taken, num_bytes, MPI_BYTE, other, 1, world, MPI_STATUS_IGNORE);
}

static int has_root(int which) { return which == BCAST || which == REDUCE || (which >= GATHER && which <= SCATTERV); }

/* Returns the mean seconds per call of `trips` calls, on the slowest rank. */
static double each_s(int which, int num_bytes, int trips, int again) {
    double most;
    MPI_Barrier(world);
    double spent = MPI_Wtime();
    for (int i = 0; i < trips; ++i)
        if (which >= NUM_CALLS)
            message(which, num_bytes, i % 2);
        else
            call(which, num_bytes, again ? 0 : i % size);
    spent = (MPI_Wtime() - spent) / trips;
    MPI_Allreduce(&spent, &most, 1, MPI_DOUBLE, MPI_MAX, world);
    return most;
}

/* Measures one call and prints the line; returns its seconds, equal on all ranks. */
static double measure(int which, int num_bytes, int repeat, int again) {
    const int turns = which >= NUM_CALLS ? 2 : size;
    set_parts(num_bytes);
    if (which == ALLTOALLW) make_columns(num_bytes);
    each_s(which, num_bytes, turns, again); /* to warm up */
    const double trips = LONG_ENOUGH_S / each_s(which, num_bytes, LEAST_TRIPS * turns, again);
    const int count = trips > MOST_TRIPS ? MOST_TRIPS : trips < LEAST_TRIPS ? LEAST_TRIPS : (int)trips;
    const double seconds = each_s(which, num_bytes, (count + turns - 1) / turns * turns, again);
    if (which == ALLTOALLW) free_columns();
    if (rank != 0) return seconds;
    const int is_message = which >= NUM_CALLS;
    printf("%s%s%s%s %d %d %.9f\n", names[which], again ? "_again" : "", is_message ? ":" : "", is_message ? kind : "",
           num_bytes, repeat, seconds);
    fflush(stdout); /* the reader detects a hang by the time since the last line */
    return seconds;
}

/* Measures a call at doubling sizes: libraries change their algorithm at powers of two. */
static void measure_sizes(int which, int most, int repeat) {
    for (int again = 0; again <= has_root(which); ++again)
        for (int num_bytes = which >= NUM_CALLS ? 1 : 8 * size; num_bytes <= most; num_bytes *= 2)
            if (measure(which, num_bytes, repeat, again) > LONGEST_S) break;
}

/* Reads `KIND:RANK:RANK` into `kind` and `pair`. */
static void read_pair(char* text) {
    char* first = strchr(text, ':');
    if (!first || sscanf(first, ":%d:%d", &pair[0], &pair[1]) != 2) MPI_Abort(world, 1);
    *first = 0;
    kind = text;
}

static int goes_on(int repeat, double begun) {
    int is_early = repeat < LEAST_REPEATS || (repeat < MOST_REPEATS && MPI_Wtime() - begun < MOST_S);
    MPI_Bcast(&is_early, 1, MPI_INT, 0, world);
    return is_early;
}

int main(int argc, char** argv) {
    const int most = argc > 1 ? atoi(argv[1]) : 0;
    MPI_Init(&argc, &argv);
    world = MPI_COMM_WORLD;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    given = malloc((size_t)most + 1), taken = malloc((size_t)most + 1);
    counts = calloc((size_t)size * 5, sizeof(int)), places = counts + size, words = places + size;
    ones = words + size, starts = ones + size;
    columns = calloc((size_t)size * 2, sizeof(MPI_Datatype)), rows = columns + size;
    if (!given || !taken || !counts || !columns) MPI_Abort(world, 1);
    memset(given, 1, (size_t)most + 1), memset(taken, 1, (size_t)most + 1); /* pages never written share one page */
    const double begun = MPI_Wtime();
    for (int repeat = 0; goes_on(repeat, begun); ++repeat) {
        for (int which = 0; which < NUM_CALLS; ++which) measure_sizes(which, most, repeat);
        for (int i = 2; i < argc; ++i) {
            char* const text = strdup(argv[i]);
            read_pair(text);
            for (int which = SEND; which <= SENDRECV; ++which) measure_sizes(which, most, repeat);
            free(text);
        }
    }
    MPI_Finalize();
    return 0;
}
