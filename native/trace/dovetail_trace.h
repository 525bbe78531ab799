/* Tracing for any C, C++ or Fortran program: events of 16 bytes in buffers mapped to a file, about 20 ns per event.

   Link with -ldovetail_trace. No function throws, or ends the program. Functions marked [fast] take no lock, allocate
   nothing and make no system call; signal handlers may call them. The exception: a thread whose buffer is full before
   the background thread has made another one waits for it. Events that do not fit are counted and dropped. */
#ifndef DOVETAIL_TRACE_H
#define DOVETAIL_TRACE_H

#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Starts tracing into a new file in `folder`; NULL: $DOVETAIL_TRACE_DIR, else ./dovetail-trace. Returns 0, or an errno
   value, after which all other functions do nothing. Pairs of `init` and `finalize` may nest; the outermost counts.

   DOVETAIL_TRACE_KEEP=newest keeps only the newest events of each thread (in DOVETAIL_TRACE_BUFFER bytes, default
   16 MiB). By default all events are kept, and a background thread allocates buffers ahead (of DOVETAIL_TRACE_BUFFER
   bytes, default 1 MiB) until the file has DOVETAIL_TRACE_LIMIT bytes (default 512 MiB); what comes later is counted as
   lost. DOVETAIL_TRACE_CLOCK=system uses the system's clock instead of the processor's counter. */
int dovetail_trace_init(const char* folder);

/* Ends tracing, at the outermost of nested calls. A program that never calls it leaves a readable trace, too. After
   fork, the child is not traced until it calls `init`, which makes a new file. */
void dovetail_trace_finalize(void);

/* Returns the number of a name; equal texts have equal numbers. 0 if there are 4095 names already. */
int dovetail_trace_name(const char* text);

/* `arg`: any signed number of 48 bits, which viewers show with the event. */
void dovetail_trace_point(int name, int64_t arg); /* [fast] something happened */
void dovetail_trace_begin(int name, int64_t arg); /* [fast] an interval begins on this thread; intervals nest */
void dovetail_trace_end(int name, int64_t arg);   /* [fast] the innermost interval of this thread ends */

/* For polls: calls that test whether something is complete, which programs repeat. Consecutive unsuccessful polls, at
   most 5 us apart and with no other event of this thread between them, are recorded as one interval with their number;
   the successful poll that follows is added to it. `begin`: the clock at the call's begin. */
void dovetail_trace_vain(int name, int64_t arg, uint64_t begin); /* [fast] an unsuccessful poll ends */
/* [fast] A successful poll: begins an interval, or continues the one of the polls before. If the result is 0, end the
   interval as usual; else end it with name 0 and the result as `arg`. */
int64_t dovetail_trace_found(int name, int64_t arg, uint64_t begin);

/* For intervals that overlap and need not nest: they belong to a lane, which viewers show beside the threads. Read the
   clock at begin and end, and record the interval by one call. */
int dovetail_trace_lane(const char* text, const char* lane);                   /* the number of a name in a lane */
uint64_t dovetail_trace_clock(void);                                           /* [fast] */
void dovetail_trace_span(int name, int64_t arg, uint64_t begin, uint64_t end); /* [fast] */

/* Adds a detail to the innermost open interval: see `dvt_kind` in dovetail_trace_file.h. */
void dovetail_trace_detail(int kind, int field, uint64_t word, int64_t arg); /* [fast] */

void dovetail_trace_on(void);   /* [fast] record events of all threads (the state after init) */
void dovetail_trace_off(void);  /* [fast] record nothing; an event then takes about 2 ns */
int dovetail_trace_is_on(void); /* [fast] */

void dovetail_trace_rank(int rank, int num_ranks); /* records the rank of this process in its job */
void dovetail_trace_note(const char* json);        /* records one line, a JSON object, beside the events */
uint64_t dovetail_trace_dropped(void);             /* returns the number of events dropped so far */
const char* dovetail_trace_file(void);             /* returns the path of this process's file; "": not traced */

/* For libraries that intercept a program's calls of MPI or of the C library. Inside: this thread is in a call of MPI or
   of the tracer, whose own I/O is not the program's. */
extern __thread int dovetail_trace_inside __attribute__((tls_model("initial-exec")));
int dovetail_trace_is_known(void);    /* [fast] returns whether this thread has recorded events, and still does */
void dovetail_trace_watches_io(void); /* the trace will have the program's I/O: a note says so */

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
