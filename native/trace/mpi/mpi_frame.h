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

#define DM_LIKELY(x) __builtin_expect(!!(x), 1)
#define DM_SITE ((int64_t)(uintptr_t)__builtin_return_address(0))
#define DM_HANDLE(x) ((uint64_t)(int64_t)(intptr_t)(x))
#define DM_SUM(counts, n)                                                \
    __extension__({                                                      \
        int64_t dm_sum = 0;                                              \
        for (int dm_i = 0; dm_i < (n); ++dm_i) dm_sum += (counts)[dm_i]; \
        dm_sum;                                                          \
    })
#define DM_SUM_W(counts, types, n)                                                                         \
    __extension__({                                                                                        \
        int64_t dm_sum = 0;                                                                                \
        for (int dm_i = 0; dm_i < (n); ++dm_i) dm_sum += dm_bytes((int64_t)(counts)[dm_i], (types)[dm_i]); \
        dm_sum;                                                                                            \
    })

static int dm_is_ready, dm_is_tracing; /* the library is found; MPI is initialized */
static int dm_name[NUM_CALLS];
static __thread int dm_inside __attribute__((tls_model("initial-exec"))); /* inside a call of the library or tracer */
static pthread_mutex_t dm_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- finding the library ---- */

static int dm_try(struct dl_phdr_info* object, size_t size, void* found) {
    (void)size;
    void* handle = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return 0;
    if (!dlsym(handle, "PMPI_Comm_rank")) {
        dlclose(handle);
        return 0;
    }
    *(void**)found = handle;
    return 1;
}

static void* dm_library;                      /* the MPI library that the gate has found */
static void* (*dm_next_of)(const char* name); /* the gate's function that returns the process's own definition */

__attribute__((visibility("default"))) void dovetail_trace_use_mpi(void* library, void* (*next)(const char*)) {
    dm_library = library;
    dm_next_of = next;
}

static inline void* dm_next(const char* name) { return dm_next_of ? dm_next_of(name) : dlsym(RTLD_NEXT, name); }

/* Returns the address of a constant or function. A constant may lie in the program itself (copy relocation). */
static void* dm_symbol(void* library, const char* name) {
    if (strncmp(name, "PMPI_", 5)) {
        void* found = dlsym(RTLD_DEFAULT, name);
        return found || !library ? found : dlsym(library, name);
    }
    void* found = dm_library ? NULL : dlsym(RTLD_NEXT, name);
    return found || !library ? found : dlsym(library, name);
}

static void dm_find(void) {
    pthread_mutex_lock(&dm_lock);
    if (!dm_is_ready) {
        void* library = dm_library;
        if (!library && !dlsym(RTLD_NEXT, "PMPI_Comm_rank")) dl_iterate_phdr(dm_try, &library);
        for (size_t i = 0; i < sizeof dm_table / sizeof *dm_table; ++i)
            *dm_table[i].real = dm_symbol(library, dm_table[i].name);
        if (!real_Comm_rank) {
            fprintf(stderr, "dovetail trace: this program calls MPI, but no MPI library is loaded\n");
            abort();
        }
        __atomic_store_n(&dm_is_ready, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&dm_lock);
}

/* Returns whether a call is not recorded: MPI is not being traced, or the library makes it within another call. */
static inline int dm_leave_alone(void) {
    if (DM_LIKELY(dm_is_tracing)) return dm_inside;
    if (!__atomic_load_n(&dm_is_ready, __ATOMIC_ACQUIRE)) dm_find();
    return 1;
}

/* ---- calls from Fortran ---- */

/* In a call from Fortran: its call site, and whether the library has called the C function that implements it. */
static __thread int64_t dm_fortran_site __attribute__((tls_model("initial-exec")));
static __thread int dm_came_to_c __attribute__((tls_model("initial-exec")));

#define DM_PROGRAM (dm_fortran_site ? (dm_came_to_c = 1, dm_fortran_site) : DM_SITE)
#ifdef DM_PYTHON
#define DM_CALLER dm_place(DM_PROGRAM)
#else
#define DM_CALLER DM_PROGRAM
#endif

/* Records a call from Fortran for which the library calls no C function (Open MPI: for empty lists of requests). */
static void dm_only_fortran(int number) {
    dovetail_trace_begin(dm_name[number], dm_fortran_site);
    dovetail_trace_end(dm_name[number], 0);
}

/* The entry of a call from Fortran: records its call site and calls the library, whose C function is then traced. */
#define DM_FORTRAN(number, name, typed, args)                                     \
    __attribute__((visibility("default"))) void name typed {                      \
        static void(*real) typed;                                                 \
        if (!real) *(void**)&real = dm_next(#name);                               \
        const int64_t before = dm_fortran_site;                                   \
        const int is_traced = dm_is_tracing && !dm_inside && !before;             \
        if (!before) dm_fortran_site = DM_SITE, dm_came_to_c = 0;                 \
        real args;                                                                \
        if (is_traced && !dm_came_to_c && dm_is_tracing) dm_only_fortran(number); \
        dm_fortran_site = before;                                                 \
    }

/* Returns whether a PMPI call comes from the library's Fortran functions, rather than from the program. */
static inline int dm_in_fortran(void) {
    if (!DM_LIKELY(__atomic_load_n(&dm_is_ready, __ATOMIC_ACQUIRE))) dm_find();
    return dm_fortran_site && !dm_inside;
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

static __thread struct {
    uint64_t type;
    int size;
} dm_sizes[8] __attribute__((tls_model("initial-exec"))); /* cache for predefined datatypes, which are never freed */

__attribute__((noinline)) static int dm_ask_size(MPI_Datatype datatype, int slot) {
    int size = 0, combiner = -1, unused[3];
    real_Type_size(datatype, &size);
    real_Type_get_envelope(datatype, &unused[0], &unused[1], &unused[2], &combiner);
    if (combiner == MPI_COMBINER_NAMED) dm_sizes[slot].type = DM_HANDLE(datatype), dm_sizes[slot].size = size;
    return size;
}

static inline int64_t dm_bytes(int64_t count, MPI_Datatype datatype) {
    if (count <= 0 || datatype == MPI_DATATYPE_NULL) return 0;
    const int slot = (int)(DM_HANDLE(datatype) * 0x9E3779B97F4A7C15u >> 61);
    const int is_known = dm_sizes[slot].type == DM_HANDLE(datatype);
    const int size = DM_LIKELY(is_known) ? dm_sizes[slot].size : dm_ask_size(datatype, slot);
    return size > 0 ? count * size : 0;
}

static inline uint64_t dm_pair(int high, int low) { return (uint64_t)(uint32_t)high << 32 | (uint32_t)low; }

/* Returns a rank as recorded: -1 for any or none, -2 for MPI_PROC_NULL. */
static inline int dm_peer(int rank) { return rank >= 0 ? rank : rank == MPI_PROC_NULL ? -2 : -1; }

static inline int dm_tag(int tag) { return tag == MPI_ANY_TAG ? -1 : tag; }

static inline void dm_send(int64_t num_bytes, int dest, int tag, MPI_Comm comm) {
    dovetail_trace_detail(DVT_SEND, dm_comm(comm), dm_pair(dm_peer(dest), tag), num_bytes);
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
    dovetail_trace_detail(DVT_COLLECTIVE, dm_comm(comm), (uint64_t)received, sent);
}

static inline void dm_root(int root) {
    dovetail_trace_detail(DVT_ROOT, 0, (uint64_t)(int64_t)(root < 0 ? -1 : root), 0);
}

static inline void dm_one_sided(int kind, int64_t num_bytes, int target, MPI_Win win) {
    dovetail_trace_detail(kind, 0, dm_pair(dm_peer(target), dm_window(win)), num_bytes);
}

/* Returns the number of ranks that a collective on this communicator exchanges data with, this rank included. */
static int dm_peers(MPI_Comm comm) {
    int size = 0, joins_two = 0;
    real_Comm_test_inter(comm, &joins_two);
    if (joins_two)
        real_Comm_remote_size(comm, &size);
    else
        real_Comm_size(comm, &size);
    return size;
}

static int dm_group_size(MPI_Comm comm) {
    int size = 0;
    real_Comm_size(comm, &size);
    return size;
}

static int dm_rank(MPI_Comm comm) {
    int rank = 0;
    real_Comm_rank(comm, &rank);
    return rank;
}

/* Returns whether this rank is the root of a collective; on an intercommunicator the root passes MPI_ROOT. */
static int dm_is_root(int root, MPI_Comm comm) { return root == MPI_ROOT || (root >= 0 && dm_rank(comm) == root); }

/* Returns the number of neighbours that send to this rank (outwards 0), or that it sends to (1). */
static int dm_degree(MPI_Comm comm, int outwards) {
    int topology = 0, in = 0, out = 0, is_weighted;
    real_Topo_test(comm, &topology);
    if (topology == MPI_CART) {
        real_Cartdim_get(comm, &in);
        return 2 * in;
    }
    if (topology == MPI_GRAPH) {
        real_Graph_neighbors_count(comm, dm_rank(comm), &in);
        return in;
    }
    if (topology == MPI_DIST_GRAPH) real_Dist_graph_neighbors_count(comm, &in, &out, &is_weighted);
    return outwards ? out : in;
}

#ifdef DM_PYTHON
#include "mpi_python.h"
#endif
#include "mpi_clocks.h"
#include "mpi_waits.h"
