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

/* Returns whether a datatype is predefined and has no gaps. The library is not asked: MPI_Type_get_envelope is an
   error, which ends most programs, for datatypes made by functions of large counts. */
static int dm_is_predefined(MPI_Datatype datatype) {
    /* clang-format off */
    const MPI_Datatype all[] = {
        MPI_CHAR, MPI_SIGNED_CHAR, MPI_UNSIGNED_CHAR, MPI_BYTE, MPI_PACKED, MPI_WCHAR, MPI_C_BOOL, MPI_SHORT,
        MPI_UNSIGNED_SHORT, MPI_INT, MPI_UNSIGNED, MPI_LONG, MPI_UNSIGNED_LONG, MPI_LONG_LONG_INT,
        MPI_UNSIGNED_LONG_LONG, MPI_INT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T, MPI_UINT16_T,
        MPI_UINT32_T, MPI_UINT64_T, MPI_AINT, MPI_COUNT, MPI_OFFSET, MPI_FLOAT, MPI_DOUBLE, MPI_LONG_DOUBLE,
        MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX, MPI_CHARACTER, MPI_LOGICAL,
        MPI_INTEGER, MPI_REAL, MPI_DOUBLE_PRECISION, MPI_COMPLEX, MPI_DOUBLE_COMPLEX,
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (all[i] == datatype) return 1;
    return 0;
}

__attribute__((noinline)) static int dm_ask_size(MPI_Datatype datatype, int slot) {
    int size = 0;
    real_Type_size(datatype, &size);
    if (dm_is_predefined(datatype)) dm_sizes[slot].type = DM_HANDLE(datatype), dm_sizes[slot].size = size;
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
