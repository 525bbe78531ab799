// Python bindings of native/ir.
#include <nanobind/nanobind.h>

void bind_ir(nanobind::module_&) {}
