/* A program that closes its descriptors up to LAST while it is traced, and opens a file of its own under all their
   numbers.

   closed FOLDER FILE EVENTS LAST: two threads and the first one record EVENTS intervals before and after, with pauses,
   so that waits for a core are read; then the threads end, and so does tracing. Prints how many of the descriptors
   still stand for FILE, the offset, and the file's bytes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trace/dovetail_trace.h"

enum { FIRST = 3, PAUSE_US = 2000, STILL_US = 100000 };

static int step, num_events, last;
static pthread_barrier_t together;

static void record(void) {
    for (int i = 0; i < num_events; ++i) dovetail_trace_begin(step, i), dovetail_trace_end(step, 0);
    usleep(PAUSE_US);
    dovetail_trace_begin(step, num_events), dovetail_trace_end(step, 0);
}

static void* work(void* unused) {
    record();
    pthread_barrier_wait(&together); /* descriptors are closed */
    pthread_barrier_wait(&together);
    record();
    return unused;
}

static void reuse_all(const char* path) {
    for (int fd = FIRST; fd <= last; ++fd) close(fd);
    const int own = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (own != FIRST || write(own, "12345 6 7\n", 10) != 10 || lseek(own, 4, SEEK_SET) != 4) exit(2);
    for (int fd = own + 1; fd <= last; ++fd) (void)dup2(own, fd);
}

static int still(const char* path) {
    struct stat own, now;
    int found = 0;
    if (stat(path, &own)) return -1;
    for (int fd = FIRST; fd <= last; ++fd)
        found += !fstat(fd, &now) && now.st_dev == own.st_dev && now.st_ino == own.st_ino;
    return found;
}

int main(int argc, char** argv) {
    pthread_t threads[2];
    char text[64] = "";
    if (argc != 5 || dovetail_trace_init(argv[1])) return 1;
    step = dovetail_trace_name("step"), num_events = atoi(argv[3]), last = atoi(argv[4]);
    pthread_barrier_init(&together, NULL, 3);
    for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, work, NULL);
    record();
    pthread_barrier_wait(&together);
    usleep(STILL_US); /* the tracer's helper has made what it makes ahead */
    reuse_all(argv[2]);
    pthread_barrier_wait(&together);
    record();
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    dovetail_trace_note("{\"after\": 1}");
    dovetail_trace_finalize();
    const int found = still(argv[2]);
    const long offset = (long)lseek(FIRST, 0, SEEK_CUR), length = (long)pread(FIRST, text, sizeof text - 1, 0);
    printf("%d of %d, offset %ld, %ld bytes: %s", found, last - FIRST + 1, offset, length, text);
    return 0;
}
