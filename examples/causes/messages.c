/* Each particle is a message of its own. Repaired: one message for all particles. */
#include "steps.h"

#ifndef PARTICLES
#define PARTICLES 3000
#endif
enum { NUMBERS = 4 };
static double mine[PARTICLES][NUMBERS], theirs[PARTICLES][NUMBERS];

static void step(int i) {
    const int other = rank ^ 1;
    (void)i;
    work(2);
    if (other >= ranks) return;
#ifdef REPAIRED
    MPI_Sendrecv(mine, PARTICLES * NUMBERS, MPI_DOUBLE, other, 0, theirs, PARTICLES * NUMBERS, MPI_DOUBLE, other, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#else
    for (int p = 0; p < PARTICLES; ++p)
        MPI_Sendrecv(mine[p], NUMBERS, MPI_DOUBLE, other, 0, theirs[p], NUMBERS, MPI_DOUBLE, other, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
#endif
}
