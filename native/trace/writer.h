/* The traced process's file as record.c uses it: segments, which a helper thread makes ahead of need. */
#ifndef DOVETAIL_TRACE_WRITER_H
#define DOVETAIL_TRACE_WRITER_H

#include <sys/types.h>

#include "clock.h"
#include "dovetail_trace_file.h"

enum { LEAST_EVENTS = 256 };          /* smallest capacity of a segment */
#define DVT_LIMIT (UINT64_C(1) << 29) /* default of DOVETAIL_TRACE_LIMIT: 32 million events */

/* Written when tracing begins, then only read. */
extern __attribute__((visibility("hidden"))) struct dvt_writer {
    dvt_header* header;
    uint64_t capacity; /* events in a segment */
    uint64_t limit;    /* events that a segment takes: its capacity; UINT64_MAX for a ring buffer */
    uint64_t mask;
    uint64_t pause; /* most ticks of the event clock between two polls of one interval */
    int counter;    /* whether the event clock is the processor's counter */
    int has_clock;  /* whether `counter` has been set */
} dvt_writer;

void dvt_choose_clock(void);      /* sets `counter`, once per process */
dvt_anchor dvt_read_anchor(void); /* reads all clocks several times; returns the reading that took least time */

static inline uint64_t dvt_now(void) {
    return __builtin_expect(dvt_writer.counter, 1) ? dvt_counter() : (uint64_t)dvt_system_ns(CLOCK_MONOTONIC_RAW);
}

int dvt_open(const char* folder); /* returns 0 or an errno value */
void dvt_close(void);
void dvt_forget(void); /* drops all state; for a forked child, whose parent has the file */

dvt_segment* dvt_take(void);           /* returns a segment with room, or NULL; for any thread and signal handlers */
dvt_segment* dvt_wait(void);           /* as dvt_take, but waits for the helper to make one; NULL: no room */
void dvt_give_back(dvt_segment* part); /* gives a segment with room to other threads */
void dvt_discard(dvt_segment* full);   /* lets the helper unmap a full segment */

/* Whether a file may be so long: beyond DOVETAIL_TRACE_LIMIT tracing ends, which a note says; beyond RLIMIT_FSIZE the
   process would get a signal. */
int dvt_is_within_limit(off_t end);
void dvt_read_limit(uint64_t least);      /* reads DOVETAIL_TRACE_LIMIT; the limit is at least `least` bytes */
int dvt_make_folders(const char* folder); /* makes it, and those that it lies in; returns 0 or an errno value */

uint64_t dvt_lost(void); /* returns the number of events dropped so far */
const char* dvt_path(void);
void dvt_line(const char* text); /* writes a line to the file of names and notes */

/* Writes a note of what the kernel counts for this process and its CPUs (load.c), unless the last note is recent;
   `always`: even then. Calls do not overlap. */
void dvt_note_load(int always);

int64_t dvt_waited_ns(void); /* returns what this thread has waited for a core so far; -1: unknown (core.c) */
void dvt_forget_core(void);  /* closes what dvt_waited_ns opened, of a thread that ends, or of a forked child */

#endif
