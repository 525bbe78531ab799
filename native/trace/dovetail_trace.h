/* Tracing for any C, C++ or Fortran program: 16-byte events in ring buffers that are a file, some 20 ns each.

   Link with -ldovetail_trace. No function throws, or ends the program. Those marked [fast] take no lock, allocate
   nothing and make no system call; they may be called in signal handlers. Only where a thread needs further room before
   the background thread has made it, it waits until that has. What there is no room for is counted and left out. */
#ifndef DOVETAIL_TRACE_H
#define DOVETAIL_TRACE_H

#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Starts tracing into a new file in `folder`; NULL: $DOVETAIL_TRACE_DIR, else ./dovetail-trace. Returns 0 or an errno
   value, after which all other calls do nothing. Calls may nest with those of `finalize`; the first one counts.

   DOVETAIL_TRACE_KEEP=newest keeps the newest events of each thread (DOVETAIL_TRACE_BUFFER bytes, default 16 MiB);
   otherwise all events are kept, and a background thread allocates ahead (pieces of DOVETAIL_TRACE_BUFFER bytes,
   default 1 MiB). DOVETAIL_TRACE_CLOCK=system reads the system's clock, not the processor's counter. */
int dovetail_trace_init(const char* folder);

/* Ends tracing at the last of nested calls. A program that never gets here leaves a readable trace all the same. After
   fork, the child is not traced until it calls `init` for a file of its own. */
void dovetail_trace_finalize(void);

/* The number of a name, always the same for the same text; 0 where there are 4095 already. */
int dovetail_trace_name(const char* text);

/* `arg` is any number of 48 bits, signed; what a program wants to see beside the event. */
void dovetail_trace_point(int name, int64_t arg); /* [fast] something happened */
void dovetail_trace_begin(int name, int64_t arg); /* [fast] an interval begins on this thread; intervals nest */
void dovetail_trace_end(int name, int64_t arg);   /* [fast] the innermost interval of this thread ends */

/* Calls that only look whether something is over, which programs make again and again. Those in vain that follow one
   another within 5 us, with no other event of this thread between them, become one interval, which has their
   number; so does one that finds what was looked for, if it is the next. Read the clock when a call begins. */
void dovetail_trace_vain(int name, int64_t arg, uint64_t begin); /* [fast] it found nothing, and ends */
/* [fast] It found something: an interval begins, or goes on. End it with name 0 and what this returns, unless that is
   0, for then it is one of its own. */
int64_t dovetail_trace_found(int name, int64_t arg, uint64_t begin);

/* Of several things that are under way at once, and end in any order: each lies in a lane, which viewers show beside
   the threads. Read the clock when it begins, and put both its events when it ends. */
int dovetail_trace_lane(const char* text, const char* lane);                   /* the number of a name in a lane */
uint64_t dovetail_trace_clock(void);                                           /* [fast] */
void dovetail_trace_span(int name, int64_t arg, uint64_t begin, uint64_t end); /* [fast] */

/* Adds to the innermost open interval: see `dvt_kind` in dovetail_trace_file.h. */
void dovetail_trace_detail(int kind, int field, uint64_t word, int64_t arg); /* [fast] */

void dovetail_trace_on(void);   /* [fast] all threads' events are recorded (as they are after init) */
void dovetail_trace_off(void);  /* [fast] they are not, at some 2 ns each */
int dovetail_trace_is_on(void); /* [fast] */

void dovetail_trace_rank(int rank, int num_ranks); /* of this process in its job */
void dovetail_trace_note(const char* json);        /* one line, a JSON object, kept beside the events */
uint64_t dovetail_trace_dropped(void);             /* events that there was no room for, so far */
const char* dovetail_trace_file(void);             /* path of this process's file; "" where nothing is traced */

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
