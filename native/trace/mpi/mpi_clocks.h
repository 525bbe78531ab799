/* Begin and end of tracing MPI calls: opens and closes the file, and compares the ranks' clocks. Included once, near
   the end of mpi_frame.h. */

/* ---- clocks ---- */

enum { DM_TAG = 1 };

static MPI_Comm dm_own; /* all ranks, for the tracer's messages only */
static int dm_world_rank, dm_world_size;

/* Waits until a request is complete. Yields the core between polls, because the rank that must answer may need it;
   after `looks_before_naps` polls, sleeps between polls. */
static int dm_finish(MPI_Request* request, int looks_before_naps) {
    const struct timespec nap = {0, 50000};
    for (int over = 0, looks = 0;;) {
        const int code = real_Test(request, &over, MPI_STATUS_IGNORE);
        if (code || over) return code;
        if (looks < looks_before_naps)
            ++looks, sched_yield();
        else
            nanosleep(&nap, NULL);
    }
}

enum { DM_LOOKS = 20000 }; /* polls without sleep: a few milliseconds */

static int dm_mail_to(void* unused, int rank, const void* data, int num_bytes) {
    (void)unused;
    MPI_Request request;
    const int code = real_Isend(data, num_bytes, MPI_BYTE, rank, DM_TAG, dm_own, &request);
    return code ? code : dm_finish(&request, DM_LOOKS);
}

static int dm_mail_from(void* unused, int rank, void* data, int num_bytes) {
    (void)unused;
    MPI_Request request;
    const int code = real_Irecv(data, num_bytes, MPI_BYTE, rank, DM_TAG, dm_own, &request);
    return code ? code : dm_finish(&request, DM_LOOKS);
}

static void dm_meet(void) {
    const dovetail_trace_mail mail = {dm_mail_to, dm_mail_from, NULL};
    dovetail_trace_meeting met;
    MPI_Request all;
    if (!dovetail_trace_meet(dm_world_rank, dm_world_size, &mail, &met) && !real_Ibarrier(dm_own, &all))
        dm_finish(&all, 0); /* no rank continues, and uses cores, while others still compare clocks */
}

/* ---- beginning and end ---- */

static int dm_starts; /* the trace's file is open */

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

/* The library, and the level of thread support that it was started at: a note, for these decide what calls take. */
static void dm_note_library(void) {
    const int codes[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    const char* const levels[] = {"single", "funneled", "serialized", "multiple"};
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "", line[MPI_MAX_LIBRARY_VERSION_STRING + 64];
    int level = 0, length = 0, found = 0;
    real_Query_thread(&level);
    real_Get_library_version(library, &length);
    library[strcspn(library, "\n,\"\\")] = 0;
    for (char* c = library; *c; ++c)
        if ((unsigned char)*c < ' ') *c = ' ';
    while (found < 3 && codes[found] != level) ++found;
    snprintf(line, sizeof line, "{\"library\": \"%s\", \"thread_level\": \"%s\"}", library, levels[found]);
    dovetail_trace_note(line);
}

/* Ranks that are not traced, for example because of a full disk, compare clocks, too: other ranks wait for them. */
static void dm_after_init(void) {
    real_Comm_rank(MPI_COMM_WORLD, &dm_world_rank);
    real_Comm_size(MPI_COMM_WORLD, &dm_world_size);
    real_Comm_group(MPI_COMM_WORLD, &dm_world_group);
    dm_has_world = 1;
    dm_check_statuses();
    dovetail_trace_rank(dm_world_rank, dm_world_size);
    if (dm_starts) dm_note_library();
    dm_define_comm(MPI_COMM_WORLD);
    dm_define_comm(MPI_COMM_SELF);
    real_Comm_dup(MPI_COMM_WORLD, &dm_own);
    dm_meet();
    dm_is_tracing = dm_starts;
}

static void dm_after_session(void) {
    dm_check_statuses();
    dm_is_tracing = dm_starts;
}

static void dm_before_finalize(void) {
    const int inside = dm_inside;
    if (!dm_has_world) return;
    dm_inside = 1;
    dm_meet();
    real_Comm_free(&dm_own);
    real_Group_free(&dm_world_group);
    dm_inside = inside;
    dm_has_world = 0;
}

static void dm_after_finalize(void) {
    if (!dm_starts) return;
    dm_is_tracing = dm_starts = 0;
    dovetail_trace_finalize();
}
