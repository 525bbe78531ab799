/* Choices tried: passes measure the predicted one against its neighbours until none is faster.
 *
 * What probes cannot tell decides between neighbours: links that share a wire, a link that is faster for a moment, the
 * way a library sends. Each trial is a pass of the caller's own, so that nothing is computed twice. */
#include <string.h>

#include "pipeline_inside.h"

enum { MOST_HEATS = 12 };
static const double FASTER = 0.99;                 /* a neighbour must take this much of the time, or less */
static const double FACTORS[] = {8, 2, 1.4142, 0}; /* of positions, from one neighbour to the next: far, then near */

static double median(const double* seconds) {
    const double low = lesser(seconds[0], seconds[1]), high = greater(seconds[0], seconds[1]);
    return lesser(greater(seconds[2], low), high);
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
        all->heats = all->reach = p->choice.tried = 0;
        next_heat(p);
    }
    trial* one = all->each + all->turn % all->count;
    *seconds = one->seconds + all->turn / all->count;
    return one;
}

/* After a pass: when all of a heat are measured, the fastest of them, or finer steps about the same one, or the end. */
void dovetail_pipeline_tried(dovetail_pipeline* p) {
    trials* all = &p->trials;
    if (++all->turn < all->count * LOOKS) return;
    double seconds[TRIALS][LOOKS];
    for (int i = 0; i < all->count; i++) memcpy(seconds[i], all->each[i].seconds, sizeof seconds[i]);
    MPI_Allreduce(MPI_IN_PLACE, seconds, all->count * LOOKS, MPI_DOUBLE, MPI_MAX, p->comm);
    int best = 0;
    p->choice.tried += all->count;
    p->choice.measured_s = median(seconds[0]);
    for (int i = 1; i < all->count; i++)
        if (median(seconds[i]) < FASTER * median(seconds[0]) && median(seconds[i]) < p->choice.measured_s)
            best = i, p->choice.measured_s = median(seconds[i]);
    if (best) dovetail_pipeline_take(p, all->each[best].grain, all->each[best].overlapped);
    all->reach += !best;
    p->choice.settled = FACTORS[all->reach] == 0 || all->heats == MOST_HEATS;
    if (!p->choice.settled) next_heat(p);
}
