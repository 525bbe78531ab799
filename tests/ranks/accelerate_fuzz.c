/* Random collectives, each made twice: by MPI_X, which a preloaded library may replace, and by PMPI_X; compares the
   bytes.

   ARGV: number of calls, seed, threads (1 or 2: each has communicators of its own, at MPI_THREAD_MULTIPLE). Prints the
   calls and how many of them differed; exits with 1 if any did. All ranks draw the same numbers, but for their data and
   for what MPI lets differ between ranks. */
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 17, COMMS = 4, BIG = 1 << 20 };
typedef struct {
    uint64_t same, own; /* random states: of all ranks, of this one */
    MPI_Comm comm[COMMS];
    long calls, done, wrong;
    char *in, *ours, *theirs, *big;
} fuzz;

static MPI_Op user_op;
static void mix_ints(void* in, void* out, int* count,
                     MPI_Datatype* type) { /* commutative and associative, as it says */
    (void)type;
    for (int i = 0; i < *count; ++i) ((int*)out)[i] ^= ((int*)in)[i] ^ 0x5555;
}

static uint64_t draw(uint64_t* state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state * 0x2545F4914F6CDD1Du >> 11;
}
static int below(uint64_t* state, int n) { return (int)(draw(state) % (uint64_t)n); }

/* Fills the input; now and then floating-point numbers are zeros of either sign, infinite, or no numbers. */
static void fill(fuzz* f, MPI_Datatype type, long bytes) {
    static const double special[] = {0.0, -0.0, 1.0 / 0.0, -1.0 / 0.0, 0.0 / 0.0, 1.0};
    const int is_special = below(&f->own, 8) == 0;
    if (type == MPI_DOUBLE || type == MPI_C_DOUBLE_COMPLEX)
        for (long i = 0; i < bytes / 8; ++i)
            ((double*)f->in)[i] = is_special ? special[below(&f->own, 6)] : (double)below(&f->own, 1 << 20) / 7 - 1e4;
    else if (type == MPI_FLOAT)
        for (long i = 0; i < bytes / 4; ++i)
            ((float*)f->in)[i] =
                (float)(is_special ? special[below(&f->own, 6)] : (double)below(&f->own, 1 << 20) / 7 - 1e4);
    else
        for (long i = 0; i < bytes; ++i) f->in[i] = (char)draw(&f->own);
}

static int a_count(fuzz* f, int most) { return below(&f->same, (1 << below(&f->same, 17)) % most + 1); }

static void judge(fuzz* f, const char* what, long bytes, int code, int number) {
    ++f->done;
    if (!code && !memcmp(f->ours, f->theirs, (size_t)bytes)) return;
    if (f->wrong++ < 5) fprintf(stderr, "wrong: %s, %ld bytes, code %d, draw %d\n", what, bytes, code, number);
}

static void reduce(fuzz* f, MPI_Comm comm) {
    static MPI_Datatype const types[] = {MPI_INT,     MPI_DOUBLE,           MPI_FLOAT,    MPI_LONG,   MPI_UNSIGNED_CHAR,
                                         MPI_SHORT,   MPI_C_DOUBLE_COMPLEX, MPI_UINT64_T, MPI_INT8_T, MPI_2INT,
                                         MPI_UNSIGNED};
    static MPI_Op const ops[] = {MPI_SUM, MPI_MAX,  MPI_MIN,  MPI_PROD, MPI_BAND,
                                 MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR,  MPI_LXOR};
    const int which = below(&f->same, 11), number = below(&f->same, 10), is_user = below(&f->same, 20) == 0;
    MPI_Datatype type = is_user ? MPI_INT : types[which];
    MPI_Op op = is_user                        ? user_op
                : type == MPI_2INT             ? MPI_MINLOC
                : type == MPI_C_DOUBLE_COMPLEX ? MPI_SUM
                                               : ops[number];
    if ((type == MPI_DOUBLE || type == MPI_FLOAT) && number >= 4) op = ops[number % 4];
    int size;
    PMPI_Type_size(type, &size);
    const int count = a_count(f, MOST / size);
    const long bytes = (long)count * size;
    fill(f, type, bytes);
    memcpy(f->ours, f->in, (size_t)bytes), memcpy(f->theirs, f->in, (size_t)bytes);
    const int is_here = below(&f->same, 2);
    const int code = MPI_Allreduce(is_here ? MPI_IN_PLACE : f->in, f->ours, count, type, op, comm);
    PMPI_Allreduce(is_here ? MPI_IN_PLACE : f->in, f->theirs, count, type, op, comm);
    judge(f, "Allreduce", bytes, code, which * 100 + number * 10 + is_here);
}

/* Blocks of 4-byte elements: contiguous or with gaps, as each rank draws for itself. */
static void blocks(fuzz* f, MPI_Comm comm, int is_all) {
    MPI_Datatype sent = MPI_INT, got = MPI_FLOAT, gapped, pairs;
    int size, rank;
    PMPI_Comm_size(comm, &size), PMPI_Comm_rank(comm, &rank);
    int count = 2 * a_count(f, MOST / 40 / size);
    PMPI_Type_vector(1, 2, 2, MPI_INT, &pairs), PMPI_Type_vector(2, 1, 2, MPI_INT, &gapped);
    PMPI_Type_commit(&pairs), PMPI_Type_commit(&gapped);
    int sends = count, gets = count;
    const int how = below(&f->own, 3), to = below(&f->own, 3), is_here = below(&f->same, 3) == 0;
    if (how) sent = how == 1 ? pairs : gapped, sends = count / 2;
    if (to) got = to == 1 ? pairs : gapped, gets = count / 2;
    if (!to) got = MPI_INT;
    fill(f, MPI_INT, MOST);
    memset(f->ours, 7, MOST), memset(f->theirs, 7, MOST);
    if (is_here) memcpy(f->ours, f->in, MOST), memcpy(f->theirs, f->in, MOST);
    const void* in = is_here ? MPI_IN_PLACE : f->in;
    int code;
    if (is_all) {
        code = MPI_Alltoall(in, sends, sent, f->ours, gets, got, comm);
        PMPI_Alltoall(in, sends, sent, f->theirs, gets, got, comm);
    } else {
        code = MPI_Allgather(in, sends, sent, f->ours, gets, got, comm);
        PMPI_Allgather(in, sends, sent, f->theirs, gets, got, comm);
    }
    PMPI_Type_free(&pairs), PMPI_Type_free(&gapped);
    judge(f, is_all ? "Alltoall" : "Allgather", MOST, code, how * 100 + to * 10 + is_here);
}

/* A long message is under way while ranks wait in a collective. */
static void beside_message(fuzz* f, MPI_Comm comm) {
    MPI_Request request;
    int size, rank, value = 1, sum = 0;
    PMPI_Comm_size(comm, &size), PMPI_Comm_rank(comm, &rank);
    if (rank == 0 && size > 1) MPI_Isend(f->big, BIG, MPI_CHAR, 1, 5, comm, &request);
    if (rank == 1) MPI_Recv(f->big, BIG, MPI_CHAR, 0, 5, comm, MPI_STATUS_IGNORE);
    MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, comm);
    if (rank == 0 && size > 1) MPI_Wait(&request, MPI_STATUS_IGNORE);
    ++f->done, f->wrong += sum != size;
}

static void others(fuzz* f, MPI_Comm comm) {
    int size, root;
    PMPI_Comm_size(comm, &size);
    root = below(&f->same, size);
    fill(f, MPI_INT, 256), memset(f->ours, 1, 256), memset(f->theirs, 1, 256);
    int code = MPI_Reduce(f->in, f->ours, 64, MPI_INT, MPI_SUM, root, comm);
    PMPI_Reduce(f->in, f->theirs, 64, MPI_INT, MPI_SUM, root, comm);
    judge(f, "Reduce", 256, code, root);
    code = MPI_Barrier(comm);
    memcpy(f->ours, f->in, 256), memcpy(f->theirs, f->in, 256);
    code |= MPI_Bcast(f->ours, 256, MPI_CHAR, root, comm);
    PMPI_Bcast(f->theirs, 256, MPI_CHAR, root, comm);
    judge(f, "Bcast", 256, code, root);
}

/* Frees a communicator, and makes another one in its place. */
static void renew(fuzz* f) {
    MPI_Comm* one = &f->comm[1 + below(&f->same, COMMS - 1)];
    int rank;
    MPI_Comm_free(one);
    PMPI_Comm_rank(f->comm[0], &rank);
    const int way = below(&f->same, 3);
    if (way == 0)
        MPI_Comm_dup(f->comm[0], one);
    else
        MPI_Comm_split(f->comm[0], way == 1 ? 0 : rank % 2, -rank, one);
}

static void* run(void* at) {
    fuzz* f = at;
    for (long i = 0; i < f->calls; ++i) {
        MPI_Comm comm = f->comm[below(&f->same, COMMS)];
        const int what = below(&f->same, 100);
        if (what < 60)
            reduce(f, comm);
        else if (what < 90)
            blocks(f, comm, what & 1);
        else if (what < 98)
            others(f, comm);
        else if (what < 99)
            beside_message(f, comm);
        else if (below(&f->same, 10) == 0)
            renew(f);
    }
    return NULL;
}

static void begin(fuzz* f, int thread, long calls, uint64_t seed) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    f->calls = calls;
    f->same = seed * 77 + (uint64_t)thread + 1, f->own = f->same * 1000003u + (uint64_t)rank;
    f->in = malloc(MOST), f->ours = malloc(MOST), f->theirs = malloc(MOST), f->big = calloc(BIG, 1);
    if (thread)
        MPI_Comm_dup(MPI_COMM_WORLD, &f->comm[0]);
    else
        f->comm[0] = MPI_COMM_WORLD;
    for (int i = 1; i < COMMS; ++i) MPI_Comm_dup(f->comm[0], &f->comm[i]);
}

int main(int argc, char** argv) {
    static fuzz f[2];
    int given, rank;
    const long calls = argc > 1 ? atol(argv[1]) : 1000;
    const uint64_t seed = argc > 2 ? (uint64_t)atol(argv[2]) : 1;
    const int threads = argc > 3 ? atoi(argv[3]) : 1;
    MPI_Init_thread(&argc, &argv, threads > 1 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Op_create(mix_ints, 1, &user_op);
    pthread_t other;
    for (int t = 0; t < threads; ++t) begin(&f[t], t, calls, seed);
    if (threads > 1) pthread_create(&other, NULL, run, &f[1]);
    run(&f[0]);
    if (threads > 1) pthread_join(other, NULL);
    long sums[2] = {f[0].done + f[1].done, f[0].wrong + f[1].wrong}, all[2];
    PMPI_Allreduce(sums, all, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("%ld calls, %ld wrong\n", all[0], all[1]);
    MPI_Finalize();
    return all[1] != 0;
}
