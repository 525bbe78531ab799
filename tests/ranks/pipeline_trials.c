/* Choices that trials settle on for planted seconds, beside the best of all grains: one line each case. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline_inside.h"

/* Cases from LEVELLED on have two valleys, and a ridge between them; from NOISY on passes take up to a fifth longer. */
enum { LEVELLED = 40, NOISY = 42, CASES = 142 };
static const double valleys[LEVELS] = {4e-6, 5e-6, 5.8e-6, 6.2e-6, 28e-6, 40e-6, 52e-6, 95e-6, 205e-6, 410e-6};

static double seconds_of(int seed, int64_t grain, int overlapped) {
    if (seed >= LEVELLED && seed < NOISY) { /* the other valley is a tenth better than predicted, or a tenth worse */
        const double tiles = (double)((1000 + grain - 1) / grain);
        const double wrong = grain < 20 ? seed % 2 ? 0.9 : 1.1 : 1;
        return tiles * dovetail_pipeline_tile_s(valleys, grain) * wrong * (overlapped == 0 ? 1 : 1.3);
    }
    const double best = 3 + 17 * (seed % 11), at = (double)grain / best;
    return 1e-3 * (at + 1 / at) * (overlapped == seed % 3 ? 1 : 1.3);
}

int main(void) {
    MPI_Init(NULL, NULL);
    for (int seed = 0; seed < CASES; seed++) {
        dovetail_pipeline p = {.comm = MPI_COMM_SELF, .size = 1, .length = 1000, .most = 1000};
        double *seconds, best = INFINITY, tiles_s[LEVELS] = {1e-6, 2e-6};
        int passes = 0;
        p.tiles_s = tiles_s;
        const int levelled = seed >= LEVELLED && seed < NOISY;
        if (levelled) memcpy(tiles_s, valleys, sizeof valleys);
        if (levelled)
            dovetail_pipeline_take(&p, 127, 0);
        else
            dovetail_pipeline_take(&p, 1 + 6 * (seed % LEVELLED), seed % 2 * 2);
        while (!p.choice.settled) {
            const trial* one = dovetail_pipeline_trial(&p, &seconds);
            *seconds = seconds_of(seed, one->grain, one->overlapped);
            if (seed >= NOISY) *seconds *= 1 + 0.2 * (rand() % 1000 / 1e3);
            if (passes++ % 7 == 6) *seconds *= 3; /* a disturbance */
            dovetail_pipeline_tried(&p);
        }
        for (int64_t grain = 1; grain <= p.length; grain++)
            best = lesser(best, seconds_of(seed, grain, levelled ? 0 : seed % 3));
        printf("%d %d %.9g %.9g %.9g %d %d\n", seed, (int)p.choice.grain,
               seconds_of(seed, p.choice.grain, p.choice.overlapped), best, p.choice.measured_s, p.choice.tried,
               passes);
    }
    return MPI_Finalize();
}
