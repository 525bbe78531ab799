/* Laplace's equation in two dimensions by Jacobi's method, rows shared out; `jacobi_folded N STEPS FOLD` exchanges FOLD
   rows with each neighbour every FOLD steps, and computes the rows between twice. Prints a sum, the same for every
   FOLD.

       mpicc -O2 -g examples/jacobi_folded.c -o jacobi
       dovetail trace run -o before -- mpirun -n 2 ./jacobi 512 200 1
       dovetail trace run -o after -- mpirun -n 2 ./jacobi 512 200 2
       dovetail trace view before after -o both.html */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int n, rows, fold, rank, size;
static double *now, *next;

static double* row(double* grid, int i) { return grid + (size_t)(i + fold) * (size_t)n; } /* -fold <= i < rows + fold */

static void exchange(void) {
    const int up = rank ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < size ? rank + 1 : MPI_PROC_NULL, many = fold * n;
    MPI_Sendrecv(row(now, 0), many, MPI_DOUBLE, up, 0, row(now, rows), many, MPI_DOUBLE, down, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(row(now, rows - fold), many, MPI_DOUBLE, down, 1, row(now, -fold), many, MPI_DOUBLE, up, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* One step on this rank's rows and `wider` more on either side; the border of the whole stays. */
static void step(int wider) {
    const int first = rank ? -wider : 1, last = rank + 1 < size ? rows + wider : rows - 1;
    for (int i = first; i < last; ++i)
        for (int j = 1; j < n - 1; ++j)
            row(next, i)[j] =
                0.25 * (row(now, i)[j - 1] + row(now, i)[j + 1] + row(now, i - 1)[j] + row(now, i + 1)[j]);
    double* old = now;
    now = next, next = old;
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    n = argc > 1 ? atoi(argv[1]) : 512;
    const int steps = argc > 2 ? atoi(argv[2]) : 200;
    fold = argc > 3 ? atoi(argv[3]) : 1;
    rows = n / size;
    if (fold < 1 || rows < fold || n % size || steps % fold) MPI_Abort(MPI_COMM_WORLD, 2);
    now = calloc((size_t)(rows + 2 * fold) * (size_t)n, sizeof *now);
    next = calloc((size_t)(rows + 2 * fold) * (size_t)n, sizeof *next);
    for (int j = 0; j < n && rank == 0; ++j) row(now, 0)[j] = row(next, 0)[j] = 1;
    for (int k = 0; k < steps; ++k) {
        if (k % fold == 0) exchange();
        step(fold - 1 - k % fold);
    }
    double mine = 0, sum;
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < n; ++j) mine += row(now, i)[j];
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%.10f\n", sum);
    MPI_Finalize();
    return 0;
}
