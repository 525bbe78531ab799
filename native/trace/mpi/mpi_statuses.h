/* Source, tag and bytes of received messages, from their statuses. Included once, in mpi_frame.h. */

static int dm_cancels; /* the program has called MPI_Cancel */

static inline int dm_is_cancelled(const MPI_Status* status) {
    int is_cancelled = 0;
    if (dm_cancels) real_Test_cancelled(status, &is_cancelled);
    return is_cancelled;
}

/* The bytes of a status, read from the library's internal fields: MPI_Get_count takes as long as the rest of a traced
   receive. */
#if defined(OPEN_MPI)
#define DM_KEPT_BYTES(status) ((int64_t)(status)->_ucount)
#elif defined(MPICH_VERSION)
#define DM_KEPT_BYTES(status) dm_from_halves((status)->count_lo, (status)->count_hi_and_cancelled)
#elif defined(MPI_ABI_VERSION)
#define DM_KEPT_BYTES(status) dm_from_halves((status)->MPI_internal[0], (status)->MPI_internal[1])
#else
#define DM_KEPT_BYTES(status) (-1)
#endif

static int dm_reads_statuses; /* DM_KEPT_BYTES is right for this library */

/* Joins both halves of a number of bytes; the lowest bit of the upper half marks cancelled messages. */
static inline int64_t dm_from_halves(int low, int high) {
    return (int64_t)((uint64_t)((uint32_t)high >> 1) << 32 | (uint32_t)low);
}

/* Checks DM_KEPT_BYTES: lets the library set the bytes of a status, and reads them. */
static void dm_check_statuses(void) {
    const MPI_Count num_bytes = ((MPI_Count)3 << 32) + 5;
    MPI_Status status;
    memset(&status, 0, sizeof status);
    const int code = real_Status_set_elements_x(&status, MPI_BYTE, num_bytes);
    dm_reads_statuses = !code && DM_KEPT_BYTES(&status) == num_bytes;
}

static int64_t dm_ask_bytes(const MPI_Status* status) {
    int count = 0;
    MPI_Count large = 0;
    real_Get_count(status, MPI_BYTE, &count);
    if (count != MPI_UNDEFINED) return count;
    real_Get_elements_x(status, MPI_BYTE, &large);
    return large < 0 ? 0 : (int64_t)large;
}

/* Records a completed request. A cancelled one has the source -2: nobody. */
static inline void dm_done(const MPI_Status* status, int position) {
    if (dm_is_cancelled(status)) {
        dovetail_trace_detail(DVT_DONE, position, dm_pair(-2, -1), 0);
        return;
    }
    const int64_t num_bytes = DM_LIKELY(dm_reads_statuses) ? DM_KEPT_BYTES(status) : dm_ask_bytes(status);
    const uint64_t from = dm_pair(dm_peer(status->MPI_SOURCE), dm_tag(status->MPI_TAG));
    dovetail_trace_detail(DVT_DONE, position, from, num_bytes);
}
