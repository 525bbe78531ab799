/* Counts MPI calls: how many, how long, by call, size of the communicator and log2 of the bytes. Included once by the
   generated wrappers, after the pointers `real_X` and their table `dm_table`; NUM_CALLS is the number of wrappers.

   At MPI_Finalize each process writes a JSON file to $DOVETAIL_ACCELERATE_DIR. Unless it replaces calls (replace.h), it
   calls no MPI of its own but questions that need no other rank. */
#define DM_WHO "dovetail accelerate"
static __thread int dm_inside __attribute__((tls_model("initial-exec")));
static void dm_only_fortran(int number);

#include "../trace/clock.h"
#include "arrivals.h"
#include "mpi_data.h"

enum { DC_ROWS = 4096, DC_NONE = -1 };

typedef struct {
    int64_t num_bytes;
    int comm_size;          /* 0: not a collective */
    int is_world, is_joint; /* on MPI_COMM_WORLD; no rank can leave the call before all have entered it */
} dc_call;

typedef struct {
    uint64_t key; /* 0: free */
    uint64_t calls, ticks;
    uint64_t sampled, sampled_ticks, waited_ticks; /* of calls whose last rank's arrival is known */
} dc_row;

typedef struct { /* of a call that looks whether something is over */
    uint64_t timed, untimed;
    int32_t left; /* calls until the next that is timed; below 0 if threads count down at once */
} dc_look;

static struct {
    dc_row row[DC_ROWS];
    dc_look look[NUM_CALLS];
    int is_threaded; /* several threads may call MPI */
    int64_t begun_ns, ended_ns;
    uint64_t begun, ended; /* by the event clock */
    int rank, size, is_written;
} dc;

/* ---- what a call moves: the words of the table of calls ---- */

/* MPI_COMM_WORLD's ranks are known: no call asks for them. */
static inline int dc_size_of(MPI_Comm comm) { return comm == MPI_COMM_WORLD ? dc.size : dm_group_size(comm); }
static inline int dc_peers(MPI_Comm comm) { return comm == MPI_COMM_WORLD ? dc.size : dm_peers(comm); }
static inline int dc_is_root(int root, MPI_Comm comm) {
    return comm == MPI_COMM_WORLD ? dc.rank == root : dm_is_root(root, comm);
}
#define dm_peers dc_peers
#define dm_is_root dc_is_root

static inline void dc_moves(dc_call* call, int64_t num_bytes) {
    if (num_bytes > call->num_bytes) call->num_bytes = num_bytes;
}

static inline void dc_collective(dc_call* call, int64_t sent, int64_t received, MPI_Comm comm) {
    dc_moves(call, sent), dc_moves(call, received);
    call->is_world = comm == MPI_COMM_WORLD;
    call->comm_size = dc_size_of(comm);
}

#define dm_send(num_bytes, dest, tag, comm) dc_moves(&call, num_bytes)
#define dm_recv(num_bytes, source, tag, comm) dc_moves(&call, num_bytes)
#define dm_one_sided(kind, num_bytes, target, win) dc_moves(&call, num_bytes)
#define dm_collective(sent, received, comm) dc_collective(&call, sent, received, comm)
#define dm_root(root) (void)(root)
#define dm_sample(from, count, datatype) (void)(from)
#define dm_sample_sent(from, count, datatype) (void)(from)
#define DM_TO_NEAR(each, sent, received, comm) dm_collective(sent, received, comm)
#define DM_FROM_NEAR(each, comm) (void)(comm)
#define dm_define_window(win) (void)(win)
#define dm_forget_window(win) (void)(win)

/* ---- counting ---- */

/* Returns log2 of the bytes, rounded down; DC_NONE for no bytes. */
static inline int dc_log2(int64_t num_bytes) {
    return num_bytes > 0 ? 63 - __builtin_clzll((unsigned long long)num_bytes) : DC_NONE;
}

__attribute__((noinline)) static dc_row* dc_add_row(uint64_t key, uint64_t at) {
    dc_row* found = NULL;
    pthread_mutex_lock(&dm_lock);
    for (int i = 0; i < DC_ROWS && !found; ++i, at = (at + 1) % DC_ROWS) {
        if (dc.row[at].key && dc.row[at].key != key) continue;
        __atomic_store_n(&dc.row[at].key, key, __ATOMIC_RELEASE);
        found = &dc.row[at];
    }
    pthread_mutex_unlock(&dm_lock);
    return found;
}

static inline dc_row* dc_find(int number, const dc_call* call) {
    const uint64_t key = (uint64_t)(number + 1) << 40 | (uint64_t)(uint32_t)call->comm_size << 8 |
                         (uint64_t)(dc_log2(call->num_bytes) + 1);
    const uint64_t at = key * 0x9E3779B97F4A7C15u >> 52;
    if (DM_LIKELY(__atomic_load_n(&dc.row[at].key, __ATOMIC_ACQUIRE) == key)) return &dc.row[at];
    return dc_add_row(key, at);
}

static inline void dc_add(uint64_t* sum, uint64_t more) {
    if (dc.is_threaded)
        __atomic_fetch_add(sum, more, __ATOMIC_RELAXED);
    else
        *sum += more;
}

static inline uint64_t dc_begin(const dc_call* call, uint64_t* arrival) {
    dm_inside = 1;
    dm_came_to_c = 1;
    const uint64_t now = da_clock();
    *arrival = call->is_joint && call->is_world && call->comm_size > 1 ? da_arrive(now) : 0;
    return now;
}

static inline void dc_end(int number, const dc_call* call, uint64_t begun, uint64_t arrival) {
    const uint64_t took = da_clock() - begun;
    dc_row* row = dc_find(number, call);
    dm_inside = 0;
    if (!row) return;
    dc_add(&row->calls, 1), dc_add(&row->ticks, took);
    uint64_t waited;
    if (DM_LIKELY(!arrival) || !da_waited(arrival, begun, took, &waited)) return;
    dc_add(&row->sampled, 1), dc_add(&row->sampled_ticks, took), dc_add(&row->waited_ticks, waited);
}

/* ---- calls that look whether something is over ---- */

/* Programs make millions of them while they wait. Reading the clock would take longer than all else, so that after the
   first calls it is read for one in DC_LOOKS on average, at random; the others are counted. */
enum { DC_LOOKS = 16, DC_FIRST_LOOKS = 64 };

/* Returns the time, or 0 for a call that is not timed. */
static inline uint64_t dc_begin_look(int number) {
    dc_look* look = &dc.look[number];
    dm_inside = 1;
    dm_came_to_c = 1;
    if (DM_LIKELY(look->left > 0)) {
        --look->left;
        dc_add(&look->untimed, 1);
        return 0;
    }
    return da_clock();
}

static inline void dc_end_look(int number, uint64_t begun) {
    dm_inside = 0;
    if (DM_LIKELY(!begun)) return;
    const uint64_t took = da_clock() - begun;
    const dc_call call = {0, 0, 0, 0};
    dc_look* look = &dc.look[number];
    dc_row* row = dc_find(number, &call);
    if (!row) return;
    dc_add(&row->calls, 1), dc_add(&row->ticks, took), dc_add(&look->timed, 1);
    if (look->timed >= DC_FIRST_LOOKS) look->left = (int32_t)((begun * 0x9E3779B97F4A7C15u >> 32) % (2 * DC_LOOKS - 1));
}

/* Counts a call from Fortran for which the library calls no C function: its time is in the library's. */
static void dm_only_fortran(int number) {
    const dc_call call = {0, 0, 0, 0};
    dc_row* row = dc_find(number, &call);
    if (row) dc_add(&row->calls, 1);
}

/* Writes one line of text without characters that JSON escapes. */
static void dc_text(FILE* file, const char* text) {
    for (; *text && *text != '\n'; ++text)
        if (*text >= ' ' && *text != '"' && *text != '\\') fputc(*text, file);
}

#include "readback.h"
#include "replace.h"
#include "replaced_report.h"

/* ---- begin and end ---- */

static void dc_after_init(void) {
    int level = 0;
    real_Query_thread(&level);
    dc.is_threaded = level == MPI_THREAD_MULTIPLE;
    real_Comm_rank(MPI_COMM_WORLD, &dc.rank);
    real_Comm_size(MPI_COMM_WORLD, &dc.size);
    MPI_Comm parent = MPI_COMM_NULL;
    real_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL) da_begin(dc.size); /* spawned ranks have other parents' numbers */
    if (dx_begin()) da_join(dc.rank, getenv("DOVETAIL_ACCELERATE_REPLACE"), getenv("DOVETAIL_ACCELERATE_START"));
    dk_begin();
    dc.begun = da_clock(), dc.begun_ns = dvt_system_ns(CLOCK_MONOTONIC);
    dm_is_tracing = 1;
}

static void dc_write_rows(FILE* file, double tick_s) {
    const char* comma = "";
    const double most = (double)(dc.ended - dc.begun);
    for (int i = 0; i < DC_ROWS; ++i) {
        const dc_row* row = &dc.row[i];
        if (!row->key) continue;
        const dc_look* look = &dc.look[(row->key >> 40) - 1];
        const double all = look->untimed ? 1 + (double)look->untimed / (double)look->timed : 1;
        double ticks = (double)row->ticks * all;
        if (!dc.is_threaded && look->untimed && ticks > most) ticks = most; /* a long pause may fall on a timed look */
        fprintf(file, "%s\n  [\"%s\", %d, %d, %llu, %.9g, %llu, %.9g, %.9g]", comma,
                dm_table[(row->key >> 40) - 1].name + 5, (int)(row->key >> 8), (int)(row->key & 255) - 1,
                (unsigned long long)(row->calls + look->untimed), ticks * tick_s, (unsigned long long)row->sampled,
                (double)row->sampled_ticks * tick_s, (double)row->waited_ticks * tick_s);
        comma = ",";
    }
}

static void dc_write(const char* library) {
    const char* folder = getenv("DOVETAIL_ACCELERATE_DIR");
    char path[4096], partial[4096], host[128] = "host";
    gethostname(host, sizeof host - 1);
    if (!folder || snprintf(path, sizeof path, "%s/%s-%d.json", folder, host, (int)getpid()) >= (int)sizeof path - 8)
        return;
    snprintf(partial, sizeof partial, "%.4080s.part", path);
    FILE* file = fopen(partial, "w");
    if (!file) {
        fprintf(stderr, DM_WHO ": cannot write %s: the calls of this process are not in the report\n", partial);
        return;
    }
    const double elapsed_s = 1e-9 * (double)(dc.ended_ns - dc.begun_ns);
    fprintf(file, "{\"schema\": \"dovetail.accelerate.counts/3\", \"library\": \"");
    dc_text(file, library);
    fprintf(file, "\", \"host\": \"");
    dc_text(file, host);
    fprintf(file, "\", \"rank\": %d, \"size\": %d, \"elapsed_s\": %.9f, \"rows\": [", dc.rank, dc.size, elapsed_s);
    dc_write_rows(file, dc.ended > dc.begun ? elapsed_s / (double)(dc.ended - dc.begun) : 0);
    fprintf(file, "]");
    dx_write(file, dc.ended > dc.begun ? elapsed_s / (double)(dc.ended - dc.begun) : 0);
    const int is_complete = fprintf(file, "}\n") > 0;
    if (!fclose(file) && is_complete) rename(partial, path);
}

static void dc_before_finalize(void) {
    static char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    dc.ended = da_clock(), dc.ended_ns = dvt_system_ns(CLOCK_MONOTONIC);
    dm_is_tracing = 0;
    real_Get_library_version(library, &length);
    if (!dc.is_written) dc_write(library);
    dc.is_written = 1;
}
