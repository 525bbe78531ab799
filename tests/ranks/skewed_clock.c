/* A clock that is wrong, for LD_PRELOAD: rank r's raw clock is SKEW_OFFSET_NS * r ahead and gains SKEW_PPM * r, and it
   seems to be a clock of its own. The processor's counter stays as it is: by it the truth is known. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int rank_here(void) {
    const char* rank = getenv("PMI_RANK");
    if (!rank) rank = getenv("OMPI_COMM_WORLD_RANK");
    return rank ? atoi(rank) : 0;
}

int clock_gettime(clockid_t id, struct timespec* out) {
    const int code = (int)syscall(SYS_clock_gettime, id, out);
    const char *offset = getenv("SKEW_OFFSET_NS"), *ppm = getenv("SKEW_PPM"), *from = getenv("SKEW_FROM_NS");
    if (code || id != CLOCK_MONOTONIC_RAW || !offset || !ppm || !from) return code;
    const long long now = out->tv_sec * 1000000000LL + out->tv_nsec;
    const double gained = (double)(now - atoll(from)) * (atof(ppm) * rank_here() * 1e-6);
    const long long shifted = now + atoll(offset) * rank_here() + (long long)gained;
    out->tv_sec = shifted / 1000000000;
    out->tv_nsec = shifted % 1000000000;
    return 0;
}

ssize_t readlink(const char* path, char* text, size_t size) {
    if (strcmp(path, "/proc/self/ns/time") == 0) return snprintf(text, size, "time:[%d]", rank_here());
    return syscall(SYS_readlink, path, text, size);
}
