/* The pipeline of the Parallel Research Kernels on dovetail_pipeline: columns on ranks, rows in order; built by
 *     mpicc -O2 -I DIR sync_p2p.c DIR/pipeline_*.c     # DIR: what `python -m dovetail.call.pipeline` prints */
#include <dovetail_pipeline.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 400, COLUMNS = 300, SWEEPS = 5 };
static double (*grid)[COLUMNS + 1]; /* row by row: the column of the rank before, then as many as this rank has */
static int columns;

static void tile(void* context, int64_t low, int64_t high) {
    for (int64_t i = low ? low : 1; i < high; i++)
        for (int j = *(int*)context; j <= columns; j++)
            grid[i][j] = grid[i - 1][j] + grid[i][j - 1] - grid[i - 1][j - 1];
}

int main(void) {
    int rank, size, first, last;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
    first = COLUMNS * rank / size, last = COLUMNS * (rank + 1) / size, columns = last - first;
    grid = calloc(ROWS, sizeof *grid);
    for (int i = 0; i < ROWS && !rank; i++) grid[i][1] = i;
    for (int j = 0; j <= columns; j++) grid[0][j] = first + j - 1;

    dovetail_face before = {rank ? rank - 1 : MPI_PROC_NULL, &grid[0][0], sizeof(double), sizeof *grid, 1, 0};
    dovetail_face after = {
        rank + 1 < size ? rank + 1 : MPI_PROC_NULL, &grid[0][columns], sizeof(double), sizeof *grid, 1, 0};
    dovetail_pipeline* pipeline = dovetail_pipeline_open(MPI_COMM_WORLD, ROWS, &before, 1, &after, 1);
    if (!pipeline) return puts(dovetail_pipeline_error()), MPI_Abort(MPI_COMM_WORLD, 1);
    for (int sweep = 0, from = rank ? 1 : 2; sweep < SWEEPS; sweep++) {
        dovetail_pipeline_run(pipeline, tile, &from);
        double corner = -grid[ROWS - 1][columns];
        MPI_Bcast(&corner, 1, MPI_DOUBLE, size - 1, MPI_COMM_WORLD);
        if (!rank) grid[0][1] = corner;
        if (rank == 0) printf("sweep %d: corner %g, %d expected\n", sweep, -corner, (sweep + 1) * (ROWS + COLUMNS - 2));
    }
    if (!rank) puts(dovetail_pipeline_explain(pipeline));
    dovetail_pipeline_close(pipeline);
    return MPI_Finalize();
}
