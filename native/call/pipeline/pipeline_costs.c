/* What messages and tiles take: messages between the ranks that will exchange them, before the first pass; tiles from
 * the first passes themselves. */
#define _POSIX_C_SOURCE 199309L /* nanosleep */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pipeline_inside.h"

enum { END, PINGS, STREAM, LATE, BUSY, PROBE_TAG = 1, MOST_STREAMED = 32 };
static const double LONG_S = 3e-3; /* longer messages are not measured: theirs is a straight line from here */
static const double STREAM_S = 1e-2;
static const int64_t LONG_BYTES = 1 << 22;

static void rest(double seconds) {
    const struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}

static int order(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(double* values, int count) {
    qsort(values, (size_t)count, sizeof *values, order);
    return values[count / 2];
}

/* What the source of a link asks of its target: a kind, a number of bytes, how often or for how long. */
typedef struct {
    double kind, bytes, amount;
} request;

static void ask(const dovetail_pipeline* p, int peer, int kind, int64_t bytes, double amount) {
    request asked = {kind, (double)bytes, amount};
    MPI_Send(&asked, 3, MPI_DOUBLE, peer, PROBE_TAG, p->comm);
}

static double answer(const dovetail_pipeline* p, int peer) {
    double seconds;
    MPI_Recv(&seconds, 1, MPI_DOUBLE, peer, PROBE_TAG, p->comm, MPI_STATUS_IGNORE);
    return seconds;
}

/* Half a round trip, the median of some. */
static double half_trip(const dovetail_pipeline* p, int peer, char* buffer, int bytes, int count) {
    double seconds[16];
    ask(p, peer, PINGS, bytes, count + 1);
    for (int i = -1; i < count; i++) {
        const double begin = MPI_Wtime();
        MPI_Send(buffer, bytes, MPI_BYTE, peer, PROBE_TAG, p->comm);
        MPI_Recv(buffer, bytes, MPI_BYTE, peer, PROBE_TAG, p->comm, MPI_STATUS_IGNORE);
        seconds[i < 0 ? 0 : i] = (MPI_Wtime() - begin) / 2;
    }
    return median(seconds, count);
}

/* Messages one after the other, all asked for beforehand: the least time from one arrival to the next. A link that is
 * faster for a moment (a token bucket) shows what it can keep up. */
static double gap(const dovetail_pipeline* p, int peer, char* buffer, int64_t bytes, double half_s, double least_s) {
    const double fits = lesser((double)LONG_BYTES / (double)bytes, STREAM_S / half_s);
    const int count = fits < 2 ? 2 : fits > MOST_STREAMED ? MOST_STREAMED : (int)fits;
    double begin, seconds = INFINITY;
    for (int look = 0; look < 2; look++) {
        MPI_Request sent[MOST_STREAMED];
        ask(p, peer, STREAM, bytes, count);
        answer(p, peer);
        begin = MPI_Wtime();
        for (int i = 0; i < count; i++)
            MPI_Isend(buffer + i * bytes, (int)bytes, MPI_BYTE, peer, PROBE_TAG, p->comm, sent + i);
        MPI_Waitall(count, sent, MPI_STATUSES_IGNORE);
        answer(p, peer);
        seconds = lesser(seconds, MPI_Wtime() - begin);
    }
    return greater(0, seconds - half_s - least_s) / (count - 1);
}

/* A send whose receiver comes late: how long the send takes, and then the receive. */
static void late(const dovetail_pipeline* p, int peer, char* buffer, int bytes, double away_s, link_cost* cost) {
    cost->send_s = cost->recv_s = INFINITY;
    for (int i = 0; i < LOOKS; i++) {
        double begin;
        ask(p, peer, LATE, bytes, away_s);
        answer(p, peer);
        begin = MPI_Wtime();
        MPI_Send(buffer, bytes, MPI_BYTE, peer, PROBE_TAG, p->comm);
        cost->send_s = lesser(cost->send_s, MPI_Wtime() - begin);
        cost->recv_s = lesser(cost->recv_s, answer(p, peer));
    }
    cost->waits = cost->send_s > away_s / 2;
}

/* Whether a message travels while its sender is busy elsewhere, its receiver waiting. */
static int progresses(const dovetail_pipeline* p, int peer, char* buffer, int bytes, double away_s, double half_s) {
    double least = INFINITY;
    for (int i = 0; i < 2; i++) {
        MPI_Request sent;
        ask(p, peer, BUSY, bytes, away_s);
        answer(p, peer);
        MPI_Isend(buffer, bytes, MPI_BYTE, peer, PROBE_TAG, p->comm, &sent);
        rest(away_s);
        MPI_Wait(&sent, MPI_STATUS_IGNORE);
        least = lesser(least, answer(p, peer));
    }
    return least < half_s + away_s / 2;
}

/* As the source of a link: measure messages of 1, 2, 4, … positions, until they are long. */
static void measure(const dovetail_pipeline* p, int i, char* buffer) {
    const link* link = p->links + i;
    link_cost* levels = p->costs + (size_t)i * LEVELS;
    const int peer = (int)link->target;
    for (int level = 0; level < LEVELS && (int64_t)1 << level <= p->most; level++) {
        const int64_t bytes = link->bytes << level;
        link_cost* cost = levels + level;
        double away_s;
        if (level && (bytes > LONG_BYTES || levels[level - 1].half_s > LONG_S)) break;
        cost->half_s = half_trip(p, peer, buffer, (int)bytes, level && levels[level - 1].half_s > 1e-4 ? 3 : 15);
        cost->gap_s = gap(p, peer, buffer, bytes, cost->half_s, levels[0].half_s);
        away_s = 2e-4 + 4 * cost->half_s;
        late(p, peer, buffer, (int)bytes, away_s, cost);
        cost->progresses = !cost->waits || progresses(p, peer, buffer, (int)bytes, away_s, cost->half_s);
        if (cost->waits) cost->send_s = cost->recv_s = levels[0].half_s / 2;
    }
    ask(p, peer, END, 0, 0);
}

static void take_stream(const dovetail_pipeline* p, int peer, char* buffer, int64_t bytes, int count) {
    const double none = 0;
    MPI_Request coming[MOST_STREAMED];
    for (int i = 0; i < count; i++)
        MPI_Irecv(buffer + i * bytes, (int)bytes, MPI_BYTE, peer, PROBE_TAG, p->comm, coming + i);
    MPI_Send(&none, 1, MPI_DOUBLE, peer, PROBE_TAG, p->comm);
    MPI_Waitall(count, coming, MPI_STATUSES_IGNORE);
    MPI_Send(&none, 1, MPI_DOUBLE, peer, PROBE_TAG, p->comm);
}

/* As its target: do what the source asks, and answer how long it took. */
static void serve(const dovetail_pipeline* p, int peer, char* buffer) {
    for (;;) {
        request asked;
        MPI_Request coming;
        double seconds = 0, begin;
        MPI_Recv(&asked, 3, MPI_DOUBLE, peer, PROBE_TAG, p->comm, MPI_STATUS_IGNORE);
        const int bytes = (int)asked.bytes, kind = (int)asked.kind;
        if (kind == END) return;
        for (int i = 0; kind == PINGS && i < asked.amount; i++) {
            MPI_Recv(buffer, bytes, MPI_BYTE, peer, PROBE_TAG, p->comm, MPI_STATUS_IGNORE);
            MPI_Send(buffer, bytes, MPI_BYTE, peer, PROBE_TAG, p->comm);
        }
        if (kind == PINGS) continue;
        if (kind == STREAM) {
            take_stream(p, peer, buffer, (int64_t)bytes, (int)asked.amount);
            continue;
        }
        if (kind == BUSY) MPI_Irecv(buffer, bytes, MPI_BYTE, peer, PROBE_TAG, p->comm, &coming);
        MPI_Send(&seconds, 1, MPI_DOUBLE, peer, PROBE_TAG, p->comm);
        if (kind == LATE) {
            rest(asked.amount);
            for (begin = MPI_Wtime(); MPI_Wtime() < begin + 2e-5;) continue; /* a core that slept is slow at first */
        }
        begin = MPI_Wtime();
        if (kind == BUSY)
            MPI_Wait(&coming, MPI_STATUS_IGNORE);
        else
            MPI_Recv(buffer, bytes, MPI_BYTE, peer, PROBE_TAG, p->comm, MPI_STATUS_IGNORE);
        seconds = MPI_Wtime() - begin;
        MPI_Send(&seconds, 1, MPI_DOUBLE, peer, PROBE_TAG, p->comm);
    }
}

/* When each link is measured: no two of a rank at once. */
static int* turns_of(const dovetail_pipeline* p, int* num_turns) {
    int* turns = malloc(((size_t)p->num_links + 1) * sizeof *turns);
    *num_turns = 0;
    for (int i = 0; i < p->num_links; i++) {
        const link* a = p->links + i;
        turns[i] = 0;
        for (int k = 0; k < i; k++) {
            const link* b = p->links + k;
            const int meet =
                a->source == b->source || a->source == b->target || a->target == b->source || a->target == b->target;
            if (meet && turns[k] == turns[i]) turns[i]++, k = -1;
        }
        *num_turns = turns[i] >= *num_turns ? turns[i] + 1 : *num_turns;
    }
    return turns;
}

/* A disturbance only lengthens: no message takes longer than one of twice the positions. */
static void smooth(link_cost* levels) {
    for (int level = LEVELS - 2; level >= 0; level--) {
        link_cost *cost = levels + level, *next = cost + 1;
        if (next->half_s <= 0) continue;
        cost->half_s = lesser(cost->half_s, next->half_s);
        cost->gap_s = lesser(cost->gap_s, next->gap_s);
        if (cost->waits != next->waits) continue;
        cost->send_s = lesser(cost->send_s, next->send_s);
        cost->recv_s = lesser(cost->recv_s, next->recv_s);
    }
}

/* The host of every rank, by the first rank that is there. */
static int* hosts_of(const dovetail_pipeline* p) {
    int *found = malloc((size_t)p->size * sizeof *found), first = p->rank;
    MPI_Comm here;
    MPI_Comm_split_type(p->comm, MPI_COMM_TYPE_SHARED, p->rank, MPI_INFO_NULL, &here);
    MPI_Bcast(&first, 1, MPI_INT, 0, here);
    MPI_Comm_free(&here);
    MPI_Allgather(&first, 1, MPI_INT, found, 1, MPI_INT, p->comm);
    return found;
}

/* Messages of a rank to several other hosts, or from them, share the wire of its own. */
static void share_wires(const dovetail_pipeline* p) {
    int* hosts = hosts_of(p);
    for (int i = 0; i < p->num_links * LEVELS; i++) {
        link_cost* cost = p->costs + i;
        cost->leaves = cost->enters = hosts[cost->source] != hosts[cost->target];
    }
    free(hosts);
}

void dovetail_pipeline_probe(dovetail_pipeline* p) {
    int num_turns, *turns = turns_of(p, &num_turns), first = 0;
    int *counts = calloc((size_t)p->size, sizeof *counts), *starts = calloc((size_t)p->size, sizeof *starts);
    const size_t each = LEVELS * sizeof *p->costs;
    int64_t most = 1;
    p->costs = calloc((size_t)p->num_links + 1, each);
    for (int i = 0; i < p->num_links; i++) most = p->links[i].bytes > most ? p->links[i].bytes : most;
    char* buffer = calloc((size_t)(2 * (most > LONG_BYTES ? most : LONG_BYTES)), 1);
    for (int turn = 0; turn < num_turns; turn++)
        for (int i = 0; i < p->num_links; i++) {
            if (turns[i] != turn) continue;
            if (p->links[i].source == p->rank) measure(p, i, buffer);
            if (p->links[i].target == p->rank) serve(p, (int)p->links[i].source, buffer);
        }
    for (int i = 0; i < p->num_links; i++) counts[p->links[i].source] += (int)each;
    for (int i = 1; i < p->size; i++) starts[i] = starts[i - 1] + counts[i - 1];
    while (first < p->num_links && p->links[first].source < p->rank) first++;
    memmove(p->costs, p->costs + (size_t)first * LEVELS, (size_t)counts[p->rank]);
    link_cost* all = calloc((size_t)p->num_links + 1, each);
    MPI_Allgatherv(p->costs, counts[p->rank], MPI_BYTE, all, counts, starts, MPI_BYTE, p->comm);
    for (int i = 0; i < p->num_links * LEVELS; i++)
        all[i].source = (int)p->links[i / LEVELS].source, all[i].target = (int)p->links[i / LEVELS].target;
    free(p->costs), free(buffer), free(turns), free(counts), free(starts);
    p->costs = all;
    share_wires(p);
    for (int i = 0; i < p->num_links; i++) smooth(all + (size_t)i * LEVELS);
}

/* Tiles as measured on every rank. A disturbance only lengthens: none takes longer than one of twice the positions. */
void dovetail_pipeline_gather_tiles(dovetail_pipeline* p, const double* tiles_s) {
    MPI_Allgather(tiles_s, LEVELS, MPI_DOUBLE, p->tiles_s, LEVELS, MPI_DOUBLE, p->comm);
    for (int i = LEVELS * p->size - 2; i >= 0; i--) {
        const double next = p->tiles_s[i + 1];
        if (i % LEVELS != LEVELS - 1 && next > 0) p->tiles_s[i] = lesser(p->tiles_s[i], next);
    }
}

double dovetail_pipeline_tile_s(const double* levels, int64_t grain) {
    int last = 0, level = 0;
    while (last + 1 < LEVELS && levels[last + 1] > 0) last++;
    while (level < last && (int64_t)2 << level <= grain) level++;
    const double low = (double)((int64_t)1 << level);
    if (level == last) return levels[last] * (double)grain / low;
    return levels[level] + (levels[level + 1] - levels[level]) * ((double)grain - low) / low;
}

/* The cost of a message of `grain` positions: linear between measured sizes, with the next longer one's protocol. */
link_cost dovetail_pipeline_message(const link_cost* levels, int64_t grain) {
    int last = 0, level = 0;
    while (last + 1 < LEVELS && levels[last + 1].half_s > 0) last++;
    while (level + 1 < last && (int64_t)2 << level <= grain) level++;
    const int above = level < last ? level + 1 : level;
    const double low = (double)((int64_t)1 << level), share = ((double)grain - low) / low;
    const link_cost *a = levels + level, *b = levels + above;
    link_cost found = grain > (int64_t)low ? *b : *a;
    found.half_s = greater(a->half_s + (b->half_s - a->half_s) * share, 0);
    found.gap_s = greater(a->gap_s + (b->gap_s - a->gap_s) * share, 0);
    found.send_s = greater(a->send_s + (b->send_s - a->send_s) * share, 0);
    found.recv_s = greater(a->recv_s + (b->recv_s - a->recv_s) * share, 0);
    return found;
}
