/* Functions that the generated wrappers of MPI calls use. Included once, after the pointers `real_X` to the library's
   functions and the table of these, `dm_table`; NUM_CALLS is the number of wrappers.

   Nothing here is linked with an MPI library. Its functions and constants are looked up when the program starts MPI, so
   that the wrappers can be preloaded into every program of a job, even into programs that never call MPI. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dovetail_trace.h"
#include "dovetail_trace_file.h"
#include "dovetail_trace_meet.h"

#define DM_WHO "dovetail trace"
#define dm_inside dovetail_trace_inside
static int dm_name[NUM_CALLS];
static void dm_only_fortran(int number);

#include "mpi_data.h"
#include "mpi_payload.h"
#include "mpi_ready.h"

#define DM_PROGRAM (dm_fortran_site ? (dm_came_to_c = 1, dm_fortran_site) : DM_SITE)
#ifdef DM_CALLERS
static int64_t dm_chain_of(int64_t call, uintptr_t above);
#define DM_CHAIN dm_chain_of(DM_PROGRAM, (uintptr_t)__builtin_frame_address(0))
#else
#define DM_CHAIN DM_PROGRAM
#endif
#ifdef DM_PYTHON
#define DM_CALLER                           \
    __extension__({                         \
        const int64_t dm_line = dm_place(); \
        dm_line ? dm_line : DM_CHAIN;       \
    })
#else
#define DM_CALLER DM_CHAIN
#endif

/* Records a call from Fortran for which the library calls no C function (Open MPI: for empty lists of requests). */
static void dm_only_fortran(int number) {
    dovetail_trace_begin(dm_name[number], DM_CHAIN);
    dovetail_trace_end(dm_name[number], 0);
}

/* ---- communicators and windows, numbered in order of appearance ---- */

enum { DM_SLOTS = 8192, DM_GONE = 1 };

typedef struct {
    uint64_t key; /* a handle; 0: never used; DM_GONE: removed */
    int number;
} dm_slot;

static struct {
    dm_slot comm[DM_SLOTS], window[DM_SLOTS];
    int next;
    struct {
        uint64_t hash;
        int count;
    } alike[DM_SLOTS]; /* number of communicators or windows so far with equal ranks, by a hash of these */
} dm_known;

static dm_slot* dm_search(dm_slot* slots, uint64_t key) {
    uint64_t at = key * 0x9E3779B97F4A7C15u >> 51;
    for (int i = 0; i < DM_SLOTS; ++i, at = (at + 1) % DM_SLOTS) {
        const uint64_t found = __atomic_load_n(&slots[at].key, __ATOMIC_ACQUIRE);
        if (found == key || !found) return &slots[at];
    }
    return NULL;
}

/* Returns whether there was a free slot. */
static int dm_insert(dm_slot* slots, uint64_t key, int number) {
    uint64_t at = key * 0x9E3779B97F4A7C15u >> 51;
    for (int i = 0; i < DM_SLOTS; ++i, at = (at + 1) % DM_SLOTS) {
        if (slots[at].key > DM_GONE) continue;
        slots[at].number = number;
        __atomic_store_n(&slots[at].key, key, __ATOMIC_RELEASE);
        return 1;
    }
    return 0;
}

/* Removes a handle. Removed slots with no used slot after them become free, so that searches stay short. */
static void dm_remove(dm_slot* slots, uint64_t key) {
    pthread_mutex_lock(&dm_lock);
    dm_slot* slot = dm_search(slots, key);
    if (slot && slot->key == key) {
        uint64_t at = (uint64_t)(slot - slots);
        __atomic_store_n(&slot->key, DM_GONE, __ATOMIC_RELEASE);
        for (; !slots[(at + 1) % DM_SLOTS].key && slots[at].key == DM_GONE; at = (at + DM_SLOTS - 1) % DM_SLOTS)
            __atomic_store_n(&slots[at].key, 0, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&dm_lock);
}

/* Returns how many equal texts there were before. */
static int dm_count_alike(const char* text) {
    uint64_t hash = 14695981039346656037u;
    for (const char* c = text; *c; ++c) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    hash |= 1;
    for (uint64_t i = 0, at = hash >> 51; i < DM_SLOTS; ++i, at = (at + 1) % DM_SLOTS) {
        if (dm_known.alike[at].hash && dm_known.alike[at].hash != hash) continue;
        dm_known.alike[at].hash = hash;
        return dm_known.alike[at].count++;
    }
    return 0;
}

static MPI_Group dm_world_group;
static int dm_has_world;

/* Returns the text `"ranks": [0, 3]`, or `"size": 4` for the ranks 0 to 3; NULL without memory. */
static char* dm_list(const char* key, const int* ranks, int size, int may_be_short) {
    char* text = malloc(64 + 12 * (size_t)size);
    int is_plain = may_be_short;
    for (int i = 0; i < size; ++i) is_plain = is_plain && ranks[i] == i;
    if (!text) return NULL;
    if (is_plain) {
        sprintf(text, "\"size\": %d", size);
        return text;
    }
    char* at = text + sprintf(text, "\"%s\": [", key);
    for (int i = 0; i < size; ++i) at += sprintf(at, i ? ", %d" : "%d", ranks[i] < 0 ? -1 : ranks[i]);
    strcpy(at, "]");
    return text;
}

/* Returns the ranks of a group, as ranks of the job, for a note; NULL without memory. Frees the group. */
static char* dm_ranks_of(const char* key, MPI_Group group, int may_be_short) {
    int size = 0;
    char* text = NULL;
    real_Group_size(group, &size);
    int* here = malloc(2 * (size_t)(size + 1) * sizeof(int));
    if (here) {
        int* there = here + size;
        for (int i = 0; i < size; ++i) there[i] = here[i] = i;
        if (dm_has_world) real_Group_translate_ranks(group, size, here, dm_world_group, there);
        text = dm_list(key, there, size, may_be_short);
        free(here);
    }
    real_Group_free(&group);
    return text;
}

/* Gives a new communicator or window a number, and records its ranks in a note. */
static int dm_define(dm_slot* slots, uint64_t key, MPI_Group group, int has_remote, MPI_Group remote_group) {
    char* ranks = dm_ranks_of("ranks", group, 1);
    char* remote = has_remote ? dm_ranks_of("remote", remote_group, 0) : NULL;
    char* line = ranks ? malloc(strlen(ranks) + (remote ? strlen(remote) : 0) + 128) : NULL;
    pthread_mutex_lock(&dm_lock);
    const int number = dm_insert(slots, key, dm_known.next) ? dm_known.next++ : -1; /* -1: no slot is free */
    if (line && number >= 0) {
        const char* window = slots == dm_known.window ? ", \"window\": true" : "";
        const int length = sprintf(line, "{%s%s%s%s", ranks, remote ? ", " : "", remote ? remote : "", window);
        const int alike = dm_count_alike(line);
        sprintf(line + length, ", \"number\": %d, \"comm\": %d}", alike, number);
    }
    pthread_mutex_unlock(&dm_lock);
    if (line && number >= 0) dovetail_trace_note(line);
    free(line), free(ranks), free(remote);
    return number;
}

static int dm_define_comm(MPI_Comm comm) {
    MPI_Group group, remote;
    int joins_two = 0;
    if (comm == MPI_COMM_NULL) return -1;
    real_Comm_group(comm, &group);
    real_Comm_test_inter(comm, &joins_two);
    if (joins_two) real_Comm_remote_group(comm, &remote);
    dm_remove(dm_known.comm, DM_HANDLE(comm));
    return dm_define(dm_known.comm, DM_HANDLE(comm), group, joins_two, joins_two ? remote : group);
}

static int dm_define_window(MPI_Win win) {
    MPI_Group group;
    if (win == MPI_WIN_NULL) return -1;
    real_Win_get_group(win, &group);
    dm_remove(dm_known.window, DM_HANDLE(win));
    return dm_define(dm_known.window, DM_HANDLE(win), group, 0, group);
}

static inline int dm_comm(MPI_Comm comm) {
    dm_slot* slot = dm_search(dm_known.comm, DM_HANDLE(comm));
    return DM_LIKELY(slot && slot->key) ? slot->number : dm_define_comm(comm);
}

static inline int dm_window(MPI_Win win) {
    dm_slot* slot = dm_search(dm_known.window, DM_HANDLE(win));
    return DM_LIKELY(slot && slot->key) ? slot->number : dm_define_window(win);
}

static void dm_made_comm(MPI_Comm comm) {
    const int number = dm_define_comm(comm);
    if (number >= 0) dovetail_trace_detail(DVT_COMM, number, 0, 0);
}

static void dm_forget_comm(MPI_Comm comm) {
    dovetail_trace_detail(DVT_COMM, dm_comm(comm), 0, 0);
    dm_remove(dm_known.comm, DM_HANDLE(comm));
}

static void dm_forget_window(MPI_Win win) { dm_remove(dm_known.window, DM_HANDLE(win)); }

/* ---- data that calls move ---- */

static inline uint64_t dm_pair(int high, int low) { return (uint64_t)(uint32_t)high << 32 | (uint32_t)low; }

/* Returns a rank as recorded: -1 for any or none, -2 for MPI_PROC_NULL. */
static inline int dm_peer(int rank) { return rank >= 0 ? rank : rank == MPI_PROC_NULL ? -2 : -1; }

static inline int dm_tag(int tag) { return tag == MPI_ANY_TAG ? -1 : tag; }

static inline void dm_send(int64_t num_bytes, int dest, int tag, MPI_Comm comm) {
    const int64_t arg = dm_sent_with_checksum(num_bytes);
    dovetail_trace_detail(DVT_SEND, dm_comm(comm), dm_pair(dm_peer(dest), tag), arg);
}

static inline void dm_recv(int64_t num_bytes, int source, int tag, MPI_Comm comm) {
    dovetail_trace_detail(DVT_RECV, dm_comm(comm), dm_pair(dm_peer(source), dm_tag(tag)), num_bytes);
}

#include "mpi_statuses.h"

static inline void dm_request(MPI_Request request, int position) {
    if (request != MPI_REQUEST_NULL) dovetail_trace_detail(DVT_REQUEST, position, DM_HANDLE(request), 0);
}

static inline int64_t dm_made(MPI_Request request) {
    return request == MPI_REQUEST_NULL ? 0 : (int64_t)DM_HANDLE(request);
}

static inline int64_t dm_made_message(MPI_Message message) {
    return message == MPI_MESSAGE_NULL ? 0 : (int64_t)DM_HANDLE(message);
}

static inline void dm_message(uint64_t handle) { dovetail_trace_detail(DVT_REQUEST, 0, handle, 0); }

static inline void dm_collective(int64_t sent, int64_t received, MPI_Comm comm) {
    const uint64_t word = dm_with_checksum(received);
    dovetail_trace_detail(DVT_COLLECTIVE, dm_comm(comm), word, sent);
}

/* Records a collective among neighbours as the messages that it consists of: a rank waits for its own neighbours only.
   `each`: bytes to, or from, neighbour `dm_i`. */
#define DM_TO_NEAR(each, sent, received, comm)                                       \
    do {                                                                             \
        int dm_near[DM_MOST_NEAR];                                                   \
        const int dm_count = dm_neighbours(comm, 1, dm_near);                        \
        if (dm_count < 0) {                                                          \
            dm_collective(sent, received, comm);                                     \
            break;                                                                   \
        }                                                                            \
        for (int dm_i = 0; dm_i < dm_count; ++dm_i)                                  \
            if (dm_near[dm_i] >= 0) dm_send(each, dm_near[dm_i], DM_NEAR_TAG, comm); \
        dm_recv(0, MPI_ANY_SOURCE, DM_NEAR_TAG, comm);                               \
    } while (0)
/* The same of one that only begins: its receives are over when its request is. */
#define DM_BEGIN_NEAR(from_each, each, sent, received, comm)                              \
    do {                                                                                  \
        int dm_near[DM_MOST_NEAR];                                                        \
        const int dm_out = dm_neighbours(comm, 1, dm_near);                               \
        if (dm_out < 0) {                                                                 \
            dm_collective(sent, received, comm);                                          \
            break;                                                                        \
        }                                                                                 \
        for (int dm_i = 0; dm_i < dm_out; ++dm_i)                                         \
            if (dm_near[dm_i] >= 0) dm_send(each, dm_near[dm_i], DM_NEAR_TAG, comm);      \
        const int dm_in = dm_neighbours(comm, 0, dm_near);                                \
        for (int dm_i = 0; dm_i < dm_in; ++dm_i)                                          \
            if (dm_near[dm_i] >= 0) dm_recv(from_each, dm_near[dm_i], DM_NEAR_TAG, comm); \
    } while (0)
#define DM_FROM_NEAR(each, comm)                                                                                      \
    do {                                                                                                              \
        int dm_near[DM_MOST_NEAR];                                                                                    \
        const int dm_count = dm_neighbours(comm, 0, dm_near);                                                         \
        for (int dm_i = 0; dm_i < dm_count; ++dm_i)                                                                   \
            if (dm_near[dm_i] >= 0) dovetail_trace_detail(DVT_DONE, dm_i, dm_pair(dm_near[dm_i], DM_NEAR_TAG), each); \
    } while (0)
enum { DM_NEAR_TAG = INT32_MAX };

static inline void dm_root(int root) {
    dovetail_trace_detail(DVT_ROOT, 0, (uint64_t)(int64_t)(root < 0 ? -1 : root), 0);
}

static inline void dm_one_sided(int kind, int64_t num_bytes, int target, MPI_Win win) {
    dovetail_trace_detail(kind, 0, dm_pair(dm_peer(target), dm_window(win)), num_bytes);
}

static inline void dm_file(int64_t num_bytes) { dovetail_trace_detail(DVT_WINDOW, 0, dm_pair(-1, -1), num_bytes); }

#ifdef DM_CALLERS
#include "mpi_callers.h"
#endif
#ifdef DM_PYTHON
#include "mpi_python.h"
#endif
#include "mpi_clocks.h"
#include "mpi_waits.h"
