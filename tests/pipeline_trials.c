/* Choices that trials settle on for planted seconds, beside the best of all grains: one line each case. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "pipeline_inside.h"

static double seconds_of(int seed, int64_t grain, int overlapped) {
    const double best = 3 + 17 * (seed % 11), at = (double)grain / best;
    return 1e-3 * (at + 1 / at) * (overlapped == seed % 3 ? 1 : 1.3);
}

int main(void) {
    MPI_Init(NULL, NULL);
    for (int seed = 0; seed < 40; seed++) {
        dovetail_pipeline p = {.comm = MPI_COMM_SELF, .size = 1, .length = 1000, .most = 1000};
        double *seconds, best = INFINITY, tiles_s[LEVELS] = {1e-6, 2e-6};
        int passes = 0;
        p.tiles_s = tiles_s;
        dovetail_pipeline_take(&p, 1 + 6 * seed, seed % 2 * 2);
        while (!p.choice.settled) {
            const trial* one = dovetail_pipeline_trial(&p, &seconds);
            *seconds = seconds_of(seed, one->grain, one->overlapped);
            if (passes++ % 7 == 6) *seconds *= 3; /* a disturbance */
            dovetail_pipeline_tried(&p);
        }
        for (int64_t grain = 1; grain <= p.length; grain++) best = lesser(best, seconds_of(seed, grain, seed % 3));
        printf("%d %d %.9g %.9g %.9g %d %d\n", seed, (int)p.choice.grain,
               seconds_of(seed, p.choice.grain, p.choice.overlapped), best, p.choice.measured_s, p.choice.tried,
               passes);
    }
    return MPI_Finalize();
}
