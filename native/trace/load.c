/* Notes of the kernel's counters: CPU time that this process used and waited for, and what its CPUs did for all. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "writer.h"

enum { LEAST_NS = 200000000 };                 /* BLOCK_S in run/load.py: /proc/stat counts in hundredths of a second */
enum { NOTES_PER_RUN = 50, MOST_COST = 1000 }; /* a note is due after a share of the run, and of 1000 times its cost */
enum { MAX_THREADS = 256 };

static struct {
    int64_t opened_ns, due_ns; /* by CLOCK_MONOTONIC_RAW */
    int64_t waited_ns;         /* of all threads so far; -1: the kernel does not count */
    int num_threads;
    struct {
        long id;
        int64_t waited_ns;
    } thread[MAX_THREADS]; /* as read last: an ended thread's counter disappears */
} load;

/* Reads the beginning of a file into `text`; returns its length, 0 if there is none. */
static size_t read_text(const char* path, char* text, size_t size) {
    size_t length = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    text[0] = 0;
    if (fd < 0) return 0;
    for (ssize_t more; length + 1 < size && (more = read(fd, text + length, size - 1 - length)) > 0;)
        length += (size_t)more;
    close(fd);
    text[length] = 0;
    return length;
}

/* Adds what a thread has waited for a CPU since it was last seen. */
static void add_thread(long id) {
    char path[64], text[96];
    unsigned long long ran, waited, turns;
    int i = 0;
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", id);
    if (!read_text(path, text, sizeof text) || sscanf(text, "%llu %llu %llu", &ran, &waited, &turns) != 3) return;
    if (!ran && !waited && !turns) return; /* the kernel does not count */
    while (i < load.num_threads && load.thread[i].id != id) ++i;
    if (i == MAX_THREADS) return;
    if (i == load.num_threads) load.thread[load.num_threads++].id = id, load.thread[i].waited_ns = 0;
    if (load.waited_ns < 0) load.waited_ns = 0;
    const int64_t more = (int64_t)waited - load.thread[i].waited_ns;
    if (more > 0) load.waited_ns += more;
    load.thread[i].waited_ns = (int64_t)waited;
}

static void add_threads(int is_helper) {
    DIR* threads = opendir("/proc/self/task");
    if (!threads) return;
    for (const struct dirent* one; (one = readdir(threads));) {
        const long id = strtol(one->d_name, NULL, 10);
        if (id && !(is_helper && id == syscall(SYS_gettid))) add_thread(id);
    }
    closedir(threads);
}

/* Adds up hundredths of seconds that the process's CPUs spent on programs, on interrupts, and for other machines. */
static int count_ticks(unsigned long long sums[3]) {
    static char text[1 << 16];
    cpu_set_t cpus;
    int found = 0;
    if (sched_getaffinity(getpid(), sizeof cpus, &cpus) || !read_text("/proc/stat", text, sizeof text)) return 0;
    for (char* line = strstr(text, "\ncpu"); line && !strncmp(line, "\ncpu", 4); line = strchr(line + 1, '\n')) {
        unsigned cpu;
        unsigned long long user, nice, kernel, idle, io, irq, soft, steal;
        if (sscanf(line, "\ncpu%u %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, &user, &nice, &kernel, &idle, &io,
                   &irq, &soft, &steal) != 9)
            continue;
        if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &cpus)) continue;
        sums[0] += user + nice + kernel, sums[1] += irq + soft, sums[2] += steal;
        ++found;
    }
    return found == CPU_COUNT(&cpus);
}

/* Returns when the machine started: of several readings, the one that took least time. */
static int64_t booted_ns(void) {
    int64_t booted = 0, least = INT64_MAX;
    for (int i = 0; i < 5; ++i) {
        const int64_t before = dvt_system_ns(CLOCK_REALTIME), since = dvt_system_ns(CLOCK_BOOTTIME);
        const int64_t after = dvt_system_ns(CLOCK_REALTIME);
        if (after - before < least) least = after - before, booted = before + least / 2 - since;
    }
    return booted;
}

/* Notes when the machine started, which tells machines apart, and which CPUs the process may use. */
static void note_place(void) {
    char line[8 * CPU_SETSIZE], *to = line;
    cpu_set_t cpus;
    if (sched_getaffinity(getpid(), sizeof cpus, &cpus)) return;
    to += sprintf(to, "{\"booted_ns\": %lld, \"cpus\": [", (long long)booted_ns());
    for (int cpu = 0, count = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &cpus)) to += sprintf(to, count++ ? ", %d" : "%d", cpu);
    strcpy(to, "]}");
    dvt_line(line);
}

void dvt_note_load(int always) {
    const int64_t now_ns = dvt_system_ns(CLOCK_MONOTONIC_RAW);
    if (!always && now_ns < load.due_ns) return;
    if (dvt_writer.header->first.raw_ns != load.opened_ns) { /* a new file */
        load.opened_ns = dvt_writer.header->first.raw_ns;
        load.waited_ns = -1, load.num_threads = 0;
        note_place();
    }
    unsigned long long ticks[3] = {0, 0, 0};
    struct rusage used;
    char line[256];
    const uint64_t clock = dvt_now();
    add_threads(!always);
    const int has_ticks = count_ticks(ticks);
    getrusage(RUSAGE_SELF, &used);
    snprintf(line, sizeof line, "{\"load\": [%llu, %lld, %lld, %lld, %lld, %lld, %ld, %ld]}", (unsigned long long)clock,
             (long long)dvt_system_ns(CLOCK_PROCESS_CPUTIME_ID), (long long)load.waited_ns,
             has_ticks ? (long long)ticks[0] : -1, (long long)ticks[1], (long long)ticks[2], used.ru_nivcsw,
             used.ru_majflt);
    dvt_line(line);
    const int64_t after_ns = dvt_system_ns(CLOCK_MONOTONIC_RAW);
    int64_t pause_ns = (after_ns - load.opened_ns) / NOTES_PER_RUN;
    if (pause_ns < MOST_COST * (after_ns - now_ns)) pause_ns = MOST_COST * (after_ns - now_ns);
    load.due_ns = after_ns + (pause_ns < LEAST_NS ? LEAST_NS : pause_ns);
}
