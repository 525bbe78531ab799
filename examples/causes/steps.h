/* What the programs of docs/causes.md share: work of some milliseconds, and the time of all steps. */
#include <mpi.h>
#include <stdio.h>

#ifndef STEPS
#define STEPS 60
#endif
static int rank, ranks;

static void work(double ms) {
    const double end = MPI_Wtime() + 1e-3 * ms;
    while (MPI_Wtime() < end) continue;
}

static inline void sum_of_all(void) {
    double mine = rank, sum;
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void step(int i);

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begun = MPI_Wtime();
    for (int i = 0; i < STEPS; ++i) step(i);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("%.6f\n", MPI_Wtime() - begun);
    MPI_Finalize();
    return 0;
}
