/* The functions of dovetail_trace.h: put events into the thread's segment; on, off, init, finalize and fork. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "dovetail_trace.h"
#include "dovetail_trace_meet.h"
#include "names.h"
#include "writer.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
enum { AHEAD = 16 };       /* events that are prefetched, so that the program's next sends do not wait for the cache */
enum { LOOK_PAUSES = 50 }; /* waits for a core are read so many of the writer's pauses after the last time */
enum { LEAST_WAITED_NS = 50000, MOST_WAITS = 1 << 16 }; /* of waits for a core: those noted, and how many of them */

__thread int dovetail_trace_inside __attribute__((tls_model("initial-exec")));

static int watches_io;
static uint32_t on; /* the file's generation while events are recorded, else 0 */
static int depth;   /* nesting depth of init */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t at_exit; /* gives back a thread's segment when the thread ends */
static uint32_t num_threads;  /* threads that have recorded in this file */
static uint32_t generation;   /* number of the file; a thread's segment belongs to one file */

static __thread struct {
    dvt_segment *segment, *before; /* before: the previous one, in which an interrupted put may still write */
    uint32_t thread, part, generation;
    struct {
        dvt_event* end; /* the END of the last interval of unsuccessful polls; NULL: none in this segment */
        uint64_t count; /* the segment's `count` after that event */
        int name;
    } vain;
    struct {
        uint64_t at;    /* clock of the last reading */
        int64_t so_far; /* nanoseconds; -1: unknown */
        uint32_t generation;
    } waits; /* for a core */
} mine __attribute__((tls_model("initial-exec")));

static uint64_t about(int kind, int field, int64_t arg) {
    return (uint64_t)arg << 16 | ((uint64_t)field & 4095) << 4 | (uint64_t)kind;
}

static void count_lost(void) { __atomic_fetch_add(&dvt_writer.header->dropped, 1, __ATOMIC_RELAXED); }

/* Returns a segment with room for `needed` events, waiting for the helper thread if necessary; NULL: none. */
static dvt_segment* segment_with_room(int needed) {
    for (;;) {
        dvt_segment* fresh = dvt_take();
        if (!fresh) fresh = dvt_wait();
        if (!fresh || fresh->count + (uint64_t)needed <= dvt_writer.limit) return fresh;
        dvt_discard(fresh);
    }
}

/* Gives this thread a segment with room for `needed` events; returns 0 if there is none. */
static int next_segment(int needed) {
    if (mine.generation != generation) mine.segment = mine.before = NULL;
    const dvt_segment* held = mine.segment;
    dvt_segment* fresh = segment_with_room(needed);
    if (mine.generation == generation && mine.segment && mine.segment != held) { /* a signal handler got one */
        if (fresh) dvt_give_back(fresh);
        return 1;
    }
    if (!fresh) return 0;
    if (mine.generation != generation || !mine.thread) {
        mine.generation = generation;
        mine.thread = __atomic_add_fetch(&num_threads, 1, __ATOMIC_RELAXED);
        mine.part = 0;
    }
    pthread_setspecific(at_exit, &mine); /* set each time, for threads that record while they end */
    const uint64_t before = fresh->thread;
    if (!before || dvt_writer.limit == UINT64_MAX) fresh->thread = mine.thread;
    dvt_event* event = &fresh->events[dvt_next(&fresh->count) & dvt_writer.mask];
    event->word = (uint64_t)mine.thread << 32 | mine.part++;
    event->about = about(DVT_THREAD, 0, (int64_t)before);
    if (mine.before) dvt_discard(mine.before);
    mine.before = mine.segment;
    mine.segment = fresh;
    mine.vain.end = NULL;
    return 1;
}

static inline uint32_t recorded_in(void) { return __atomic_load_n(&on, __ATOMIC_RELAXED); }

/* Returns a place in a new segment, or NULL after counting the event as lost. `full`: the segment whose `count` already
   includes the event, or NULL. */
__attribute__((noinline, cold)) static dvt_event* place_in_next(dvt_segment* full) {
    if (full) --full->count; /* the event goes into the new segment */
    if (next_segment(2)) {
        dvt_segment* segment = mine.segment;
        const uint64_t at = dvt_next(&segment->count);
        if (at < dvt_writer.limit) return &segment->events[at & dvt_writer.mask];
    } else if (full && mine.segment == full) {
        dvt_next(&full->count); /* the event is lost after the events in `full` */
    }
    count_lost();
    return NULL;
}

/* Returns a place for an event in the file of this generation, or NULL. */
static inline dvt_event* place(uint32_t file) {
    dvt_segment* segment = mine.segment;
    if (!LIKELY(segment && mine.generation == file)) return place_in_next(NULL);
    const uint64_t at = dvt_next(&segment->count);
    __builtin_prefetch(&segment->events[(at + AHEAD) & dvt_writer.mask], 1);
    return LIKELY(at < dvt_writer.limit) ? &segment->events[at & dvt_writer.mask] : place_in_next(segment);
}

static inline void put(uint32_t file, int kind, int field, uint64_t word, int64_t arg) {
    dvt_event* event = place(file);
    if (!event) return;
    event->word = word;
    event->about = about(kind, field, arg);
}

/* Returns the clock; if nothing is recorded, that of the last reading of waits for a core. */
static inline uint64_t stamp(int kind, int name, int64_t arg) {
    const uint32_t file = recorded_in();
    if (!file) return mine.waits.at;
    dvt_event* event = place(file);
    if (!event) return mine.waits.at;
    event->about = about(kind, name, arg);
    return event->word = dvt_now();
}

/* Reads what this thread has waited for a core; notes what is new if it `begins` a call: it then belongs to the work
   before that. What is new at the end of a call belongs to the call, where the thread may have waited anyway. */
__attribute__((noinline, cold)) static void look_at_core(uint64_t now, int begins) {
    static uint32_t num_notes;
    const int kept = errno, is_first = mine.waits.generation != generation;
    const int64_t so_far = dvt_waited_ns(), more = is_first ? 0 : so_far - mine.waits.so_far;
    const int is_known = so_far >= 0 && (is_first || mine.waits.so_far >= 0);
    if (is_known && (is_first || (begins && more >= LEAST_WAITED_NS)) &&
        __atomic_fetch_add(&num_notes, 1, __ATOMIC_RELAXED) < MOST_WAITS) {
        char line[128];
        snprintf(line, sizeof line, "{\"waits\": [%u, %llu, %lld]}", mine.thread, (unsigned long long)now,
                 (long long)more);
        dovetail_trace_note(line);
    }
    mine.waits.so_far = so_far, mine.waits.generation = generation, mine.waits.at = dvt_now();
    errno = kept;
}

static inline int is_long_ago(uint64_t now) { return now - mine.waits.at > LOOK_PAUSES * dvt_writer.pause; }

void dovetail_trace_point(int name, int64_t arg) { stamp(DVT_POINT, name, arg); }

void dovetail_trace_begin(int name, int64_t arg) {
    const uint64_t now = stamp(DVT_BEGIN, name, arg);
    if (!LIKELY(!is_long_ago(now))) look_at_core(now, 1);
}

void dovetail_trace_end(int name, int64_t arg) {
    const uint64_t now = stamp(DVT_END, name, arg);
    if (!LIKELY(!is_long_ago(now))) look_at_core(now, 0);
}

/* Adds a poll to the last interval of polls, if it directly continues that interval; returns whether it does. */
static inline int looks_again(uint32_t file, int name, uint64_t begin) {
    dvt_event* end = mine.vain.end;
    const dvt_segment* segment = mine.segment;
    if (!end || !segment || mine.generation != file || segment->count != mine.vain.count) return 0;
    const uint64_t pause = begin - end->word, counted = end->about >> 16;
    const uint64_t most = ((uint64_t)1 << DVT_REPEAT_BITS) - 1;
    if (mine.vain.name != name || pause > dvt_writer.pause) return 0;
    if ((counted & most) == most || counted >> 46) return 0; /* the counters are full */
    end->about = about(DVT_END, 0, (int64_t)(counted + (pause << DVT_REPEAT_BITS) + 1));
    return 1;
}

void dovetail_trace_vain(int name, int64_t arg, uint64_t begin) {
    const uint32_t file = recorded_in();
    if (!file) return;
    if (LIKELY(looks_again(file, name, begin))) {
        mine.vain.end->word = dvt_now();
        return;
    }
    put(file, DVT_BEGIN, name, begin, arg);
    dvt_event* end = place(file);
    if (!end) return;
    end->about = about(DVT_END, 0, 0);
    end->word = dvt_now();
    mine.vain.end = end, mine.vain.count = mine.segment->count, mine.vain.name = name;
}

int64_t dovetail_trace_found(int name, int64_t arg, uint64_t begin) {
    const uint32_t file = recorded_in();
    if (!file) return 0;
    if (!looks_again(file, name, begin)) {
        put(file, DVT_BEGIN, name, begin, arg);
        return 0;
    }
    dvt_event* end = mine.vain.end;
    const int64_t counted = (int64_t)end->about >> 16;
    end->about = DVT_EMPTY; /* the interval continues: its END follows later */
    mine.vain.end = NULL;
    return counted;
}

uint64_t dovetail_trace_clock(void) {
    if (!LIKELY(__atomic_load_n(&dvt_writer.has_clock, __ATOMIC_ACQUIRE))) dvt_choose_clock();
    return dvt_now();
}

void dovetail_trace_span(int name, int64_t arg, uint64_t begin, uint64_t end) {
    const uint32_t file = recorded_in();
    if (!file) return;
    put(file, DVT_BEGIN, name, begin, arg);
    put(file, DVT_END, name, end, 0);
}

void dovetail_trace_detail(int kind, int field, uint64_t word, int64_t arg) {
    const uint32_t file = recorded_in();
    if (!file) return;
    if (field < 0 || field >= 4095) {
        put(file, DVT_WIDE, 0, (uint64_t)(int64_t)field, 0);
        field = 4095;
    }
    put(file, kind, field, word, arg);
}

void dovetail_trace_on(void) { __atomic_store_n(&on, depth > 0 ? generation : 0, __ATOMIC_RELAXED); }

void dovetail_trace_off(void) { __atomic_store_n(&on, 0, __ATOMIC_RELAXED); }

int dovetail_trace_is_on(void) { return recorded_in() != 0; }

int dovetail_trace_is_known(void) {
    const uint32_t file = recorded_in();
    return file && mine.segment && mine.generation == file;
}

void dovetail_trace_watches_io(void) { watches_io = 1; }

/* Gives the rest of an ended thread's segment to the next thread. A ring buffer is passed on, too, and then keeps the
   newest events of all its threads. */
static void give_back(void* unused) {
    (void)unused;
    dvt_segment *segment = mine.segment, *before = mine.before;
    mine.segment = mine.before = NULL;
    dvt_forget_core();
    if (mine.generation != generation || !__atomic_load_n(&depth, __ATOMIC_RELAXED)) return;
    if (before) dvt_discard(before);
    if (!segment) return;
    if (dvt_writer.limit == UINT64_MAX || segment->count < dvt_writer.capacity)
        dvt_give_back(segment);
    else
        dvt_discard(segment);
}

int dovetail_trace_lane(const char* text, const char* lane) {
    pthread_mutex_lock(&lock);
    const int number = text ? dvt_name(text, lane) : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

int dovetail_trace_name(const char* text) { return dovetail_trace_lane(text, NULL); }

void dovetail_trace_rank(int rank, int num_ranks) {
    if (!recorded_in()) return;
    dvt_writer.header->rank = rank;
    dvt_writer.header->num_ranks = num_ranks;
}

void dovetail_trace_note(const char* json) {
    pthread_mutex_lock(&lock);
    if (depth && json) dvt_line(json);
    pthread_mutex_unlock(&lock);
}

uint64_t dovetail_trace_dropped(void) { return dvt_lost(); }

const char* dovetail_trace_file(void) { return dvt_path(); }

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
    on = 0;
    depth = 0;
    mine.segment = mine.before = NULL;
    dvt_forget();
    dvt_forget_core();
    mine.waits.generation = 0;
    pthread_mutex_unlock(&lock);
}

static int prepare_once(void) {
    static int done, code;
    if (done) return code;
    done = 1;
    code = pthread_key_create(&at_exit, give_back);
    if (!code) code = pthread_atfork(before_fork, after_fork, in_child);
    return code;
}

/* Records where the code of the program and its libraries is mapped, by which call sites are found. */
static void note_maps(void) {
    char line[4400], path[4096];
    unsigned long start, end, offset;
    char mode[8];
    FILE* maps = fopen("/proc/self/maps", "re");
    if (!maps) return;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %4095[^\n]", &start, &end, mode, &offset, path) != 5) continue;
        if (mode[2] != 'x' || path[0] != '/' || strpbrk(path, "\"\\")) continue;
        snprintf(line, sizeof line, "{\"map\": \"%s\", \"start\": %lu, \"end\": %lu, \"offset\": %lu}", path, start,
                 end, offset);
        dvt_line(line);
    }
    fclose(maps);
}

static void note_clock(void) {
    char clock[160], line[200];
    snprintf(line, sizeof line, "{\"clock_of\": \"%s\"}", dovetail_trace_clock_of(clock, sizeof clock));
    if (*clock) dvt_line(line);
}

/* Measures and records what an event costs with reading the clock, and without, in ticks of the event clock. Advice
   uses it to predict the time of the untraced program. The events go to a scratch segment. */
static void note_cost(void) {
    enum { TURNS = 8, PAIRS = LEAST_EVENTS / 2 };
    static _Alignas(64) char scratch[sizeof(dvt_segment) + LEAST_EVENTS * sizeof(dvt_event)];
    uint64_t least[2] = {UINT64_MAX, UINT64_MAX};
    mine.segment = (dvt_segment*)scratch, mine.generation = generation;
    for (int turn = 0; turn < 2 * TURNS; ++turn) {
        mine.segment->count = 0;
        const uint64_t begun = dvt_now();
        for (int i = 0; i < PAIRS; ++i) {
            put(generation, DVT_BEGIN, i, turn % 2 ? 0 : dvt_now(), i);
            put(generation, DVT_END, i, turn % 2 ? 0 : dvt_now(), i);
        }
        const uint64_t spent = dvt_now() - begun;
        if (spent < least[turn % 2]) least[turn % 2] = spent;
    }
    mine.segment = NULL, mine.generation = 0; /* the thread gets its number with its first real event */
    char line[100];
    snprintf(line, sizeof line, "{\"event_ticks\": [%.2f, %.2f]}", (double)least[0] / (2 * PAIRS),
             (double)least[1] / (2 * PAIRS));
    dvt_line(line);
}

int dovetail_trace_init(const char* folder) {
    const int kept = errno, inside = dovetail_trace_inside;
    int code = 0;
    pthread_mutex_lock(&lock);
    dovetail_trace_inside = 1;
    if (depth == 0) {
        code = prepare_once();
        if (!code) code = dvt_open(folder);
        if (!code) {
            ++generation;
            __atomic_store_n(&num_threads, 0, __ATOMIC_RELAXED);
            dvt_write_names();
            note_maps();
            note_clock();
            note_cost();
            if (watches_io) dvt_line("{\"io\": true}");
            __atomic_store_n(&on, generation, __ATOMIC_RELEASE);
        }
    }
    if (!code) ++depth;
    dovetail_trace_inside = inside;
    pthread_mutex_unlock(&lock);
    errno = kept;
    return code;
}

void dovetail_trace_finalize(void) {
    const int kept = errno, inside = dovetail_trace_inside;
    pthread_mutex_lock(&lock);
    dovetail_trace_inside = 1;
    if (depth && --depth == 0) {
        __atomic_store_n(&on, 0, __ATOMIC_RELAXED);
        note_maps();
        dvt_close();
    }
    dovetail_trace_inside = inside;
    pthread_mutex_unlock(&lock);
    errno = kept;
}

/* Ends tracing of a program that exits without `finalize`. */
__attribute__((destructor)) static void at_end(void) {
    while (depth) dovetail_trace_finalize();
}
