/* Grains chosen for planted costs, beside the best of all grains: one line each case. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "pipeline_inside.h"

static double at(dovetail_pipeline* p, int64_t grain, int overlapped) {
    double compute_s[8], seconds;
    link_cost links[8];
    for (int rank = 0; rank < p->size; rank++)
        compute_s[rank] = dovetail_pipeline_tile_s(p->tiles_s + rank * LEVELS, grain);
    for (int i = 0; i < p->num_links; i++) links[i] = dovetail_pipeline_message(p->costs + i * LEVELS, grain);
    seconds = dovetail_pipeline_s((p->length + grain - 1) / grain, p->size, compute_s, p->num_links, links, overlapped);
    return seconds;
}

int main(void) {
    MPI_Init(NULL, NULL);
    for (int seed = 0; seed < 60; seed++) {
        dovetail_pipeline p = {.comm = MPI_COMM_SELF, .size = 2 + seed % 4, .length = 50 + 37 * seed};
        double best = INFINITY, chosen;
        srand((unsigned)seed);
        const double each = 1e-6 * (1 + rand() % 50), latency = 1e-6 * (1 + rand() % 500), byte = 1e-6 * (rand() % 60);
        p.most = p.length, p.num_links = p.size - 1;
        p.tiles_s = calloc((size_t)p.size * LEVELS, sizeof *p.tiles_s);
        p.costs = calloc((size_t)p.num_links * LEVELS, sizeof *p.costs);
        for (int level = 0; level < 12; level++) {
            const double positions = (double)(1 << level);
            for (int rank = 0; rank < p.size; rank++) p.tiles_s[rank * LEVELS + level] = each * positions;
            for (int i = 0; i < p.num_links; i++) {
                link_cost* cost = p.costs + i * LEVELS + level;
                *cost = (link_cost){.source = i, .target = i + 1, .send_s = latency / 8, .recv_s = latency / 8};
                cost->half_s = latency + byte * positions, cost->gap_s = byte * positions;
                cost->waits = seed % 3 && level > 4, cost->progresses = seed % 2;
            }
        }
        dovetail_pipeline_choose(&p);
        for (int64_t grain = 1; grain <= p.length; grain++)
            for (int overlapped = 0; overlapped < 2; overlapped++) {
                const double found = at(&p, grain, overlapped);
                best = found < best ? found : best;
            }
        chosen = at(&p, p.choice.grain, p.choice.overlapped);
        printf("%d %d %d %.9g %.9g\n", seed, (int)p.choice.grain, p.choice.overlapped, chosen, best);
        free(p.tiles_s), free(p.costs);
    }
    return MPI_Finalize();
}
