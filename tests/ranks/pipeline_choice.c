/* Of costs in a file: the choice, and what every grain is predicted to take: one line each case. */
#include <stdio.h>
#include <stdlib.h>

#include "pipeline_inside.h"

static void read_case(dovetail_pipeline* p, int levels) {
    p->tiles_s = calloc((size_t)p->size * LEVELS, sizeof *p->tiles_s);
    p->costs = calloc((size_t)p->size * LEVELS, sizeof *p->costs);
    for (int rank = 0; rank < p->size; rank++)
        for (int level = 0; level < levels; level++)
            if (scanf("%lf", p->tiles_s + rank * LEVELS + level) != 1) exit(1);
    for (int i = 0; i < p->num_links; i++)
        for (int level = 0; level < levels; level++) {
            link_cost* cost = p->costs + i * LEVELS + level;
            cost->source = i, cost->target = i + 1;
            if (scanf("%lf%lf%lf%lf%d%d", &cost->half_s, &cost->gap_s, &cost->send_s, &cost->recv_s, &cost->waits,
                      &cost->progresses) != 6)
                exit(1);
        }
}

int main(int num_words, char** words) {
    int size, levels;
    long long length;
    MPI_Init(NULL, NULL);
    if (num_words < 2 || !freopen(words[1], "r", stdin)) return 1;
    while (scanf("%d%lld%d", &size, &length, &levels) == 3) {
        dovetail_pipeline p = {.comm = MPI_COMM_SELF, .size = size, .length = length, .num_links = size - 1};
        p.most = p.length;
        read_case(&p, levels);
        dovetail_pipeline_choose(&p);
        const dovetail_choice* c = &p.choice;
        printf("%d %d %.17g %.17g %.17g %.17g", (int)c->grain, c->overlapped, c->predicted_s, c->blocking_s,
               c->overlapped_s, c->serial_s);
        for (int64_t grain = 1; grain <= p.length; grain++)
            printf(" %.17g %.17g", dovetail_pipeline_predict(&p, grain, 0), dovetail_pipeline_predict(&p, grain, 1));
        printf("\n");
        free(p.tiles_s), free(p.costs);
    }
    return MPI_Finalize();
}
