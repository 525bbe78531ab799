/* The event clock: the processor's counter if it is steady, else the system's clock. */
#ifndef DOVETAIL_TRACE_CLOCK_H
#define DOVETAIL_TRACE_CLOCK_H

#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

static inline int64_t dvt_system_ns(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline uint64_t dvt_counter(void) {
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return (uint64_t)dvt_system_ns(CLOCK_MONOTONIC_RAW);
#endif
}

/* Adds 1 and returns the old value, in one instruction, which a signal handler of this thread cannot interrupt. */
static inline uint64_t dvt_next(uint64_t* count) {
#if defined(__x86_64__)
    uint64_t one = 1;
    __asm__ volatile("xaddq %0, %1" : "+r"(one), "+m"(*count) : : "cc");
    return one;
#else
    return __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
#endif
}

#endif
