/* Microseconds of MPI_Allreduce of doubles, by size: a plain program for `dovetail accelerate --replace`.

   ARGV: "multiple" asks for MPI_THREAD_MULTIPLE, as mpi4py does. The second of two rounds is printed. */
#include <mpi.h>
#include <stdio.h>

enum { MOST = 1 << 18, SIZES = 7 };
static double in[MOST], out[MOST];

static double seconds_of(int count) {
    const int calls = count <= 512 ? 200000 : 10000000 / count;
    const double begun = MPI_Wtime();
    for (int i = 0; i < calls; ++i) MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return (MPI_Wtime() - begun) / calls;
}

int main(int argc, char** argv) {
    static const int counts[SIZES] = {1, 8, 64, 512, 4096, 32768, 262144};
    int given, rank;
    MPI_Init_thread(&argc, &argv, argc > 1 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < MOST; ++i) in[i] = i % 7 + rank;
    for (int round = 0; round < 2; ++round)
        for (int k = 0; k < SIZES; ++k) {
            const double seconds = seconds_of(counts[k]);
            if (rank == 0 && round) printf("%8d bytes %10.3f us\n", counts[k] * 8, 1e6 * seconds);
        }
    MPI_Finalize();
    return 0;
}
