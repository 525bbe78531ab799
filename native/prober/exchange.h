/* exchange: how far apart two processes' cores are: seconds of an exchange of one word through memory that both map. */
#ifndef DOVETAIL_PROBER_EXCHANGE_H
#define DOVETAIL_PROBER_EXCHANGE_H

#include <stdint.h>
#include <time.h>

enum { DT_EXCHANGE_LINE = 128, DT_EXCHANGE_BYTES = 2 * DT_EXCHANGE_LINE, DT_EXCHANGE_LOOKS = 1 << 20 };

static inline double dt_exchange_now_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* Both processes call it, as 0 and as 1, with one memory of DT_EXCHANGE_BYTES, which is zeroed before the first call,
   and the same `count` >= 1. Seconds of one exchange of `count`; below 0 if the other process does not come within
   about `limit_s`: then the memory serves no more. */
static inline double dt_exchange_s(void* memory, int me, int count, double limit_s) {
    uint64_t* const mine = (uint64_t*)((char*)memory + me * DT_EXCHANGE_LINE);
    const uint64_t* const other = (const uint64_t*)((char*)memory + (1 - me) * DT_EXCHANGE_LINE);
    uint64_t number = *mine; /* of exchanges so far */
    double begun = dt_exchange_now_s();
    const double until = begun + limit_s;
    for (int i = 0; i <= count; ++i) {
        __atomic_store_n(mine, ++number, __ATOMIC_RELEASE);
        for (int looks = 1; __atomic_load_n(other, __ATOMIC_ACQUIRE) < number; ++looks)
            if (looks % DT_EXCHANGE_LOOKS == 0 && dt_exchange_now_s() > until) return -1;
        if (i == 0) begun = dt_exchange_now_s(); /* the first meets the other process */
    }
    return (dt_exchange_now_s() - begun) / count;
}

#endif
