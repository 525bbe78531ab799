/* The functions of mpi_table.h, by MPI: compiled with the user's mpicc, loaded by the ranks. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "mpi_comm.h"
#include "mpi_types.h"

static int dt_setup(int* provided, int* is_main, dt_reduce_fn reduce) {
    int code;
    if ((code = MPI_Query_thread(provided))) return code;
    if ((code = MPI_Is_thread_main(is_main))) return code;
    if ((code = dt_make_types(reduce))) return code;
    return dt_watch();
}

static int dt_init(int* level, dt_reduce_fn reduce, dt_comm** world) {
    const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    int code, ready, is_main;
    int* const provided = level;
    if ((code = MPI_Initialized(&ready))) return code;
    if (!ready && (code = MPI_Init_thread(NULL, NULL, levels[*level & 3], provided))) return code;
    if ((code = dt_setup(provided, &is_main, reduce))) return code;
    return dt_duplicate(MPI_COMM_WORLD, world);
}

static int dt_finalize(void) {
    int done;
    MPI_Finalized(&done);
    return done ? 0 : MPI_Finalize();
}

static void dt_abort(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

static void dt_library(char* text, int size) {
    char full[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(full, &length);
    full[strcspn(full, "\n,")] = 0;
    snprintf(text, (size_t)size, "%s", full);
}

static void dt_error_text(int code, char* text, int size) {
    char full[MPI_MAX_ERROR_STRING] = "the message has another size than its receive";
    int length;
    if (code != DT_OTHER_SIZE) MPI_Error_string(code, full, &length);
    snprintf(text, (size_t)size, "%s", full);
}

const dt_mpi_table dovetail_mpi_table = {
    .version = DOVETAIL_MPI_TABLE_VERSION,
    .init = dt_init,
    .finalize = dt_finalize,
    .setup = dt_setup,
    .adopt = dt_adopt,
    .find = dt_find,
    .release = dt_release,
    .rank = dt_rank,
    .size = dt_size,
    .isend = dt_isend,
    .irecv = dt_irecv,
    .group = dt_group,
    .icollective = dt_icollective,
    .icollective_v = dt_icollective_v,
    .collective = dt_collective,
    .collective_v = dt_collective_v,
    .test = dt_test,
    .cancel = dt_cancel,
    .abort = dt_abort,
    .library = dt_library,
    .error_text = dt_error_text,
};
