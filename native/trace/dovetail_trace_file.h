/* Layout of the file that one traced process writes: a header, then segments of events, in the writer's byte order.

   A segment is a ring buffer (keep newest), or is filled once (keep all). `count` is the number of events ever put into
   it. If it exceeds the capacity, a ring buffer has overwritten the oldest events, and the other kind has lost the
   newest. A segment begins with a DVT_THREAD event; another one marks where another thread takes the segment over.
   Names (with their lane, if any) and notes are JSON lines in a second file, `.jsonl`. Intervals in lanes need not
   nest: their END follows their BEGIN directly.
 */
#ifndef DOVETAIL_TRACE_FILE_H
#define DOVETAIL_TRACE_FILE_H

#include <stdint.h>

#define DVT_MAGIC "dovetrc1"
#define DVT_PAGE 4096

/* Kinds of events. POINT, BEGIN and END have the clock in `word`; the others are data of the innermost open BEGIN of
   their thread. `field` is a name, a communicator or a position; 4095: see the DVT_WIDE event directly before.

   An interval may stand for several unsuccessful polls, and one successful poll after them. Then the field of its END
   is 0, and the arg is: clock ticks between the polls << DVT_REPEAT_BITS | number of polls after the first. */
enum dvt_kind {
    DVT_EMPTY,
    DVT_THREAD,     /* word: thread << 32 | number of this segment within the thread, whose events follow.
                       arg: the thread of the events before it; 0: none */
    DVT_POINT,      /* word: clock; field: name; arg: the user's number */
    DVT_BEGIN,      /* as POINT; for an MPI call, arg is the return address */
    DVT_END,        /* as POINT; for an MPI call, arg is the request that it created, or 0 */
    DVT_SEND,       /* word: destination << 32 | tag; field: communicator; arg: checksum (7 bits) << 40 | bytes */
    DVT_RECV,       /* a posted receive; word: source << 32 | tag; field: communicator; arg: bytes of the buffer */
    DVT_DONE,       /* a request or the call completed; word: source << 32 | tag; field: position; arg: bytes */
    DVT_REQUEST,    /* word: a request that the call starts, waits for or frees; field: position */
    DVT_COLLECTIVE, /* word: checksum of what this rank sends << 40 (0: unknown) | bytes that it receives;
                       field: communicator; arg: bytes that it sends */
    DVT_ROOT,       /* word: root of the collective in the next event; or, of a message that the next event sends, the
                       clock since which its data have been as they are */
    DVT_PUT,        /* word: target << 32 | window; arg: bytes */
    DVT_GET,        /* as PUT */
    DVT_WINDOW,     /* word: target << 32 | window; target -1: all. Both -1: a file, of which the call reads or writes
                       `arg` bytes */
    DVT_WIDE,       /* word: the `field` of the next event */
    DVT_COMM        /* field: a communicator that the call creates or frees */
};

typedef struct {
    uint64_t word;
    uint64_t about; /* arg << 16 | field << 4 | kind */
} dvt_event;

enum { DVT_REPEAT_BITS = 20 };
enum { DVT_CLOCK_SYSTEM, DVT_CLOCK_COUNTER };
enum { DVT_KEEP_ALL, DVT_KEEP_NEWEST };
enum { DVT_OPEN = 1, DVT_FINALIZED = 2 };

/* The event clock, CLOCK_MONOTONIC_RAW and CLOCK_REALTIME, read at one moment. */
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
    int32_t rank; /* -1: not yet known */
    int32_t num_ranks;
    uint64_t dropped; /* events of threads that had no segment */
    dvt_anchor first, last;
    char host[64];
    char program[256];
} dvt_header;

typedef struct {
    uint64_t count;
    uint64_t thread;               /* the first thread that used it; for a ring buffer the last one; 0: none yet */
    uint8_t pad[DVT_PAGE - 2 * 8]; /* the events begin on a new page */
    dvt_event events[];
} dvt_segment;

#endif
