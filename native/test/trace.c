/* The recorder from many threads, signal handlers and forks at once; for the sanitizers, and as a source of events.

   trace FOLDER THREADS EVENTS [look|again|calm]: each thread, and a second one after it, records EVENTS intervals with
   a point inside each, or looks as often for something three times, in vain but for the last; `again`: four hundred
   such threads come and go, one after the other; `calm`: threads begin and end together, and no signal comes; else a
   timer's signal records points; a forked child records a point into a file of its own. Prints what was dropped. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trace/dovetail_trace.h"

static int step, mid, look, alarm_name, child_name, num_events, looks;
static int num_signals, is_calm;
static pthread_barrier_t together;

static void on_signal(int number) {
    (void)number;
    dovetail_trace_point(alarm_name, 1);
    __atomic_fetch_add(&num_signals, 1, __ATOMIC_RELAXED);
}

static void look_thrice(void) {
    for (int i = 0; i < 2; ++i) dovetail_trace_vain(look, 1, dovetail_trace_clock());
    const int64_t many = dovetail_trace_found(look, 1, dovetail_trace_clock());
    dovetail_trace_end(many ? 0 : look, many);
}

static void record_all(void) {
    for (int i = 0; i < num_events; ++i) {
        if (looks) {
            look_thrice();
            continue;
        }
        dovetail_trace_begin(step, i);
        dovetail_trace_point(mid, -i);
        dovetail_trace_end(step, 0);
    }
}

static void* work(void* unused) {
    if (is_calm) pthread_barrier_wait(&together);
    record_all();
    if (is_calm) pthread_barrier_wait(&together);
    return unused;
}

static void in_threads(int count) {
    pthread_t threads[64];
    pthread_barrier_init(&together, NULL, (unsigned)count);
    for (int i = 0; i < count; ++i) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < count; ++i) pthread_join(threads[i], NULL);
}

static int in_child(const char* folder) {
    const pid_t child = fork();
    if (child == 0) {
        dovetail_trace_point(child_name, 1); /* not traced yet */
#ifndef __SANITIZE_THREAD__                  /* it knows no threads after a fork */
        dovetail_trace_init(folder);
#endif
        dovetail_trace_point(child_name, 2);
        dovetail_trace_finalize();
        _exit(0);
    }
    int status = 1;
    while (waitpid(child, &status, 0) < 0) continue; /* a signal came */
    return status;
}

int main(int argc, char** argv) {
    if (argc < 4) return 2;
    looks = argc > 4 && !strcmp(argv[4], "look");
    const int num_rounds = argc > 4 && !strcmp(argv[4], "again") ? 400 : 1, num_threads = atoi(argv[2]);
    num_events = atoi(argv[3]);
    const int code = dovetail_trace_init(argv[1]);
    if (code) {
        printf("no trace: %s\n", strerror(code));
        in_threads(num_threads); /* must do nothing, and no harm */
        return 3;
    }
    step = dovetail_trace_name("step"), mid = dovetail_trace_name("mid"), look = dovetail_trace_name("look");
    alarm_name = dovetail_trace_name("alarm"), child_name = dovetail_trace_name("child");
    signal(SIGALRM, on_signal);
    const struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    is_calm = argc > 4 && !strcmp(argv[4], "calm");
    if (!is_calm) setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < num_rounds; ++i) in_threads(num_threads);
    const int status = in_child(argv[1]);
    in_threads(num_threads);
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%llu dropped %d signals\n", (unsigned long long)dovetail_trace_dropped(), num_signals);
    dovetail_trace_finalize();
    return status;
}
