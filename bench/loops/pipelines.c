/* Pipelines by hand and by dovetail_pipeline, in turn: `pipelines n m l p q ns rounds sweeps grain…` prints JSON.
 *
 * Each element of n x m x l is computed from those before it along every axis. p x q ranks share the first two; a tile
 * is this rank's part of them times `grain` of the third. l comes last in memory; where m is 1, so does n, as in the
 * Parallel Research Kernels' Synch_p2p. `ns`: that many nanoseconds an element, slept through (emulated compute). By
 * hand: blocking (Recv, compute, Send), synchronous (Ssend) and non-blocking (the next step's receives and the last
 * one's sends under way), with the grains named. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "pipeline_inside.h"

enum { BLOCKING, SYNCHRONOUS, NON_BLOCKING, OURS, WAYS };
static const char* const names[] = {"blocking", "synchronous", "non_blocking", "dovetail"};

typedef struct {
    int64_t n, m, l;           /* of this rank */
    int64_t rows, pitch, step; /* bytes from one of n, m, l to the next */
    char* data;
    double ns;
    dovetail_face from[2], to[2];
    char *in[2][2], *out[2][2];
    int rank, size;
} part;

static double* element(const part* p, int64_t i, int64_t j, int64_t k) {
    return (double*)(p->data + i * p->rows + j * p->pitch + k * p->step);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_until(double when) {
    const struct timespec t = {(time_t)when, (long)(1e9 * (when - (double)(time_t)when))};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

/* Positions low to high - 1 of the third axis; in each axis, index 0 is what comes from before. */
static void tile(void* context, int64_t low, int64_t high) {
    const part* p = context;
    const double begin = p->ns > 0 ? now() : 0;
    if (p->m == 1) { /* two axes: rows of n in memory */
        for (int64_t k = low + 1; k <= high; k++) {
            double *row = element(p, 0, 1, k), *before = element(p, 0, 1, k - 1);
            for (int64_t i = 1; i <= p->n; i++) row[i] = before[i] + row[i - 1] - before[i - 1];
        }
    } else {
        for (int64_t i = 1; i <= p->n; i++)
            for (int64_t j = 1; j <= p->m; j++) {
                double *row = element(p, i, j, 0), *one = element(p, i - 1, j, 0), *other = element(p, i, j - 1, 0);
                for (int64_t k = low + 1; k <= high; k++) row[k] = 0.25 * (one[k] + other[k] + row[k - 1]) + 1;
            }
    }
    if (p->ns > 0) sleep_until(begin + 1e-9 * p->ns * (double)(p->n * p->m * (high - low)));
}

static int64_t size_of(const dovetail_face* face, int64_t count) { return face->rows * count * (int64_t)face->bytes; }

static void move(const dovetail_face* face, int64_t low, int64_t count, char* buffer, int into) {
    const int dense = face->stride == (ptrdiff_t)face->bytes;
    const size_t piece = face->bytes * (size_t)(dense ? count : 1);
    for (int64_t row = 0; row < face->rows; row++)
        for (int64_t x = 0; x < (dense ? 1 : count); x++, buffer += piece) {
            char* theirs = (char*)face->first + (low + x) * face->stride + row * face->apart;
            memcpy(into ? buffer : theirs, into ? theirs : buffer, piece);
        }
}

static void by_blocking(part* p, int64_t grain, int synchronous) {
    for (int64_t low = 0; low < p->l; low += grain) {
        const int64_t count = low + grain < p->l ? grain : p->l - low;
        for (int i = 0; i < 2; i++) {
            if (p->from[i].peer == MPI_PROC_NULL) continue;
            MPI_Recv(p->in[i][0], (int)size_of(p->from + i, count), MPI_BYTE, p->from[i].peer, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
            move(p->from + i, low, count, p->in[i][0], 0);
        }
        tile(p, low, low + count);
        for (int i = 0; i < 2; i++) {
            if (p->to[i].peer == MPI_PROC_NULL) continue;
            move(p->to + i, low, count, p->out[i][0], 1);
            (synchronous ? MPI_Ssend : MPI_Send)(p->out[i][0], (int)size_of(p->to + i, count), MPI_BYTE, p->to[i].peer,
                                                 0, MPI_COMM_WORLD);
        }
    }
}

static int64_t counted(const part* p, int64_t grain, int64_t step) {
    const int64_t left = p->l - step * grain;
    return left < grain ? left : grain;
}

/* In step k: the results of k - 1 are sent, those for k + 1 received, k is computed, and all is waited for. */
static void by_non_blocking(part* p, int64_t grain) {
    const int64_t steps = (p->l + grain - 1) / grain;
    for (int64_t k = -1; k <= steps; k++) {
        MPI_Request requests[4];
        int count = 0;
        for (int i = 0; i < 2; i++) {
            if (k >= 1 && p->to[i].peer != MPI_PROC_NULL) {
                move(p->to + i, (k - 1) * grain, counted(p, grain, k - 1), p->out[i][k % 2], 1);
                MPI_Isend(p->out[i][k % 2], (int)size_of(p->to + i, counted(p, grain, k - 1)), MPI_BYTE, p->to[i].peer,
                          0, MPI_COMM_WORLD, requests + count++);
            }
            if (k + 1 < steps && p->from[i].peer != MPI_PROC_NULL)
                MPI_Irecv(p->in[i][(k + 1) % 2], (int)size_of(p->from + i, counted(p, grain, k + 1)), MPI_BYTE,
                          p->from[i].peer, 0, MPI_COMM_WORLD, requests + count++);
        }
        if (k >= 0 && k < steps) tile(p, k * grain, k * grain + counted(p, grain, k));
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < 2 && k + 1 < steps; i++)
            if (p->from[i].peer != MPI_PROC_NULL)
                move(p->from + i, (k + 1) * grain, counted(p, grain, k + 1), p->in[i][(k + 1) % 2], 0);
    }
}

/* Seconds of one sweep, on the slowest rank. */
static double timed(part* p, dovetail_pipeline* pipeline, int way, int64_t grain, int sweeps) {
    double begin, mine, most;
    MPI_Barrier(MPI_COMM_WORLD);
    begin = now();
    for (int sweep = 0; sweep < sweeps; sweep++) {
        if (way == OURS) dovetail_pipeline_run(pipeline, tile, p);
        if (way == NON_BLOCKING) by_non_blocking(p, grain);
        if (way == BLOCKING || way == SYNCHRONOUS) by_blocking(p, grain, way == SYNCHRONOUS);
        double corner = *element(p, p->n, p->m, p->l) / 2; /* as in Synch_p2p, a sweep begins when the last has ended */
        MPI_Bcast(&corner, 1, MPI_DOUBLE, p->size - 1, MPI_COMM_WORLD);
    }
    mine = (now() - begin) / sweeps;
    MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static void lay(part* p, char** words) {
    const int64_t n = atoll(words[0]), m = atoll(words[1]);
    const int parts[2] = {atoi(words[3]), atoi(words[4])}, at[2] = {p->rank / parts[1], p->rank % parts[1]};
    p->l = atoll(words[2]), p->ns = atof(words[5]);
    p->n = n * (at[0] + 1) / parts[0] - n * at[0] / parts[0];
    p->m = m * (at[1] + 1) / parts[1] - m * at[1] / parts[1];
    const int flat = m == 1;
    p->step = flat ? (p->n + 1) * 8 : 8;
    p->pitch = flat ? 0 : (p->l + 1) * 8;
    p->rows = flat ? 8 : (p->m + 1) * p->pitch;
    const size_t bytes = (size_t)(flat ? (p->l + 1) * p->step : (p->n + 1) * p->rows);
    p->data = calloc(bytes, 1);
    memset(p->data, 0, bytes);
    for (int axis = 0; axis < 2; axis++) {
        const int apart = axis ? 1 : parts[1];
        const int64_t count = axis || flat ? (axis ? p->n : 1) : p->m;
        const ptrdiff_t gap = axis ? p->rows : p->pitch;
        const dovetail_face face = {MPI_PROC_NULL, NULL, 8, p->step, count, gap};
        p->from[axis] = p->to[axis] = face;
        p->from[axis].first = axis ? element(p, 1, 0, 1) : element(p, 0, 1, 1);
        p->to[axis].first = axis ? element(p, 1, p->m, 1) : element(p, p->n, 1, 1);
        if (at[axis] > 0) p->from[axis].peer = p->rank - apart;
        if (at[axis] + 1 < parts[axis]) p->to[axis].peer = p->rank + apart;
        for (int which = 0; which < 2; which++) {
            p->in[axis][which] = calloc((size_t)size_of(&face, p->l), 1);
            p->out[axis][which] = calloc((size_t)size_of(&face, p->l), 1);
        }
    }
}

static int order(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static void print_row(const dovetail_pipeline* pipeline, int way, int64_t grain, double* seconds, int rounds,
                      int first) {
    qsort(seconds, (size_t)rounds, sizeof *seconds, order);
    printf("%s{\"way\": \"%s\", \"grain\": %lld, \"median_s\": %.9g, \"least_s\": %.9g, \"most_s\": %.9g, ",
           first ? "" : ",\n ", names[way], (long long)grain, seconds[rounds / 2], seconds[0], seconds[rounds - 1]);
    printf("\"predicted_blocking_s\": %.9g, \"predicted_overlapped_s\": %.9g, \"tile_s\": %.9g}",
           dovetail_pipeline_predict(pipeline, grain, 0), dovetail_pipeline_predict(pipeline, grain, 1),
           dovetail_pipeline_tile_s(pipeline->tiles_s, grain));
}

/* The same on every rank. */
static void shuffle(int* turns, int count) {
    for (int i = count - 1; i > 0; i--) {
        const int other = rand() % (i + 1), held = turns[i];
        turns[i] = turns[other], turns[other] = held;
    }
}

int main(int argc, char** argv) {
    part p = {0};
    MPI_Init(NULL, NULL);
    prctl(PR_SET_TIMERSLACK, 1);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank), MPI_Comm_size(MPI_COMM_WORLD, &p.size);
    if (argc < 10 || atoi(argv[4]) * atoi(argv[5]) != p.size) return puts("n m l p q ns rounds sweeps grain…"), 2;
    lay(&p, argv + 1);
    const int rounds = atoi(argv[7]), sweeps = atoi(argv[8]), grains = argc - 9, items = 3 * grains + 1;
    dovetail_pipeline* pipeline = dovetail_pipeline_open(MPI_COMM_WORLD, p.l, p.from, 2, p.to, 2);
    if (!pipeline) return puts(dovetail_pipeline_error()), MPI_Abort(MPI_COMM_WORLD, 1);
    double* seconds = calloc((size_t)(items * rounds), sizeof *seconds);
    while (!dovetail_pipeline_choice(pipeline).settled) dovetail_pipeline_run(pipeline, tile, &p);
    srand(1);
    int* turns = calloc((size_t)items, sizeof *turns);
    for (int item = 0; item < items; item++) turns[item] = item;
    for (int round = 0; round < rounds; round++) {
        shuffle(turns, items); /* what a way leaves on a link meets another way each time */
        for (int turn = 0; turn < items; turn++) {
            const int item = turns[turn];
            const int64_t grain = item < items - 1 ? atoll(argv[9 + item % grains]) : 0;
            seconds[item * rounds + round] =
                timed(&p, pipeline, item < items - 1 ? item / grains : OURS, grain, sweeps);
        }
    }
    if (!p.rank) {
        printf("{\"explained\": \"%s\",\n\"rows\": [", dovetail_pipeline_explain(pipeline));
        for (int item = 0; item < items; item++)
            print_row(pipeline, item < items - 1 ? item / grains : OURS,
                      item < items - 1 ? atoll(argv[9 + item % grains]) : dovetail_pipeline_choice(pipeline).grain,
                      seconds + item * rounds, rounds, item == 0);
        puts("]}");
    }
    dovetail_pipeline_close(pipeline);
    return MPI_Finalize();
}
