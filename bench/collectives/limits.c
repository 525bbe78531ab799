/* Limits of two processes of one host that share memory, without any library: seconds of an exchange of a word of data
   and its flag, and of both processes each adding both buffers into a third, at each number of BYTES given.
   `limits ROUNDS BYTES ...` prints JSON. Process 0 stays on the first core, process 1 on the second. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, EXCHANGES = 200000, MOST_ROUNDS = 101 };
typedef struct {
    _Atomic uint64_t word __attribute__((aligned(LINE))); /* data below, the number of the exchange above */
} Slot;

static Slot* slots;   /* one of each process */
static float* buffer; /* of both, then of results */
static int me;

static double now_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* Sends `data` to the other process and returns what it sent, by one store each. */
static uint32_t exchange(uint32_t number, uint32_t data) {
    uint64_t found;
    atomic_store_explicit(&slots[me].word, (uint64_t)number << 32 | data, memory_order_release);
    do found = atomic_load_explicit(&slots[1 - me].word, memory_order_acquire);
    while ((uint32_t)(found >> 32) < number);
    return (uint32_t)found;
}

static uint32_t number; /* of the latest exchange; equal in both processes */

static double words_s(void) {
    uint32_t sum = 0;
    const double begun = now_s();
    for (int i = 0; i < EXCHANGES; ++i) ++number, sum += exchange(number, number);
    if (!sum) exit(1);
    return (now_s() - begun) / EXCHANGES;
}

/* Both have written; each adds both buffers, whole, into one of its own; both have read. */
static double sums_s(size_t count, int repeats) {
    const float *const mine = buffer + (size_t)me * count, *const other = buffer + (size_t)(1 - me) * count;
    float* const sum = buffer + (size_t)(2 + me) * count;
    ++number, exchange(number, 0);
    const double begun = now_s();
    for (int i = 0; i < repeats; ++i) {
        ++number, exchange(number, 0);
        for (size_t at = 0; at < count; ++at) sum[at] = mine[at] + other[at];
        ++number, exchange(number, 0);
    }
    if (sum[count / 2] != 3) exit(1);
    return (now_s() - begun) / repeats;
}

static void* shared(size_t num_bytes) {
    void* const made = mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) exit(1);
    return made;
}

static void stay_on(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    sched_setaffinity(0, sizeof cores, &cores);
}

static int by_value(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static void print(const char* name, size_t num_bytes, double* seconds, int rounds, const char* end) {
    if (me) return;
    qsort(seconds, (size_t)rounds, sizeof *seconds, by_value);
    printf("{\"limit\": \"%s\", \"num_bytes\": %zu, \"median_s\": %.4g, \"quartiles_s\": [%.4g, %.4g]}%s\n", name,
           num_bytes, seconds[rounds / 2], seconds[rounds / 4], seconds[3 * rounds / 4], end);
}

int main(int argc, char** argv) {
    const int asked = argc > 1 ? atoi(argv[1]) : 0, rounds = asked < 1 ? 1 : asked > MOST_ROUNDS ? MOST_ROUNDS : asked;
    size_t most = LINE;
    for (int i = 2; i < argc; ++i) most = strtoull(argv[i], NULL, 10) > most ? strtoull(argv[i], NULL, 10) : most;
    slots = shared(2 * sizeof *slots), buffer = shared(4 * most);
    printf("[\n");
    fflush(stdout);
    me = fork() == 0;
    stay_on(me);
    double seconds[MOST_ROUNDS];
    for (int i = 0; i < rounds; ++i) seconds[i] = words_s();
    print("word", 4, seconds, rounds, argc > 2 ? "," : "");
    for (int i = 2; i < argc; ++i) {
        const size_t num_bytes = strtoull(argv[i], NULL, 10), count = num_bytes / sizeof(float);
        const int few = (int)((200u << 20) / (num_bytes + 1)) + 1, repeats = few < 2000 ? few : 2000;
        for (size_t at = 0; at < count; ++at)
            buffer[(size_t)me * count + at] = (float)(1 + me), buffer[(size_t)(2 + me) * count + at] = 0;
        sums_s(count, 1);
        for (int round = 0; round < rounds; ++round) seconds[round] = sums_s(count, repeats);
        print("sum", num_bytes, seconds, rounds, i + 1 < argc ? "," : "");
    }
    if (me) _exit(0);
    printf("]\n");
    wait(NULL);
    return 0;
}
