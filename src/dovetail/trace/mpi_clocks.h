/* How wrappers of MPI calls begin and end: clocks of ranks compared in pairs, the file opened and closed. Included
   once, near the end of mpi_frame.h. */

/* ---- clocks ---- */

enum { DM_TAG = 1 };

static MPI_Comm dm_own; /* of all ranks, for the tracer's messages */
static int dm_world_rank, dm_world_size;

static int dm_mail_to(void* unused, int rank, const void* data, int num_bytes) {
    (void)unused;
    return real_Send(data, num_bytes, MPI_BYTE, rank, DM_TAG, dm_own);
}

static int dm_mail_from(void* unused, int rank, void* data, int num_bytes) {
    (void)unused;
    return real_Recv(data, num_bytes, MPI_BYTE, rank, DM_TAG, dm_own, MPI_STATUS_IGNORE);
}

static void dm_meet(void) {
    const dovetail_trace_mail mail = {dm_mail_to, dm_mail_from, NULL};
    dovetail_trace_meeting met;
    dovetail_trace_meet(dm_world_rank, dm_world_size, &mail, &met);
}

/* ---- beginning and end ---- */

static int dm_starts; /* the file is there */

static void dm_before_init(void) {
    if (!__atomic_load_n(&dm_is_ready, __ATOMIC_ACQUIRE)) dm_find();
    if (dm_starts) return;
#ifdef DM_PYTHON
    dm_find_python();
#endif
    const int code = dovetail_trace_init(NULL);
    if (code) {
        fprintf(stderr, "dovetail trace: this process is not traced: %s\n", strerror(code));
        return;
    }
    for (int i = 0; i < NUM_CALLS; ++i) dm_name[i] = dovetail_trace_name(dm_table[i].name + 1);
    dm_starts = 1;
}

/* Ranks without a trace meet the others too, who would wait for them: one host's disk may be full. */
static void dm_after_init(void) {
    real_Comm_rank(MPI_COMM_WORLD, &dm_world_rank);
    real_Comm_size(MPI_COMM_WORLD, &dm_world_size);
    real_Comm_group(MPI_COMM_WORLD, &dm_world_group);
    dm_has_world = 1;
    dm_check_statuses();
    dovetail_trace_rank(dm_world_rank, dm_world_size);
    dm_define_comm(MPI_COMM_WORLD);
    dm_define_comm(MPI_COMM_SELF);
    dm_inside = 1;
    real_Comm_dup(MPI_COMM_WORLD, &dm_own);
    dm_meet();
    dm_inside = 0;
    dm_is_tracing = dm_starts;
}

static void dm_after_session(void) {
    dm_check_statuses();
    dm_is_tracing = dm_starts;
}

static void dm_before_finalize(void) {
    if (!dm_has_world) return;
    dm_inside = 1;
    dm_meet();
    real_Comm_free(&dm_own);
    real_Group_free(&dm_world_group);
    dm_inside = 0;
    dm_has_world = 0;
}

static void dm_after_finalize(void) {
    if (!dm_starts) return;
    dm_is_tracing = dm_starts = 0;
    dovetail_trace_finalize();
}
