/* Bytes that calls move, and ranks of communicators, as the wrappers of MPI calls ask for them. Included once. */
#include "mpi_library.h"

#define DM_SUM(counts, n)                                                \
    __extension__({                                                      \
        int64_t dm_sum = 0;                                              \
        for (int dm_i = 0; dm_i < (n); ++dm_i) dm_sum += (counts)[dm_i]; \
        dm_sum;                                                          \
    })
#define DM_SUM_W(counts, types, n)                                                                         \
    __extension__({                                                                                        \
        int64_t dm_sum = 0;                                                                                \
        for (int dm_i = 0; dm_i < (n); ++dm_i) dm_sum += dm_bytes((int64_t)(counts)[dm_i], (types)[dm_i]); \
        dm_sum;                                                                                            \
    })

static __thread struct {
    uint64_t type;
    int size;
} dm_sizes[8] __attribute__((tls_model("initial-exec"))); /* cache for predefined datatypes, which are never freed */

__attribute__((noinline)) static int dm_ask_size(MPI_Datatype datatype, int slot) {
    int size = 0, combiner = -1, unused[3];
    real_Type_size(datatype, &size);
    real_Type_get_envelope(datatype, &unused[0], &unused[1], &unused[2], &combiner);
    if (combiner == MPI_COMBINER_NAMED) dm_sizes[slot].type = DM_HANDLE(datatype), dm_sizes[slot].size = size;
    return size;
}

static inline int64_t dm_bytes(int64_t count, MPI_Datatype datatype) {
    if (count <= 0 || datatype == MPI_DATATYPE_NULL) return 0;
    const int slot = (int)(DM_HANDLE(datatype) * 0x9E3779B97F4A7C15u >> 61);
    const int is_known = dm_sizes[slot].type == DM_HANDLE(datatype);
    const int size = DM_LIKELY(is_known) ? dm_sizes[slot].size : dm_ask_size(datatype, slot);
    return size > 0 ? count * size : 0;
}

/* Returns whether a datatype is one of the library's own, whose elements lie one after another. Its size was asked for
   directly before. */
static inline int dm_is_named(MPI_Datatype datatype) {
    return dm_sizes[DM_HANDLE(datatype) * 0x9E3779B97F4A7C15u >> 61].type == DM_HANDLE(datatype);
}

#include "mpi_groups.h"
