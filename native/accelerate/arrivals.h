/* How long a rank waits in a collective for the last rank to enter it, where all ranks are on one host. Included once.

   Ranks of a job share a page of memory. Of one in DA_EVERY, later of one in DA_SELDOM, collectives on MPI_COMM_WORLD
   that no rank can leave before all have entered, each rank adds its time of entry to a maximum; when it leaves, the
   maximum is the last rank's entry. Two maxima in turn are enough: no rank enters the next but one before every rank
   has left this one. Times only grow, so a maximum is never reset. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../trace/clock.h"
#include "mpi_library.h"

enum { DA_EVERY = 16, DA_SELDOM = 256, DA_FIRST = 2048, DA_MOST = 8192 }; /* DA_FIRST: calls before it is later */

typedef struct {
    int32_t num_ranks; /* that share the page */
    char unused[60];
    struct {
        uint64_t last;
        char unused[56];
    } maximum[2];
    unsigned char has_joined[DA_MOST]; /* by rank: not 0: its calls may be replaced, by rules with this mark */
} da_page;

static struct {
    da_page* page; /* NULL: the arrival of the last rank is unknown */
    int uses_counter, size;
    unsigned char mark; /* of this process's rules; 0: it replaces nothing */
    uint64_t calls, sampled;
} da;

static inline uint64_t da_clock(void) {
    return DM_LIKELY(da.uses_counter) ? dvt_counter() : (uint64_t)dvt_system_ns(CLOCK_MONOTONIC);
}

/* Returns the parent of a process, and its name in `name`, of 32 characters; 0 if it is unknown. */
static int da_parent_of(int process, char* name) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    const char *begin = strchr(text, '('), *end = strrchr(text, ')'); /* "12 (a name) S 11 ..." */
    int parent = 0;
    if (length <= 0 || !begin || !end || sscanf(end + 1, " %*c %d", &parent) != 1) return 0;
    snprintf(name, 32, "%.*s", (int)(end - begin - 1), begin + 1);
    return parent;
}

/* Returns the process that has started this job's ranks on this host: MPICH's launcher, even if a script is between;
   else the parent. */
static int da_launcher(void) {
    char name[32];
    for (int process = getppid(), parent; process > 1; process = parent) {
        parent = da_parent_of(process, name);
        if (parent && strcmp(name, "hydra_pmi_proxy") == 0) return process;
        if (!parent) break;
    }
    return getppid();
}

/* Maps the page that ranks of one job have in common: those of one launcher, on one host. */
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
    if (snprintf(path, sizeof path, "%s/.arrivals-%s-%d-%.200s", folder, host, job ? 0 : da_launcher(),
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

/* Tells the other ranks that this process's calls may be replaced by `rules`, which may differ between ranks whose
   environments do. */
static void da_join(int rank, const char* rules, const char* more) {
    uint32_t hash = 2166136261u;
    for (const char* text = rules; text; text = text == rules ? more : NULL)
        for (const char* at = text; *at; ++at) hash = (hash ^ (unsigned char)*at) * 16777619u;
    da.mark = (unsigned char)(1 + hash % 255);
    if (da.page && rank < DA_MOST) __atomic_store_n(&da.page->has_joined[rank], da.mark, __ATOMIC_SEQ_CST);
}

/* Returns whether a rank of MPI_COMM_WORLD replaces calls by the rules of this one. Once it has completed a collective,
   this changes no more. */
static int da_has_joined(int rank) {
    return da.page && rank >= 0 && rank < DA_MOST && da.mark &&
           __atomic_load_n(&da.page->has_joined[rank], __ATOMIC_SEQ_CST) == da.mark;
}

/* Enters a collective; returns the number of the sample, 0 if this call is none. */
static inline uint64_t da_arrive(uint64_t now) {
    if (!da.page) return 0;
    const uint64_t number = da.calls++;
    if (DM_LIKELY((number * 0x9E3779B97F4A7C15u >> 32) % (number < DA_FIRST ? DA_EVERY : DA_SELDOM))) return 0;
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
