/* Records the program's I/O through the C library: intervals "libc open", "libc read", … of threads that are traced for
   other calls. I/O within a call of MPI, or of the tracer, is not recorded. Calls of one kind that follow one another
   within 5 us become one interval with their number, as polls do. Included once, by gate.h. */
#include <stdarg.h>

#include "dovetail_trace.h"

enum { DG_OPEN, DG_CLOSE, DG_READ, DG_WRITE, DG_SYNC, DG_KINDS };
static const char* const dg_io_title[DG_KINDS] = {"libc open", "libc close", "libc read", "libc write", "libc sync"};
static int dg_io_name[DG_KINDS];

__attribute__((constructor)) static void dg_watch_io(void) {
    for (int i = 0; i < DG_KINDS; ++i) dg_io_name[i] = dovetail_trace_name(dg_io_title[i]);
    dovetail_trace_watches_io();
}

static inline uint64_t dg_io_begun(void) {
    return dovetail_trace_inside || !dovetail_trace_is_known() ? 0 : dovetail_trace_clock();
}

static void dg_io_ended(int kind, uint64_t begun, void* site) {
    const int before = errno;
    dovetail_trace_vain(dg_io_name[kind], (int64_t)(uintptr_t)site, begun);
    errno = before;
}

#define DG_IO_CALL(kind, type, real_name, typed, args)       \
    static type(*real) typed;                                \
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, real_name); \
    const uint64_t begun = dg_io_begun();                    \
    type result = real args;                                 \
    if (begun) dg_io_ended(kind, begun, __builtin_return_address(0));

/* A function of the C library. The headers may redirect or inline functions of its name: it is defined by its symbol.
 */
#define DG_IO(kind, type, name, typed, args)          \
    DG_PUBLIC type dg_io_##name typed __asm__(#name); \
    DG_PUBLIC type dg_io_##name typed {               \
        DG_IO_CALL(kind, type, #name, typed, args)    \
        return result;                                \
    }

/* A function with variable arguments: `listed` is the one that takes them as a list. */
#define DG_IO_LIST(kind, type, name, listed, typed, typed_list, args, last) \
    DG_PUBLIC type dg_io_##name typed __asm__(#name);                       \
    DG_PUBLIC type dg_io_##name typed {                                     \
        va_list list;                                                       \
        va_start(list, last);                                               \
        DG_IO_CALL(kind, type, listed, typed_list, args)                    \
        va_end(list);                                                       \
        return result;                                                      \
    }

/* A function that opens a file: it has a mode only if the flags say so. */
#define DG_HAS_MODE(flags) ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE)
#define DG_IO_OPEN(name, typed, typed_real, args)                              \
    DG_PUBLIC int dg_io_##name typed __asm__(#name);                           \
    DG_PUBLIC int dg_io_##name typed {                                         \
        va_list list;                                                          \
        va_start(list, flags);                                                 \
        const unsigned mode = DG_HAS_MODE(flags) ? va_arg(list, unsigned) : 0; \
        va_end(list);                                                          \
        DG_IO_CALL(DG_OPEN, int, #name, typed_real, args)                      \
        return result;                                                         \
    }

struct iovec;
DG_IO_OPEN(open, (const char* path, int flags, ...), (const char*, int, unsigned), (path, flags, mode))
DG_IO_OPEN(open64, (const char* path, int flags, ...), (const char*, int, unsigned), (path, flags, mode))
DG_IO_OPEN(openat, (int at, const char* path, int flags, ...), (int, const char*, int, unsigned),
           (at, path, flags, mode))
DG_IO_OPEN(openat64, (int at, const char* path, int flags, ...), (int, const char*, int, unsigned),
           (at, path, flags, mode))
DG_IO(DG_CLOSE, int, close, (int fd), (fd))
DG_IO(DG_READ, ssize_t, read, (int fd, void* to, size_t size), (fd, to, size))
DG_IO(DG_READ, ssize_t, pread, (int fd, void* to, size_t size, off_t at), (fd, to, size, at))
DG_IO(DG_READ, ssize_t, pread64, (int fd, void* to, size_t size, off64_t at), (fd, to, size, at))
DG_IO(DG_READ, ssize_t, readv, (int fd, const struct iovec* to, int count), (fd, to, count))
DG_IO(DG_READ, ssize_t, preadv, (int fd, const struct iovec* to, int count, off_t at), (fd, to, count, at))
DG_IO(DG_READ, ssize_t, preadv64, (int fd, const struct iovec* to, int count, off64_t at), (fd, to, count, at))
DG_IO(DG_WRITE, ssize_t, write, (int fd, const void* from, size_t size), (fd, from, size))
DG_IO(DG_WRITE, ssize_t, pwrite, (int fd, const void* from, size_t size, off_t at), (fd, from, size, at))
DG_IO(DG_WRITE, ssize_t, pwrite64, (int fd, const void* from, size_t size, off64_t at), (fd, from, size, at))
DG_IO(DG_WRITE, ssize_t, writev, (int fd, const struct iovec* from, int count), (fd, from, count))
DG_IO(DG_WRITE, ssize_t, pwritev, (int fd, const struct iovec* from, int count, off_t at), (fd, from, count, at))
DG_IO(DG_WRITE, ssize_t, pwritev64, (int fd, const struct iovec* from, int count, off64_t at), (fd, from, count, at))
DG_IO(DG_SYNC, int, fsync, (int fd), (fd))
DG_IO(DG_SYNC, int, fdatasync, (int fd), (fd))
DG_IO(DG_SYNC, int, msync, (void* from, size_t size, int flags), (from, size, flags))
DG_IO(DG_OPEN, FILE*, fopen, (const char* path, const char* mode), (path, mode))
DG_IO(DG_OPEN, FILE*, fopen64, (const char* path, const char* mode), (path, mode))
DG_IO(DG_CLOSE, int, fclose, (FILE * file), (file))
DG_IO(DG_READ, size_t, fread, (void* to, size_t size, size_t count, FILE* file), (to, size, count, file))
DG_IO(DG_READ, char*, fgets, (char* to, int size, FILE* file), (to, size, file))
DG_IO(DG_READ, ssize_t, getline, (char** to, size_t* size, FILE* file), (to, size, file))
DG_IO(DG_READ, ssize_t, __getdelim, (char** to, size_t* size, int end, FILE* file), (to, size, end, file))
DG_IO_LIST(DG_READ, int, fscanf, "vfscanf", (FILE * file, const char* form, ...), (FILE*, const char*, va_list),
           (file, form, list), form)
DG_IO_LIST(DG_READ, int, __isoc99_fscanf, "__isoc99_vfscanf", (FILE * file, const char* form, ...),
           (FILE*, const char*, va_list), (file, form, list), form)
DG_IO_LIST(DG_READ, int, __isoc23_fscanf, "__isoc23_vfscanf", (FILE * file, const char* form, ...),
           (FILE*, const char*, va_list), (file, form, list), form)
DG_IO(DG_WRITE, size_t, fwrite, (const void* from, size_t size, size_t count, FILE* file), (from, size, count, file))
DG_IO(DG_WRITE, int, fputs, (const char* text, FILE* file), (text, file))
DG_IO(DG_WRITE, int, puts, (const char* text), (text))
DG_IO(DG_WRITE, int, fflush, (FILE * file), (file))
DG_IO(DG_WRITE, int, vfprintf, (FILE * file, const char* form, va_list list), (file, form, list))
DG_IO(DG_WRITE, int, __vfprintf_chk, (FILE * file, int flag, const char* form, va_list list), (file, flag, form, list))
DG_IO_LIST(DG_WRITE, int, fprintf, "vfprintf", (FILE * file, const char* form, ...), (FILE*, const char*, va_list),
           (file, form, list), form)
DG_IO_LIST(DG_WRITE, int, __fprintf_chk, "__vfprintf_chk", (FILE * file, int flag, const char* form, ...),
           (FILE*, int, const char*, va_list), (file, flag, form, list), form)
DG_IO_LIST(DG_WRITE, int, printf, "vprintf", (const char* form, ...), (const char*, va_list), (form, list), form)
DG_IO_LIST(DG_WRITE, int, __printf_chk, "__vprintf_chk", (int flag, const char* form, ...), (int, const char*, va_list),
           (flag, form, list), form)
