// The Python module _core: one bind_<room> per room, each in its own file.
#include <nanobind/nanobind.h>

void bind_ir(nanobind::module_& m);
void bind_sim(nanobind::module_& m);
void bind_replay(nanobind::module_& m);
void bind_run(nanobind::module_& m);
void bind_mailbox(nanobind::module_& m);
void bind_comm(nanobind::module_& m);
void bind_shm(nanobind::module_& m);
void bind_ranks(nanobind::module_& m);
void bind_trace(nanobind::module_& m);
void bind_interpreter(nanobind::module_& m);

NB_MODULE(_core, m) {
    m.doc() = "Native parts of dovetail.ir, dovetail.sim, dovetail.run and dovetail.trace.";
    bind_ir(m);
    bind_sim(m);
    bind_replay(m);
    bind_run(m);
    bind_mailbox(m);
    bind_shm(m);
    bind_comm(m);
    bind_ranks(m);
    bind_trace(m);
    bind_interpreter(m);
}
