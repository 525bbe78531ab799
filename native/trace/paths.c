/* Where a file may lie, and how long it may become. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "writer.h"

static struct {
    uint64_t bytes; /* most that the file of this process may take */
    int is_noted;
} most;

void dvt_read_limit(uint64_t least) {
    const char* text = getenv("DOVETAIL_TRACE_LIMIT");
    const unsigned long long bytes = text ? strtoull(text, NULL, 10) : 0;
    most.bytes = bytes ? bytes : DVT_LIMIT;
    if (most.bytes < least) most.bytes = least;
    most.is_noted = 0;
}

static void note_limit(void) {
    char line[80];
    if (most.is_noted) return;
    most.is_noted = 1;
    snprintf(line, sizeof line, "{\"limit_bytes\": %llu}", (unsigned long long)most.bytes);
    dvt_line(line);
}

int dvt_is_within_limit(off_t end) {
    struct rlimit limit;
    if ((uint64_t)end > most.bytes) {
        note_limit();
        return 0;
    }
    return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY || (rlim_t)end <= limit.rlim_cur;
}

int dvt_make_folders(const char* folder) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path) return ENAMETOOLONG;
    for (char* c = path + 1; *c; ++c) {
        if (*c != '/') continue;
        *c = 0;
        if (mkdir(path, 0777) && errno != EEXIST) return errno;
        *c = '/';
    }
    return mkdir(path, 0777) && errno != EEXIST ? errno : 0;
}
