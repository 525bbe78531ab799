/* dovetail_pipeline: ranks that need one another's results position by position, kept busy at once. C99 and MPI only.
 *
 *     mpicc -O2 -I DIR my_program.c DIR/pipeline_*.c        # DIR: what `python -m dovetail.call.pipeline` prints
 *
 * Along one axis of the caller's arrays each rank computes positions 0 to length - 1 in order; position x needs faces
 * that other ranks have computed of positions up to x. The caller keeps the arrays, the communicator and the kernel;
 * how many positions are computed and sent at once, the messages, their buffers and whether sends are waited for are
 * ours. They are chosen from what the messages, at opening, and the caller's kernel, while it runs, are measured to
 * take; the results do not depend on them. */
#ifndef DOVETAIL_PIPELINE_H
#define DOVETAIL_PIPELINE_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one rank gives another of each position: `rows` pieces (0 is taken for 1) of `bytes` each. Piece r of position x
 * lies at first + x * stride + r * apart; both are in bytes and may be negative. The ranks' faces for one another are
 * paired in their order. Nothing is given to or taken from peer MPI_PROC_NULL. */
typedef struct {
    int peer;
    void* first;
    size_t bytes;
    ptrdiff_t stride;
    int64_t rows;
    ptrdiff_t apart;
} dovetail_face;

/* The caller's kernel: positions lo to hi - 1. Faces from others hold them, and those for others must when it returns.
 */
typedef void dovetail_tile(void* context, int64_t lo, int64_t hi);

typedef struct dovetail_pipeline dovetail_pipeline;

/* All ranks of `comm` call it, each with the faces that come `from` others and go `to` them. NULL, on every rank, where
 * any of them is wrong: before anything moves, with the reason in dovetail_pipeline_error(). */
dovetail_pipeline* dovetail_pipeline_open(MPI_Comm comm, int64_t length, const dovetail_face* from, int num_from,
                                          const dovetail_face* to, int num_to);

/* The same by the handle that Fortran has of the communicator. */
dovetail_pipeline* dovetail_pipeline_open_fortran(MPI_Fint comm, int64_t length, const dovetail_face* from,
                                                  int num_from, const dovetail_face* to, int num_to);

/* The same with a grain, as by dovetail_pipeline_fix. */
dovetail_pipeline* dovetail_pipeline_open_fixed_fortran(MPI_Fint comm, int64_t length, int64_t grain,
                                                        const dovetail_face* from, int num_from,
                                                        const dovetail_face* to, int num_to);

/* In place of dovetail_pipeline_open on a rank that cannot say what it exchanges: it is NULL on the others, with this
 * reason. */
void dovetail_pipeline_refuse(MPI_Comm comm, const char* why);
void dovetail_pipeline_refuse_fortran(MPI_Fint comm, const char* why);

/* One pass over all positions; every rank calls it, as often as it likes. 0, or what MPI returned. */
int dovetail_pipeline_run(dovetail_pipeline* pipeline, dovetail_tile* tile, void* context);

/* Positions at once from now on; 0 chooses again. Sends are waited for at once, or `overlapped` steps later: 1 or 2.
 * Every rank calls it, with the same numbers: else it changes nothing and does not return 0, with the reason in
 * dovetail_pipeline_error(). */
int dovetail_pipeline_fix(dovetail_pipeline* pipeline, int64_t grain, int overlapped);

/* Ends it, on every rank. */
void dovetail_pipeline_close(dovetail_pipeline* pipeline);

/* Why the last call of dovetail_pipeline_open gave NULL, or that of dovetail_pipeline_fix not 0. */
const char* dovetail_pipeline_error(void);

/* What was chosen, and why, in a few sentences; they last until the next call. */
const char* dovetail_pipeline_explain(const dovetail_pipeline* pipeline);

/* The choice as numbers; times in seconds. `overlapped`: a send completes this many steps later, 0: at once. `waits`: a
 * send of this size waits for its receiver on some link; `progresses`: all such sends travel while the ranks compute.
 * `serial_s`: predicted for a single tile. `tried`: passes that have measured this choice and its neighbours;
 * `measured_s`: its median, 0 before the first; `settled`: no more trials are made. */
typedef struct {
    int64_t grain, tiles;
    int overlapped, waits, progresses, tried, settled;
    double predicted_s, blocking_s, overlapped_s, serial_s, measured_s;
} dovetail_choice;

dovetail_choice dovetail_pipeline_choice(const dovetail_pipeline* pipeline);

/* Predicted seconds of a pass in tiles of `grain` positions; valid after the first pass that chose a grain. */
double dovetail_pipeline_predict(const dovetail_pipeline* pipeline, int64_t grain, int overlapped);

#ifdef __cplusplus
}
#endif
#endif
