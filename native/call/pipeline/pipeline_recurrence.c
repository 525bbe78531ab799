/* When a pipeline of ranks is done: the max-plus recurrence of dovetail/pipeline/recurrence.py, line by line. */
#include <math.h>
#include <stdlib.h>

#include "pipeline_inside.h"

enum { MODELLED = 96, PERIOD = 32 };

/* Times by rank or link and step, NAN until they are known; of each rank's wires when their last message left, and
 * came; of each link how many messages a shared wire has carried. */
typedef struct {
    int64_t steps;
    int ranks, num_links, overlapped;
    const double* compute_s;
    const link_cost* links;
    double *posted, *asked, *computed, *done, *sent, *arrived, *left, *came;
    int64_t* carried;
} recurrence;

static double* at(const recurrence* r, double* times, int row, int64_t step) { return times + row * r->steps + step; }

/* When a message starts to travel. */
static double start(const recurrence* r, int i, int64_t step) {
    const link_cost* link = r->links + i;
    double sent = *at(r, r->sent, i, step), other;
    if (isnan(sent) || !link->waits) return sent;
    other = *at(r, r->posted, link->target, step);
    if (r->overlapped && !link->progresses) {
        double again = step + 1 < r->steps ? *at(r, r->computed, link->source, step + 1) : sent;
        other = *at(r, r->asked, link->target, step);
        if (isnan(again)) return again;
        sent = greater(sent, again);
    }
    return isnan(other) ? other : greater(sent, other);
}

static int is_shared(const link_cost* link) { return link->leaves || link->enters; }

/* When a message that starts then arrives by a wire of its own. */
static double alone(const recurrence* r, int i, int64_t step, double begin) {
    const double found = begin + r->links[i].half_s;
    return step ? greater(found, *at(r, r->arrived, i, step - 1) + r->links[i].gap_s) : found;
}

static double arrival(const recurrence* r, int i, int64_t step) {
    double* found = at(r, r->arrived, i, step);
    if (!isnan(*found) || is_shared(r->links + i)) return *found;
    const double begin = start(r, i, step);
    return isnan(begin) ? begin : (*found = alone(r, i, step, begin));
}

/* Let the first of the messages that may start by shared wires arrive, if there is any. All others start later, since
 * they wait for messages that have not arrived. */
static int carries(const recurrence* r) {
    double begin = INFINITY;
    int i = -1;
    for (int k = 0; k < r->num_links; k++) {
        if (!is_shared(r->links + k) || r->carried[k] == r->steps) continue;
        const double found = start(r, k, r->carried[k]);
        if (found < begin) begin = found, i = k;
    }
    if (i < 0) return 0;
    const link_cost* link = r->links + i;
    const int64_t step = r->carried[i]++;
    double came = alone(r, i, step, begin);
    if (link->leaves) came = r->left[link->source] = greater(came, r->left[link->source] + link->gap_s);
    if (link->enters) came = r->came[link->target] = greater(came, r->came[link->target] + link->gap_s);
    *at(r, r->arrived, i, step) = came;
    return 1;
}

/* When the messages of a step that wait for their receivers are gone. */
static double waited(const recurrence* r, int rank, int64_t step, double free_s) {
    for (int i = 0; i < r->num_links; i++) {
        if (r->links[i].source != rank || !r->links[i].waits) continue;
        const double gone = arrival(r, i, step);
        if (isnan(gone)) return gone;
        free_s = greater(free_s, gone);
    }
    return free_s;
}

static double computes(const recurrence* r, int rank, int64_t step) {
    const double asked = step ? *at(r, r->done, rank, step - 1) : 0.0;
    double ready = asked;
    *at(r, r->asked, rank, step) = asked;
    if (!r->overlapped || !step) *at(r, r->posted, rank, step) = asked;
    for (int i = 0; i < r->num_links; i++)
        if (r->links[i].target == rank) ready += r->links[i].recv_s;
    for (int i = 0; i < r->num_links; i++) {
        if (r->links[i].target != rank) continue;
        const double came = arrival(r, i, step);
        if (isnan(came)) return came;
        ready = greater(ready, came);
    }
    if (r->overlapped && step + 1 < r->steps) *at(r, r->posted, rank, step + 1) = ready;
    return *at(r, r->computed, rank, step) = ready + r->compute_s[rank];
}

/* Go through one step of a rank as far as can be known; whether that is to its end. */
static int does(const recurrence* r, int rank, int64_t step) {
    double free_s = *at(r, r->computed, rank, step);
    if (isnan(free_s) && isnan(free_s = computes(r, rank, step))) return 0;
    if (r->overlapped && step >= 2 && isnan(free_s = waited(r, rank, step - 2, free_s))) return 0;
    for (int i = 0; i < r->num_links; i++) {
        if (r->links[i].source != rank) continue;
        *at(r, r->sent, i, step) = free_s;
        free_s += r->links[i].send_s;
    }
    if (!r->overlapped) free_s = waited(r, rank, step, free_s);
    *at(r, r->done, rank, step) = free_s;
    return !isnan(free_s);
}

/* When all ranks have done a step; with the sends of the last, where it is the last. */
static double end_of(const recurrence* r, int64_t step) {
    double found = 0;
    for (int rank = 0; rank < r->ranks; rank++) {
        const double done = *at(r, r->done, rank, step);
        found = greater(found, step == r->steps - 1 ? waited(r, rank, step, done) : done);
    }
    return found;
}

static void go_through(const recurrence* r, int64_t* next) {
    for (int moved = 1; moved || carries(r);) {
        moved = 0;
        for (int rank = 0; rank < r->ranks; rank++)
            while (next[rank] < r->steps && does(r, rank, next[rank])) next[rank]++, moved = 1;
    }
}

/* The most links that come one after another. */
static int depth_of(int ranks, int num_links, const link_cost* links) {
    int found = 0, *depth = calloc((size_t)ranks, sizeof *depth);
    for (int turn = 0, moved = 1; moved && turn < ranks; turn++) {
        moved = 0;
        for (int i = 0; i < num_links; i++) {
            if (depth[links[i].target] > depth[links[i].source]) continue;
            moved = depth[links[i].target] = depth[links[i].source] + 1;
            found = moved > found ? moved : found;
        }
    }
    free(depth);
    return found;
}

double dovetail_pipeline_s(int64_t steps, int ranks, const double* compute_s, int num_links, const link_cost* links,
                           int overlapped) {
    const int64_t whole = MODELLED + 4 * depth_of(ranks, num_links, links);
    const int64_t modelled = steps < whole ? steps : whole;
    const size_t rows = 4 * (size_t)ranks + 2 * (size_t)num_links, times = rows * (size_t)modelled;
    const size_t wires = 2 * (size_t)ranks;
    double end, *all = malloc((times + wires + 1) * sizeof *all);
    int64_t* next = calloc((size_t)(ranks + num_links), sizeof *next);
    recurrence r = {.steps = modelled, .ranks = ranks, .num_links = num_links, .overlapped = overlapped};
    if (!modelled) return free(all), free(next), 0;
    for (size_t i = 0; i < times + wires; i++) all[i] = i < times ? NAN : -INFINITY;
    r.left = all + times, r.came = r.left + ranks, r.carried = next + ranks;
    r.compute_s = compute_s, r.links = links;
    r.posted = all, r.asked = r.posted + ranks * modelled, r.computed = r.asked + ranks * modelled;
    r.done = r.computed + ranks * modelled, r.sent = r.done + ranks * modelled,
    r.arrived = r.sent + num_links * modelled;
    go_through(&r, next);
    end = end_of(&r, modelled - 1);
    if (modelled < steps) end += (double)(steps - modelled) * (end - end_of(&r, modelled - 1 - PERIOD)) / PERIOD;
    free(all);
    free(next);
    return end;
}
