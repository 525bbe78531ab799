/* How long a thread waited for a core: read where it begins a call after long work, so that the wait is that work's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "owned.h"
#include "writer.h"

enum { MOST_THREADS = 64 }; /* threads that keep their file of counters open */

static __thread struct dvt_owned counters; /* the thread's file of counters */
static __thread int is_tried;              /* whether it was opened, or could not be */
static int num_open;

static void open_counters(void) {
    char path[64];
    is_tried = 1;
    if (__atomic_fetch_add(&num_open, 1, __ATOMIC_RELAXED) >= MOST_THREADS) return;
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", (long)syscall(SYS_gettid));
    dvt_own(&counters, (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
}

int64_t dvt_waited_ns(void) {
    char text[96], *end = text;
    if (!is_tried) open_counters();
    const int fd = dvt_owned_fd(&counters); /* once the program has closed it, its waits are unknown */
    if (fd < 0) return -1;
    const long length = syscall(SYS_pread64, fd, text, sizeof text - 1, 0L);
    if (length <= 0) return -1;
    text[length] = 0;
    const unsigned long long ran = strtoull(text, &end, 10);
    const int64_t waited = (int64_t)strtoull(end, NULL, 10);
    return ran || waited ? waited : -1; /* the kernel does not count */
}

void dvt_forget_core(void) {
    if (is_tried) __atomic_fetch_sub(&num_open, 1, __ATOMIC_RELAXED);
    dvt_disown(&counters);
    is_tried = 0;
}
