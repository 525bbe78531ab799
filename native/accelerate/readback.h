/* What the library itself reports for the knobs that were set, read by MPI_T after MPI_Init. Included once. */

enum { DK_MOST = 16, DK_TEXT = 128 };
static struct {
    char name[DK_TEXT], value[DK_TEXT]; /* an empty value: the library has no such variable */
} dk_knob[DK_MOST];
static int dk_num_knobs;

static void dk_read_value(MPI_T_cvar_handle handle, MPI_Datatype type, int count, char* value) {
    union {
        int number;
        long long_number;
        unsigned long size;
        double real;
        char text[4096];
    } read = {.long_number = 0};
    int size = 0;
    real_Type_size(type, &size);
    if (size * (long)count > (long)sizeof read || real_T_cvar_read(handle, &read)) return;
    if (type == MPI_CHAR)
        snprintf(value, DK_TEXT, "%.*s", DK_TEXT - 1, read.text);
    else if (type == MPI_DOUBLE)
        snprintf(value, DK_TEXT, "%g", read.real);
    else
        snprintf(value, DK_TEXT, "%ld", size == sizeof(int) ? (long)read.number : read.long_number);
}

static void dk_read(const char* name, char* value) {
    char unused[1];
    int index, verbosity, binding, scope, count = 0, length = 0, about = 0;
    MPI_Datatype type;
    MPI_T_enum values;
    MPI_T_cvar_handle handle;
    const char* own = strncmp(name, "OMPI_MCA_", 9) ? name : name + 9;
    if (!real_T_cvar_get_index || real_T_cvar_get_index(own, &index)) return;
    if (real_T_cvar_get_info(index, unused, &length, &verbosity, &type, &values, unused, &about, &binding, &scope))
        return;
    if (real_T_cvar_handle_alloc(index, NULL, &handle, &count)) return;
    dk_read_value(handle, type, count, value);
    real_T_cvar_handle_free(&handle);
}

/* Reads the variables named in $DOVETAIL_ACCELERATE_KNOBS, with commas between them. */
static void dk_begin(void) {
    const char* names = getenv("DOVETAIL_ACCELERATE_KNOBS");
    int level;
    if (!names || !*names || !real_T_init_thread || real_T_init_thread(MPI_THREAD_SINGLE, &level)) return;
    for (; *names && dk_num_knobs < DK_MOST; names += *names == ',') {
        const size_t length = strcspn(names, ",");
        if (length && length < DK_TEXT) {
            memcpy(dk_knob[dk_num_knobs].name, names, length);
            dk_read(dk_knob[dk_num_knobs].name, dk_knob[dk_num_knobs].value);
            ++dk_num_knobs;
        }
        names += length;
    }
    real_T_finalize();
}
