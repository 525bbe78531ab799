/* How long a rank waits in a collective for the last rank to enter it, where all ranks are on one host. Included once.

   Ranks of a job share a page of memory. Of one in DA_EVERY collectives on MPI_COMM_WORLD that no rank can leave before
   all have entered, each rank adds its time of entry to a maximum; when it leaves, the maximum is the last rank's
   entry. Two maxima in turn are enough: no rank enters the next but one before every rank has left this one. Times only
   grow, so a maximum is never reset. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../trace/clock.h"
#include "mpi_library.h"

enum { DA_EVERY = 16, DA_MOST = 8192 };

typedef struct {
    int32_t num_ranks; /* that share the page */
    char unused[60];
    struct {
        uint64_t last;
        char unused[56];
    } maximum[2];
    unsigned char has_joined[DA_MOST]; /* by rank: its calls may be replaced */
} da_page;

static struct {
    da_page* page; /* NULL: the arrival of the last rank is unknown */
    int uses_counter, size;
    uint64_t calls, sampled;
} da;

static inline uint64_t da_clock(void) {
    return DM_LIKELY(da.uses_counter) ? dvt_counter() : (uint64_t)dvt_system_ns(CLOCK_MONOTONIC);
}

/* Maps the page that ranks of one job have in common: children of one launcher, on one host. */
static void da_begin(int size) {
    const char* folder = getenv("DOVETAIL_ACCELERATE_DIR");
    const char* job = getenv("PMIX_NAMESPACE");
    char path[4096], host[128] = "host";
    struct stat about;
    da.uses_counter = dvt_counter_is_steady();
    da.size = size;
    if (!folder || size < 2) return;
    gethostname(host, sizeof host - 1);
    const char* slash = job ? strrchr(job, '/') : NULL;
    if (snprintf(path, sizeof path, "%s/.arrivals-%s-%d-%.200s", folder, host, job ? 0 : (int)getppid(),
                 slash ? slash + 1
                 : job ? job
                       : "") >= (int)sizeof path)
        return;
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    void* page = MAP_FAILED;
    if (!ftruncate(file, sizeof(da_page)) && !fstat(file, &about) && about.st_size == sizeof(da_page))
        page = mmap(NULL, sizeof(da_page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (page == MAP_FAILED) return;
    da.page = page;
    __atomic_fetch_add(&da.page->num_ranks, 1, __ATOMIC_SEQ_CST);
}

/* Says to the other ranks that this process's calls may be replaced. */
static void da_join(int rank) {
    if (da.page && rank < DA_MOST) __atomic_store_n(&da.page->has_joined[rank], 1, __ATOMIC_SEQ_CST);
}

/* Returns whether a rank of MPI_COMM_WORLD has joined. Once it has completed a collective, this changes no more. */
static int da_has_joined(int rank) {
    return da.page && rank >= 0 && rank < DA_MOST && __atomic_load_n(&da.page->has_joined[rank], __ATOMIC_SEQ_CST);
}

/* Enters a collective; returns the number of the sample, 0 if this call is none. */
static inline uint64_t da_arrive(uint64_t now) {
    if (!da.page) return 0;
    const uint64_t number = da.calls++;
    if (DM_LIKELY((number * 0x9E3779B97F4A7C15u >> 32) % DA_EVERY)) return 0;
    uint64_t* last = &da.page->maximum[++da.sampled & 1].last;
    uint64_t seen = __atomic_load_n(last, __ATOMIC_RELAXED);
    while (seen < now && !__atomic_compare_exchange_n(last, &seen, now, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        continue;
    return da.sampled;
}

/* Sets `waited` to the ticks from this rank's entry to the last rank's; returns 0 if not all ranks share the page. */
static inline int da_waited(uint64_t sample, uint64_t begun, uint64_t took, uint64_t* waited) {
    if (__atomic_load_n(&da.page->num_ranks, __ATOMIC_SEQ_CST) != da.size) return 0;
    const uint64_t last = __atomic_load_n(&da.page->maximum[sample & 1].last, __ATOMIC_SEQ_CST);
    *waited = last > begun ? last - begun : 0;
    if (*waited > took) *waited = took;
    return 1;
}
