/* Small programs with the communication of common applications, for whole runs with and without `dovetail accelerate`.

   ARGV: a program, and how often its main loop is repeated. Prints a number that depends on all results: it must not
   change.
   cg         conjugate gradients on a 5-point Laplacian: two sums of 8 bytes and two halo messages an iteration
   transpose  a two-dimensional spectral step: all-to-all of 4 KiB blocks, and as much computation as an FFT has
   assembly   all ranks gather 64 bytes, then a maximum of one integer, between short computations
   jacobi     halo messages alone, a sum every 100 steps: nothing to gain (control)
   pingpong   two ranks exchange messages of 1 byte to 64 KiB: nothing to gain (control)
   sweep      each collective in a row, 8 bytes to 32 KiB, as benchmarks of MPI libraries do */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

/* ---- stencils on a strip of rows ---- */

enum { WIDE = 128, ROWS = 64 };
typedef double strip[ROWS + 2][WIDE];

static void exchange(strip v) {
    const int up = rank ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(v[1], WIDE, MPI_DOUBLE, up, 1, v[ROWS + 1], WIDE, MPI_DOUBLE, down, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(v[ROWS], WIDE, MPI_DOUBLE, down, 2, v[0], WIDE, MPI_DOUBLE, up, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void laplacian(strip to, strip v) {
    exchange(v);
    for (int i = 1; i <= ROWS; ++i)
        for (int j = 1; j < WIDE - 1; ++j)
            to[i][j] = 4.01 * v[i][j] - v[i - 1][j] - v[i + 1][j] - v[i][j - 1] - v[i][j + 1];
}

static double dot(strip a, strip b) {
    double own = 0, all = 0;
    for (int i = 1; i <= ROWS; ++i)
        for (int j = 1; j < WIDE - 1; ++j) own += a[i][j] * b[i][j];
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static void add(strip to, double factor, strip a, strip b) {
    for (int i = 1; i <= ROWS; ++i)
        for (int j = 1; j < WIDE - 1; ++j) to[i][j] = a[i][j] + factor * b[i][j];
}

static double cg(long times) {
    static strip x, r, p, q;
    double now = 0;
    for (long i = 0; i < times; ++i) {
        if (i % 200 == 0) {
            memset(x, 0, sizeof x);
            for (int k = 1; k <= ROWS; ++k)
                for (int j = 1; j < WIDE - 1; ++j) r[k][j] = p[k][j] = (k * 7 + j * 3 + rank) % 11;
            now = dot(r, r);
        }
        laplacian(q, p);
        const double step = now / dot(p, q), before = now;
        add(x, step, x, p), add(r, -step, r, q);
        now = dot(r, r);
        add(p, now / before, r, p);
    }
    return dot(x, x);
}

static double jacobi(long times) {
    static strip a, b;
    double sum = 0;
    for (int k = 1; k <= ROWS; ++k)
        for (int j = 1; j < WIDE - 1; ++j) a[k][j] = (k * 7 + j * 3 + rank) % 11;
    for (long i = 0; i < times; ++i) {
        exchange(a);
        for (int k = 1; k <= ROWS; ++k)
            for (int j = 1; j < WIDE - 1; ++j) b[k][j] = (a[k - 1][j] + a[k + 1][j] + a[k][j - 1] + a[k][j + 1]) / 4;
        memcpy(a[1], b[1], sizeof(double) * ROWS * WIDE);
        if (i % 100 == 0) sum = dot(a, a);
    }
    return sum;
}

/* ---- others ---- */

static double transpose(long times) {
    enum { BLOCK = 512 };
    double* a = calloc((size_t)size * BLOCK, sizeof *a);
    double* b = calloc((size_t)size * BLOCK, sizeof *b);
    for (int i = 0; i < size * BLOCK; ++i) a[i] = (i * 13 + rank) % 17;
    for (long i = 0; i < times; ++i) {
        for (int half = BLOCK / 2; half; half /= 2)
            for (int j = 0; j < size * BLOCK; ++j) {
                const int k = j ^ half;
                if (k < j) continue;
                const double x = a[j], y = a[k];
                a[j] = 0.7071067811865476 * (x + y), a[k] = 0.7071067811865476 * (x - y);
            }
        MPI_Alltoall(a, BLOCK, MPI_DOUBLE, b, BLOCK, MPI_DOUBLE, MPI_COMM_WORLD);
        double* other = a;
        a = b, b = other;
    }
    double own = 0, all = 0;
    for (int i = 0; i < size * BLOCK; ++i) own += a[i] * (i % 5);
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static double assembly(long times) {
    double own[8], all[8 * 64], x = rank;
    for (long i = 0; i < times; ++i) {
        for (int j = 0; j < 8; ++j) own[j] = x = fmod(x * 1.37 + 0.11 * j, 3.0);
        MPI_Allgather(own, 8, MPI_DOUBLE, all, 8, MPI_DOUBLE, MPI_COMM_WORLD);
        int most = (int)(1000 * x), found;
        MPI_Allreduce(&most, &found, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        for (int j = 0; j < 8 * size; ++j) x = fmod(x + all[j], 3.0);
        x += found * 1e-3;
    }
    return x;
}

static char sent[1 << 18], got[1 << 18];

static double pingpong(long times) {
    for (int bytes = 1; rank < 2 && bytes <= 1 << 16; bytes *= 4)
        for (long i = 0; i < times; ++i) {
            if (rank == 0) MPI_Send(sent, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(got, bytes, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(sent, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
        }
    return got[0];
}

static double sweep(long times) {
    for (int count = 1; count <= 4096; count *= 8) {
        for (long i = 0; i < times; ++i) MPI_Allreduce(sent, got, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (long i = 0; i < times; ++i) MPI_Bcast(sent, count, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        for (long i = 0; i < times; ++i) MPI_Reduce(sent, got, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        for (long i = 0; i < times; ++i) MPI_Allgather(sent, count, MPI_DOUBLE, got, count, MPI_DOUBLE, MPI_COMM_WORLD);
        for (long i = 0; i < times; ++i) MPI_Alltoall(sent, count, MPI_DOUBLE, got, count, MPI_DOUBLE, MPI_COMM_WORLD);
        for (long i = 0; i < times; ++i) MPI_Barrier(MPI_COMM_WORLD);
    }
    return got[0];
}

int main(int argc, char** argv) {
    static const struct {
        const char* name;
        double (*run)(long);
    } programs[] = {{"cg", cg},         {"transpose", transpose}, {"assembly", assembly},
                    {"jacobi", jacobi}, {"pingpong", pingpong},   {"sweep", sweep}};
    if (argc < 3) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < (int)(sizeof programs / sizeof *programs); ++i)
        if (strcmp(argv[1], programs[i].name) == 0) {
            const double result = programs[i].run(atol(argv[2]));
            if (rank == 0) printf("%.17g\n", result);
        }
    MPI_Finalize();
    return 0;
}
