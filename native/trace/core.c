/* How long a thread waited for a core: read where it begins a call after long work, so that the wait is that work's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "writer.h"

enum { MOST_THREADS = 64 }; /* threads that keep their file of counters open */

static __thread int at; /* descriptor of the thread's counters, from 1; -1: there is none */
static int num_open;

static int open_counters(void) {
    char path[64];
    if (__atomic_fetch_add(&num_open, 1, __ATOMIC_RELAXED) >= MOST_THREADS) return -1;
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", (long)syscall(SYS_gettid));
    const long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -1 : (int)fd + 1;
}

int64_t dvt_waited_ns(void) {
    char text[96], *end = text;
    if (!at) at = open_counters();
    if (at < 0) return -1;
    const long length = syscall(SYS_pread64, at - 1, text, sizeof text - 1, 0L);
    if (length <= 0) return -1;
    text[length] = 0;
    const unsigned long long ran = strtoull(text, &end, 10);
    const int64_t waited = (int64_t)strtoull(end, NULL, 10);
    return ran || waited ? waited : -1; /* the kernel does not count */
}

void dvt_forget_core(void) {
    if (at > 0) syscall(SYS_close, at - 1);
    if (at) __atomic_fetch_sub(&num_open, 1, __ATOMIC_RELAXED);
    at = 0;
}
