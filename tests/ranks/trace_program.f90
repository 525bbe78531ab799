! Messages around a ring and collectives, each a known number of times; through `mpi`, or `mpi_f08` where USE_F08 is defined.
program ring
#ifdef USE_F08
  use mpi_f08
#else
  use mpi
#endif
  implicit none
  integer :: rank, num_ranks, code, i
  real(8) :: given(100), taken(100)
#ifdef USE_F08
  type(MPI_Request) :: asked(2)
  type(MPI_Status) :: status
#else
  integer :: asked(2), status(MPI_STATUS_SIZE)
#endif
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, num_ranks, code)
  given = rank
  do i = 1, 5
    call MPI_Isend(given, i, MPI_DOUBLE_PRECISION, mod(rank + 1, num_ranks), 7, MPI_COMM_WORLD, asked(1), code)
    call MPI_Irecv(taken, 100, MPI_DOUBLE_PRECISION, mod(rank + num_ranks - 1, num_ranks), 7, MPI_COMM_WORLD, &
                   asked(2), code)
    call MPI_Waitall(2, asked, MPI_STATUSES_IGNORE, code)
  end do
  if (rank == 0) call MPI_Send(given, 3, MPI_DOUBLE_PRECISION, 1, 8, MPI_COMM_WORLD, code)
  if (rank == 1) call MPI_Recv(taken, 3, MPI_DOUBLE_PRECISION, 0, 8, MPI_COMM_WORLD, status, code)
  call MPI_Bcast(given, 4, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, code)
  call MPI_Allreduce(given, taken, 10, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
  call MPI_Barrier(MPI_COMM_WORLD, code)
  call MPI_Finalize(code)
end program
