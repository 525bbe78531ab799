/* How wrappers of MPI calls begin and end: clocks of ranks compared in pairs, the file opened and closed. Included
   once, at the end of mpi_frame.h. */

/* ---- clocks ---- */

enum { DM_TRIPS = 20, DM_GOOD_NS = 100000, DM_MEET_NS = 200000000, DM_TAG = 1 };

static MPI_Comm dm_own; /* of all ranks, for the tracer's messages */
static int dm_world_rank, dm_world_size;

static int64_t dm_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Round trips with the rank above in the tree; the shortest tells how the clocks differ. On a busy machine it takes
   more of them until one is not held up. */
static void dm_ask_time(int above) {
    int64_t best = INT64_MAX, mine = 0, theirs = 0, answer = 0;
    const int64_t start = dm_now_ns();
    for (int i = 0, goes_on = 1; goes_on; ++i) {
        const int64_t before = dm_now_ns();
        goes_on = (i + 1 < DM_TRIPS || best > DM_GOOD_NS) && before - start < DM_MEET_NS;
        real_Send(&goes_on, (int)sizeof goes_on, MPI_BYTE, above, DM_TAG, dm_own);
        real_Recv(&answer, (int)sizeof answer, MPI_BYTE, above, DM_TAG, dm_own, MPI_STATUS_IGNORE);
        const int64_t after = dm_now_ns();
        if (after - before >= best) continue;
        best = after - before, mine = before + best / 2, theirs = answer;
    }
    char line[160];
    snprintf(line, sizeof line, "{\"clock\": {\"mine_ns\": %lld, \"peer_ns\": %lld, \"half_trip_ns\": %lld}}",
             (long long)mine, (long long)theirs, (long long)(best + 1) / 2);
    dovetail_trace_note(line);
}

static void dm_tell_time(int below) {
    for (int goes_on = 1; goes_on;) {
        real_Recv(&goes_on, (int)sizeof goes_on, MPI_BYTE, below, DM_TAG, dm_own, MPI_STATUS_IGNORE);
        const int64_t now = dm_now_ns();
        real_Send(&now, (int)sizeof now, MPI_BYTE, below, DM_TAG, dm_own);
    }
}

static void dm_meet(void) {
    for (int bit = 1; bit < dm_world_size; bit *= 2) {
        if (dm_world_rank & bit) {
            dm_ask_time(dm_world_rank - bit);
            return;
        }
        if (dm_world_rank + bit < dm_world_size) dm_tell_time(dm_world_rank + bit);
    }
}

/* ---- beginning and end ---- */

static int dm_starts; /* the file is there */

static void dm_before_init(void) {
    if (!__atomic_load_n(&dm_is_ready, __ATOMIC_ACQUIRE)) dm_find();
    if (dm_starts) return;
    const int code = dovetail_trace_init(NULL);
    if (code) {
        fprintf(stderr, "dovetail trace: this process is not traced: %s\n", strerror(code));
        return;
    }
    for (int i = 0; i < NUM_CALLS; ++i) dm_name[i] = dovetail_trace_name(dm_table[i].name + 1);
    dm_starts = 1;
}

static void dm_after_init(void) {
    if (!dm_starts) return;
    real_Comm_rank(MPI_COMM_WORLD, &dm_world_rank);
    real_Comm_size(MPI_COMM_WORLD, &dm_world_size);
    real_Comm_group(MPI_COMM_WORLD, &dm_world_group);
    dm_has_world = 1;
    dovetail_trace_rank(dm_world_rank, dm_world_size);
    dm_define_comm(MPI_COMM_WORLD);
    dm_define_comm(MPI_COMM_SELF);
    dm_inside = 1;
    real_Comm_dup(MPI_COMM_WORLD, &dm_own);
    dm_meet();
    dm_inside = 0;
    dm_is_tracing = 1;
}

static void dm_after_session(void) { dm_is_tracing = dm_starts; }

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
