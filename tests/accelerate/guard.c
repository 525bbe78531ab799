/* The guard against a program whose time is pretended: one rank, and a clock that only calls and computation advance.

   ARGV: a case. Prints what the guard decided of each bucket, and the program's time over its time with the library. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DM_LIKELY(x) (x)
#define DM_WHO "test"
enum { MPI_SUCCESS };
typedef enum { DX_ALLREDUCE, DX_ALLGATHER, DX_ALLTOALL, DX_BARRIER } dx_kind;
typedef int dx_class, dx_op, MPI_Comm, MPI_Datatype;

static uint64_t now, state = 88172645463325252u;
static uint64_t da_clock(void) { return now; }
static int64_t dvt_system_ns(int clock) { return (int64_t)now + clock; }
enum { CLOCK_MONOTONIC };
static struct {
    uint64_t begun;
    int64_t begun_ns;
} dc;
static struct {
    int is_forced;
    uint64_t spent;
} dx;

#include "buckets.h"

typedef struct {
    MPI_Comm comm;
    int size, rank;
    int64_t num_doubtful;
} dx_group;
typedef struct {
    dx_group group;
    int is_left_alone, is_shared;
    dx_bucket* tried;
    dx_bucket bucket[DX_BUCKETS];
} dx_comm;
typedef struct {
    dx_kind kind;
    int class, op, incount, outcount;
    const void* in;
    void* out;
    MPI_Datatype intype, outtype;
    int64_t num_bytes;
    uint64_t library_ns, ours_ns, after_ns; /* after_ns: what ours costs the program later */
} dx_call;

static uint64_t debt, plain; /* the program's time with the library alone */
static double chance(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}
static void lasts(uint64_t ns) { now += (uint64_t)((double)ns * (0.95 + 0.1 * chance())); }
static int dx_library(const dx_call* call) { return lasts(call->library_ns), 0; }
static int dx_shared(dx_comm* on, const dx_call* call, void* apart) {
    lasts(call->ours_ns), debt += call->after_ns;
    if (apart) memset(apart, 0, (size_t)call->num_bytes);
    return on == NULL;
}
static int dx_agree(MPI_Comm comm, int64_t* values, int count) { return now += 2000, comm * count * (values == NULL); }
static int dx_share(dx_comm* on) { return now += 300000, on->is_shared = 1; }
static int dx_all_joined(MPI_Comm comm, int size) { return comm == 0 && size == 2; }
static const void* dx_sent(dx_comm* on, const dx_call* call, void* to) { return on ? to : call->in; }
static int dx_rounds(dx_class class, dx_op op) { return class * op > 1 << 20; }
static int dc_log2(int64_t num_bytes) { return num_bytes ? 63 - __builtin_clzll((unsigned long long)num_bytes) : -1; }

#include "guard.h"

static dx_comm comm = {.group = {.size = 2}};
static char data[64];

static void call(dx_call one, uint64_t computed_ns) {
    one.out = data;
    dx_guarded(&comm, &one);
    plain += one.library_ns + computed_ns;
    lasts(computed_ns);
    now += debt, debt = 0;
}

static void report(void) {
    for (int i = 0; i < DX_BUCKETS; ++i)
        if (comm.bucket[i].key)
            printf("%d bytes: state %d, %.2f of %llu moved\n", 1 << ((comm.bucket[i].key & 255) - 1),
                   comm.bucket[i].state, (double)comm.bucket[i].moved / (double)comm.bucket[i].calls,
                   (unsigned long long)comm.bucket[i].calls);
    printf("time %.4f, spent %.4f\n", (double)now / (double)plain, (double)dx.spent / (double)now);
}

int main(int argc, char** argv) {
    const char* which = argc > 1 ? argv[1] : "";
    dx_call quick = {.num_bytes = 8, .library_ns = 1000, .ours_ns = 400};
    dx_call slow = {.num_bytes = 16, .library_ns = 1000, .ours_ns = 1300};
    dx_call hidden = {.num_bytes = 32, .library_ns = 1000, .ours_ns = 400, .after_ns = 900};
    /* planted CALLS LIBRARY_NS OURS_NS COMPUTED_NS */
    uint64_t number[4] = {200000, 1000, 1000, 3000};
    for (int i = 2; i < argc && i < 6; ++i) number[i - 2] = strtoull(argv[i], NULL, 10);
    dx_call planted = {.num_bytes = 8, .library_ns = number[1], .ours_ns = number[2]};
    const uint64_t computed = number[3];
    const int calls = strcmp(which, "planted") == 0 ? (int)number[0] : strcmp(which, "later") == 0 ? 600000 : 200000;
    for (int i = 0; i < calls; ++i) {
        if (strcmp(which, "faster") == 0) call(quick, 3000);
        if (strcmp(which, "slower") == 0) call(slow, 3000);
        if (strcmp(which, "hidden") == 0) call(hidden, 3000); /* the call is faster, the program is not */
        if (strcmp(which, "both") == 0) call(quick, 500), call(slow, 500);
        if (strcmp(which, "seldom") == 0) call(quick, 2000000);
        if (strcmp(which, "phases") == 0) call(i < 3000 ? slow : quick, i < 3000 ? 20000 : 1000);
        if (strcmp(which, "later") == 0) call(quick, 1000), quick.ours_ns = i < 300000 ? 400 : 1600;
        if (strcmp(which, "planted") == 0) call(planted, computed);
        if (strcmp(which, "known") == 0 && i == 0) dx_read_known("80010104@2:24,80010105@3:24,x");
        if (strcmp(which, "known") == 0) call(quick, 3000);
    }
    report();
    return 0;
}
