/* The traced process's file: created, mapped segment by segment by a helper thread ahead of need, and closed. */
#define _GNU_SOURCE
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dovetail_trace.h"
#include "dovetail_trace_meet.h"
#include "owned.h"

enum { MAX_SPARES = 8, MAX_FULL = 64, MAX_RINGS = 64, MAX_LEFT = 1024 };
enum { PIECE = (1 << 20) + DVT_PAGE }; /* bytes of a ring buffer that are in memory when a thread gets it */
enum { PAUSE_NS = 5000 };              /* polls at most this far apart are one interval (GRAIN_S in advise/remedy.py) */
#ifndef MADV_POPULATE_WRITE
enum { MADV_POPULATE_WRITE = 23 }; /* since Linux 5.14; on older ones, filling a ring buffer first is slower */
#endif
enum { BUSY_NS = 1000000, IDLE_NS = 10000000, ROUNDS_TO_IDLE = 100 };
enum { NAP_NS = 50000, MAX_NAPS = 40000 }; /* a thread waits for a segment for at least 2 s */

static struct {
    struct dvt_owned events, lines;
    int num_spares; /* segments kept ready */
    int stop, helps;
    int has_no_room;    /* the helper found no room, or did not respond: threads do not wait */
    uint32_t num_asked; /* how often threads have asked the helper for room: a futex */
    uint64_t segment_bytes;
    off_t end; /* end of the file; used by the helper only, while it runs */
    pthread_t helper;
    char path[4096];
    char real[4096], beside[4096]; /* absolute paths of both files */
    dvt_segment* spare[MAX_SPARES];
    off_t spare_at[MAX_SPARES]; /* offsets in the file, read by dvt_close only */
    dvt_segment* full[MAX_FULL];
    dvt_segment* left[MAX_LEFT]; /* segments of ended threads with room for others */
    int num_left;
    struct ring {
        dvt_segment* segment; /* or NULL */
        uint64_t ready_bytes; /* bytes of it that are in memory */
    } ring[MAX_RINGS];        /* ring buffers not yet wholly in memory; used by the helper only, while it runs */
} file;

static dvt_header nowhere; /* the header while there is no file */

struct dvt_writer dvt_writer = {.header = &nowhere};

/* Writes zeros. Pages that exist are mapped many at a time, whereas each page of a hole causes a separate page fault,
   which takes longer than recording all events of the page. */
static int fill(int fd, off_t at, uint64_t num_bytes) {
    static char zeros[PIECE];
    for (uint64_t done = 0; done < num_bytes;) {
        const uint64_t rest = num_bytes - done;
        const ssize_t more = pwrite(fd, zeros, rest < sizeof zeros ? rest : sizeof zeros, at + (off_t)done);
        if (more <= 0) return 0;
        done += (uint64_t)more;
    }
    return 1;
}

static dvt_segment* make_segment(off_t at, uint64_t ready_bytes) {
    if (!dvt_is_within_limit(at + (off_t)file.segment_bytes)) return NULL;
    const int fd = dvt_reopened(&file.events, file.real, O_RDWR);
    if (fd < 0 || posix_fallocate(fd, at, (off_t)file.segment_bytes)) return NULL; /* later, the disk may be full */
    if (ready_bytes > file.segment_bytes) ready_bytes = file.segment_bytes;
    if (!fill(fd, at, ready_bytes)) return NULL;
    void* memory = mmap(NULL, file.segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    if (memory == MAP_FAILED) return NULL;
    for (uint64_t page = 0; page * DVT_PAGE < ready_bytes; ++page) ((volatile char*)memory)[page * DVT_PAGE] = 0;
    return memory;
}

/* Registers a ring buffer, so that the helper brings the rest of it into memory once a thread uses it. */
static void remember_ring(dvt_segment* segment, uint64_t ready_bytes) {
    if (ready_bytes >= file.segment_bytes) return;
    for (int i = 0; i < MAX_RINGS; ++i) {
        if (file.ring[i].segment) continue;
        file.ring[i] = (struct ring){segment, ready_bytes};
        return;
    }
}

/* Unmaps a segment, and unregisters it if it is a ring buffer. */
static void unmap(dvt_segment* segment) {
    for (int i = 0; i < MAX_RINGS; ++i)
        if (file.ring[i].segment == segment) file.ring[i].segment = NULL;
    munmap(segment, file.segment_bytes);
}

/* Brings another piece of every ring buffer in use into memory, so that its thread causes no page faults; returns the
   number of pieces. */
static int ready_more(void) {
    int found = 0;
    for (int i = 0; i < MAX_RINGS; ++i) {
        struct ring* ring = &file.ring[i];
        if (!ring->segment || !__atomic_load_n(&ring->segment->count, __ATOMIC_RELAXED)) continue;
        const uint64_t rest = file.segment_bytes - ring->ready_bytes, piece = rest < PIECE ? rest : PIECE;
        const int failed = madvise((char*)ring->segment + ring->ready_bytes, piece, MADV_POPULATE_WRITE);
        ring->ready_bytes += piece;
        if (failed || piece == rest) ring->segment = NULL;
        ++found;
    }
    return found;
}

/* Makes missing spare segments, with their first `ready_bytes` in memory; returns how many it made. */
static int make_spares(uint64_t ready_bytes) {
    int made = 0;
    for (int i = 0; i < file.num_spares; ++i) {
        if (__atomic_load_n(&file.spare[i], __ATOMIC_RELAXED)) continue;
        dvt_segment* fresh = make_segment(file.end, ready_bytes);
        __atomic_store_n(&file.has_no_room, !fresh, __ATOMIC_RELAXED);
        if (!fresh) return made;
        remember_ring(fresh, ready_bytes);
        file.spare_at[i] = file.end;
        file.end += (off_t)file.segment_bytes;
        __atomic_store_n(&dvt_writer.header->num_segments, dvt_writer.header->num_segments + 1, __ATOMIC_RELAXED);
        __atomic_store_n(&file.spare[i], fresh, __ATOMIC_RELEASE);
        ++made;
    }
    return made;
}

static void unmap_full(void) {
    for (int i = 0; i < MAX_FULL; ++i) {
        dvt_segment* full = __atomic_exchange_n(&file.full[i], NULL, __ATOMIC_ACQUIRE);
        if (full) unmap(full);
    }
}

static void* help(void* unused) {
    int quiet = 0;
    dovetail_trace_inside = 1;
    while (!__atomic_load_n(&file.stop, __ATOMIC_RELAXED)) {
        const uint32_t seen = __atomic_load_n(&file.num_asked, __ATOMIC_ACQUIRE);
        quiet = make_spares(PIECE) ? 0 : quiet + 1;
        while (ready_more() && !__atomic_load_n(&file.stop, __ATOMIC_RELAXED)) make_spares(PIECE);
        unmap_full();
        dvt_writer.header->last = dvt_read_anchor();
        dvt_note_load(0);
        const struct timespec pause = {0, quiet < ROUNDS_TO_IDLE ? BUSY_NS : IDLE_NS};
        syscall(SYS_futex, &file.num_asked, FUTEX_WAIT_PRIVATE, seen, &pause, NULL, 0); /* wakes early if asked */
    }
    return unused;
}

/* Starts the helper thread with all signals blocked, so that the program's threads get them. If it cannot be started,
   the spare segments made so far must suffice. */
static void start_helper(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    file.stop = 0;
    file.helps = pthread_create(&file.helper, NULL, help, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Creates the files HOST-PID.dvt and HOST-PID.jsonl in the folder; adds a number to the names if they exist already. */
static int create(const char* folder) {
    char host[64] = "host";
    gethostname(host, sizeof host - 1);
    for (char* c = host; *c; ++c)
        if (*c == '/') *c = '_';
    for (int i = 1; i < 1000; ++i) {
        char more[16] = "";
        if (i > 1) snprintf(more, sizeof more, "-%d", i);
        const int length = snprintf(file.path, sizeof file.path - 8, "%s/%s-%d%s.dvt", folder, host, getpid(), more);
        if (length < 0 || (size_t)length >= sizeof file.path - 8) return ENAMETOOLONG;
        if (dvt_own(&file.events, open(file.path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) >= 0) break;
        if (errno != EEXIST) return errno;
    }
    if (!file.events.number) return EEXIST;
    if (!realpath(file.path, file.real)) return errno;
    snprintf(file.beside, sizeof file.beside, "%.*s.jsonl", (int)strlen(file.real) - 4, file.real);
    const int lines = open(file.beside, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    return dvt_own(&file.lines, lines) < 0 ? errno : 0;
}

static uint64_t wanted_bytes(uint64_t otherwise) {
    const char* text = getenv("DOVETAIL_TRACE_BUFFER");
    const unsigned long long bytes = text ? strtoull(text, NULL, 10) : 0;
    return bytes ? bytes : otherwise;
}

/* Sets the segments' capacity: a power of two of events, and at least the bytes asked for. */
static void set_sizes(int keep) {
    const uint64_t bytes = wanted_bytes(keep == DVT_KEEP_NEWEST ? 16 << 20 : 1 << 20);
    uint64_t capacity = LEAST_EVENTS;
    while (capacity * sizeof(dvt_event) < bytes && capacity < (1u << 26)) capacity *= 2;
    dvt_writer.capacity = capacity;
    dvt_writer.limit = keep == DVT_KEEP_NEWEST ? UINT64_MAX : capacity;
    dvt_writer.mask = capacity - 1;
    file.segment_bytes = DVT_PAGE + capacity * sizeof(dvt_event);
    file.num_spares = keep == DVT_KEEP_NEWEST ? 2 : 6;
    dvt_read_limit(DVT_PAGE + file.segment_bytes);
}

static void fill_header(dvt_header* header, int keep) {
    memcpy(header->magic, DVT_MAGIC, sizeof header->magic);
    header->byte_order = 0x01020304;
    header->header_bytes = DVT_PAGE;
    header->segment_bytes = (uint32_t)file.segment_bytes;
    header->keep = (uint32_t)keep;
    header->clock_kind = dvt_writer.counter ? DVT_CLOCK_COUNTER : DVT_CLOCK_SYSTEM;
    header->pid = (uint32_t)getpid();
    header->rank = header->num_ranks = -1;
    gethostname(header->host, sizeof header->host - 1);
    const ssize_t length = readlink("/proc/self/exe", header->program, sizeof header->program - 1);
    header->program[length > 0 ? length : 0] = 0;
    header->first = header->last = dvt_read_anchor();
    header->state = DVT_OPEN;
}

/* Sets the longest pause between joined polls, in ticks, by the event clock's rate since the file was opened. */
static void set_pause(void) {
    const dvt_anchor first = dvt_writer.header->first, now = dvt_read_anchor();
    const double ticks = (double)(now.clock - first.clock), ns = (double)(now.raw_ns - first.raw_ns);
    dvt_writer.pause = ns > 0 && ticks > 0 ? (uint64_t)(PAUSE_NS * ticks / ns) : 0;
}

static int map_header(int keep) {
    const int fd = dvt_owned_fd(&file.events);
    _Static_assert(sizeof(dvt_header) <= DVT_PAGE, "the header is one page");
    _Static_assert(offsetof(dvt_segment, events) == DVT_PAGE, "events begin on a page");
    const int code = dvt_is_within_limit(DVT_PAGE) ? posix_fallocate(fd, 0, DVT_PAGE) : EFBIG;
    if (code) return code;
    void* memory = mmap(NULL, DVT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return errno;
    dvt_writer.header = memory;
    fill_header(memory, keep);
    file.end = DVT_PAGE;
    return make_spares(file.segment_bytes) ? 0 : ENOSPC;
}

int dvt_open(const char* folder) {
    const char* chosen = getenv("DOVETAIL_TRACE_DIR");
    const char* kept = getenv("DOVETAIL_TRACE_KEEP");
    const int keep = kept && strcmp(kept, "newest") == 0 ? DVT_KEEP_NEWEST : DVT_KEEP_ALL;
    folder = folder ? folder : chosen && *chosen ? chosen : "dovetail-trace";
    dvt_forget(); /* segments that threads of the previous file gave back late */
    dvt_writer.header = &nowhere;
    dvt_choose_clock();
    set_sizes(keep);
    int code = dvt_make_folders(folder);
    if (!code) code = create(folder);
    if (!code) code = map_header(keep);
    if (code) {
        dvt_close();
        return code;
    }
    set_pause();
    dvt_note_load(1);
    start_helper();
    return 0;
}

/* Truncates the file by the spare segments at its end. Threads may still write into all others. */
static void cut_spares(void) {
    off_t unused[MAX_SPARES];
    int count = 0;
    for (int i = 0; i < file.num_spares; ++i) {
        dvt_segment* spare = __atomic_exchange_n(&file.spare[i], NULL, __ATOMIC_ACQUIRE);
        if (spare) unused[count++] = file.spare_at[i];
    }
    for (int cut = 1; cut;) {
        cut = 0;
        for (int i = 0; i < count; ++i) {
            if (unused[i] + (off_t)file.segment_bytes != file.end) continue;
            file.end = unused[i];
            cut = 1;
        }
    }
    /* set before truncating: if the process is killed in between, the file must not look truncated */
    dvt_writer.header->num_segments = (uint32_t)((uint64_t)(file.end - DVT_PAGE) / file.segment_bytes);
    const int code = ftruncate(dvt_reopened(&file.events, file.real, O_RDWR), file.end);
    (void)code; /* if this fails, empty segments stay */
}

void dvt_close(void) {
    if (file.helps) {
        __atomic_store_n(&file.stop, 1, __ATOMIC_RELAXED);
        pthread_join(file.helper, NULL);
        file.helps = 0;
    }
    if (dvt_writer.header != &nowhere) {
        cut_spares();
        dvt_note_load(1);
        dvt_writer.header->last = dvt_read_anchor();
        dvt_writer.header->state = DVT_FINALIZED; /* it stays mapped: a late thread may count dropped events */
    }
    dvt_forget();
}

void dvt_forget(void) {
    dvt_disown(&file.events);
    dvt_disown(&file.lines);
    file.helps = file.has_no_room = 0;
    for (int i = 0; i < MAX_SPARES; ++i) file.spare[i] = NULL;
    for (int i = 0; i < MAX_FULL; ++i) file.full[i] = NULL;
    for (int i = 0; i < MAX_RINGS; ++i) file.ring[i].segment = NULL;
    for (int i = 0; i < MAX_LEFT; ++i) file.left[i] = NULL;
    file.num_left = 0;
}

static dvt_segment* take_of(dvt_segment** those, int count) {
    for (int i = 0; i < count; ++i) {
        if (!__atomic_load_n(&those[i], __ATOMIC_RELAXED)) continue;
        dvt_segment* taken = __atomic_exchange_n(&those[i], NULL, __ATOMIC_ACQUIRE);
        if (taken) return taken;
    }
    return NULL;
}

dvt_segment* dvt_take(void) {
    if (__atomic_load_n(&file.num_left, __ATOMIC_RELAXED) > 0) {
        dvt_segment* taken = take_of(file.left, MAX_LEFT);
        if (taken) {
            __atomic_fetch_sub(&file.num_left, 1, __ATOMIC_RELAXED);
            return taken;
        }
    }
    return take_of(file.spare, file.num_spares);
}

/* Returns whether the helper will make more segments. */
static int may_come(void) {
    const int helps = __atomic_load_n(&file.helps, __ATOMIC_RELAXED) && !__atomic_load_n(&file.stop, __ATOMIC_RELAXED);
    return helps && !__atomic_load_n(&file.has_no_room, __ATOMIC_RELAXED);
}

dvt_segment* dvt_wait(void) {
    const struct timespec nap = {0, NAP_NS};
    const int before = errno;
    dvt_segment* taken = NULL;
    for (int i = 0; i < MAX_NAPS && !(taken = dvt_take()) && may_come(); ++i) {
        __atomic_fetch_add(&file.num_asked, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &file.num_asked, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        nanosleep(&nap, NULL);
    }
    if (!taken) taken = dvt_take();
    if (!taken) __atomic_store_n(&file.has_no_room, 1, __ATOMIC_RELAXED);
    errno = before;
    return taken;
}

void dvt_give_back(dvt_segment* part) {
    for (int i = 0; i < MAX_LEFT; ++i) {
        dvt_segment* empty = NULL;
        if (!__atomic_compare_exchange_n(&file.left[i], &empty, part, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) continue;
        __atomic_fetch_add(&file.num_left, 1, __ATOMIC_RELAXED);
        return;
    }
    dvt_discard(part);
}

void dvt_discard(dvt_segment* full) {
    for (int i = 0; i < MAX_FULL; ++i) {
        dvt_segment* empty = NULL;
        if (__atomic_compare_exchange_n(&file.full[i], &empty, full, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) return;
    }
}

uint64_t dvt_lost(void) { return __atomic_load_n(&dvt_writer.header->dropped, __ATOMIC_RELAXED); }

const char* dvt_path(void) { return file.events.number ? file.path : ""; }

void dvt_line(const char* text) {
    char line[4096];
    const size_t length = strlen(text);
    const int fd = dvt_reopened(&file.lines, file.beside, O_WRONLY | O_APPEND);
    char* whole = length + 2 <= sizeof line ? line : malloc(length + 2);
    const int inside = dovetail_trace_inside;
    dovetail_trace_inside = 1;
    if (whole && fd >= 0) {
        memcpy(whole, text, length);
        whole[length] = '\n';
        ssize_t done = write(fd, whole, length + 1); /* one write: lines of threads do not mix */
        (void)done;                                  /* if the disk is full, the line is lost */
    }
    dovetail_trace_inside = inside;
    if (whole != line) free(whole);
}
