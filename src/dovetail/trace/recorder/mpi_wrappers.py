"""mpi_wrappers: generate C wrappers of MPI calls from the table of calls and the installed library's header."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from dovetail.core import EnvironmentFault
from dovetail.trace.recorder.mpi_calls import HELPERS, Call, calls

Body = Callable[[int, str, Call, str], list[str]]
_PROTOTYPE = re.compile(r"\bint\s+MPI_(\w+)\s*\(([^()]*)\)")
_PARAM = re.compile(r"^(.*?)(\w+)\s*((?:\[\s*\d*\s*\])*)$", re.DOTALL)
_TEXTS = frozenset(("command", "port_name", "stringtag", "filename", "datarep"))  # parameters that are strings
_GLOBALS = (
    *("ompi_mpi_comm_world", "ompi_mpi_comm_self", "ompi_mpi_comm_null", "ompi_mpi_byte", "ompi_mpi_datatype_null"),
    *("ompi_request_null", "ompi_message_null", "ompi_mpi_win_null"),
)  # constants of Open MPI that are addresses of its global variables
_BEGIN = {"Init": "dm_before_init();", "Init_thread": "dm_before_init();", "Session_init": "dm_before_init();"}
_END = {
    "Init": "if (!code) dm_after_init();",
    "Init_thread": "if (!code) dm_after_init();",
    "Session_init": "if (!code) dm_after_session();",
    "Finalize": "dm_after_finalize();",
}


def prototypes(header: str) -> dict[str, list[str]]:
    """Return the parameters of every MPI call that a preprocessed header declares.

    >>> prototypes("extern int MPI_Waitall(int count, MPI_Request reqs[], MPI_Status *st) __attribute__((x));")
    {'Waitall': ['int count', 'MPI_Request reqs[]', 'MPI_Status *st']}
    """
    found = {}
    for name, params in _PROTOTYPE.findall(header):
        words = [" ".join(param.split()) for param in params.split(",")]
        found[name] = [] if words == ["void"] else words
    return found


def wrappers(
    header: str, body: Body | None = None, frame: str = "mpi_frame.h", helpers: Iterable[str] = HELPERS
) -> str:
    """Return the C source: a wrapper per call of the table that the header declares, large-count forms included.

    `body`: returns the lines of a wrapper, of its number, name, call, and the call of the library; default: the
    tracer's. `frame`: the header of the functions that these lines call. `helpers`: functions of MPI that the header
    calls, beside those of the table.
    """
    declared = prototypes(header)
    if "Send" not in declared:
        raise EnvironmentFault("this mpi.h declares no MPI_Send", found=f"{len(declared)} calls")
    chosen = [(name, call) for call in calls() for name in (call.name, f"{call.name}_c") if name in declared]
    made = [wrapper(i, name, call, declared[name], body) for i, (name, call) in enumerate(chosen)]
    made += [text for i, (name, call) in enumerate(chosen) for text in fortran_wrappers(i, name, call)]
    helpers = [name for name in helpers if name in declared]
    return "\n".join([*_head([name for name, _ in chosen], helpers, frame), *made, ""])


def _head(names: list[str], helpers: list[str], frame: str) -> Iterator[str]:
    """Yield pointers to the library's functions, the table that looks them up, and the include of `frame`."""
    yield "#define _GNU_SOURCE\n#include <mpi.h>\n#include <stdint.h>"
    needed = list(dict.fromkeys([*names, *helpers]))
    yield from (f"static __typeof__(&MPI_{name}) real_{name};" for name in needed)
    yield "#ifdef OPEN_MPI"
    for name in _GLOBALS:
        yield f"static __typeof__({name})* dm_{name};\n#define {name} (*dm_{name})"
    yield "#endif"
    yield "static const struct { const char* name; void** real; } dm_table[] = {"
    yield from (f'    {{"PMPI_{name}", (void**)&real_{name}}},' for name in needed)
    yield "#ifdef OPEN_MPI"
    yield from (f'    {{"{name}", (void**)&dm_{name}}},' for name in _GLOBALS)
    yield f"#endif\n}};\nenum {{ NUM_CALLS = {len(names)} }};"
    yield f'#include "{frame}"'


def wrapper(number: int, name: str, call: Call, declared: list[str], body: Body | None = None) -> str:
    """Return the wrapper of one call; its parameters have the header's types and the standard's names."""
    params = call.params.split()
    if len(params) != len(declared):
        raise EnvironmentFault(f"MPI_{name} has other parameters in this mpi.h", found=", ".join(declared))
    typed = ", ".join(_renamed(text, param) for text, param in zip(declared, params, strict=True))
    real = f"real_{name}({', '.join(params)})"
    lines = (body or _traced)(number, name, call, real)
    head = f'__attribute__((visibility("default"))) int MPI_{name}({typed or "void"}) {{'
    return "\n".join([head, *(f"    {line}" for line in lines), "}", _for_fortran(name, typed, params)])


def _traced(number: int, name: str, call: Call, real: str) -> list[str]:
    """Return the lines of a wrapper that records the call."""
    begun = [*_status_lines(call), *_begin_lines(number, call)]
    return [*_alone(call, real), *begun, f"const int code = {real};", *_ended(number, call)]


def _for_fortran(name: str, typed: str, params: list[str]) -> str:
    """Return the wrapper of the PMPI form, which some libraries' Fortran functions and other tools call."""
    args = ", ".join(params)
    head = f'__attribute__((visibility("default"))) int PMPI_{name}({typed or "void"}) {{'
    return f"{head}\n    return dm_wraps_pmpi() ? MPI_{name}({args}) : real_{name}({args});\n}}"


def fortran_wrappers(number: int, name: str, call: Call) -> Iterator[str]:
    """Yield the wrappers of the call's Fortran entries, which record the call site."""
    for entry, count in fortran_entries(name, call):
        typed, args = (", ".join(f"{kind}a{i}" for i in range(count)) for kind in ("void* ", ""))
        yield f"DM_FORTRAN({number}, {entry}, ({typed}), ({args}))"


def fortran_entries(name: str, call: Call) -> Iterator[tuple[str, int]]:
    """Yield the names of the call's Fortran entries, as compilers spell them, and their numbers of arguments.

    All arguments are addresses; the last is the error code. Calls with strings, which have extra arguments for the
    lengths, are left out: their call site is in the library.
    """
    params = [param for param in call.params.split() if param not in ("argc", "argv") or name != "Init_thread"]
    if name.endswith("_c") or _TEXTS.intersection(params):
        return
    count = 1 if name == "Init" else len(params) + 1
    yield from ((f"mpi_{name.lower()}{end}_", count) for end in ("", "_f08", "_f08ts"))


def _renamed(declared: str, name: str) -> str:
    """Return a parameter's declaration with another name.

    >>> _renamed("MPI_Request reqs[]", "array_of_requests")
    'MPI_Request array_of_requests[]'
    """
    match = _PARAM.match(declared)
    if not match or not match[1].strip():  # a type alone
        return f"{declared} {name}"
    return f"{match[1]}{name}{match[3]}"


def _alone(call: Call, real: str) -> list[str]:
    """Return the first lines of a wrapper, which pass calls that the library itself makes on to the library."""
    if call.name in _BEGIN:
        return [_BEGIN[call.name], "dm_inside = 1;"]
    if call.name == "Finalize":  # ranks that are not traced take part in the clock comparison, too
        return ["if (dm_leave_alone()) {", "    if (!dm_inside) dm_before_finalize();", f"    return {real};", "}",
                "dm_inside = 1;"]  # fmt: skip
    return [f"if (dm_leave_alone()) return {real};", "dm_inside = 1;"]


def _status_lines(call: Call) -> list[str]:
    if not call.status:
        return []
    return ["MPI_Status own;", f"if ({call.status} == MPI_STATUS_IGNORE) {call.status} = &own;"]


def _begin_lines(number: int, call: Call) -> list[str]:
    begun = "const uint64_t begun = dovetail_trace_clock();"
    lines = [begun] if call.found else ["dm_look_first();", f"dovetail_trace_begin(dm_name[{number}], DM_CALLER);"]
    if call.waits:
        statuses = "array_of_statuses" if "array_of_statuses" in call.params else "status"
        requests = "array_of_requests" if "array_of_requests" in call.params else "request"
        lines += ["dm_wait wait;", f"{statuses} = dm_ask(&wait, {call.waits}, {requests}, {statuses});"]
    if call.name == "Finalize":
        lines.append("dm_before_finalize();")
    return [*lines, *([call.before] if call.before and not call.found else [])]


def _ended(number: int, call: Call) -> list[str]:
    lines = _end_of_test(number, call) if call.found else _done(number, call)
    if call.name in _END:
        lines.append(_END[call.name])
    return [*lines, "dm_inside = 0;", "return code;"]


def _done(number: int, call: Call) -> list[str]:
    after = (
        [f"if (!code) {{ {call.after} }}"] if call.after and not call.after.startswith("if (!code)") else [call.after]
    )
    made = f"code ? 0 : {call.made}" if call.made else "0"
    return [*(line for line in after if line), f"dovetail_trace_end(dm_name[{number}], {made});", "dm_look_last();"]


def _end_of_test(number: int, call: Call) -> list[str]:
    """Return the last lines of the wrapper of a test: consecutive unsuccessful tests are recorded as one interval.

    A successful call that creates a handle is recorded as a separate interval.
    """
    args, handle = f"dm_name[{number}], DM_CALLER, begun", call.made
    begins = f"dovetail_trace_detail(DVT_BEGIN, dm_name[{number}], begun, DM_CALLER);"
    found = [begins] if handle else [f"const int64_t many = dovetail_trace_found({args});"]
    end = f"(dm_name[{number}], {handle})" if handle else f"(many ? 0 : dm_name[{number}], many)"
    lines = [*found, call.before, call.after, f"dovetail_trace_end{end};"]
    return [
        f"if (code || !({call.found})) {{", f"    dovetail_trace_vain({args});", "} else {",
        *(f"    {line}" for line in lines if line), "}",
    ]  # fmt: skip
