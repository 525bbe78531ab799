/* Is a replaced collective faster, in the very same process? Under `dovetail accelerate --replace`, MPI_X may be
   replaced and PMPI_X is the library's own.

   For each kind and size: MPI_X for a while, in which the guard learns; then blocks of PMPI_X and of MPI_X,
   alternating, so that both meet the machine in the same state. Each block begins and ends at the exit of a call.
   Prints a JSON object a line: microseconds of a call, medians, and the ratio with its quartiles. Without the command
   all ratios are 1.

   ARGV: "multiple" asks for MPI_THREAD_MULTIPLE, as mpi4py does; then seconds of learning, and a word of rows: "all",
   or a kind. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 18, PAIRS = 60 };
static double in[MOST], out[MOST];
static int size, rank;

typedef enum { ALLREDUCE, ALLGATHER, ALLTOALL, BARRIER } kind;
static const char* const names[] = {"Allreduce", "Allgather", "Alltoall", "Barrier"};
static const struct {
    kind kind;
    int count; /* doubles: of a rank, or of a block */
} rows[] = {{ALLREDUCE, 1},    {ALLREDUCE, 8},     {ALLREDUCE, 64},   {ALLREDUCE, 512},
            {ALLREDUCE, 4096}, {ALLREDUCE, 32768}, {ALLREDUCE, MOST}, {ALLGATHER, 1},
            {ALLGATHER, 128},  {ALLTOALL, 1},      {ALLTOALL, 128},   {BARRIER, 0}};

static void one(int row, int is_plain) {
    const int count = rows[row].count;
    switch (rows[row].kind * 2 + is_plain) {
        case ALLREDUCE * 2:
            MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            break;
        case ALLREDUCE * 2 + 1:
            PMPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            break;
        case ALLGATHER * 2:
            MPI_Allgather(in, count, MPI_DOUBLE, out, count, MPI_DOUBLE, MPI_COMM_WORLD);
            break;
        case ALLGATHER * 2 + 1:
            PMPI_Allgather(in, count, MPI_DOUBLE, out, count, MPI_DOUBLE, MPI_COMM_WORLD);
            break;
        case ALLTOALL * 2:
            MPI_Alltoall(in, count, MPI_DOUBLE, out, count, MPI_DOUBLE, MPI_COMM_WORLD);
            break;
        case ALLTOALL * 2 + 1:
            PMPI_Alltoall(in, count, MPI_DOUBLE, out, count, MPI_DOUBLE, MPI_COMM_WORLD);
            break;
        case BARRIER * 2:
            MPI_Barrier(MPI_COMM_WORLD);
            break;
        default:
            PMPI_Barrier(MPI_COMM_WORLD);
            break;
    }
}

static double seconds_of(int row, int is_plain, long calls) {
    const double begun = MPI_Wtime();
    for (long i = 0; i < calls; ++i) one(row, is_plain);
    return MPI_Wtime() - begun;
}

/* Returns the number of calls that last this long, the same on all ranks. */
static long calls_of(int row, double seconds) {
    long calls = 1;
    double took = 0;
    for (; took < 2e-3 && calls < 1 << 20; calls *= 2) {
        took = seconds_of(row, 1, calls);
        PMPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    }
    const double wanted = seconds * (double)calls / 2 / took;
    return wanted < 2 ? 2 : (long)wanted;
}

static int compare(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static void measure(int row, double learning) {
    double plain[PAIRS], ours[PAIRS], ratio[PAIRS];
    const long calls = calls_of(row, 2e-3);
    seconds_of(row, 0, calls_of(row, learning));
    for (int i = 0; i < PAIRS; ++i) {
        if (i % 2) ours[i] = seconds_of(row, 0, calls);
        plain[i] = seconds_of(row, 1, calls);
        if (i % 2 == 0) ours[i] = seconds_of(row, 0, calls);
        ratio[i] = ours[i] / plain[i];
    }
    qsort(plain, PAIRS, sizeof *plain, compare), qsort(ours, PAIRS, sizeof *ours, compare);
    qsort(ratio, PAIRS, sizeof *ratio, compare);
    const double scale = 1e6 / (double)calls;
    if (rank == 0)
        printf(
            "{\"call\": \"%s\", \"bytes\": %d, \"library_us\": %.4f, \"us\": %.4f, \"ratio\": %.3f, \"low\": %.3f, "
            "\"high\": %.3f}\n",
            names[rows[row].kind], rows[row].count * 8, plain[PAIRS / 2] * scale, ours[PAIRS / 2] * scale,
            ratio[PAIRS / 2], ratio[PAIRS / 4], ratio[PAIRS - 1 - PAIRS / 4]);
    fflush(stdout);
}

int main(int argc, char** argv) {
    int given;
    const int is_multiple = argc > 1 && strcmp(argv[1], "multiple") == 0;
    const double learning = argc > 2 ? atof(argv[2]) : 0.5;
    const char* only = argc > 3 ? argv[3] : "all";
    MPI_Init_thread(&argc, &argv, is_multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < MOST; ++i) in[i] = i % 7 + rank;
    for (int row = 0; row < (int)(sizeof rows / sizeof *rows); ++row)
        if (strcmp(only, "all") == 0 || strcmp(only, names[rows[row].kind]) == 0) measure(row, learning);
    MPI_Finalize();
    return 0;
}
