/* Reductions of predefined element types whose result does not depend on the order of two operands, or that say where
   it does. Included once.

   Integers wrap around, so that any order gives the same bits. A sum or product of two floating-point numbers is the
   same in either order, but for the bits of a NaN; a maximum depends on it if an operand is a NaN, or both are zero. A
   function returns whether it met such elements. */
#include <stdint.h>

typedef enum {
    DX_I8,
    DX_I16,
    DX_I32,
    DX_I64,
    DX_U8,
    DX_U16,
    DX_U32,
    DX_U64,
    DX_F32,
    DX_F64,
    DX_C64,
    DX_C128,
    DX_BYTE
} dx_class;
typedef enum { DX_SUM, DX_PROD, DX_MAX, DX_MIN, DX_BAND, DX_BOR, DX_BXOR, DX_LAND, DX_LOR, DX_LXOR, DX_NUM_OPS } dx_op;

/* Sets out[i] to the reduction of a[i] and b[i]; `out` may be either of them. */
typedef int dx_function(void* out, const void* a, const void* b, int64_t count);

#define DX_TYPE_OF(type, name) typedef type __attribute__((aligned(1), may_alias)) name;
DX_TYPE_OF(int8_t, dx_i8)
DX_TYPE_OF(int16_t, dx_i16)
DX_TYPE_OF(int32_t, dx_i32)
DX_TYPE_OF(int64_t, dx_i64)
DX_TYPE_OF(uint8_t, dx_u8)
DX_TYPE_OF(uint16_t, dx_u16)
DX_TYPE_OF(uint32_t, dx_u32)
DX_TYPE_OF(uint64_t, dx_u64)
DX_TYPE_OF(float, dx_f32)
DX_TYPE_OF(double, dx_f64)

#define DX_LOOP(name, type, bits, result, doubtful)                                    \
    static int dx_##name##_##type(void* to, const void* a, const void* b, int64_t n) { \
        dx_##type* out = to;                                                           \
        const dx_##type *left = a, *right = b;                                         \
        bits bad = 0;                                                                  \
        for (int64_t i = 0; i < n; ++i) {                                              \
            const dx_##type x = left[i], y = right[i];                                 \
            const dx_##type r = (dx_##type)(result);                                   \
            bad |= (bits)(doubtful);                                                   \
            out[i] = r;                                                                \
        }                                                                              \
        return bad != 0;                                                               \
    }
#define DX_INTEGER(type)                        \
    DX_LOOP(sum, type, int, x + y, 0)           \
    DX_LOOP(prod, type, int, (uint64_t)x* y, 0) \
    DX_LOOP(band, type, int, x& y, 0)           \
    DX_LOOP(bor, type, int, x | y, 0)           \
    DX_LOOP(bxor, type, int, x ^ y, 0)          \
    DX_LOOP(land, type, int, x&& y, 0)          \
    DX_LOOP(lor, type, int, x || y, 0)          \
    DX_LOOP(lxor, type, int, !x != !y, 0)
#define DX_ORDERED(type)                      \
    DX_LOOP(max, type, int, x > y ? x : y, 0) \
    DX_LOOP(min, type, int, x < y ? x : y, 0)
#define DX_FLOATING(type, bits)                                                               \
    DX_LOOP(sum, type, bits, x + y, -(bits)(r != r))                                          \
    DX_LOOP(prod, type, bits, x* y, -(bits)(r != r))                                          \
    DX_LOOP(max, type, bits, x > y ? x : y, -(bits)(!(x < y || x > y) && (x == 0 || x != y))) \
    DX_LOOP(min, type, bits, x < y ? x : y, -(bits)(!(x < y || x > y) && (x == 0 || x != y)))

#pragma GCC push_options
#pragma GCC optimize("O3")
DX_INTEGER(u8)
DX_INTEGER(u16)
DX_INTEGER(u32)
DX_INTEGER(u64)
DX_ORDERED(i8)
DX_ORDERED(i16)
DX_ORDERED(i32)
DX_ORDERED(i64)
DX_ORDERED(u8)
DX_ORDERED(u16)
DX_ORDERED(u32)
DX_ORDERED(u64)
DX_FLOATING(f32, int32_t)
DX_FLOATING(f64, int64_t)
#pragma GCC pop_options

#define DX_SAME(type) [DX_SUM] = dx_sum_##type, DX_BUT_SUM(type)
#define DX_BUT_SUM(type)                                                                                          \
    [DX_PROD] = dx_prod_##type, [DX_BAND] = dx_band_##type, [DX_BOR] = dx_bor_##type, [DX_BXOR] = dx_bxor_##type, \
    [DX_LAND] = dx_land_##type, [DX_LOR] = dx_lor_##type, [DX_LXOR] = dx_lxor_##type
#define DX_RANGE(type) [DX_MAX] = dx_max_##type, [DX_MIN] = dx_min_##type

/* Open MPI adds numbers of one and two bytes with saturation, where it uses AVX: these are left to it. */
#ifdef OPEN_MPI
#define DX_SHORT(type) DX_BUT_SUM(type)
#else
#define DX_SHORT(type) DX_SAME(type)
#endif

/* NULL: the standard defines no such reduction, or its result depends on the order (products of complex numbers). */
static dx_function* const dx_functions[][DX_NUM_OPS] = {
    [DX_I8] = {DX_SHORT(u8), DX_RANGE(i8)},
    [DX_I16] = {DX_SHORT(u16), DX_RANGE(i16)},
    [DX_I32] = {DX_SAME(u32), DX_RANGE(i32)},
    [DX_I64] = {DX_SAME(u64), DX_RANGE(i64)},
    [DX_U8] = {DX_SHORT(u8), DX_RANGE(u8)},
    [DX_U16] = {DX_SHORT(u16), DX_RANGE(u16)},
    [DX_U32] = {DX_SAME(u32), DX_RANGE(u32)},
    [DX_U64] = {DX_SAME(u64), DX_RANGE(u64)},
    [DX_F32] = {[DX_SUM] = dx_sum_f32, [DX_PROD] = dx_prod_f32, DX_RANGE(f32)},
    [DX_F64] = {[DX_SUM] = dx_sum_f64, [DX_PROD] = dx_prod_f64, DX_RANGE(f64)},
    [DX_C64] = {[DX_SUM] = dx_sum_f32},
    [DX_C128] = {[DX_SUM] = dx_sum_f64},
    [DX_BYTE] = {NULL},
};
static const unsigned char dx_sizes[] = {1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 8, 16, 1};

/* Returns the number of the function's elements that an element of a class consists of: 2 for complex numbers. */
static inline int dx_parts(dx_class class) { return class >= DX_C64 ? 2 : 1; }

/* Returns whether the sum of more than two elements depends on the order in which they are added. */
static inline int dx_rounds(dx_class class, dx_op op) { return class >= DX_F32 && (op == DX_SUM || op == DX_PROD); }

/* ---- predefined types and operations ---- */

#ifdef OPEN_MPI /* the constants are addresses of variables of the library, some of which a build may lack */
#define DX_CONSTANT(kind, name, variable) ((kind)dm_symbol(dm_library, "ompi_mpi_" variable))
#else
#define DX_CONSTANT(kind, name, variable) (name)
#endif
#define DX_BY_SIZE(type, is_signed) \
    ((dx_class)((sizeof(type) == 1 ? 0 : sizeof(type) == 2 ? 1 : sizeof(type) == 4 ? 2 : 3) + (is_signed ? 0 : 4)))

enum { DX_TYPES = 128 };
static struct {
    MPI_Datatype type;
    int class; /* plus 1; 0: free */
} dx_types[DX_TYPES];
static MPI_Op dx_ops[DX_NUM_OPS];

static inline int dx_hash(uint64_t handle) { return (int)(handle * 0x9E3779B97F4A7C15u >> 57); }

static void dx_add_type(MPI_Datatype type, dx_class class) {
    int at = dx_hash(DM_HANDLE(type));
    if (!DM_HANDLE(type) || type == MPI_DATATYPE_NULL) return;
    while (dx_types[at].class && dx_types[at].type != type) at = (at + 1) % DX_TYPES;
    if (dx_types[at].class) return;
    dx_types[at].type = type, dx_types[at].class = (int)class + 1;
}

/* Returns the class of a predefined type; -1 for other types. */
static inline int dx_class_of(MPI_Datatype type) {
    for (int at = dx_hash(DM_HANDLE(type)); dx_types[at].class; at = (at + 1) % DX_TYPES)
        if (dx_types[at].type == type) return dx_types[at].class - 1;
    return -1;
}

/* Returns the number of a predefined operation; -1 for others. */
static inline int dx_op_of(MPI_Op op) {
    for (int i = 0; i < DX_NUM_OPS; ++i)
        if (dx_ops[i] == op) return i;
    return -1;
}

#define DX_ADD(name, variable, class) dx_add_type(DX_CONSTANT(MPI_Datatype, MPI_##name, variable), class)
static void dx_learn_types(void) {
    DX_ADD(SIGNED_CHAR, "signed_char", DX_I8), DX_ADD(UNSIGNED_CHAR, "unsigned_char", DX_U8);
    DX_ADD(SHORT, "short", DX_I16), DX_ADD(UNSIGNED_SHORT, "unsigned_short", DX_U16);
    DX_ADD(INT, "int", DX_I32), DX_ADD(UNSIGNED, "unsigned", DX_U32);
    DX_ADD(LONG, "long", DX_BY_SIZE(long, 1)), DX_ADD(UNSIGNED_LONG, "unsigned_long", DX_BY_SIZE(long, 0));
    DX_ADD(LONG_LONG, "long_long_int", DX_I64), DX_ADD(UNSIGNED_LONG_LONG, "unsigned_long_long", DX_U64);
    DX_ADD(INT8_T, "int8_t", DX_I8), DX_ADD(UINT8_T, "uint8_t", DX_U8);
    DX_ADD(INT16_T, "int16_t", DX_I16), DX_ADD(UINT16_T, "uint16_t", DX_U16);
    DX_ADD(INT32_T, "int32_t", DX_I32), DX_ADD(UINT32_T, "uint32_t", DX_U32);
    DX_ADD(INT64_T, "int64_t", DX_I64), DX_ADD(UINT64_T, "uint64_t", DX_U64);
    DX_ADD(AINT, "aint", DX_BY_SIZE(MPI_Aint, 1)), DX_ADD(OFFSET, "offset", DX_BY_SIZE(MPI_Offset, 1));
    DX_ADD(FLOAT, "float", DX_F32), DX_ADD(DOUBLE, "double", DX_F64);
    DX_ADD(C_FLOAT_COMPLEX, "c_float_complex", DX_C64), DX_ADD(C_DOUBLE_COMPLEX, "c_double_complex", DX_C128);
    DX_ADD(BYTE, "byte", DX_BYTE), DX_ADD(CHAR, "char", DX_BYTE);
    DX_ADD(REAL4, "real4", DX_F32), DX_ADD(REAL8, "real8", DX_F64), DX_ADD(DOUBLE_PRECISION, "dblprec", DX_F64);
    DX_ADD(INTEGER4, "integer4", DX_I32), DX_ADD(INTEGER8, "integer8", DX_I64);
}

#define DX_OP(name, variable) DX_CONSTANT(MPI_Op, MPI_##name, "op_" variable)
static void dx_learn_ops(void) {
    const MPI_Op ops[] = {DX_OP(SUM, "sum"),   DX_OP(PROD, "prod"), DX_OP(MAX, "max"),   DX_OP(MIN, "min"),
                          DX_OP(BAND, "band"), DX_OP(BOR, "bor"),   DX_OP(BXOR, "bxor"), DX_OP(LAND, "land"),
                          DX_OP(LOR, "lor"),   DX_OP(LXOR, "lxor")};
    memcpy(dx_ops, ops, sizeof ops);
}
