// Python bindings of native/run.
#include <nanobind/nanobind.h>

void bind_run(nanobind::module_&) {}
