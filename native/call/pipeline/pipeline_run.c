/* A pipeline from its opening to its end: passes over the positions, tile after tile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline_inside.h"

enum { TAG = 0, LEARNING_RUNS = 2 };
static char last_error[TEXT];

#define TRY(call)                               \
    do {                                        \
        const int code_ = (call);               \
        if (code_ != MPI_SUCCESS) return code_; \
    } while (0)

/* The tiles of a part of a pass: `grain` positions each, from `low` up to `high`. */
typedef struct {
    int64_t low, high, grain;
} span;

static int64_t begin_of(const span* s, int64_t step) { return s->low + step * s->grain; }
static int64_t count_of(const span* s, int64_t step) {
    const int64_t left = s->high - begin_of(s, step);
    return left < s->grain ? left : s->grain;
}
static int64_t steps_of(const span* s) { return (s->high - s->low + s->grain - 1) / s->grain; }

/* Where a message lies: in the caller's array where that is in one piece, else in a buffer of ours. */
static char* memory_of(const side* side, int64_t low, int which) {
    const dovetail_face* face = side->faces;
    if (side->num_faces == 1 && face->rows == 1 && face->stride == (ptrdiff_t)face->bytes)
        return (char*)face->first + low * face->stride;
    return side->buffers[which];
}

/* Faces of some positions into a buffer of ours, or out of it. */
static void move(const side* side, int64_t low, int64_t count, int which, int into_buffer) {
    char* buffer = side->buffers[which];
    if (memory_of(side, low, which) != buffer) return;
    for (int i = 0; i < side->num_faces; i++) {
        const dovetail_face* face = side->faces + i;
        const int is_dense = face->stride == (ptrdiff_t)face->bytes; /* positions of a row one after the other */
        const size_t piece = is_dense ? face->bytes * (size_t)count : face->bytes;
        for (int64_t row = 0; row < face->rows; row++)
            for (int64_t x = 0; x < (is_dense ? 1 : count); x++, buffer += piece) {
                char* theirs = (char*)face->first + (low + x) * face->stride + row * face->apart;
                if (into_buffer)
                    memcpy(buffer, theirs, piece);
                else
                    memcpy(theirs, buffer, piece);
            }
    }
}

static int post(dovetail_pipeline* p, const span* s, int64_t step) {
    for (int i = 0; i < p->num_from; i++) {
        side* from = p->from + i;
        const int bytes = (int)(from->bytes * (size_t)count_of(s, step)), which = (int)(step % 2);
        TRY(MPI_Irecv(memory_of(from, begin_of(s, step), which), bytes, MPI_BYTE, from->peer, TAG, p->comm,
                      &from->requests[which]));
    }
    return MPI_SUCCESS;
}

static int wait_all(side* sides, int count, int which) {
    for (int i = 0; i < count; i++) TRY(MPI_Wait(&sides[i].requests[which], MPI_STATUS_IGNORE));
    return MPI_SUCCESS;
}

/* The faces of a step that others have computed: all at once, or by a plain receive where there is one. */
static int receive(dovetail_pipeline* p, const span* s, int64_t step, int overlapped) {
    const int which = (int)(step % 2);
    if (!overlapped && p->num_from == 1) {
        side* from = p->from;
        return MPI_Recv(memory_of(from, begin_of(s, step), which), (int)(from->bytes * (size_t)count_of(s, step)),
                        MPI_BYTE, from->peer, TAG, p->comm, MPI_STATUS_IGNORE);
    }
    if (!overlapped || !step) TRY(post(p, s, step));
    TRY(wait_all(p->from, p->num_from, which));
    return overlapped && step + 1 < steps_of(s) ? post(p, s, step + 1) : MPI_SUCCESS;
}

static int send(dovetail_pipeline* p, const span* s, int64_t step, int overlapped) {
    const int which = (int)(step % 2), is_plain = !overlapped && p->num_to == 1;
    for (int i = 0; i < p->num_to; i++) {
        side* to = p->to + i;
        const int bytes = (int)(to->bytes * (size_t)count_of(s, step));
        char* memory = memory_of(to, begin_of(s, step), which);
        if (is_plain) return MPI_Send(memory, bytes, MPI_BYTE, to->peer, TAG, p->comm);
        TRY(MPI_Isend(memory, bytes, MPI_BYTE, to->peer, TAG, p->comm, &to->requests[which]));
    }
    return overlapped ? MPI_SUCCESS : wait_all(p->to, p->num_to, which);
}

/* Receive, compute, send, step by step; adds up what computing takes, where that is asked for. */
static int pass(dovetail_pipeline* p, const span* s, int overlapped, dovetail_tile* tile, void* context,
                double* took_s) {
    for (int64_t step = 0; step < steps_of(s); step++) {
        const int64_t low = begin_of(s, step), count = count_of(s, step);
        const int which = (int)(step % 2);
        TRY(receive(p, s, step, overlapped));
        const double begin = took_s ? MPI_Wtime() : 0;
        for (int i = 0; i < p->num_from; i++) move(p->from + i, low, count, which, 0);
        tile(context, low, low + count);
        if (overlapped) TRY(wait_all(p->to, p->num_to, overlapped == 2 ? which : !which)); /* an older send */
        for (int i = 0; i < p->num_to; i++) move(p->to + i, low, count, which, 1);
        if (took_s) *took_s += MPI_Wtime() - begin;
        TRY(send(p, s, step, overlapped));
    }
    TRY(wait_all(p->to, p->num_to, 0));
    return wait_all(p->to, p->num_to, 1);
}

static int reserve(dovetail_pipeline* p, int64_t grain) {
    if (grain <= p->reserved) return MPI_SUCCESS;
    for (int i = 0; i < p->num_from + p->num_to; i++) {
        side* side = i < p->num_from ? p->from + i : p->to + i - p->num_from;
        for (int which = 0; which < 2; which++) {
            free(side->buffers[which]);
            side->buffers[which] = malloc(side->bytes * (size_t)grain);
            if (!side->buffers[which]) return MPI_ERR_NO_MEM;
        }
    }
    p->reserved = grain;
    return MPI_SUCCESS;
}

/* Tiles of 1, 2, 4, … positions, each size several times, over half of the positions at most: what a tile takes on
 * every rank, and the choice that follows. Where they end. */
static int learn(dovetail_pipeline* p, dovetail_tile* tile, void* context, int64_t* end) {
    double seen[LEVELS][LOOKS] = {{0}}, tiles_s[LEVELS] = {0};
    p->runs++;
    const int looks = p->length / 2 >= LOOKS ? LOOKS : 1;
    int top = 0;
    while (top + 1 < LEVELS && ((int64_t)4 << top) - 1 <= p->length / 2 / looks && (int64_t)2 << top <= p->most) top++;
    TRY(reserve(p, (int64_t)1 << top));
    *end = 0;
    for (int look = 0; look < looks; look++)
        for (int level = 0; level <= top; level++) {
            const int64_t grain = (int64_t)1 << level;
            const span one = {*end, *end + grain, grain};
            TRY(pass(p, &one, 0, tile, context, &seen[level][look]));
            *end = one.high;
        }
    for (int level = 0; level <= top; level++) { /* the middle one of three, or the only one */
        const double *t = seen[level], low = t[0] < t[1] ? t[0] : t[1], high = t[0] < t[1] ? t[1] : t[0];
        tiles_s[level] = looks == 1 ? t[0] : t[2] < low ? low : t[2] > high ? high : t[2];
        if (tiles_s[level] <= 0) tiles_s[level] = MPI_Wtick();
    }
    dovetail_pipeline_gather_tiles(p, tiles_s);
    dovetail_pipeline_choose(p);
    return MPI_SUCCESS;
}

/* A pass that begins on all ranks at once, by a choice to be measured. */
static int try_one(dovetail_pipeline* p, dovetail_tile* tile, void* context) {
    double* seconds;
    const trial* one = dovetail_pipeline_trial(p, &seconds);
    const span whole = {0, p->length, one->grain};
    TRY(reserve(p, one->grain));
    TRY(MPI_Barrier(p->comm));
    *seconds = -MPI_Wtime();
    TRY(pass(p, &whole, one->overlapped, tile, context, NULL));
    *seconds += MPI_Wtime();
    dovetail_pipeline_tried(p);
    return MPI_SUCCESS;
}

int dovetail_pipeline_run(dovetail_pipeline* p, dovetail_tile* tile, void* context) {
    span rest = {0, p->length, 0};
    const int chooses = !p->is_fixed && p->num_links;
    if (chooses && p->runs >= LEARNING_RUNS && !p->choice.settled) return try_one(p, tile, context);
    if (chooses && p->runs < LEARNING_RUNS) TRY(learn(p, tile, context, &rest.low));
    rest.grain = p->choice.grain;
    TRY(reserve(p, rest.grain));
    return pass(p, &rest, p->choice.overlapped, tile, context, NULL);
}

/* A grain from now on, 0: chosen by cost. */
static void take_grain(dovetail_pipeline* p, int64_t grain, int overlapped) {
    p->is_fixed = grain > 0;
    p->runs = p->trials.count = p->choice.tried = 0;
    p->choice.settled = p->is_fixed || !p->num_links;
    p->choice.measured_s = 0;
    if (!p->is_fixed) return;
    p->choice.grain = grain < p->most ? grain : p->most;
    p->choice.tiles = (p->length + p->choice.grain - 1) / p->choice.grain;
    p->choice.overlapped = overlapped < 0 ? 0 : overlapped > 2 ? 2 : overlapped;
}

/* `why`: what is wrong on this rank beyond its faces, NULL where nothing is. */
static dovetail_pipeline* open_one(MPI_Comm comm, int64_t length, int64_t grain, const dovetail_face* from,
                                   int num_from, const dovetail_face* to, int num_to, const char* why) {
    char fault[TEXT] = "";
    if (why) snprintf(fault, TEXT, "%s", *why ? why : "it refuses");
    dovetail_pipeline* p = calloc(1, sizeof *p);
    if (!p || MPI_Comm_dup(comm, &p->comm) != MPI_SUCCESS) {
        snprintf(last_error, TEXT, "the communicator cannot be duplicated");
        free(p);
        return NULL;
    }
    MPI_Comm_rank(p->comm, &p->rank);
    MPI_Comm_size(p->comm, &p->size);
    p->length = length, p->choice.grain = grain;
    p->tiles_s = calloc((size_t)p->size * LEVELS, sizeof *p->tiles_s);
    if (dovetail_pipeline_link(p, from, num_from, to, num_to, fault)) {
        memcpy(last_error, fault, TEXT);
        dovetail_pipeline_close(p);
        return NULL;
    }
    p->choice.grain = p->length, p->choice.tiles = 1, p->choice.settled = !p->num_links;
    dovetail_pipeline_probe(p);
    if (grain > 0) take_grain(p, grain, 0);
    return p;
}

dovetail_pipeline* dovetail_pipeline_open(MPI_Comm comm, int64_t length, const dovetail_face* from, int num_from,
                                          const dovetail_face* to, int num_to) {
    return open_one(comm, length, 0, from, num_from, to, num_to, NULL);
}

void dovetail_pipeline_refuse(MPI_Comm comm, const char* why) {
    open_one(comm, 0, 0, NULL, 0, NULL, 0, why ? why : "");
}

void dovetail_pipeline_refuse_fortran(MPI_Fint comm, const char* why) {
    dovetail_pipeline_refuse(MPI_Comm_f2c(comm), why);
}

dovetail_pipeline* dovetail_pipeline_open_fortran(MPI_Fint comm, int64_t length, const dovetail_face* from,
                                                  int num_from, const dovetail_face* to, int num_to) {
    return dovetail_pipeline_open(MPI_Comm_f2c(comm), length, from, num_from, to, num_to);
}

dovetail_pipeline* dovetail_pipeline_open_fixed_fortran(MPI_Fint comm, int64_t length, int64_t grain,
                                                        const dovetail_face* from, int num_from,
                                                        const dovetail_face* to, int num_to) {
    return open_one(MPI_Comm_f2c(comm), length, grain, from, num_from, to, num_to, NULL);
}

int dovetail_pipeline_fix(dovetail_pipeline* p, int64_t grain, int overlapped) {
    const int64_t own[] = {grain, -grain, overlapped, -overlapped};
    int64_t most[4];
    TRY(MPI_Allreduce(own, most, 4, MPI_INT64_T, MPI_MAX, p->comm));
    if (most[0] != -most[1] || most[2] != -most[3] || grain < 0) {
        snprintf(last_error, TEXT, "the ranks fix grains of %lld to %lld, with %lld to %lld sends overlapped",
                 (long long)-most[1], (long long)most[0], (long long)-most[3], (long long)most[2]);
        return MPI_ERR_ARG;
    }
    take_grain(p, grain, overlapped);
    return MPI_SUCCESS;
}

void dovetail_pipeline_close(dovetail_pipeline* p) {
    if (!p) return;
    dovetail_pipeline_unlink(p);
    free(p->costs), free(p->tiles_s);
    MPI_Comm_free(&p->comm);
    free(p);
}

const char* dovetail_pipeline_error(void) { return last_error; }

dovetail_choice dovetail_pipeline_choice(const dovetail_pipeline* p) { return p->choice; }
