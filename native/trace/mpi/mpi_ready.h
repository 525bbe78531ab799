/* When the data of a message were ready: the tracer remembers the buffers that a thread sends from, and looks at a few
   words of each when the thread begins or ends an MPI call. If a later message carries what an earlier look has seen,
   it could have been sent then. Included once, by mpi_frame.h, after mpi_payload.h. */
#include <sys/mman.h>
#include <unistd.h>

enum { DM_WATCHED = 8, DM_WORDS = 16, DM_SPARING = 32, DM_SAVED_LOOKS = 8, DM_PAGE = 4096 };

typedef struct {
    const char* from; /* NULL: free */
    int64_t num_bytes;
    uint64_t sum, sent; /* checksums of a sample: at the last look, and when it was sent last */
    uint64_t since;     /* clock of the first look that saw `sum` */
} dm_buffer;

/* Looks take at most 1/DM_SPARING of the time: `saved` is the time that is left for them. */
static __thread struct {
    dm_buffer at[DM_WATCHED];
    uint64_t call, last, saved, cost; /* clocks: the begin of this call, of the last look; and durations */
    uintptr_t stack_end;
    int is_used, is_dear; /* is_dear: looks ask the kernel */
} dm_ready __attribute__((tls_model("initial-exec")));

static uint64_t dm_sum_of(const dm_buffer* it) {
    uint64_t sum = 1, word = 0;
    if (it->num_bytes < 8) {
        memcpy(&word, it->from, (size_t)it->num_bytes);
        return dm_mixed(word ^ sum);
    }
    const int64_t step = (it->num_bytes - 8) / (DM_WORDS - 1);
    for (int i = 0; i < DM_WORDS; ++i) {
        memcpy(&word, it->from + i * step, sizeof word);
        sum = dm_mixed(sum ^ word) + (uint64_t)i;
    }
    return sum;
}

static int dm_has_page(const char* at) {
    unsigned char unused;
    return !mincore((void*)((uintptr_t)at & ~(uintptr_t)(DM_PAGE - 1)), 1, &unused);
}

/* Returns the end of this thread's stack; 0: unknown. */
static uintptr_t dm_stack_end(void) {
    pthread_attr_t about;
    void* from = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &about)) return 0;
    pthread_attr_getstack(&about, &from, &size);
    pthread_attr_destroy(&about);
    return (uintptr_t)from + size;
}

/* Returns whether a buffer, which was there once, can still be read: the heap below its end always can, and the stack
   above this function. */
static int dm_is_there(const dm_buffer* it) {
    const uintptr_t from = (uintptr_t)it->from, end = from + (uintptr_t)it->num_bytes;
    if (end <= (uintptr_t)sbrk(0)) return 1;
    if (from > (uintptr_t)&end && end <= dm_ready.stack_end) return 1;
    dm_ready.is_dear = 1;
    return dm_has_page(it->from) && dm_has_page(it->from + it->num_bytes - 1);
}

__attribute__((noinline)) static void dm_look_at_all(uint64_t now) {
    dm_ready.is_dear = 0;
    for (int i = 0; i < DM_WATCHED; ++i) {
        dm_buffer* it = &dm_ready.at[i];
        if (!it->from) continue;
        if (!dm_is_there(it)) {
            it->from = NULL;
            continue;
        }
        const uint64_t sum = dm_sum_of(it);
        if (sum != it->sum) it->sum = sum, it->since = now;
    }
    dm_ready.cost = dovetail_trace_clock() - now;
    dm_ready.saved = dm_ready.saved > dm_ready.cost ? dm_ready.saved - dm_ready.cost : 0;
}

/* Looks, if there is time saved for it. Dear looks, which ask the kernel, come after work only: between two calls they
   would look like work. */
static inline void dm_look(int is_begin) {
    if (!dm_ready.is_used) return;
    const uint64_t now = dovetail_trace_clock(), most = DM_SAVED_LOOKS * dm_ready.cost, spent = now - dm_ready.last;
    dm_ready.saved += spent / DM_SPARING;
    if (dm_ready.saved > most) dm_ready.saved = most;
    dm_ready.last = now;
    if (!is_begin && now - dm_ready.call < DM_SAVED_LOOKS * dm_ready.cost) return; /* the call was short */
    if (dm_ready.is_dear && !(is_begin && spent > DM_SPARING * dm_ready.cost)) return;
    if (dm_ready.saved >= dm_ready.cost) dm_look_at_all(now);
}

static inline void dm_look_first(void) {
    dm_look(1);
    dm_ready.call = dm_ready.last;
}

static inline void dm_look_last(void) { dm_look(0); }

/* Records, for the message that is sent next, since when its data have been as they are: see DVT_ROOT. Nothing, if they
   are those of the message before, which may be a mere signal, or if no earlier call saw them. */
static void dm_watch(const void* from, int64_t num_bytes, MPI_Datatype datatype) {
    if (!from || num_bytes <= 0 || !dm_is_named(datatype)) return;
    dm_buffer* it = &dm_ready.at[((uint64_t)(uintptr_t)from * 0x9E3779B97F4A7C15u >> 61) % DM_WATCHED];
    if (it->from != from || it->num_bytes != num_bytes) {
        if (dm_may_use_gpu()) return;
        *it = (dm_buffer){.from = from, .num_bytes = num_bytes, .since = dovetail_trace_clock()};
        it->sum = it->sent = dm_sum_of(it);
        if (!dm_ready.is_used) dm_ready.stack_end = dm_stack_end();
        dm_ready.is_used = 1;
        return;
    }
    const uint64_t sum = dm_sum_of(it);
    if (sum != it->sum) it->sum = sum, it->since = dm_ready.call;
    if (sum != it->sent && it->since < dm_ready.call) dovetail_trace_detail(DVT_ROOT, 0, it->since, 0);
    it->sent = sum;
}

static inline void dm_sample_sent(const void* from, int64_t count, MPI_Datatype datatype) {
    dm_sampled = dm_checksum(from, count, datatype, DM_LEAST_SENT);
    dm_watch(from, dm_bytes(count, datatype), datatype);
}
