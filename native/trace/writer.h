/* The traced process's file as record.c sees it: segments to be had without waiting, made ahead by a helper thread. */
#ifndef DOVETAIL_TRACE_WRITER_H
#define DOVETAIL_TRACE_WRITER_H

#include "clock.h"
#include "dovetail_trace_file.h"

enum { LEAST_EVENTS = 256 }; /* of a segment */

/* Set while tracing begins, then only read. */
extern __attribute__((visibility("hidden"))) struct dvt_writer {
    dvt_header* header;
    uint64_t capacity; /* events in a segment */
    uint64_t limit;    /* events that a segment takes: its capacity, or without end where it is a ring */
    uint64_t mask;
    uint64_t pause; /* ticks of the event clock between two calls that are one interval, at most */
    int counter;    /* whether events are stamped by the processor's counter */
    int has_clock;  /* whether that is known yet */
} dvt_writer;

void dvt_choose_clock(void); /* once in a process */

static inline uint64_t dvt_now(void) {
    return __builtin_expect(dvt_writer.counter, 1) ? dvt_counter() : (uint64_t)dvt_system_ns(CLOCK_MONOTONIC_RAW);
}

int dvt_open(const char* folder); /* 0 or an errno value */
void dvt_close(void);
void dvt_forget(void); /* in a forked child: the file is the parent's */

dvt_segment* dvt_take(void);           /* one with room, or NULL; any thread, signal handlers too */
dvt_segment* dvt_wait(void);           /* the same, once the helper has made one; NULL where there is no room for it */
void dvt_give_back(dvt_segment* part); /* with room left, for another thread */
void dvt_discard(dvt_segment* full);   /* need not stay in memory */

uint64_t dvt_lost(void); /* events that found no room so far */
const char* dvt_path(void);
void dvt_line(const char* text); /* to the file of names and notes */

#endif
