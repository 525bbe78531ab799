/* MPI's types and ops. MPI has no half types: the engine's function reduces them. */
#include "mpi_types.h"

static dt_reduce_fn reduce_fn;
static MPI_Datatype half_types[2];
static MPI_Op half_ops[4];

#define HALF_OP(name, op)                                                                   \
    static void name(void* src, void* dst, int* count, MPI_Datatype* type) {                \
        reduce_fn(*type == half_types[0] ? DT_FLOAT16 : DT_BFLOAT16, op, src, dst, *count); \
    }
HALF_OP(half_sum, DT_SUM)
HALF_OP(half_prod, DT_PROD)
HALF_OP(half_min, DT_MIN)
HALF_OP(half_max, DT_MAX)

int dt_make_types(dt_reduce_fn reduce) {
    MPI_User_function* functions[4] = {half_sum, half_prod, half_min, half_max};
    int code;
    if (reduce_fn) return 0;
    reduce_fn = reduce;
    for (int i = 0; i < 2; i++) {
        if ((code = MPI_Type_contiguous(2, MPI_BYTE, &half_types[i]))) return code;
        if ((code = MPI_Type_commit(&half_types[i]))) return code;
    }
    for (int i = 0; i < 4; i++)
        if ((code = MPI_Op_create(functions[i], 1, &half_ops[i]))) return code;
    return 0;
}

MPI_Datatype dt_type(int dtype) {
    switch (dtype) {
        case DT_FLOAT16:
            return half_types[0];
        case DT_BFLOAT16:
            return half_types[1];
        case DT_FLOAT32:
            return MPI_FLOAT;
        case DT_FLOAT64:
            return MPI_DOUBLE;
        case DT_INT8:
            return MPI_INT8_T;
        case DT_UINT8:
            return MPI_UINT8_T;
        case DT_INT16:
            return MPI_INT16_T;
        case DT_UINT16:
            return MPI_UINT16_T;
        case DT_INT32:
            return MPI_INT32_T;
        case DT_UINT32:
            return MPI_UINT32_T;
        case DT_UINT64:
            return MPI_UINT64_T;
        case DT_COMPLEX64:
            return MPI_C_FLOAT_COMPLEX;
        case DT_COMPLEX128:
            return MPI_C_DOUBLE_COMPLEX;
        default:
            return MPI_INT64_T;
    }
}

MPI_Op dt_op(int op, int dtype) {
    if (op == DT_AVG) op = DT_SUM;
    if (dtype == DT_FLOAT16 || dtype == DT_BFLOAT16) return half_ops[op];
    return op == DT_SUM ? MPI_SUM : op == DT_PROD ? MPI_PROD : op == DT_MIN ? MPI_MIN : MPI_MAX;
}

int dt_bytes(int dtype) {
    static const signed char bytes[DT_NUM_TYPES] = {2, 2, 4, 8, 1, 1, 4, 8, 2, 2, 4, 8, 8, 16};
    return bytes[dtype];
}
