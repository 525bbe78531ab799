/* Clocks of several processes compared: who reads the same clock, and what round trips say of those who do not. */
#ifndef DOVETAIL_TRACE_MEET_H
#define DOVETAIL_TRACE_MEET_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* The event clock and, returned, the nanoseconds of CLOCK_MONOTONIC_RAW at the same moment. */
int64_t dovetail_trace_moment(uint64_t* clock);

/* Which CLOCK_MONOTONIC_RAW this process reads: all of one kernel and one time namespace read the same. Writes it to
   `text` and returns that; empty where it is not known. */
char* dovetail_trace_clock_of(char* text, size_t size);

/* How messages of a few bytes go to a rank and come from it. Both return 0 once the bytes may be used, or else an error
   that ends the comparison. */
typedef struct {
    int (*send)(void* with, int rank, const void* data, int num_bytes);
    int (*receive)(void* with, int rank, void* data, int num_bytes);
    void* with;
} dovetail_trace_mail;

/* A moment on this rank's CLOCK_MONOTONIC_RAW and on its parent's, and half the round trip that bounds the error. */
typedef struct {
    int64_t mine_ns, peer_ns, half_trip_ns;
} dovetail_trace_meeting;

/* All ranks of a job call it: they meet in pairs along a tree, in which a rank's parent is itself without its lowest
   set bit. Rank 0, which has none, finds a meeting of zeros. Noted in the trace, where there is one. 0, or mail's
   error. */
int dovetail_trace_meet(int rank, int num_ranks, const dovetail_trace_mail* mail, dovetail_trace_meeting* found);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
