/* Chooses the positions per tile: an integer search for the least time that the recurrence predicts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "pipeline_inside.h"

static const double WORTH = 0.99; /* overlapped sends must take this much of the time of blocking ones, or less */
static const double RIDGE = 1.1;  /* least ratio of the highest prediction on the way to another minimum, to that one */
static const double RIVAL = 1.25; /* of the time of the choice: what takes no more may be faster when it is measured */

static int64_t tiles_in(const dovetail_pipeline* p, int64_t grain) { return (p->length + grain - 1) / grain; }

double dovetail_pipeline_predict(const dovetail_pipeline* p, int64_t grain, int overlapped) {
    double seconds, *compute_s = malloc((size_t)p->size * sizeof *compute_s);
    link_cost* links = malloc(((size_t)p->num_links + 1) * sizeof *links);
    for (int rank = 0; rank < p->size; rank++)
        compute_s[rank] = dovetail_pipeline_tile_s(p->tiles_s + (size_t)rank * LEVELS, grain);
    for (int i = 0; i < p->num_links; i++) links[i] = dovetail_pipeline_message(p->costs + (size_t)i * LEVELS, grain);
    seconds = dovetail_pipeline_s(tiles_in(p, grain), p->size, compute_s, p->num_links, links, overlapped);
    free(compute_s), free(links);
    return seconds;
}

/* Keeps the better one of the best so far and another grain. */
static void weigh(const dovetail_pipeline* p, int overlapped, int64_t grain, int64_t* best, double* seconds) {
    const double found = grain < 1 || grain > p->most ? INFINITY : dovetail_pipeline_predict(p, grain, overlapped);
    if (found < *seconds) *best = grain, *seconds = found;
}

/* The best about a grain of a ladder: in steps of half the size, and then as many tiles of which the last is as long as
 * the others. */
static int64_t best_near(const dovetail_pipeline* p, int overlapped, int64_t best, double* seconds) {
    for (int64_t step = 1 + best / 10; step; step /= 2) {
        const int64_t low = best - step, high = best + step;
        weigh(p, overlapped, low, &best, seconds);
        weigh(p, overlapped, high, &best, seconds);
    }
    weigh(p, overlapped, (p->length + tiles_in(p, best) - 1) / tiles_in(p, best), &best, seconds);
    return best;
}

/* The best grain: of all of a geometric ladder, and about it. */
static int64_t best_grain(const dovetail_pipeline* p, int overlapped, double* seconds) {
    int64_t best = p->most;
    *seconds = dovetail_pipeline_predict(p, best, overlapped);
    for (int64_t grain = 1; grain < p->most; grain += 1 + grain / 5) weigh(p, overlapped, grain, &best, seconds);
    return best_near(p, overlapped, best, seconds);
}

/* The best grain of another valley, of more positions than the choice or of fewer, that is predicted to take hardly
 * longer; 0 where there is none. A tile that fits a cache may make one, and neighbours do not lead there. */
int64_t dovetail_pipeline_rival(const dovetail_pipeline* p, int more) {
    const int overlapped = p->choice.overlapped > 0;
    const double own = dovetail_pipeline_predict(p, p->choice.grain, overlapped);
    double ridge = own, seconds = INFINITY;
    int64_t best = 0;
    for (int64_t grain = p->choice.grain; grain >= 1 && grain <= p->most; grain += (more ? 1 : -1) * (1 + grain / 8)) {
        const double found = dovetail_pipeline_predict(p, grain, overlapped);
        ridge = greater(ridge, found);
        if (RIDGE * found < ridge && found < seconds) best = grain, seconds = found;
    }
    if (best) best = best_near(p, overlapped, best, &seconds);
    return seconds <= RIVAL * own ? best : 0;
}

/* A grain and a way of sending become the choice. */
void dovetail_pipeline_take(dovetail_pipeline* p, int64_t grain, int overlapped) {
    dovetail_choice* choice = &p->choice;
    choice->grain = grain, choice->overlapped = overlapped;
    choice->tiles = tiles_in(p, grain);
    choice->predicted_s = dovetail_pipeline_predict(p, grain, overlapped);
    choice->waits = 0, choice->progresses = 1;
    for (int i = 0; i < p->num_links; i++) {
        const link_cost link = dovetail_pipeline_message(p->costs + (size_t)i * LEVELS, grain);
        choice->waits |= link.waits, choice->progresses &= link.progresses;
    }
}

static void decide(dovetail_pipeline* p) {
    dovetail_choice* choice = &p->choice;
    int64_t grains[2];
    grains[0] = best_grain(p, 0, &choice->blocking_s);
    grains[1] = best_grain(p, 1, &choice->overlapped_s);
    const int overlapped = choice->overlapped_s < WORTH * choice->blocking_s;
    dovetail_pipeline_take(p, grains[overlapped], 2 * overlapped);
    choice->serial_s = dovetail_pipeline_predict(p, p->length, 0);
}

/* Rank 0's choice, on all ranks. */
void dovetail_pipeline_choose(dovetail_pipeline* p) {
    if (p->rank == 0) decide(p);
    MPI_Bcast(&p->choice, sizeof p->choice, MPI_BYTE, 0, p->comm);
}

static const char* reason(const dovetail_choice* choice) {
    if (!choice->waits)
        return "sends of this size do not wait for their receivers, so that blocking ones overlap already";
    if (choice->overlapped) return "sends of this size wait for their receivers, so that a step is computed meanwhile";
    return choice->progresses ? "waiting for the receivers costs less than the longer pipeline"
                              : "these messages do not travel while ranks compute, so that nothing is gained by it";
}

const char* dovetail_pipeline_explain(const dovetail_pipeline* p) {
    const dovetail_choice* c = &p->choice;
    char* text = ((dovetail_pipeline*)p)->text;
    if (p->is_fixed || !c->grain || !p->num_links)
        snprintf(text, TEXT, "%lld positions in %lld tiles of %lld, %s sends%s", (long long)p->length,
                 (long long)c->tiles, (long long)c->grain, c->overlapped ? "overlapped" : "blocking",
                 p->is_fixed    ? ", as fixed by the caller"
                 : p->num_links ? ", not chosen yet"
                                : ": no rank needs another");
    else {
        const int end = snprintf(text, TEXT,
                                 "%lld positions in %lld tiles of %lld, %s sends: %s. Predicted %.4g s (blocking %.4g, "
                                 "overlapped %.4g, one tile a rank %.4g)",
                                 (long long)p->length, (long long)c->tiles, (long long)c->grain,
                                 c->overlapped ? "overlapped" : "blocking", reason(c), c->predicted_s, c->blocking_s,
                                 c->overlapped_s, c->serial_s);
        if (c->measured_s > 0)
            snprintf(text + end, TEXT - (size_t)end, "; measured %.4g s, the least in %d trials", c->measured_s,
                     c->tried);
    }
    return text;
}
