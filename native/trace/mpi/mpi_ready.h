/* When the data of a message were ready: the tracer remembers the buffers that a thread sends from, and looks at a few
   words of each when the thread begins or ends an MPI call. If a later message carries what an earlier look has seen,
   it could have been sent then. Included once, by mpi_frame.h, after mpi_payload.h. Only if it is asked for: a look
   takes about a microsecond. */
#ifdef DM_READY
#include <sys/uio.h>
#include <unistd.h>

enum { DM_WATCHED = 8, DM_WORDS = 16 };

typedef struct {
    const char* from; /* NULL: free */
    int64_t num_bytes;
    uint64_t sum, sent; /* checksums of a sample: at the last look, and when it was sent last */
    uint64_t since;     /* clock of the first look that saw `sum` */
} dm_buffer;

static __thread struct {
    dm_buffer at[DM_WATCHED];
    uint64_t call; /* clock: the begin of this call */
    uintptr_t stack_end;
    unsigned next; /* the entry that is used anew */
    int is_used;
} dm_ready __attribute__((tls_model("initial-exec")));

/* Writes the places of the sample, and returns their number. */
static int dm_places(const dm_buffer* it, struct iovec* places) {
    if (it->num_bytes < 8) {
        places[0] = (struct iovec){(void*)it->from, (size_t)it->num_bytes};
        return 1;
    }
    const int64_t step = (it->num_bytes - 8) / (DM_WORDS - 1);
    for (int i = 0; i < DM_WORDS; ++i) places[i] = (struct iovec){(void*)(it->from + i * step), 8};
    return DM_WORDS;
}

static uint64_t dm_sum_of_words(const uint64_t* words, int count) {
    uint64_t sum = 1;
    for (int i = 0; i < count; ++i) sum = dm_mixed(sum ^ words[i]) + (uint64_t)i;
    return sum;
}

static uint64_t dm_sum_of(const dm_buffer* it) {
    struct iovec places[DM_WORDS];
    uint64_t words[DM_WORDS] = {0};
    const int count = dm_places(it, places);
    for (int i = 0; i < count; ++i) memcpy(&words[i], places[i].iov_base, places[i].iov_len);
    return dm_sum_of_words(words, count);
}

/* The same by the kernel, which returns an error for memory that is gone where a read would end the process. */
static int dm_sum_by_kernel(const dm_buffer* it, uint64_t* sum) {
    struct iovec places[DM_WORDS];
    uint64_t words[DM_WORDS] = {0};
    const int count = dm_places(it, places);
    const struct iovec into = {words, count > 1 ? sizeof words : places[0].iov_len};
    if (process_vm_readv(getpid(), &into, 1, places, (unsigned long)count, 0) != (ssize_t)into.iov_len) return 0;
    *sum = dm_sum_of_words(words, count);
    return 1;
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

/* Returns whether a buffer, which was there once, can surely still be read: the heap below its end, and the stack above
   this function. */
static int dm_is_there(const dm_buffer* it) {
    const uintptr_t from = (uintptr_t)it->from, end = from + (uintptr_t)it->num_bytes;
    return end <= (uintptr_t)sbrk(0) || (from > (uintptr_t)&end && end <= dm_ready.stack_end);
}

static void dm_look(uint64_t now) {
    if (!dm_ready.is_used) return;
    for (int i = 0; i < DM_WATCHED; ++i) {
        dm_buffer* it = &dm_ready.at[i];
        if (!it->from) continue;
        uint64_t sum = 0;
        if (dm_is_there(it)) {
            sum = dm_sum_of(it);
        } else if (!dm_sum_by_kernel(it, &sum)) {
            it->from = NULL;
            continue;
        }
        if (sum != it->sum) it->sum = sum, it->since = now;
    }
}

static void dm_look_first(void) { dm_look(dm_ready.call = dovetail_trace_clock()); }
static void dm_look_last(void) { dm_look(dovetail_trace_clock()); }

/* Returns the entry of a buffer: its own, or that of the buffer that was watched first. */
static dm_buffer* dm_buffer_of(const void* from) {
    for (int i = 0; i < DM_WATCHED; ++i)
        if (dm_ready.at[i].from == from) return &dm_ready.at[i];
    return &dm_ready.at[dm_ready.next++ % DM_WATCHED];
}

/* Records, for the message that is sent next, since when its data have been as they are: see DVT_ROOT. Nothing, if they
   are those of the message before, which may be a mere signal, or if no earlier call saw them. */
static void dm_watch(const void* from, int64_t num_bytes, MPI_Datatype datatype) {
    if (!from || num_bytes <= 0 || !dm_is_named(datatype)) return;
    dm_buffer* it = dm_buffer_of(from);
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

#else
#define dm_look_first() (void)0
#define dm_look_last() (void)0
#define dm_watch(from, num_bytes, datatype) (void)0
#endif

static inline void dm_sample_sent(const void* from, int64_t count, MPI_Datatype datatype) {
    dm_sampled = dm_checksum(from, count, datatype, DM_LEAST_SENT);
    dm_watch(from, dm_bytes(count, datatype), datatype);
}
