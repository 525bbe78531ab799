/* Layout of the file that one traced process writes: a header, then segments of events, in the writer's byte order.

   Every segment is a ring (keep newest) or is filled once (keep all). `count` counts the events ever put into it:
   beyond its capacity a ring has overwritten the oldest events, and the other kind has lost the newest. A segment
   starts, and passes to another thread, with a DVT_THREAD event. Names (with their lane, if any) and notes are JSON
   lines in a file beside it, `.jsonl`. Intervals in lanes need not nest: END follows BEGIN at once.
 */
#ifndef DOVETAIL_TRACE_FILE_H
#define DOVETAIL_TRACE_FILE_H

#include <stdint.h>

#define DVT_MAGIC "dovetrc1"
#define DVT_PAGE 4096

/* What an event is. POINT, BEGIN and END carry the clock in `word`; the others belong to the innermost BEGIN of their
   thread and carry data. `field` is a name, a communicator or a position; 4095 is "see DVT_WIDE just before".

   Where one interval stands for several calls that looked in vain, and perhaps one more that did not, the field of END
   is 0, and its arg: clock ticks between these calls << DVT_REPEAT_BITS | how many there were beside the first. */
enum dvt_kind {
    DVT_EMPTY,
    DVT_THREAD,     /* word: thread << 32 | number of this segment within the thread; the thread goes on here.
                       arg: whose the events before it are, 0: nobody's */
    DVT_POINT,      /* word: clock; field: name; arg: the program's */
    DVT_BEGIN,      /* the same; of an MPI call, arg is where it was called from */
    DVT_END,        /* the same; of an MPI call, arg is the request that it made, or 0 */
    DVT_SEND,       /* word: destination << 32 | tag; field: communicator; arg: bytes */
    DVT_RECV,       /* as posted; word: source << 32 | tag; field: communicator; arg: bytes that fit */
    DVT_DONE,       /* a request, or the call itself, is over; word: source << 32 | tag; field: position; arg: bytes */
    DVT_REQUEST,    /* word: a request that the call starts, waits for or frees; field: position */
    DVT_COLLECTIVE, /* word: bytes that this rank receives; field: communicator; arg: bytes that it sends */
    DVT_ROOT,       /* word: root of the collective that is the next event */
    DVT_PUT,        /* word: target << 32 | window; arg: bytes */
    DVT_GET,        /* the same */
    DVT_WINDOW,     /* word: target << 32 | window, target -1 for all */
    DVT_WIDE,       /* word: the `field` of the next event */
    DVT_COMM        /* field: a communicator that the call makes or frees */
};

typedef struct {
    uint64_t word;
    uint64_t about; /* arg << 16 | field << 4 | kind */
} dvt_event;

enum { DVT_REPEAT_BITS = 20 };
enum { DVT_CLOCK_SYSTEM, DVT_CLOCK_COUNTER };
enum { DVT_KEEP_ALL, DVT_KEEP_NEWEST };
enum { DVT_OPEN = 1, DVT_FINALIZED = 2 };

/* The event clock beside CLOCK_MONOTONIC_RAW and CLOCK_REALTIME, read together. */
typedef struct {
    uint64_t clock;
    int64_t raw_ns;
    int64_t real_ns;
} dvt_anchor;

typedef struct {
    char magic[8];
    uint32_t byte_order; /* 0x01020304 */
    uint32_t header_bytes;
    uint32_t segment_bytes; /* DVT_PAGE for dvt_segment, then its events */
    uint32_t num_segments;
    uint32_t keep;
    uint32_t clock_kind;
    uint32_t state;
    uint32_t pid;
    int32_t rank; /* -1 until it is known */
    int32_t num_ranks;
    uint64_t dropped; /* by threads that never had a segment */
    dvt_anchor first, last;
    char host[64];
    char program[256];
} dvt_header;

typedef struct {
    uint64_t count;
    uint64_t thread;               /* whose it was first, of a ring whose it was last; 0: nobody's yet */
    uint8_t pad[DVT_PAGE - 2 * 8]; /* the events begin on a page of their own */
    dvt_event events[];
} dvt_segment;

#endif
