// Jacobi's step as one writes it by hand: a slab of the first axis on each rank, a row (a plane) of ghosts either way.
//
//     mpiexec -n 2 jacobi 2|3 N STEPS blocking|nonblocking     seconds of a step, and the sum of what came out
//     mpiexec -n 2 jacobi triad BYTES                          bytes a second that the ranks stream together
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5 };

static long n, plane, rows;  // points of a row; of a plane of the first axis; planes of this rank
static int rank, size, up, down;

static void sendrecv(float* u) {
    MPI_Sendrecv(u + plane, plane, MPI_FLOAT, up, 0, u + plane * (rows + 1), plane, MPI_FLOAT, down, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(u + plane * rows, plane, MPI_FLOAT, down, 0, u, plane, MPI_FLOAT, up, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

static void begin(float* u, MPI_Request* requests) {
    MPI_Irecv(u, plane, MPI_FLOAT, up, 0, MPI_COMM_WORLD, requests);
    MPI_Irecv(u + plane * (rows + 1), plane, MPI_FLOAT, down, 0, MPI_COMM_WORLD, requests + 1);
    MPI_Isend(u + plane, plane, MPI_FLOAT, up, 0, MPI_COMM_WORLD, requests + 2);
    MPI_Isend(u + plane * rows, plane, MPI_FLOAT, down, 0, MPI_COMM_WORLD, requests + 3);
}

static void step(const float* restrict u, float* restrict v, long low, long high) {
    if (plane == n) {
        for (long i = low; i <= high; ++i)
            for (long j = 1; j < n - 1; ++j) {
                const float* p = u + i * n + j;
                v[i * n + j] = 0.25f * (p[-n] + p[n] + p[-1] + p[1]);
            }
    } else {
        for (long i = low; i <= high; ++i)
            for (long j = 1; j < n - 1; ++j)
                for (long k = 1; k < n - 1; ++k) {
                    const float* p = u + i * plane + j * n + k;
                    v[i * plane + j * n + k] = (p[-plane] + p[plane] + p[-n] + p[n] + p[-1] + p[1]) * (float)(1.0 / 6);
                }
    }
}

static void fill(float* u, long planes) {
    for (long i = 0; i < planes * plane; ++i) {
        const long at = i + (rank * rows - 1) * plane;  // on every rank the same at the same point
        u[i] = at < 0 ? 0 : (float)(at * 7919 % 1000) / 1000;
    }
}

static void jacobi(long steps, int overlapped) {
    float *u = malloc(sizeof(float) * plane * (rows + 2)), *v = malloc(sizeof(float) * plane * (rows + 2));
    const long low = rank ? 1 : 2, high = rank < size - 1 ? rows : rows - 1;
    double best = 1e30, sum = 0, all;
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
        fill(u, rows + 2), memcpy(v, u, sizeof(float) * plane * (rows + 2));
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        for (long s = 0; s < steps; ++s) {
            if (overlapped) {
                MPI_Request requests[4];
                begin(u, requests);
                step(u, v, 2, rows - 1);
                MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
                if (low == 1) step(u, v, 1, 1);
                if (high == rows) step(u, v, rows, rows);
            } else {
                sendrecv(u);
                step(u, v, low, high);
            }
            float* const swapped = u;
            u = v, v = swapped;
        }
        MPI_Barrier(MPI_COMM_WORLD);
        const double taken = MPI_Wtime() - start;
        best = taken < best ? taken : best;
    }
    for (long i = 0; i < rows * plane; ++i) sum += u[plane + i];
    MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf("%.9e %.12e\n", best / steps, all);
    free(u), free(v);
}

static void triad(long bytes) {
    const long count = bytes / 12;
    float *a = malloc(4 * count), *b = malloc(4 * count), *c = malloc(4 * count);
    for (long i = 0; i < count; ++i) a[i] = 0, b[i] = i, c[i] = 1;
    double best = 1e30;
    for (int repeat = 0; repeat < 2 * REPEATS; ++repeat) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        for (long i = 0; i < count; ++i) a[i] = b[i] + 3.0f * c[i];
        MPI_Barrier(MPI_COMM_WORLD);
        const double taken = MPI_Wtime() - start;
        best = taken < best ? taken : best;
    }
    if (!rank) printf("%.9e %.12e\n", size * 16.0 * count / best, (double)a[count / 2]);  // a is read before written
}

int main(int count, char** words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (!strcmp(words[1], "triad")) {
        triad(atol(words[2]));
    } else {
        n = atol(words[2]), plane = atoi(words[1]) == 2 ? n : n * n, rows = n / size;
        up = rank ? rank - 1 : MPI_PROC_NULL, down = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
        jacobi(atol(words[3]), !strcmp(words[4], "nonblocking"));
    }
    return MPI_Finalize();
}
