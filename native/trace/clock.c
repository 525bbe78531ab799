/* The event clock is chosen once per process; all clocks are read together, to convert one into another. */
#define _GNU_SOURCE
#include "clock.h"

#include <stdlib.h>
#include <string.h>

#include "dovetail_trace_meet.h"
#include "writer.h"

dvt_anchor dvt_read_anchor(void) {
    dvt_anchor best = {0, 0, 0};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 5; ++i) {
        const uint64_t before = dvt_now();
        const int64_t raw = dvt_system_ns(CLOCK_MONOTONIC_RAW);
        const uint64_t after = dvt_now();
        if (after - before >= least) continue;
        least = after - before;
        best = (dvt_anchor){before + (after - before) / 2, raw, dvt_system_ns(CLOCK_REALTIME)};
    }
    return best;
}

void dvt_choose_clock(void) {
    const char* asked = getenv("DOVETAIL_TRACE_CLOCK");
    if (__atomic_load_n(&dvt_writer.has_clock, __ATOMIC_ACQUIRE)) return;
    dvt_writer.counter = !(asked && strcmp(asked, "system") == 0) && dvt_counter_is_steady();
    __atomic_store_n(&dvt_writer.has_clock, 1, __ATOMIC_RELEASE);
}

int64_t dovetail_trace_moment(uint64_t* clock) {
    dvt_choose_clock();
    const dvt_anchor now = dvt_read_anchor();
    *clock = now.clock;
    return now.raw_ns;
}
