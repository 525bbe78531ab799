/* What the files of dovetail_pipeline share. */
#ifndef DOVETAIL_PIPELINE_INSIDE_H
#define DOVETAIL_PIPELINE_INSIDE_H

#include "dovetail_pipeline.h"

enum { LEVELS = 32, LOOKS = 3, MOST_LOOKS = 7, TEXT = 1024, TRIALS = 7, FINALISTS = 4 }; /* level l: 2^l positions */

/* All messages of this rank to one other, or from it: faces of the same peer travel together. */
typedef struct {
    int peer, num_faces;
    dovetail_face* faces;
    size_t bytes; /* of one position */
    char* buffers[2];
    MPI_Request requests[2];
} side;

/* Messages of one rank to another, the same list on every rank; `bytes` of one position. */
typedef struct {
    int64_t source, target, bytes;
} link;

/* What a message of one size takes: see Link in dovetail/pipeline/recurrence.py. */
typedef struct {
    int source, target;
    double half_s, gap_s, send_s, recv_s;
    int waits, progresses, leaves, enters;
} link_cost;

/* A choice that passes measure, and what each took on this rank, then on the slowest one. */
typedef struct {
    int64_t grain;
    int overlapped;
    double seconds[MOST_LOOKS], median_s;
} trial;

/* Interleaved trials, each measured `looks` times; the first is the best so far. `reach`: distance of its neighbours,
 * the farthest first. `best`: winners of all heats; they meet in the final. */
typedef struct {
    trial each[TRIALS], best[FINALISTS];
    int count, turn, heats, reach, looks, num_best, is_final;
} trials;

struct dovetail_pipeline {
    MPI_Comm comm;
    int rank, size;
    int64_t length, most; /* most: positions that a message may hold */
    int num_from, num_to, num_links;
    side *from, *to;
    link* links;
    link_cost* costs; /* LEVELS of each link; those that were not measured have half_s 0 */
    double* tiles_s;  /* LEVELS of each rank, 0 where not measured */
    int runs, is_fixed;
    int64_t reserved; /* positions that the buffers hold */
    dovetail_choice choice;
    trials trials;
    char text[TEXT];
};

static inline double lesser(double a, double b) { return a < b ? a : b; }
static inline double greater(double a, double b) { return a > b ? a : b; }

/* pipeline_links.c: who exchanges what with whom. */
int dovetail_pipeline_link(dovetail_pipeline* p, const dovetail_face* from, int num_from, const dovetail_face* to,
                           int num_to, char* fault);
void dovetail_pipeline_unlink(dovetail_pipeline* p);

/* pipeline_costs.c: what messages and tiles take. */
void dovetail_pipeline_probe(dovetail_pipeline* p);
void dovetail_pipeline_gather_tiles(dovetail_pipeline* p, const double* tiles_s);
double dovetail_pipeline_tile_s(const double* levels, int64_t grain);
link_cost dovetail_pipeline_message(const link_cost* levels, int64_t grain);

/* pipeline_grain.c: how many positions at once. */
void dovetail_pipeline_choose(dovetail_pipeline* p);
void dovetail_pipeline_take(dovetail_pipeline* p, int64_t grain, int overlapped);
int64_t dovetail_pipeline_rival(const dovetail_pipeline* p, int more);

/* pipeline_trials.c: what is chosen, measured against its neighbours by the passes that follow. */
trial* dovetail_pipeline_trial(dovetail_pipeline* p, double** seconds);
void dovetail_pipeline_tried(dovetail_pipeline* p);

/* pipeline_recurrence.c: seconds of a pipeline of `steps` steps; the same as pipeline_s in Python. */
double dovetail_pipeline_s(int64_t steps, int ranks, const double* compute_s, int num_links, const link_cost* links,
                           int overlapped);

#endif
