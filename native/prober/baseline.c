/* What the MPI library's own blocking collectives take a plain C program, at a level of thread support. Knobs come from
   the environment (MPIR_CVAR_*, OMPI_MCA_*).
   `baseline LEVEL DTYPE ROUNDS BATCH_S MOST_S KIND:BYTES ...`: LEVEL is single, funneled, serialized or multiple
   (single: MPI_Init, as programs that ask for nothing), BYTES the larger of a rank's input and output. A round times
   each point once, by calls that fill about BATCH_S seconds; no round begins after MOST_S seconds. Rank 0 prints JSON:
   seconds of a call by round, of the slowest rank, their median and quartiles, and wrong elements of a checked call.
   If DOVETAIL_EXCHANGE names a file of zeros that ranks 0 and 1 can map, also the seconds by round of an exchange of a
   word between them (exchange.h). */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../run/mpi_table.h"
#include "exchange.h"

enum { NUM_TYPES = 4, WARM_CALLS = 8, MOST_CALLS = 100000, LONGEST = 10, EXCHANGES = 1000 };
#define NAME(name, text) text,
#define NUM_KINDS DT_ALL_GATHER_V /* no v-variants */
static const char* const kinds[] = {DT_KINDS(NAME)};
static const char* const levels[4] = {"single", "funneled", "serialized", "multiple"};
static const int level_codes[4] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
static const char* const types[NUM_TYPES] = {"float32", "float64", "int32", "int64"};
static const size_t widths[NUM_TYPES] = {4, 8, 4, 8};

typedef struct {
    int kind, calls, wrong;
    long long bytes;
    double* seconds; /* by round */
} Point;

static MPI_Comm world;
static MPI_Datatype type;
static int rank, size, which_type;
static char *given, *taken;          /* of the point at hand */
static char *inputs[2], *results[2]; /* of points in small pages, and in huge ones */
static void* words;                  /* that ranks 0 and 1 exchange; NULL: they do not */

static int index_of(const char* word, const char* const* words, int count) {
    for (int i = 0; i < count; ++i)
        if (!strcmp(word, words[i])) return i;
    fprintf(stderr, "baseline: '%s' is none of %s ... %s\n", word, words[0], words[count - 1]);
    exit(2);
}

static int elements_of(const Point* point) { return (int)(point->bytes / (long long)widths[which_type]); }

/* NumPy asks for huge pages from 4 MiB on. The library gets its arrays in the same kind of memory as ours. */
static int is_huge(const Point* point) { return point->bytes >= 1 << 22; }

static void use(const Point* point) { given = inputs[is_huge(point)], taken = results[is_huge(point)]; }

static void call(const Point* point) {
    const int whole = elements_of(point), part = whole / size;
    switch (point->kind) {
        case DT_ALL_REDUCE:
            MPI_Allreduce(MPI_IN_PLACE, taken, whole, type, MPI_SUM, world); /* as our Programs do it */
            break;
        case DT_ALL_GATHER:
            MPI_Allgather(given, part, type, taken, part, type, world);
            break;
        case DT_REDUCE_SCATTER:
            MPI_Reduce_scatter_block(given, taken, part, type, MPI_SUM, world);
            break;
        case DT_ALL_TO_ALL:
            MPI_Alltoall(given, part, type, taken, part, type, world);
            break;
        case DT_BROADCAST:
            MPI_Bcast(rank ? taken : given, whole, type, 0, world);
            break;
        case DT_BARRIER:
            MPI_Barrier(world);
            break;
        case DT_REDUCE:
            MPI_Reduce(given, taken, whole, type, MPI_SUM, 0, world);
            break;
        case DT_GATHER:
            MPI_Gather(given, part, type, taken, part, type, 0, world);
            break;
        case DT_SCATTER:
            MPI_Scatter(given, part, type, taken, part, type, 0, world);
            break;
        default: { /* to the next rank; the last sends nothing */
            const int to = rank + 1 < size ? rank + 1 : MPI_PROC_NULL, from = rank ? rank - 1 : MPI_PROC_NULL;
            MPI_Sendrecv(given, whole, type, to, 1, taken, whole, type, from, 1, world, MPI_STATUS_IGNORE);
        }
    }
}

static void set(char* data, int at, double value) {
    if (which_type == 0) ((float*)data)[at] = (float)value;
    if (which_type == 1) ((double*)data)[at] = value;
    if (which_type == 2) ((int*)data)[at] = (int)value;
    if (which_type == 3) ((long long*)data)[at] = (long long)value;
}

static double get(const char* data, int at) {
    if (which_type == 0) return ((const float*)data)[at];
    if (which_type == 1) return ((const double*)data)[at];
    if (which_type == 2) return ((const int*)data)[at];
    return (double)((const long long*)data)[at];
}

/* Every rank gives rank + 1 everywhere. What element `at` of the result is then, on this rank; 0: it has none. */
static double expected(const Point* point, int at) {
    const int part = elements_of(point) / size, sum = size * (size + 1) / 2;
    const int by_rank = at < part * size ? at / (part ? part : 1) + 1 : 0;
    switch (point->kind) {
        case DT_ALL_REDUCE:
            return sum;
        case DT_REDUCE:
            return rank ? 0 : sum;
        case DT_REDUCE_SCATTER:
            return at < part ? sum : 0;
        case DT_ALL_GATHER:
        case DT_ALL_TO_ALL:
            return by_rank;
        case DT_GATHER:
            return rank ? 0 : by_rank;
        case DT_SCATTER:
            return at < part;
        case DT_BROADCAST:
            return rank ? 1 : 0;
        case DT_ALL_TO_NEXT:
            return rank;
        default:
            return 0;
    }
}

/* Wrong elements of one call, of all ranks. */
static int wrong_in(const Point* point) {
    int mine = 0, all = 0;
    use(point);
    if (point->kind == DT_ALL_REDUCE)
        memcpy(taken, given, (size_t)point->bytes);
    else
        memset(taken, 0, (size_t)point->bytes);
    call(point);
    for (int at = 0; at < elements_of(point); ++at) {
        const double value = expected(point, at);
        mine += value != 0 && get(taken, at) != value;
    }
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, world);
    return all;
}

/* Seconds of one of `count` calls, on the slowest rank. */
static double each_s(const Point* point, int count) {
    double most;
    use(point);
    MPI_Barrier(world);
    double spent = MPI_Wtime();
    for (int i = 0; i < count; ++i) call(point);
    spent = (MPI_Wtime() - spent) / count;
    MPI_Allreduce(&spent, &most, 1, MPI_DOUBLE, MPI_MAX, world);
    return most;
}

/* The least of three, so that a disturbance does not count. */
static double undisturbed_s(const Point* point, int count) {
    double least = each_s(point, count);
    for (int i = 0; i < 2; ++i) {
        const double next = each_s(point, count);
        least = next < least ? next : least;
    }
    return least;
}

/* As many calls as fill about `batch_s`, counted when they are warm: all ranks alike. Where ranks outnumber the cores,
   calls in a row may take a thousand times longer than one alone; and one alone may take as long as many, if other
   ranks still spin in the barrier before it. So their number grows, and goes on growing while more cost little. */
static int calls_in(const Point* point, double batch_s) {
    int count = 1;
    double warm_s = each_s(point, 1); /* libraries change their ways after some calls */
    for (int next = 1; next <= WARM_CALLS && warm_s < LONGEST * batch_s; next *= 2)
        warm_s += next * each_s(point, next);
    double spent_s = warm_s < LONGEST * batch_s ? undisturbed_s(point, 1) : each_s(point, 1);
    while (spent_s < LONGEST * batch_s && count < MOST_CALLS / 4) {
        const int more = 4 * count;
        const double total_s = more * (spent_s < batch_s ? undisturbed_s(point, more) : each_s(point, more));
        if (spent_s >= batch_s && total_s > 2 * spent_s) break;
        count = more, spent_s = total_s;
    }
    const double filling = count * batch_s / (spent_s > 1e-9 ? spent_s : 1e-9);
    return filling < 1 ? 1 : filling > MOST_CALLS ? MOST_CALLS : (int)filling;
}

static void map_words(void) {
    const char* const name = getenv("DOVETAIL_EXCHANGE");
    const int file = name && rank < 2 && size > 1 ? open(name, O_RDWR) : -1;
    if (file < 0) return;
    words = mmap(NULL, DT_EXCHANGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (words == MAP_FAILED) MPI_Abort(world, 1);
    close(file);
}

/* Of rank 0; the other ranks wait for its broadcast in `goes_on`. */
static double exchange_s(void) { return words ? dt_exchange_s(words, rank, EXCHANGES, 1.0) : -1; }

static int goes_on(double begun, double most_s) {
    int is_early = MPI_Wtime() - begun < most_s;
    MPI_Bcast(&is_early, 1, MPI_INT, 0, world);
    return is_early;
}

static int by_value(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double quantile(const double* sorted, int count, double share) {
    const double at = share * (count - 1);
    const int low = (int)at, high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

static void print_point(const Point* point, int rounds, int is_last) {
    double* sorted = malloc((size_t)rounds * sizeof(double));
    printf("  {\"kind\": \"%s\", \"num_bytes\": %lld, \"calls\": %d, \"num_wrong\": %d, \"seconds\": [",
           kinds[point->kind], point->bytes, point->calls, point->wrong);
    for (int i = 0; i < rounds; ++i) printf("%s%.4g", i ? ", " : "", sorted[i] = point->seconds[i]);
    qsort(sorted, (size_t)rounds, sizeof(double), by_value);
    printf("], \"median_s\": %.4g, \"quartiles_s\": [%.4g, %.4g]}%s\n", quantile(sorted, rounds, 0.5),
           quantile(sorted, rounds, 0.25), quantile(sorted, rounds, 0.75), is_last ? "" : ",");
    free(sorted);
}

static void print_all(const Point* points, int count, const double* apart_s, int rounds, int asked, int provided) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, found = 0;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, "\n,\"")] = 0;
    for (char* c = library; *c; ++c)
        if ((unsigned char)*c < ' ') *c = ' ';
    while (found < 3 && level_codes[found] != provided) ++found;
    printf(
        "{\"library\": \"%s\", \"asked\": \"%s\", \"provided\": \"%s\", \"ranks\": %d, \"dtype\": \"%s\", "
        "\"exchange_s\": [",
        library, levels[asked], levels[found], size, types[which_type]);
    for (int i = 0; i < rounds && words; ++i) printf("%s%.4g", i ? ", " : "", apart_s[i]);
    printf("], \"rows\": [\n");
    for (int i = 0; i < count; ++i) print_point(&points[i], rounds, i + 1 == count);
    printf("]}\n");
}

static Point read_point(char* text, int rounds) {
    char* const colon = strchr(text, ':');
    Point point = {0};
    if (!colon || (point.bytes = atoll(colon + 1)) < 0) {
        fprintf(stderr, "baseline: '%s' is not KIND:BYTES\n", text);
        exit(2);
    }
    *colon = 0;
    point.kind = index_of(text, kinds, NUM_KINDS);
    point.seconds = malloc((size_t)rounds * sizeof(double));
    return point;
}

static void start(int level, int* argc, char*** argv, int* provided) {
    if (level)
        MPI_Init_thread(argc, argv, level_codes[level], provided);
    else
        MPI_Init(argc, argv);
    MPI_Query_thread(provided);
    world = MPI_COMM_WORLD;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
}

/* Memory whose every page exists; `huge`: the kernel may map it in huge pages. */
static char* room(size_t bytes, int huge) {
    const size_t page = huge ? (size_t)1 << 21 : 64, whole = (bytes + page - 1) / page * page;
    char* const found = aligned_alloc(page, whole);
    if (!found) MPI_Abort(world, 1);
    if (huge) madvise(found, whole, MADV_HUGEPAGE);
    memset(found, 1, whole);
    return found;
}

static void make_buffers(const Point* points, int count) {
    const MPI_Datatype codes[NUM_TYPES] = {MPI_FLOAT, MPI_DOUBLE, MPI_INT, MPI_LONG_LONG};
    type = codes[which_type];
    for (int huge = 0; huge < 2; ++huge) {
        long long most = 0;
        for (int i = 0; i < count; ++i)
            if (is_huge(&points[i]) == huge && points[i].bytes >= most) most = points[i].bytes + 64;
        if (most == 0) continue;
        inputs[huge] = room((size_t)most, huge), results[huge] = room((size_t)most, huge);
        for (int at = 0; at < (int)(most / (long long)widths[which_type]); ++at) set(inputs[huge], at, rank + 1);
    }
}

int main(int argc, char** argv) {
    if (argc < 7) {
        fprintf(stderr, "baseline LEVEL DTYPE ROUNDS BATCH_S MOST_S KIND:BYTES ...\n");
        return 2;
    }
    const int level = index_of(argv[1], levels, 4), rounds = atoi(argv[3]) > 0 ? atoi(argv[3]) : 1, count = argc - 6;
    const double batch_s = atof(argv[4]), most_s = atof(argv[5]);
    int provided, done = 0;
    which_type = index_of(argv[2], types, NUM_TYPES);
    Point* const points = calloc((size_t)count, sizeof(Point));
    for (int i = 0; i < count; ++i) points[i] = read_point(argv[6 + i], rounds);
    start(level, &argc, &argv, &provided);
    make_buffers(points, count);
    map_words();
    double* const apart_s = malloc((size_t)rounds * sizeof(double));
    for (int i = 0; i < count; ++i) points[i].wrong = wrong_in(&points[i]);
    for (int i = 0; i < count; ++i) points[i].calls = calls_in(&points[i], batch_s);
    const double begun = MPI_Wtime();
    for (; done < rounds && (!done || goes_on(begun, most_s)); ++done) {
        for (int i = 0; i < count; ++i) points[i].seconds[done] = each_s(&points[i], points[i].calls);
        apart_s[done] = exchange_s();
    }
    if (rank == 0) print_all(points, count, apart_s, done, level, provided);
    MPI_Finalize();
    return 0;
}
