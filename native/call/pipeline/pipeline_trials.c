/* Choices tried: passes measure the predicted one against its neighbours until none is faster, then the best of all
 * once more.
 *
 * Neighbours differ by effects that probes cannot measure: links that share a wire, a link that is faster for a moment,
 * the way a library sends. Each trial is a pass of the caller's own, so that nothing is computed twice. */
#include <stdlib.h>
#include <string.h>

#include "pipeline_inside.h"

enum { MOST_HEATS = 12 };
static const double FASTER = 0.99;                 /* a neighbour must take this much of the time, or less */
static const double FACTORS[] = {8, 2, 1.4142, 0}; /* of positions, from one neighbour to the next: far, then near */

static const double NEAR = 1.1; /* of the best: what took no more, with few looks, is in the final */

static int order(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(double* seconds, int count) {
    qsort(seconds, (size_t)count, sizeof *seconds, order);
    return seconds[count / 2];
}

static void add(dovetail_pipeline* p, double grain, int overlapped) {
    trials* all = &p->trials;
    int64_t whole = (int64_t)(grain + 0.5);
    whole = whole < 1 ? 1 : whole > p->most ? p->most : whole;
    for (int i = 0; i < all->count; i++)
        if (all->each[i].grain == whole && all->each[i].overlapped == overlapped) return;
    all->each[all->count++] = (trial){.grain = whole, .overlapped = overlapped};
}

/* The choice and its neighbours: more positions, fewer, and the other ways of sending; first of all the best of other
 * valleys, too. */
static void next_heat(dovetail_pipeline* p) {
    const dovetail_choice* choice = &p->choice;
    const double grain = (double)choice->grain;
    p->trials.count = p->trials.turn = 0;
    add(p, grain, choice->overlapped);
    add(p, grain * FACTORS[p->trials.reach], choice->overlapped);
    add(p, grain / FACTORS[p->trials.reach], choice->overlapped);
    for (int overlapped = 0; overlapped <= 2; overlapped++) add(p, grain, overlapped);
    for (int more = 0; more <= 1 && !p->trials.heats; more++) {
        const int64_t rival = dovetail_pipeline_rival(p, more);
        if (rival) add(p, (double)rival, choice->overlapped);
    }
    p->trials.heats++;
}

/* The trial of the next pass, and where its seconds belong. */
trial* dovetail_pipeline_trial(dovetail_pipeline* p, double** seconds) {
    trials* all = &p->trials;
    if (!all->count) {
        all->heats = all->reach = all->num_best = all->is_final = p->choice.tried = 0;
        all->looks = LOOKS;
        next_heat(p);
    }
    trial* one = all->each + all->turn % all->count;
    *seconds = one->seconds + all->turn / all->count;
    return one;
}

/* What every trial of a heat took on the slowest rank, in the middle of its looks. */
static void gather(dovetail_pipeline* p) {
    trials* all = &p->trials;
    double seconds[TRIALS][MOST_LOOKS];
    for (int i = 0; i < all->count; i++) memcpy(seconds[i], all->each[i].seconds, sizeof seconds[i]);
    MPI_Allreduce(MPI_IN_PLACE, seconds, all->count * MOST_LOOKS, MPI_DOUBLE, MPI_MAX, p->comm);
    for (int i = 0; i < all->count; i++) all->each[i].median_s = median(seconds[i], all->looks);
    p->choice.tried += all->count;
}

/* Keeps the fastest of all heats, each once, the fastest first. */
static void remember(trials* all, trial one) {
    for (int i = 0; i < all->num_best; i++)
        if (all->best[i].grain == one.grain && all->best[i].overlapped == one.overlapped) {
            one.median_s = lesser(one.median_s, all->best[i].median_s);
            memmove(all->best + i, all->best + i + 1, (size_t)(--all->num_best - i) * sizeof one);
            break;
        }
    int place = all->num_best;
    while (place && one.median_s < all->best[place - 1].median_s) place--;
    if (place == FINALISTS) return;
    all->num_best += all->num_best < FINALISTS;
    memmove(all->best + place + 1, all->best + place, (size_t)(all->num_best - 1 - place) * sizeof one);
    all->best[place] = one;
}

/* The best of all heats, with more looks. Few looks take luck for speed: the more there were to choose from, the more.
 */
static void begin_final(dovetail_pipeline* p) {
    trials* all = &p->trials;
    all->is_final = 1, all->looks = MOST_LOOKS, all->count = all->turn = 0;
    for (int i = 0; i < all->num_best; i++)
        if (all->best[i].median_s <= NEAR * all->best[0].median_s)
            add(p, (double)all->best[i].grain, all->best[i].overlapped);
    p->choice.settled = all->count == 1;
}

/* After a pass: when all of a heat are measured, the fastest of them, or finer steps about the same one, or the final,
 * or the end. */
void dovetail_pipeline_tried(dovetail_pipeline* p) {
    trials* all = &p->trials;
    if (++all->turn < all->count * all->looks) return;
    gather(p);
    int best = 0;
    for (int i = 0; i < all->count; i++) {
        remember(all, all->each[i]);
        const double least = all->each[best].median_s * (best || all->is_final ? 1 : FASTER);
        if (all->each[i].median_s < least) best = i;
    }
    p->choice.measured_s = all->each[best].median_s;
    if (best || all->is_final) dovetail_pipeline_take(p, all->each[best].grain, all->each[best].overlapped);
    all->reach += !best;
    if (all->is_final)
        p->choice.settled = 1;
    else if (FACTORS[all->reach] == 0 || all->heats == MOST_HEATS)
        begin_final(p);
    else
        next_heat(p);
}
