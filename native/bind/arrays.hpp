// Arrays of a plain call, by the buffer protocol: their memory, their dtypes, and whether they fit together.
#pragma once

#include <Python.h>

#include <cstddef>

namespace dovetail::bind {

// A buffer of one piece, let go at the end.
class View {
  public:
    View(PyObject* object, bool writes) {
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writes ? PyBUF_WRITABLE : 0);
        good_ = PyObject_GetBuffer(object, &view_, flags) == 0;
        if (!good_) PyErr_Clear();
    }
    ~View() {
        if (good_) PyBuffer_Release(&view_);
    }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    explicit operator bool() const { return good_; }
    const Py_buffer* operator->() const { return &view_; }
    std::byte* data() const { return static_cast<std::byte*>(view_.buf); }

  private:
    Py_buffer view_;
    bool good_;
};

// What is reduced, by the letters of the buffer protocol; -1 for all else.
int dtype_of(const Py_buffer& view);
// What is only moved, by the size of an element; -1 where there is no type of that size.
int mover_of(const Py_buffer& view);
// Of "sum" and its like; -1 for all else.
int op_of(PyObject* op);
bool may_reduce(int dtype, int op);
// Subclasses may hold more than their elements, as masked arrays do: the caller looks closer at those.
bool is_array(PyObject* object);
// Elements of a part, where source and result fit together; -1 where they do not.
long long part_of(int kind, const Py_buffer& src, const Py_buffer& dst, int size);

}  // namespace dovetail::bind
