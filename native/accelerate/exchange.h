/* The exchange: collectives of ranks of one host, through memory that they share. Included once.

   A step: each rank stores a piece of its data, then the number of the step beside it; then it waits for the pieces of
   all others. Two places a rank are enough, used alternately: a rank that stores step k + 2 has seen all others' step k
   + 1, and each of them had read all of step k before it stored that one. So no rank leaves a step before all have
   entered.

   A rank that waits for long drives MPI, since the rank it waits for may wait for a message from it. */
#include <sched.h>

#include "reductions.h"

enum { DX_PIECE = 1 << 15, DX_POLLS = 2000, DX_POLLS_SHARED = 20, DX_MOST_RANKS = 64 };

typedef struct {
    _Alignas(64) uint64_t step;
    unsigned char data[DX_PIECE]; /* begins in the cache line of the number, so that small messages take one line */
} dx_place;

typedef struct {
    MPI_Comm comm;
    int size, rank, polls; /* polls: before other work is done while waiting */
    uint64_t step;
    int64_t num_doubtful; /* pieces whose bits depend on the order of the ranks */
    dx_place* place;      /* [2][size] */
} dx_group;

static inline dx_place* dx_place_of(const dx_group* group, uint64_t step, int rank) {
    return &group->place[(step & 1) * (uint64_t)group->size + (uint64_t)rank];
}

__attribute__((noinline)) static void dx_wait_long(const uint64_t* at, uint64_t step, int polls) {
    int flag;
    for (;;) {
        real_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
        if (polls < DX_POLLS) sched_yield();
        for (int i = 0; i < 20; ++i) {
            if (__atomic_load_n(at, __ATOMIC_ACQUIRE) == step) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        if (polls == DX_POLLS) sched_yield();
    }
}

static inline void dx_wait(const dx_group* group, const dx_place* place) {
    for (int i = 0; i < group->polls; ++i)
        if (DM_LIKELY(__atomic_load_n(&place->step, __ATOMIC_ACQUIRE) == group->step)) return;
    dx_wait_long(&place->step, group->step, group->polls);
}

/* Copies small pieces without a call. */
static inline void dx_copy(void* to, const void* from, int64_t num_bytes) {
    if (num_bytes == 8)
        memcpy(to, from, 8);
    else
        memcpy(to, from, (size_t)num_bytes);
}

/* Begins the next step: returns this rank's place for it. */
static inline dx_place* dx_next(dx_group* group) { return dx_place_of(group, ++group->step, group->rank); }

static inline void dx_store(const dx_group* group, dx_place* own) {
    __atomic_store_n(&own->step, group->step, __ATOMIC_RELEASE);
}

/* Returns another rank's piece of this step. */
static inline const unsigned char* dx_take(const dx_group* group, int rank) {
    const dx_place* place = dx_place_of(group, group->step, rank);
    dx_wait(group, place);
    return place->data;
}

static void dx_all_enter(dx_group* group) {
    dx_store(group, dx_next(group));
    for (int r = 0; r < group->size; ++r)
        if (r != group->rank) dx_take(group, r);
}

/* Reduces one piece of all ranks, in the order of the ranks; returns whether the bits depend on the order. */
static int dx_reduce_piece(dx_group* group, dx_function* reduce, const void* in, void* out, int64_t count,
                           int64_t num_bytes) {
    dx_place* own = dx_next(group);
    dx_copy(own->data, in, num_bytes);
    dx_store(group, own);
    if (group->size == 2) {
        const void* other = dx_take(group, 1 - group->rank);
        return group->rank ? reduce(out, other, own->data, count) : reduce(out, own->data, other, count);
    }
    const void* sum = group->rank ? dx_take(group, 0) : own->data;
    int is_doubtful = 0;
    for (int r = 1; r < group->size; ++r, sum = out)
        is_doubtful |= reduce(out, sum, r == group->rank ? own->data : dx_take(group, r), count);
    return is_doubtful;
}

/* All ranks hold the reduction of all ranks' data. A piece whose bits depend on the order is the library's, if
   `library` says so; all ranks see the same data, and so all of them leave the same pieces to it. `type` has `count`
   elements; `out` may be `in`. Returns an error code of MPI. */
static int dx_all_reduce(dx_group* group, dx_class class, dx_op op, const void* in, void* out, int64_t count,
                         MPI_Datatype type, MPI_Op library) {
    const int64_t size = dx_sizes[class], most = DX_PIECE / size;
    dx_function* reduce = dx_functions[class][op];
    for (int64_t at = 0; at < count; at += most) {
        const int64_t some = count - at < most ? count - at : most;
        char* to = (char*)out + at * size;
        const int is_doubtful =
            dx_reduce_piece(group, reduce, (const char*)in + at * size, to, some * dx_parts(class), some * size);
        if (DM_LIKELY(!is_doubtful)) continue;
        ++group->num_doubtful;
        if (library == MPI_OP_NULL) continue;
        memcpy(to, dx_place_of(group, group->step, group->rank)->data, (size_t)(some * size));
        const int code = real_Allreduce(MPI_IN_PLACE, to, (int)some, type, library, group->comm);
        if (code) return code;
    }
    return MPI_SUCCESS;
}

/* `out` holds the `num_bytes` of each rank, in order; at most a piece. */
static void dx_all_gather(dx_group* group, const void* in, void* out, int64_t num_bytes) {
    dx_place* own = dx_next(group);
    dx_copy(own->data, in, num_bytes);
    dx_store(group, own);
    for (int r = 0; r < group->size; ++r)
        dx_copy((char*)out + r * num_bytes, r == group->rank ? own->data : dx_take(group, r), num_bytes);
}

/* Rank r sends block i to rank i; `num_bytes`: of a block; all of them at most a piece. */
static void dx_all_to_all(dx_group* group, const void* in, void* out, int64_t num_bytes) {
    dx_place* own = dx_next(group);
    memcpy(own->data, in, (size_t)(num_bytes * group->size));
    dx_store(group, own);
    for (int r = 0; r < group->size; ++r) {
        const unsigned char* from = r == group->rank ? own->data : dx_take(group, r);
        dx_copy((char*)out + r * num_bytes, from + group->rank * num_bytes, num_bytes);
    }
}
