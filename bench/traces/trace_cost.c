/* Nanoseconds of one event: with tracing on and off, beside what reading the clock costs alone; from 1 or 2 threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "dovetail_trace.h"

enum { EVENTS = 2000000, ROUNDS = 9 };
static int name;
static volatile uint64_t sink;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void* points(void* spent) {
    const double begun = seconds();
    for (int i = 0; i < EVENTS; ++i) dovetail_trace_point(name, i);
    *(double*)spent = (seconds() - begun) / EVENTS * 1e9;
    return NULL;
}

static void* counters(void* spent) {
    const double begun = seconds();
    for (int i = 0; i < EVENTS; ++i) sink = dvt_counter();
    *(double*)spent = (seconds() - begun) / EVENTS * 1e9;
    return NULL;
}

static int by_size(const void* a, const void* b) { return *(const double*)a > *(const double*)b ? 1 : -1; }

/* The median over rounds of the slowest of some threads. */
static double median(void* (*work)(void*), int num_threads) {
    double found[ROUNDS];
    for (int round = 0; round < ROUNDS; ++round) {
        pthread_t threads[8];
        double spent[8];
        for (int i = 0; i < num_threads; ++i) pthread_create(&threads[i], NULL, work, &spent[i]);
        found[round] = 0;
        for (int i = 0; i < num_threads; ++i) {
            pthread_join(threads[i], NULL);
            if (spent[i] > found[round]) found[round] = spent[i];
        }
    }
    qsort(found, ROUNDS, sizeof *found, by_size);
    return found[ROUNDS / 2];
}

int main(int argc, char** argv) {
    if (argc < 2 || dovetail_trace_init(argv[1])) return 1;
    name = dovetail_trace_name("point");
    printf("{\"counter_ns\": %.2f, ", median(counters, 1));
    printf("\"on_ns\": %.2f, \"on_two_threads_ns\": %.2f, ", median(points, 1), median(points, 2));
    dovetail_trace_off();
    printf("\"off_ns\": %.2f, \"dropped\": %llu}\n", median(points, 1), (unsigned long long)dovetail_trace_dropped());
    return 0;
}
