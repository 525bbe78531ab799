// Arrays: see arrays.hpp.
#include "bind/arrays.hpp"

#include <cstring>
#include <string_view>

#include "run/mpi_table.h"

namespace dovetail::bind {

int dtype_of(const Py_buffer& view) {
    const std::string_view letters(view.format ? view.format : "B");
    if (letters == "Zf") return DT_COMPLEX64;
    if (letters == "Zd") return DT_COMPLEX128;
    if (letters.size() != 1) return -1;
    static const int wide_int[] = {DT_INT8, DT_INT16, DT_INT32, DT_INT64};
    static const int wide_uint[] = {DT_UINT8, DT_UINT16, DT_UINT32, DT_UINT64};
    const int width = view.itemsize == 1 ? 0 : view.itemsize == 2 ? 1 : view.itemsize == 4 ? 2 : 3;
    switch (letters[0]) {
        case 'e':
            return DT_FLOAT16;
        case 'f':
            return DT_FLOAT32;
        case 'd':
            return DT_FLOAT64;
        case 'b':
        case 'h':
        case 'i':
        case 'l':
        case 'q':
            return wide_int[width];
        case 'B':
        case 'H':
        case 'I':
        case 'L':
        case 'Q':
            return wide_uint[width];
        default:
            return -1;
    }
}

int mover_of(const Py_buffer& view) {
    if (!view.format || std::strchr(view.format, 'O')) return -1;
    const auto size = view.itemsize;
    return size == 1 ? DT_UINT8 : size == 2 ? DT_FLOAT16 : size == 4 ? DT_INT32 : size == 8 ? DT_INT64 : -1;
}

int op_of(PyObject* op) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_Check(op) ? PyUnicode_AsUTF8AndSize(op, &size) : nullptr;
    if (!text) return PyErr_Clear(), -1;
    const std::string_view word(text, static_cast<std::size_t>(size));
    return word == "sum"    ? DT_SUM
           : word == "prod" ? DT_PROD
           : word == "min"  ? DT_MIN
           : word == "max"  ? DT_MAX
           : word == "avg"  ? DT_AVG
                            : -1;
}

bool may_reduce(int dtype, int op) {
    if (dtype < 0 || op < 0) return false;
    if (op == DT_AVG) return dtype <= DT_FLOAT64;
    return dtype < DT_COMPLEX64 || op <= DT_PROD;
}

namespace {

// numpy.ndarray; null while numpy is not imported, when there are no arrays. The stable ABI hides the names of types.
PyObject* array_type() {
    static PyObject* found = nullptr;
    if (found) return found;
    PyObject* name = PyUnicode_FromString("numpy");
    PyObject* numpy = name ? PyImport_GetModule(name) : nullptr;
    found = numpy ? PyObject_GetAttrString(numpy, "ndarray") : nullptr;
    Py_XDECREF(numpy);
    Py_XDECREF(name);
    if (!found) PyErr_Clear();
    return found;
}

}  // namespace

bool is_array(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == array_type(); }

long long part_of(int kind, const Py_buffer& src, const Py_buffer& dst, int size) {
    const auto cut = [size](const Py_buffer& whole) { return whole.ndim > 0 && whole.shape[0] % size == 0; };
    switch (kind) {
        case DT_ALL_GATHER:
            return dst.len == src.len * size ? src.len / src.itemsize : -1;
        case DT_REDUCE_SCATTER:
            return src.len == dst.len * size && cut(src) ? dst.len / src.itemsize : -1;
        case DT_ALL_TO_ALL:
            return src.len == dst.len && cut(src) ? src.len / src.itemsize / size : -1;
        case DT_ALL_REDUCE:
        case DT_BROADCAST:
        case DT_ALL_TO_NEXT:
            return src.len == dst.len ? src.len / src.itemsize : -1;
        default:
            return -1;
    }
}

}  // namespace dovetail::bind
