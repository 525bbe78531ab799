/* The gate: the library that every process of a traced command loads. It has an entry for each MPI call. The first call
   detects which MPI library the process uses, and loads the wrappers compiled for that library. Included once, after
   the table of the entries in C: `dg_c_calls`, of length NUM_C_CALLS.

   The gate is not linked with an MPI library and calls none. If the process uses an unknown MPI, or there are no
   wrappers, the entries call the process's own functions. Whoever includes this file defines:
   DG_WHO, DG_DONE  the prefix of messages, and what is done to a process: "traced"
   DG_ENV           the prefix of environment variables. DG_ENV MPICH, OPENMPI, ABI: paths of compiled wrappers. BUILD:
   the Python that compiles other wrappers, by the module DG_BUILDER. DIR: the folder that processes write to. ONLY: the
   only kind of library to wrap, even if the library's name is unknown. DG_BELOW         1: where another tool defines
   MPI calls, too, it sees a call first, and the gate wraps what it calls by PMPI. */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gate_objects.h"

#define DG_PUBLIC __attribute__((visibility("default")))

/* An entry of the gate. All arguments are integers of up to 64 bits, or addresses. The call is a tail call, so that the
   wrapper sees the program's return address. */
#define DG_ENTRY(name, typed, args)                               \
    static long dg_first_##name typed;                            \
    static long(*dg_at_##name) typed = dg_first_##name;           \
    DG_PUBLIC long name typed;                                    \
    long name typed { return dg_at_##name args; }                 \
    __attribute__((noinline)) static long dg_first_##name typed { \
        *(void**)&dg_at_##name = dg_resolve(#name);               \
        return dg_at_##name args;                                 \
    }

DG_PUBLIC const int dovetail_mpi_gate = 1; /* by which gates recognize each other */

static struct {
    void *library, *wrappers; /* handles of the process's MPI library and of its wrappers; or NULL */
    void* below;              /* handle of the gate after this one; or NULL */
    int is_below;             /* another tool sees calls first */
    const char* kind;         /* NULL: unknown */
    char path[4096], folder[4096];
} dg_mpi;
static pthread_once_t dg_once = PTHREAD_ONCE_INIT;

/* ---- the process's MPI library ---- */

/* Returns what the program's own references to a symbol lead to. (RTLD_DEFAULT is no such look-up: it begins in this
   library, which is linked with -Bsymbolic.) */
static void* dg_first(const char* name) {
    static void* program;
    if (!program) program = dlopen(NULL, RTLD_LAZY);
    return program ? dlsym(program, name) : NULL;
}

static int dg_is_any_gates(void* address) {
    const uintptr_t base = dg_base_of(address);
    if (dg_is_own(address) || !base) return dg_is_own(address);
    return base == dg_base_of(dlsym(RTLD_NEXT, "dovetail_mpi_gate")) ||
           base == dg_base_of(dg_first("dovetail_mpi_gate"));
}

typedef struct {
    const char* name;
    void* found;
} dg_search;

/* Finds a symbol that an object, or a library that it needs, defines, unless it is a gate's. */
static int dg_look(struct dl_phdr_info* object, size_t size, void* asked) {
    dg_search* search = asked;
    (void)size;
    void* handle = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return 0;
    void* at = dlsym(handle, search->name);
    dlclose(handle);
    if (!at || dg_is_any_gates(at)) return 0;
    search->found = at;
    return 1;
}

/* Returns the next definition of a symbol after the gate's, or the first in a library that was loaded later. */
static void* dg_next(const char* name) {
    void* found = dlsym(RTLD_NEXT, name);
    if (!found && dg_mpi.library) found = dlsym(dg_mpi.library, name);
    if (found && !dg_is_own(found)) return found;
    dg_search search = {name, NULL};
    dl_iterate_phdr(dg_look, &search);
    return search.found;
}

/* Returns a library's DT_SONAME, or "". */
static const char* dg_soname(const struct link_map* map) {
    const char* texts = NULL;
    size_t at = 0;
    for (const ElfW(Dyn)* d = map->l_ld; d->d_tag != DT_NULL; ++d) {
        if (d->d_tag == DT_STRTAB) texts = (const char*)d->d_un.d_ptr;
        if (d->d_tag == DT_SONAME) at = d->d_un.d_val;
    }
    if (texts && (uintptr_t)texts < map->l_addr) texts += map->l_addr;
    return texts && at ? texts + at : "";
}

static const char* dg_kind_of(const char* soname) {
    const char* only = getenv(DG_ENV "ONLY");
    const char* kind = NULL;
    const int is_openmpi = dlsym(dg_mpi.library, "ompi_mpi_comm_world") != NULL;
    if (is_openmpi)
        kind = strcmp(soname, "libmpi.so.40") ? NULL : "openmpi";
    else if (strncmp(soname, "libmpi_abi.so", 13) == 0)
        kind = "abi";
    else if (strcmp(soname, "libmpi.so.12") == 0 || strcmp(soname, "libmpich.so.12") == 0)
        kind = "mpich";
    if (!only || !*only) return kind;
    return !kind || strcmp(kind, only) == 0 ? only : NULL;
}

static void dg_find_library(void) {
    Dl_info info;
    struct link_map* map = NULL;
    void* call = dg_next("PMPI_Comm_rank");
    if (call && dg_is_any_gates(call)) {
        dg_search search = {"PMPI_Comm_rank", NULL};
        dl_iterate_phdr(dg_look, &search);
        call = search.found;
    }
    if (!call || !dladdr(call, &info)) return;
    dg_objects.mpi = dg_object_of(call);
    dg_mpi.library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!dg_mpi.library || dlinfo(dg_mpi.library, RTLD_DI_LINKMAP, &map)) return;
    snprintf(dg_mpi.folder, sizeof dg_mpi.folder, "%s", info.dli_fname);
    char* slash = strrchr(dg_mpi.folder, '/');
    if (slash) *slash = 0;
    dg_mpi.kind = dg_kind_of(dg_soname(map));
    const char* only = getenv(DG_ENV "ONLY");
    if (!dg_mpi.kind && !(only && *only))
        fprintf(stderr,
                DG_WHO ": this process is not " DG_DONE
                       ": its MPI library %s is neither MPICH, Open MPI nor an "
                       "MPI ABI library; name the one that it is compatible with by `--mpi`\n",
                info.dli_fname);
}

/* ---- wrappers that were not compiled beforehand ---- */

/* Returns the environment without LD_PRELOAD; the last entry is NULL. */
static char** dg_plain_environment(void) {
    size_t count = 0, kept = 0;
    while (environ[count]) ++count;
    char** plain = calloc(count + 1, sizeof *plain);
    for (size_t i = 0; plain && i < count; ++i)
        if (strncmp(environ[i], "LD_PRELOAD=", 11)) plain[kept++] = environ[i];
    return plain;
}

/* Runs a command, writes the first line of its output to `dg_mpi.path`, and returns whether it is a path. */
static int dg_ask(char* const* command) {
    int ends[2];
    size_t length = 0;
    char** plain = dg_plain_environment();
    if (!plain || pipe2(ends, O_CLOEXEC)) return 0;
    const pid_t child = fork();
    if (child == 0) {
        const int nothing = open("/dev/null", O_RDONLY);
        if (nothing >= 0) dup2(nothing, 0);
        dup2(ends[1], 1);
        execve(command[0], command, plain);
        _exit(127);
    }
    close(ends[1]);
    for (ssize_t more; child > 0 && length + 1 < sizeof dg_mpi.path; length += (size_t)more) {
        more = read(ends[0], dg_mpi.path + length, sizeof dg_mpi.path - 1 - length);
        if (more < 0 && errno == EINTR)
            more = 0;
        else if (more <= 0)
            break;
    }
    close(ends[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    free(plain);
    dg_mpi.path[length] = 0;
    dg_mpi.path[strcspn(dg_mpi.path, "\n")] = 0;
    return *dg_mpi.path == '/';
}

/* Compiles the wrappers. Only the first process of a host does so; it writes their path to a file that others read. */
static void dg_build(void) {
    char note[4096], host[64] = "host";
    char* python = getenv(DG_ENV "BUILD");
    const char* folder = getenv(DG_ENV "DIR");
    const char* sites = getenv(DG_ENV "SITES");
    if (!python || !folder) return;
    gethostname(host, sizeof host - 1);
    if (snprintf(note, sizeof note, "%s/.wrappers-%s-%s", folder, dg_mpi.kind, host) >= (int)sizeof note) return;
    const int file = open(note, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file >= 0) flock(file, LOCK_EX);
    const ssize_t length = file >= 0 ? read(file, dg_mpi.path, sizeof dg_mpi.path - 1) : 0;
    dg_mpi.path[length > 0 ? length : 0] = 0;
    if (length <= 0) {
        char* const command[] = {
            python, "-m", DG_BUILDER, (char*)dg_mpi.kind, dg_mpi.folder, (char*)(sites ? sites : ""), NULL};
        if (!dg_ask(command)) strcpy(dg_mpi.path, "none");
        const ssize_t done = file >= 0 ? pwrite(file, dg_mpi.path, strlen(dg_mpi.path), 0) : 0;
        (void)done;
    }
    if (file >= 0) close(file);
}

static void dg_load(void) {
    const char* known = getenv(dg_mpi.kind[0] == 'm'   ? DG_ENV "MPICH"
                               : dg_mpi.kind[0] == 'o' ? DG_ENV "OPENMPI"
                                                       : DG_ENV "ABI");
    if (known && *known)
        snprintf(dg_mpi.path, sizeof dg_mpi.path, "%s", known);
    else
        dg_build();
    if (*dg_mpi.path != '/') return; /* compilation failed; its messages were printed */
    dg_mpi.wrappers = dlopen(dg_mpi.path, RTLD_NOW | RTLD_LOCAL);
    if (!dg_mpi.wrappers) {
        fprintf(stderr, DG_WHO ": this process is not " DG_DONE ": %s\n", dlerror());
        return;
    }
    void (*use)(void*, void* (*)(const char*), void*, int);
    *(void**)&use = dlsym(dg_mpi.wrappers, "dovetail_use_mpi");
    if (use) use(dg_mpi.library, dg_next, DG_BELOW ? NULL : dg_mpi.below, dg_mpi.is_below);
}

/* ---- calls that the process's MPI lacks ---- */

/* mpi4py uses weak references to find out whether its MPI has a function; they must not find the gate's entry. */

static struct {
    int count, number[NUM_C_CALLS]; /* in dg_c_calls */
} dg_missing;

static void dg_write(void* at, uint64_t size, const void* data) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at & ~(page - 1);
    const size_t length = (uintptr_t)at + size - start;
    if (!mprotect((void*)start, length, PROT_READ | PROT_WRITE)) memcpy(at, data, size);
}

/* Returns an address in an object's dynamic section, which on some systems is relative to the object's base address. */
static char* dg_address(const struct dl_phdr_info* object, ElfW(Addr) value) {
    return (char*)(value < object->dlpi_addr ? value + object->dlpi_addr : value);
}

typedef struct {
    char *symbols, *texts, *rela, *jumps;
    size_t rela_bytes, jump_bytes, num_symbols; /* 0 symbols: unknown */
    size_t num_undefined; /* symbols at the beginning of the table, among which are all undefined ones; 0: unknown */
} dg_tables;

static int dg_read_tables(const struct dl_phdr_info* object, dg_tables* t) {
    const ElfW(Dyn)* d = NULL;
    for (int i = 0; i < object->dlpi_phnum; ++i)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC) d = (void*)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    memset(t, 0, sizeof *t);
    for (; d && d->d_tag != DT_NULL; ++d) {
        if (d->d_tag == DT_SYMTAB) t->symbols = dg_address(object, d->d_un.d_ptr);
        if (d->d_tag == DT_STRTAB) t->texts = dg_address(object, d->d_un.d_ptr);
        if (d->d_tag == DT_RELA) t->rela = dg_address(object, d->d_un.d_ptr);
        if (d->d_tag == DT_JMPREL) t->jumps = dg_address(object, d->d_un.d_ptr);
        if (d->d_tag == DT_RELASZ) t->rela_bytes = d->d_un.d_val;
        if (d->d_tag == DT_PLTRELSZ) t->jump_bytes = d->d_un.d_val;
        if (d->d_tag == DT_HASH) t->num_symbols = ((const uint32_t*)(void*)dg_address(object, d->d_un.d_ptr))[1];
        if (d->d_tag == DT_GNU_HASH) t->num_undefined = ((const uint32_t*)(void*)dg_address(object, d->d_un.d_ptr))[1];
    }
    if (t->num_undefined <= 1) t->num_undefined = t->num_symbols; /* 1: of a hash table without symbols, too */
    return t->symbols && t->texts;
}

/* Makes the pages of relocated addresses read-only again, as the dynamic linker leaves them. */
static void dg_protect(const struct dl_phdr_info* object) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < object->dlpi_phnum; ++i) {
        if (object->dlpi_phdr[i].p_type != PT_GNU_RELRO) continue;
        const uintptr_t start = (object->dlpi_addr + object->dlpi_phdr[i].p_vaddr) & ~(page - 1);
        const uintptr_t end =
            (object->dlpi_addr + object->dlpi_phdr[i].p_vaddr + object->dlpi_phdr[i].p_memsz) & ~(page - 1);
        if (end > start) mprotect((void*)start, end - start, PROT_READ);
    }
}

/* Returns whether symbol `s` of an object is a weak reference to a function that the process's MPI lacks. */
static int dg_is_missing(const dg_tables* t, size_t s) {
    const ElfW(Sym)* symbol = (const ElfW(Sym)*)(const void*)t->symbols + s;
    if (!s || ELF64_ST_BIND(symbol->st_info) != STB_WEAK || symbol->st_shndx) return 0;
    const char* name = t->texts + symbol->st_name;
    if (strncmp(name + (*name == 'P'), "MPI_", 4)) return 0; /* libraries in C++ have thousands of others */
    for (int i = 0; i < dg_missing.count; ++i)
        if (!strcmp(name, dg_c_calls[dg_missing.number[i]].name)) return 1;
    return 0;
}

/* Returns whether an object may refer to missing functions. Its undefined symbols are few, its references may be
   hundreds of thousands. */
static int dg_may_refer(const dg_tables* t) {
    for (size_t s = 1; s < t->num_undefined; ++s)
        if (dg_is_missing(t, s)) return 1;
    return !t->num_undefined;
}

/* Sets an object's weak references to missing functions, which led to the gate, to NULL; returns their number. */
static int dg_clear(const struct dl_phdr_info* object, const dg_tables* t, char* table, size_t num_bytes) {
    int cleared = 0;
    for (size_t at = 0; table && at + sizeof(ElfW(Rela)) <= num_bytes; at += sizeof(ElfW(Rela))) {
        const ElfW(Rela)* entry = (const ElfW(Rela)*)(table + at);
        if (!dg_is_missing(t, ELF64_R_SYM(entry->r_info))) continue;
        void* const nothing = NULL;
        dg_write((void*)(object->dlpi_addr + entry->r_offset), sizeof nothing, &nothing);
        ++cleared;
    }
    return cleared;
}

static int dg_clear_all(struct dl_phdr_info* object, size_t size, void* unused) {
    dg_tables tables;
    (void)size, (void)unused;
    if (!dg_read_tables(object, &tables) || !dg_may_refer(&tables)) return 0;
    int cleared = dg_clear(object, &tables, tables.rela, tables.rela_bytes);
    cleared += dg_clear(object, &tables, tables.jumps, tables.jump_bytes);
    if (cleared) dg_protect(object);
    return 0;
}

/* Removes missing functions from the gate's own symbol table, so that objects loaded later do not find them. */
static int dg_hide_own(struct dl_phdr_info* object, size_t size, void* unused) {
    dg_tables tables;
    (void)size, (void)unused;
    if (!dg_is_own(object->dlpi_phdr) || !dg_read_tables(object, &tables)) return 0;
    ElfW(Sym)* symbol = (ElfW(Sym)*)(void*)tables.symbols;
    for (size_t s = 0; s < tables.num_symbols; ++s, ++symbol) {
        const void* at = (void*)(object->dlpi_addr + symbol->st_value);
        const ElfW(Addr) nothing = 0;
        int i = 0;
        while (i < dg_missing.count && dg_c_calls[dg_missing.number[i]].entry != at) ++i;
        if (i < dg_missing.count) dg_write(&symbol->st_value, sizeof nothing, &nothing);
    }
    return 1;
}

static void dg_hide_missing(void) {
    for (int i = 0; i < NUM_C_CALLS; ++i) {
        dg_c_calls[i].is_missing = !dlsym(dg_mpi.library, dg_c_calls[i].name);
        if (dg_c_calls[i].is_missing) dg_missing.number[dg_missing.count++] = i;
    }
    if (!dg_missing.count) return;
    dl_iterate_phdr(dg_hide_own, NULL);
    dl_iterate_phdr(dg_clear_all, NULL);
}

/* ---- other tools ---- */

/* Returns another tool's definition of an MPI call that comes after the gate; NULL if there is none. */
static void* dg_tools(const char* name) {
    void* at = strncmp(name, "MPI_", 4) ? NULL : dlsym(RTLD_NEXT, name);
    return at && dg_base_of(at) != dg_objects.mpi.low && !dg_is_any_gates(at) ? at : NULL;
}

/* Returns whether a library, or the program, defines an MPI call in front of the process's MPI library. */
static int dg_has_tool(void) {
    for (int i = 0; i < NUM_C_CALLS; ++i) {
        const char* name = dg_c_calls[i].name;
        if (strncmp(name, "MPI_", 4) || dg_c_calls[i].is_missing) continue;
        void* first = dg_first(name);
        if ((first && !dg_is_own(first)) || dg_tools(name)) return 1;
    }
    return 0;
}

/* ---- the first call ---- */

static void dg_decide(void) {
    const int before = errno;
    Dl_info info;
    dg_find_library();
    if (dg_mpi.library) dg_hide_missing();
    void* below = dlsym(RTLD_NEXT, "dovetail_mpi_gate");
    if (below && dladdr(below, &info)) dg_mpi.below = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    dg_mpi.is_below = DG_BELOW && dg_mpi.kind && dg_has_tool();
    if (dg_mpi.kind) dg_load();
    errno = before;
}

static void* dg_resolve(const char* name) {
    pthread_once(&dg_once, dg_decide);
    void* found = dg_mpi.is_below ? dg_tools(name) : NULL;
    if (!found && dg_mpi.wrappers) found = dlsym(dg_mpi.wrappers, name);
    if (!found) found = dg_next(name);
    if (found) return found;
    fprintf(stderr, DG_WHO ": this program calls %s, which no library that it has loaded defines\n", name);
    abort();
}
