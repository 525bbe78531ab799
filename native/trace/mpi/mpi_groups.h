/* How many ranks a communicator has, which of them this one is, and how many neighbours it has. */

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
