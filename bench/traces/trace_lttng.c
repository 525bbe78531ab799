/* Nanoseconds of one event of LTTng-UST, from 1 and 2 threads: the loop of trace_cost.c around another tracer. */
#define _GNU_SOURCE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "trace_lttng.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { EVENTS = 500000, ROUNDS = 5 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void* points(void* spent) {
    const double begun = seconds();
    for (int i = 0; i < EVENTS; ++i) lttng_ust_tracepoint(dovetail_bench, point, i);
    *(double*)spent = (seconds() - begun) / EVENTS * 1e9;
    return NULL;
}

static int by_size(const void* a, const void* b) { return *(const double*)a > *(const double*)b ? 1 : -1; }

/* The median over rounds of the slowest of some threads. */
static double median(int num_threads) {
    double found[ROUNDS];
    for (int round = 0; round < ROUNDS; ++round) {
        pthread_t threads[2];
        double spent[2];
        for (int i = 0; i < num_threads; ++i) pthread_create(&threads[i], NULL, points, &spent[i]);
        found[round] = 0;
        for (int i = 0; i < num_threads; ++i) {
            pthread_join(threads[i], NULL);
            if (spent[i] > found[round]) found[round] = spent[i];
        }
    }
    qsort(found, ROUNDS, sizeof *found, by_size);
    return found[ROUNDS / 2];
}

int main(void) {
    printf("{\"one_thread_ns\": %.2f, ", median(1));
    printf("\"two_threads_ns\": %.2f}\n", median(2));
    return 0;
}
