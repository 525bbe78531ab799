/* How many ranks a communicator has, which of them this one is, and which neighbours it has. */

/* Returns the number of ranks that a collective on this communicator exchanges data with, this rank included. */
static int dm_peers(MPI_Comm comm) {
    int size = 0, joins_two = 0;
    real_Comm_test_inter(comm, &joins_two);
    if (joins_two)
        real_Comm_remote_size(comm, &size);
    else
        real_Comm_size(comm, &size);
    return size;
}

static int dm_group_size(MPI_Comm comm) {
    int size = 0;
    real_Comm_size(comm, &size);
    return size;
}

static int dm_rank(MPI_Comm comm) {
    int rank = 0;
    real_Comm_rank(comm, &rank);
    return rank;
}

/* Returns whether this rank is the root of a collective; on an intercommunicator the root passes MPI_ROOT. */
static int dm_is_root(int root, MPI_Comm comm) { return root == MPI_ROOT || (root >= 0 && dm_rank(comm) == root); }

/* Returns the number of neighbours that send to this rank (outwards 0), or that it sends to (1). */
static int dm_degree(MPI_Comm comm, int outwards) {
    int topology = 0, in = 0, out = 0, is_weighted;
    real_Topo_test(comm, &topology);
    if (topology == MPI_CART) {
        real_Cartdim_get(comm, &in);
        return 2 * in;
    }
    if (topology == MPI_GRAPH) {
        real_Graph_neighbors_count(comm, dm_rank(comm), &in);
        return in;
    }
    if (topology == MPI_DIST_GRAPH) real_Dist_graph_neighbors_count(comm, &in, &out, &is_weighted);
    return outwards ? out : in;
}

enum { DM_MOST_NEAR = 128 }; /* a rank with more neighbours records their exchange as a collective of all ranks */

/* Writes the neighbours that send to this rank (outwards 0), or that it sends to (1), in the order of their data;
   returns their number; -1: there is no topology, or there are too many. */
static int dm_neighbours(MPI_Comm comm, int outwards, int* ranks) {
    int topology = 0, unused[2 * DM_MOST_NEAR];
    const int in = dm_degree(comm, 0), out = dm_degree(comm, 1);
    real_Topo_test(comm, &topology);
    if (topology == MPI_UNDEFINED || in > DM_MOST_NEAR || out > DM_MOST_NEAR) return -1;
    if (topology == MPI_CART)
        for (int i = 0; i < in / 2; ++i) real_Cart_shift(comm, i, 1, &ranks[2 * i], &ranks[2 * i + 1]);
    if (topology == MPI_GRAPH) real_Graph_neighbors(comm, dm_rank(comm), in, ranks);
    if (topology == MPI_DIST_GRAPH) {
        int other[DM_MOST_NEAR];
        real_Dist_graph_neighbors(comm, in, outwards ? other : ranks, unused, out, outwards ? ranks : other,
                                  unused + DM_MOST_NEAR);
    }
    return outwards ? out : in;
}
