/* Finds the process's MPI library, passes on the calls that the library itself makes, and wraps its Fortran entries.
   Included once, after the pointers `real_X` to the library's functions and the table of these, `dm_table`. Whoever
   includes it defines DM_WHO, the prefix of messages; `dm_inside`, whether this thread is in a wrapper; and
   `dm_only_fortran`. */
#ifndef DOVETAIL_MPI_LIBRARY_H
#define DOVETAIL_MPI_LIBRARY_H

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DM_LIKELY(x) __builtin_expect(!!(x), 1)
#define DM_SITE ((int64_t)(uintptr_t)__builtin_return_address(0))
#define DM_HANDLE(x) ((uint64_t)(int64_t)(intptr_t)(x))

static int dm_is_ready, dm_is_tracing; /* the library is found; MPI is initialized */
static pthread_mutex_t dm_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- finding the library ---- */

static int dm_try(struct dl_phdr_info* object, size_t size, void* found) {
    (void)size;
    void* handle = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return 0;
    if (!dlsym(handle, "PMPI_Comm_rank")) {
        dlclose(handle);
        return 0;
    }
    *(void**)found = handle;
    return 1;
}

static void* dm_library;                      /* the MPI library that the gate has found */
static void* (*dm_next_of)(const char* name); /* the gate's function that returns the process's own definition */
static void* dm_below;                        /* another tool's gate, whose PMPI_X are called; NULL: the library's */
static int dm_is_below; /* another tool sees calls first, and calls PMPI_X, which is wrapped, too */

__attribute__((visibility("default"))) void dovetail_use_mpi(void* library, void* (*next)(const char*), void* below,
                                                             int is_below) {
    dm_library = library, dm_next_of = next;
    dm_below = below, dm_is_below = is_below;
}

static inline void* dm_next(const char* name) { return dm_next_of ? dm_next_of(name) : dlsym(RTLD_NEXT, name); }

/* Returns the address of a constant or function. A constant may lie in the program itself (copy relocation). */
static void* dm_symbol(void* library, const char* name) {
    if (strncmp(name, "PMPI_", 5)) {
        void* found = dlsym(RTLD_DEFAULT, name);
        return found || !library ? found : dlsym(library, name);
    }
    void* found = dm_below ? dlsym(dm_below, name) : dm_library ? NULL : dlsym(RTLD_NEXT, name);
    return found || !library ? found : dlsym(library, name);
}

static void dm_find(void) {
    pthread_mutex_lock(&dm_lock);
    if (!dm_is_ready) {
        void* library = dm_library;
        if (!library && !dlsym(RTLD_NEXT, "PMPI_Comm_rank")) dl_iterate_phdr(dm_try, &library);
        for (size_t i = 0; i < sizeof dm_table / sizeof *dm_table; ++i)
            *dm_table[i].real = dm_symbol(library, dm_table[i].name);
        if (!real_Comm_rank) {
            fprintf(stderr, DM_WHO ": this program calls MPI, but no MPI library is loaded\n");
            abort();
        }
        __atomic_store_n(&dm_is_ready, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&dm_lock);
}

/* Returns whether a call is not recorded: MPI is not being traced, or the library makes it within another call. */
static inline int dm_leave_alone(void) {
    if (DM_LIKELY(dm_is_tracing)) return dm_inside;
    if (!__atomic_load_n(&dm_is_ready, __ATOMIC_ACQUIRE)) dm_find();
    return 1;
}

/* ---- calls from Fortran ---- */

/* In a call from Fortran: its call site, and whether the library has called the C function that implements it. */
static __thread int64_t dm_fortran_site __attribute__((tls_model("initial-exec")));
static __thread int dm_came_to_c __attribute__((tls_model("initial-exec")));

enum dm_fortran { DM_NESTED, DM_UNTRACED, DM_TRACED }; /* a call within another one from Fortran, or one of its own */

/* Finds the library's function, and records the call site. Not inline: it would stand 1,500 times in the wrappers. */
static __attribute__((noinline)) enum dm_fortran dm_enter(void** real, const char* name, int64_t site) {
    if (!*real) *real = dm_next(name);
    if (dm_fortran_site) return DM_NESTED;
    dm_fortran_site = site, dm_came_to_c = 0;
    return dm_is_tracing && !dm_inside ? DM_TRACED : DM_UNTRACED;
}

static __attribute__((noinline)) void dm_leave(int number, enum dm_fortran entered) {
    if (entered == DM_TRACED && !dm_came_to_c && dm_is_tracing) dm_only_fortran(number);
    if (entered != DM_NESTED) dm_fortran_site = 0;
}

/* The entry of a call from Fortran: calls the library, whose C function is then traced. */
#define DM_FORTRAN(number, name, typed, args)                                    \
    __attribute__((visibility("default"))) void name typed {                     \
        static void(*real) typed;                                                \
        const enum dm_fortran entered = dm_enter((void**)&real, #name, DM_SITE); \
        real args;                                                               \
        dm_leave(number, entered);                                               \
    }

/* Returns whether a PMPI call is wrapped: it comes from the library's Fortran functions, or from a tool above. */
static inline int dm_wraps_pmpi(void) {
    if (!DM_LIKELY(__atomic_load_n(&dm_is_ready, __ATOMIC_ACQUIRE))) dm_find();
    return (dm_fortran_site || dm_is_below) && !dm_inside;
}

#endif
