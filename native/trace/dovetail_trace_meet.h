/* Compares the clocks of several processes: which ones read the same clock, and the offsets of the others. */
#ifndef DOVETAIL_TRACE_MEET_H
#define DOVETAIL_TRACE_MEET_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Writes the event clock to `clock`; returns the nanoseconds of CLOCK_MONOTONIC_RAW at the same moment. */
int64_t dovetail_trace_moment(uint64_t* clock);

/* Writes an identity of this process's CLOCK_MONOTONIC_RAW to `text`, and returns `text`. Processes of one kernel and
   one time namespace read the same clock. Empty: unknown. */
char* dovetail_trace_clock_of(char* text, size_t size);

/* Functions that send and receive messages of a few bytes, and return when they are complete: 0, or an error code,
   which ends the comparison. */
typedef struct {
    int (*send)(void* with, int rank, const void* data, int num_bytes);
    int (*receive)(void* with, int rank, void* data, int num_bytes);
    void* with;
} dovetail_trace_mail;

/* One comparison: a moment on this rank's CLOCK_MONOTONIC_RAW and on its parent's. The error is at most half the round
   trip. */
typedef struct {
    int64_t mine_ns, peer_ns, half_trip_ns;
} dovetail_trace_meeting;

/* Compares each rank's clock with its parent's; all ranks of a job call it. A rank's parent is the rank with its lowest
   set bit cleared. Writes the comparison to `found` (rank 0, which has no parent: zeros) and to the trace, if there is
   one. Returns 0, or the error code of `mail`. */
int dovetail_trace_meet(int rank, int num_ranks, const dovetail_trace_mail* mail, dovetail_trace_meeting* found);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
