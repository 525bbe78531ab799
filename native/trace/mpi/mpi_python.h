/* The file and line from which a Python program makes an MPI call: its innermost frame; and the time that mpi4py takes
   to pickle objects. Included only by wrappers that are compiled with DM_PYTHON.

   mpi4py releases the interpreter's lock while it is in MPI, so the wrapper takes the lock, by PyGILState_Ensure. Each
   source line gets a number n and, at its first call, a note; its calls are recorded with call site -n. Frames of the
   import system are passed over: mpi4py calls MPI_Init while it is imported. */

static struct {
    int (*is_initialized)(void);
    void* (*this_thread)(void);
    int (*ensure)(void);
    void (*release)(int);
    void* (*frame)(void);
    void* (*back)(void*);
    int (*line)(void*);
    void* (*code)(void*);
    void* (*attribute)(void*, const char*);
    const char* (*text)(void*);
    void (*keep)(void*);
    void (*forget)(void*);
    void* (*dict)(void);
    void* (*builtins)(void);
    int (*set)(void*, const char*, void*);
    void* (*string)(const char*);
    void* (*run)(const char*, int, void*, void*);
    void (*clear)(void);
} dm_python;

static struct {
    void* code; /* referenced, so that its address is not reused; NULL: free */
    int line, number;
} dm_lines[DM_SLOTS];     /* protected by the interpreter's lock */
enum { DM_IMPORTS = -1 }; /* the number of all lines of the import system */
static int dm_num_lines;

static void dm_find_python(void) {
    const struct {
        void* call;
        const char* name;
    } table[] = {
        {&dm_python.is_initialized, "Py_IsInitialized"},
        {&dm_python.this_thread, "PyGILState_GetThisThreadState"},
        {&dm_python.ensure, "PyGILState_Ensure"},
        {&dm_python.release, "PyGILState_Release"},
        {&dm_python.frame, "PyEval_GetFrame"},
        {&dm_python.back, "PyFrame_GetBack"},
        {&dm_python.line, "PyFrame_GetLineNumber"},
        {&dm_python.code, "PyFrame_GetCode"},
        {&dm_python.attribute, "PyObject_GetAttrString"},
        {&dm_python.text, "PyUnicode_AsUTF8"},
        {&dm_python.keep, "Py_IncRef"},
        {&dm_python.forget, "Py_DecRef"},
        {&dm_python.dict, "PyDict_New"},
        {&dm_python.builtins, "PyEval_GetBuiltins"},
        {&dm_python.set, "PyDict_SetItemString"},
        {&dm_python.string, "PyUnicode_FromString"},
        {&dm_python.run, "PyRun_String"},
        {&dm_python.clear, "PyErr_Clear"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; ++i) {
        *(void**)table[i].call = dlsym(RTLD_DEFAULT, table[i].name);
        if (*(void**)table[i].call) continue;
        dm_python.is_initialized = NULL; /* not a Python program, or Python is too old */
        return;
    }
}

/* Writes the note of a new line, and returns its number. */
static int dm_note_line(void* code, int line) {
    static const char imports[] = "<frozen importlib";
    void* file = dm_python.attribute(code, "co_filename");
    const char* path = file ? dm_python.text(file) : NULL;
    const int number = path && !strncmp(path, imports, sizeof imports - 1) ? DM_IMPORTS : ++dm_num_lines;
    char note[4400];
    if (path && number != DM_IMPORTS && !strpbrk(path, "\"\\")) {
        snprintf(note, sizeof note, "{\"site\": %d, \"file\": \"%.4000s\", \"line\": %d}", number, path, line);
        dovetail_trace_note(note);
    }
    if (file) dm_python.forget(file);
    return number;
}

/* Returns the number of a line; 0 if there are too many lines. Takes over a reference to `code`. */
static int dm_number_of(void* code, int line) {
    uint64_t at = ((uint64_t)(uintptr_t)code ^ (uint64_t)line << 40) * 0x9E3779B97F4A7C15u >> 51;
    for (; dm_lines[at].code; at = (at + 1) % DM_SLOTS) {
        if (dm_lines[at].code != code || dm_lines[at].line != line) continue;
        dm_python.forget(code);
        return dm_lines[at].number;
    }
    if (dm_num_lines >= DM_SLOTS / 2) {
        dm_python.forget(code);
        return 0;
    }
    dm_lines[at].code = code, dm_lines[at].line = line;
    return dm_lines[at].number = dm_note_line(code, line);
}

/* ---- pickling: mpi4py's calls with small letters turn any object into bytes, and back ---- */

enum { DM_PICKLES = 3, DM_TRIES = 64, DM_FILE_INPUT = 257 };
static const char* const dm_pickle_title[DM_PICKLES] = {"pickle dumps", "pickle dumps array", "pickle loads"};
static int dm_pickle_name[DM_PICKLES];
static int dm_pickle_tries; /* protected by the interpreter's lock */

/* Replaces the functions by which mpi4py pickles with timed ones, unless the program has set its own: those could not
   be distinguished from ours later. A program that sets its own afterwards replaces the timed ones. */
static const char dm_pickle_hook[] =
    "import ctypes, itertools, pickle as standard, sys\n"
    "def is_own(pickle):\n"
    "    try:\n"
    "        if pickle.dumps((1, 'a')) != standard.dumps((1, 'a'), pickle.PROTOCOL): return True\n"
    "        pickle.dumps(lambda: 0)\n"
    "        return True\n"
    "    except Exception:\n"
    "        return False\n"
    "def hook(path):\n"
    "    pickle = getattr(sys.modules.get('mpi4py.MPI'), 'pickle', None)\n"
    "    if pickle is None: return\n"
    "    library = ctypes.PyDLL(path)\n"
    "    begin, end, frame = library.dovetail_pickle_begin, library.dovetail_pickle_end, sys._getframe\n"
    "    begin.argtypes, begin.restype = (ctypes.c_int, ctypes.py_object, ctypes.c_int), ctypes.c_int\n"
    "    end.argtypes, end.restype = (ctypes.c_int,), None\n"
    "    def has_array(it):\n"
    "        some = it.values() if isinstance(it, dict) else it if isinstance(it, (list, tuple)) else ()\n"
    "        return any(hasattr(i, '__array_interface__') and i.ndim for i in (it, *itertools.islice(some, 8)))\n"
    "    def timed(call, is_dumps):\n"
    "        def run(*args, **named):\n"
    "            which = int(has_array(args[0])) if is_dumps else 2\n"
    "            at = frame(1)\n"
    "            if not begin(which, at.f_code, at.f_lineno): return call(*args, **named)\n"
    "            try:\n"
    "                return call(*args, **named)\n"
    "            finally:\n"
    "                end(which)\n"
    "        return run\n"
    "    library.dovetail_pickle_hooked()\n"
    "    if not is_own(pickle):\n"
    "        pickle.__init__(timed(standard.dumps, True), timed(standard.loads, False), pickle.PROTOCOL)\n"
    "hook(path)\n";

__attribute__((visibility("default"))) void dovetail_pickle_hooked(void) { dm_pickle_tries = DM_TRIES; }

/* Begins an interval, if this thread is traced and outside MPI; returns whether it did. */
__attribute__((visibility("default"))) int dovetail_pickle_begin(int which, void* code, int line) {
    if (!dm_is_tracing || dm_inside) return 0;
    dm_python.keep(code);
    dovetail_trace_begin(dm_pickle_name[which], -(int64_t)dm_number_of(code, line));
    return 1;
}

__attribute__((visibility("default"))) void dovetail_pickle_end(int which) {
    dovetail_trace_end(dm_pickle_name[which], 0);
}

/* Called with the interpreter's lock, until mpi4py has its functions, or DM_TRIES times. */
static void dm_hook_pickle(void) {
    Dl_info about;
    ++dm_pickle_tries;
    if (!dladdr((void*)&dovetail_pickle_begin, &about)) return;
    for (int i = 0; i < DM_PICKLES; ++i) dm_pickle_name[i] = dovetail_trace_name(dm_pickle_title[i]);
    void* names = dm_python.dict();
    void* path = dm_python.string(about.dli_fname);
    if (names && path && !dm_python.set(names, "__builtins__", dm_python.builtins()) &&
        !dm_python.set(names, "path", path)) {
        void* result = dm_python.run(dm_pickle_hook, DM_FILE_INPUT, names, names);
        if (result) dm_python.forget(result);
    }
    dm_python.clear();
    if (path) dm_python.forget(path);
    if (names) dm_python.forget(names);
}

/* Replaces `*frame`, a reference, by that of its caller, or by NULL. */
static void dm_step_out(void** frame) {
    void* back = dm_python.back(*frame);
    dm_python.forget(*frame);
    *frame = back;
}

/* Returns the number of the line of `*frame`, or of its first caller outside the import system; 0 if there is none, or
   if there are too many lines. */
static int dm_line_of(void** frame) {
    for (; *frame; dm_step_out(frame)) {
        const int number = dm_number_of(dm_python.code(*frame), dm_python.line(*frame));
        if (number != DM_IMPORTS) return number;
    }
    return 0;
}

#ifdef DM_CALLERS
/* Returns the call site of the chain of Python lines that ends in `frame`; 0 if there are too many lines. */
static int64_t dm_site_of(void* frame) {
    int64_t lines[DM_DEPTH];
    int count = 0;
    dm_python.keep(frame);
    while (frame && count < DM_DEPTH) {
        const int number = dm_line_of(&frame);
        if (number) lines[count++] = -(int64_t)number;
        if (frame) dm_step_out(&frame);
    }
    if (frame) dm_python.forget(frame);
    return dm_path(lines, count);
}
#else
/* Returns minus the number of a frame's line; 0 if there are too many lines. */
static int64_t dm_site_of(void* frame) {
    dm_python.keep(frame);
    const int number = dm_line_of(&frame);
    if (frame) dm_python.forget(frame);
    return -(int64_t)number;
}
#endif

/* Returns the call site of this thread's Python line; 0 if it is not in Python. */
static int64_t dm_place(void) {
    if (!dm_python.is_initialized || !dm_python.is_initialized() || !dm_python.this_thread()) return 0;
    const int before = dm_python.ensure();
    void* frame = dm_python.frame();
    const int64_t site = frame ? dm_site_of(frame) : 0;
    if (frame && dm_pickle_tries < DM_TRIES) dm_hook_pickle();
    dm_python.release(before);
    return site;
}
