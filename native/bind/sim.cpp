// Python bindings of native/sim.
#include <nanobind/nanobind.h>

void bind_sim(nanobind::module_&) {}
