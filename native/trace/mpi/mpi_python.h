/* The file and line from which a Python program makes an MPI call: its innermost frame. Included only by wrappers that
   are compiled with DM_PYTHON.

   mpi4py releases the interpreter's lock while it is in MPI, so the wrapper takes the lock, by PyGILState_Ensure. Each
   source line gets a number n and, at its first call, a note; its calls are recorded with call site -n. */

static struct {
    int (*is_initialized)(void);
    void* (*this_thread)(void);
    int (*ensure)(void);
    void (*release)(int);
    void* (*frame)(void);
    int (*line)(void*);
    void* (*code)(void*);
    void* (*attribute)(void*, const char*);
    const char* (*text)(void*);
    void (*forget)(void*);
} dm_python;

static struct {
    void* code; /* referenced, so that its address is not reused; NULL: free */
    int line, number;
} dm_lines[DM_SLOTS]; /* protected by the interpreter's lock */
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
        {&dm_python.line, "PyFrame_GetLineNumber"},
        {&dm_python.code, "PyFrame_GetCode"},
        {&dm_python.attribute, "PyObject_GetAttrString"},
        {&dm_python.text, "PyUnicode_AsUTF8"},
        {&dm_python.forget, "Py_DecRef"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; ++i) {
        *(void**)table[i].call = dlsym(RTLD_DEFAULT, table[i].name);
        if (*(void**)table[i].call) continue;
        dm_python.is_initialized = NULL; /* not a Python program, or Python is too old */
        return;
    }
}

static void dm_note_line(void* code, int line, int number) {
    void* file = dm_python.attribute(code, "co_filename");
    const char* path = file ? dm_python.text(file) : NULL;
    char note[4400];
    if (path && !strpbrk(path, "\"\\")) {
        snprintf(note, sizeof note, "{\"site\": %d, \"file\": \"%.4000s\", \"line\": %d}", number, path, line);
        dovetail_trace_note(note);
    }
    if (file) dm_python.forget(file);
}

/* Returns the number of a frame's current line; 0 if there are too many lines. */
static int dm_line_number(void* frame) {
    void* code = dm_python.code(frame);
    const int line = dm_python.line(frame);
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
    dm_lines[at].code = code, dm_lines[at].line = line, dm_lines[at].number = ++dm_num_lines;
    dm_note_line(code, line, dm_num_lines);
    return dm_num_lines;
}

/* Returns minus the number of this thread's Python line; `otherwise`, the call site in C, if it is not in Python. */
static int64_t dm_place(int64_t otherwise) {
    if (!dm_python.is_initialized || !dm_python.is_initialized() || !dm_python.this_thread()) return otherwise;
    const int before = dm_python.ensure();
    void* frame = dm_python.frame();
    const int number = frame ? dm_line_number(frame) : 0;
    dm_python.release(before);
    return number ? -number : otherwise;
}
