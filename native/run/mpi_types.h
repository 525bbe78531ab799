/* MPI's types and ops for those of mpi_table.h. */
#ifndef DOVETAIL_MPI_TYPES_H
#define DOVETAIL_MPI_TYPES_H

#include <mpi.h>

#include "mpi_table.h"

int dt_make_types(dt_reduce_fn reduce); /* once */
MPI_Datatype dt_type(int dtype);
MPI_Op dt_op(int op, int dtype);
int dt_bytes(int dtype); /* of one element */

#endif
