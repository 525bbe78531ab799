/* The event clock: the processor's counter if it is steady, else the system's clock. */
#ifndef DOVETAIL_TRACE_CLOCK_H
#define DOVETAIL_TRACE_CLOCK_H

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* Returns whether the kernel considers the processors' counters synchronous and steady. */
static inline int dvt_counter_is_steady(void) {
#if defined(__x86_64__)
    char text[256] = "";
    const int fd = open("/sys/devices/system/clocksource/clocksource0/available_clocksource", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    return size > 0 && strstr(text, "tsc") != NULL;
#elif defined(__aarch64__)
    return 1;
#else
    return 0;
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
