/* Descriptors of the recorder: each use compares device and inode, since the program may have closed and reused them.
 */
#define _GNU_SOURCE
#include "owned.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HIGHEST = 1024, ROOM = 128 }; /* descriptors from HIGHEST - ROOM on, or below a smaller limit of the process */

static int moved_up(int fd) {
    struct rlimit limit;
    rlim_t below = HIGHEST;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < below) below = limit.rlim_cur;
    if (below <= 2 * ROOM) return fd;
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, (int)below - ROOM);
    if (moved < 0) return fd;
    syscall(SYS_close, fd);
    return moved;
}

static int is_file(int fd, const struct dvt_owned* owned) {
    struct stat file;
    return !fstat(fd, &file) && file.st_dev == owned->device && file.st_ino == owned->inode;
}

int dvt_own(struct dvt_owned* owned, int fd) {
    struct stat file;
    *owned = (struct dvt_owned){0};
    if (fd < 0) return -1;
    fd = moved_up(fd);
    if (fstat(fd, &file)) return -1;
    *owned = (struct dvt_owned){fd + 1, file.st_dev, file.st_ino};
    return fd;
}

int dvt_owned_fd(const struct dvt_owned* owned) {
    const int kept = errno, fd = __atomic_load_n(&owned->number, __ATOMIC_RELAXED) - 1;
    const int is_own = fd >= 0 && is_file(fd, owned);
    errno = kept;
    return is_own ? fd : -1;
}

int dvt_reopened(struct dvt_owned* owned, const char* path, int flags) {
    int before = __atomic_load_n(&owned->number, __ATOMIC_RELAXED);
    const int fd = dvt_owned_fd(owned), kept = errno;
    if (fd >= 0 || !before) return fd;
    int again = (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC);
    if (again >= 0) again = moved_up(again);
    const int is_kept =
        again >= 0 && is_file(again, owned) &&
        __atomic_compare_exchange_n(&owned->number, &before, again + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    if (again >= 0 && !is_kept) syscall(SYS_close, again); /* a new file of that name, or another thread was faster */
    errno = kept;
    return is_kept ? again : dvt_owned_fd(owned);
}

void dvt_disown(struct dvt_owned* owned) {
    const int fd = dvt_owned_fd(owned);
    if (fd >= 0) syscall(SYS_close, fd);
    *owned = (struct dvt_owned){0};
}
