/* Small programs with one fault each in how they communicate, and their repaired twins: `trace_faults NAME 0` has the
   fault, `trace_faults NAME 1` does not. Prints the seconds between two barriers, of the slowest rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 1 << 21 };
static int rank, size, repaired, rounds;
static char *given, *taken;

static double now(void) { return MPI_Wtime(); }

/* Computing that takes so long, whatever it shares its core with; of more ranks than there may be cores, a nap. */
static void work(double us) {
    if (size > 2 && us >= 500) {
        const struct timespec nap = {(time_t)(us * 1e-6), (long)(us * 1e3) % 1000000000};
        nanosleep(&nap, NULL);
        return;
    }
    const double end = now() + us * 1e-6;
    while (now() < end) continue;
}

static void swap(int num_bytes, int tag) {
    MPI_Sendrecv(given, num_bytes, MPI_CHAR, rank ^ 1, tag, taken, num_bytes, MPI_CHAR, rank ^ 1, tag, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

/* Each of many sums by itself, or all in one. */
static void merge(void) {
    double x[1000] = {0}, y[1000];
    work(300);
    for (int i = 0; i < (repaired ? 1 : 1000); ++i)
        MPI_Allreduce(x + i, y + i, repaired ? 1000 : 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* A message for each of many small parts, or one for all. */
static void block(void) {
    const int parts = repaired ? 1 : 200, num_bytes = 1600 / parts;
    work(200);
    for (int i = 0; i < parts; ++i)
        if (rank == 0)
            MPI_Send(given + i * num_bytes, num_bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        else
            MPI_Recv(taken + i * num_bytes, num_bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* A border exchanged for every step, or eight times as much for every eighth. */
static void temporal_block(void) {
    for (int step = 0; step < 24; ++step) {
        if (!repaired || step % 8 == 0) swap(repaired ? 2048 : 256, 0);
        work(4);
    }
}

/* One rank takes what comes late first, while another cannot go on before its own message is taken. The ranks change
   places from round to round. */
static void post_earlier(int round) {
    MPI_Request both[2];
    const int busy = round % 3, taker = (round + 1) % 3, held = (round + 2) % 3;
    if (rank == busy) {
        work(3000);
        MPI_Send(given, 64, MPI_CHAR, taker, 0, MPI_COMM_WORLD);
    } else if (rank == held) {
        MPI_Ssend(given, 64, MPI_CHAR, taker, 0, MPI_COMM_WORLD);
        work(3000);
    } else if (repaired) {
        MPI_Irecv(taken, 64, MPI_CHAR, busy, 0, MPI_COMM_WORLD, &both[0]);
        MPI_Irecv(taken + 64, 64, MPI_CHAR, held, 0, MPI_COMM_WORLD, &both[1]);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    } else {
        MPI_Recv(taken, 64, MPI_CHAR, busy, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Recv(taken + 64, 64, MPI_CHAR, held, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* What the neighbour sends is waited for before, or after, work that does not need it; each is late in turn. */
static void overlap(int round) {
    MPI_Request both[2];
    MPI_Irecv(taken, 64, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &both[0]);
    MPI_Isend(given, 64, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &both[1]);
    if (!repaired) MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    work((round + rank) % 2 ? 3000 : 1000);
    if (repaired) MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
}

/* The same with a sum over all. */
static void nonblocking(int round) {
    MPI_Request sum;
    double x = 1, y;
    if (repaired)
        MPI_Iallreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &sum);
    else
        MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    work((round + rank) % 2 ? 3000 : 1000);
    if (repaired) MPI_Wait(&sum, MPI_STATUS_IGNORE);
}

/* A large message is sent to a rank that is busy, and its sender has work of its own. */
static void rendezvous(void) {
    MPI_Request sent;
    if (rank == 0) {
        if (repaired)
            MPI_Isend(given, 1 << 20, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &sent);
        else
            MPI_Send(given, 1 << 20, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        work(3000);
        if (repaired) MPI_Wait(&sent, MPI_STATUS_IGNORE);
    } else {
        work(3000);
        MPI_Recv(taken, 1 << 20, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The same with a message that a larger eager limit lets go: the twin is this program run with one. */
static void eager(void) {
    if (rank == 0) {
        MPI_Send(given, 20000, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        work(3000);
    } else {
        work(3000);
        MPI_Recv(taken, 20000, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A rank asks for a large message, then works without calling the library, and so holds up the sender; the twin lets
   the library get on now and then. The ranks change places from round to round. */
static void progress(int round) {
    enum { NUM_BYTES = 1 << 19, PARTS = 40 };
    if (rank == round % 2) {
        MPI_Send(given, NUM_BYTES, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD);
        work(100 * PARTS);
        return;
    }
    MPI_Request asked;
    int over = 0;
    MPI_Irecv(taken, NUM_BYTES, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &asked);
    for (int i = 0; i < PARTS; ++i) {
        work(100);
        if (repaired && !over) MPI_Test(&asked, &over, MPI_STATUS_IGNORE);
    }
    if (!over) MPI_Wait(&asked, MPI_STATUS_IGNORE);
}

/* One rank has twice the work, or all have the same. */
static void imbalance(void) {
    double x = 1, y;
    work(repaired ? 3000 : 2000 + 2000 * (rank % 2));
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* One of four ranks takes longer for the same work. */
static void slow_rank(void) {
    double x = 1, y;
    work(rank == 2 && !repaired ? 5000 : 2500);
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Around a ring, beside work; the twin is this program run where no link is slower than the others. */
static void slow_link(void) {
    MPI_Request both[2];
    MPI_Irecv(taken, 65536, MPI_CHAR, (rank + size - 1) % size, 0, MPI_COMM_WORLD, &both[0]);
    MPI_Isend(given, 65536, MPI_CHAR, (rank + 1) % size, 0, MPI_COMM_WORLD, &both[1]);
    work(2000);
    MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
}

/* ---- programs that were written after the advice, and not looked at while it was made ---- */

/* Parameters that a root broadcasts one by one, or all at once. */
static void tell_one_by_one(void) {
    double x[200] = {0};
    work(100);
    for (int i = 0; i < (repaired ? 1 : 200); ++i) MPI_Bcast(x + i, repaired ? 200 : 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, x, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Many small messages without blocking and one wait for all, there and back; or one message. */
static void small_parts(void) {
    enum { PARTS = 100 };
    MPI_Request asked[2 * PARTS];
    const int parts = repaired ? 1 : PARTS, num_bytes = 3200 / parts;
    work(100);
    for (int i = 0; i < parts; ++i) {
        MPI_Irecv(taken + i * num_bytes, num_bytes, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &asked[2 * i]);
        MPI_Isend(given + i * num_bytes, num_bytes, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &asked[2 * i + 1]);
    }
    MPI_Waitall(2 * parts, asked, MPI_STATUSES_IGNORE);
}

/* A stencil whose ranks wait for the border, or sweep the inner points first; sweeps take longer by turns. */
static void stencil(int round) {
    enum { ROW = 4096, ROWS = 64 };
    static float grid[ROWS][ROW], next[ROWS][ROW];
    MPI_Request both[2];
    const int sweeps = (round + rank) % 2 ? 12 : 4;
    MPI_Irecv(grid[0], ROW, MPI_FLOAT, rank ^ 1, 0, MPI_COMM_WORLD, &both[0]);
    MPI_Isend(grid[1], ROW, MPI_FLOAT, rank ^ 1, 0, MPI_COMM_WORLD, &both[1]);
    if (!repaired) MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    for (int sweep = 0; sweep < sweeps; ++sweep)
        for (int i = 2; i < ROWS - 1; ++i)
            for (int j = 1; j < ROW - 1; ++j)
                next[i][j] =
                    0.25f * (grid[i - 1][j] + grid[i + 1][j] + grid[i][j - 1] + grid[i][j + 1]) + next[i][j] * 1e-9f;
    if (repaired) MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    for (int j = 1; j < ROW - 1; ++j) next[1][j] = 0.25f * (grid[0][j] + grid[2][j] + grid[1][j - 1] + grid[1][j + 1]);
}

/* Rows of a triangle dealt in halves, or in turn. */
static void triangle(void) {
    enum { ROWS = 1000 };
    static volatile float last;
    for (int i = 0; i < ROWS; ++i) {
        if (repaired ? i % size != rank : i * size / ROWS != rank) continue;
        float row = 0;
        for (int j = 0; j <= i; ++j) row += 1.0f / (float)(i + j + 1);
        last = last + row;
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* ---- written when those had been seen ---- */

/* The borders of two fields at every step, or eight times as much of both at every eighth. */
static void two_fields(void) {
    enum { STEPS = 48, BYTES = 192 };
    for (int step = 0; step < STEPS; ++step) {
        MPI_Request all[4];
        const int num_bytes = repaired ? 8 * BYTES : BYTES;
        for (int field = 0; field < 2 && (!repaired || step % 8 == 0); ++field) {
            char *to = taken + field * 4096, *from = given + field * 4096;
            MPI_Irecv(to, num_bytes, MPI_CHAR, rank ^ 1, field, MPI_COMM_WORLD, &all[field]);
            MPI_Isend(from, num_bytes, MPI_CHAR, rank ^ 1, field, MPI_COMM_WORLD, &all[2 + field]);
        }
        if (!repaired || step % 8 == 0) MPI_Waitall(4, all, MPI_STATUSES_IGNORE);
        work(6);
    }
}

/* What all ranks found last is gathered before the next part of the work, which does not need it yet. */
static void residual(int round) {
    double mine[16] = {0}, all[16 * 8];
    MPI_Request asked;
    work(200);
    if (repaired)
        MPI_Iallgather(mine, 16, MPI_DOUBLE, all, 16, MPI_DOUBLE, MPI_COMM_WORLD, &asked);
    else
        MPI_Allgather(mine, 16, MPI_DOUBLE, all, 16, MPI_DOUBLE, MPI_COMM_WORLD);
    work((round + rank) % 2 ? 1500 : 700);
    if (repaired) MPI_Wait(&asked, MPI_STATUS_IGNORE);
}

/* Parts of a result are handed over as they come to a rank that has work of its own to do first. */
static void hand_over(void) {
    enum { PARTS = 3, BYTES = 300000 };
    MPI_Request sent[PARTS];
    if (rank == 1) work(3000);
    for (int i = 0; i < PARTS; ++i)
        if (rank == 1) {
            MPI_Recv(taken + i * BYTES, BYTES, MPI_CHAR, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            work(700);
            if (repaired)
                MPI_Isend(given + i * BYTES, BYTES, MPI_CHAR, 1, i, MPI_COMM_WORLD, &sent[i]);
            else
                MPI_Send(given + i * BYTES, BYTES, MPI_CHAR, 1, i, MPI_COMM_WORLD);
        }
    if (rank == 0 && repaired) MPI_Waitall(PARTS, sent, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* One of three ranks takes longer for each step, and its neighbours wait for its border. */
static void laggard(void) {
    for (int step = 0; step < 3; ++step) {
        work(rank == 1 && !repaired ? 1600 : 1000);
        MPI_Sendrecv(given, 64, MPI_CHAR, (rank + 1) % size, 0, taken, 64, MPI_CHAR, (rank + size - 1) % size, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(given, 64, MPI_CHAR, (rank + size - 1) % size, 1, taken, 64, MPI_CHAR, (rank + 1) % size, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

/* ---- written when those had been seen too ---- */

/* The three sums of a step of conjugate gradients, of different lengths and at different places, or one of all. */
static void three_sums(void) {
    double x[64] = {0}, y[64];
    for (int step = 0; step < 20; ++step) {
        work(2);
        MPI_Allreduce(x, y, repaired ? 41 : 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (repaired) continue;
        MPI_Allreduce(x + 1, y + 1, 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(x + 9, y + 9, 32, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
}

/* What one rank makes the other works on; parts take long by turns. Each is given when it is asked for, or kept until
   then. */
static void uneven_pipeline(int round) {
    enum { PARTS = 6, BYTES = 400000 };
    MPI_Request sent[PARTS];
    for (int i = 0; i < PARTS; ++i)
        if (rank == 0) {
            work((i + round) % 2 ? 1500 : 500);
            if (repaired)
                MPI_Isend(given + i % 4 * BYTES, BYTES, MPI_CHAR, 1, i, MPI_COMM_WORLD, &sent[i]);
            else
                MPI_Send(given, BYTES, MPI_CHAR, 1, i, MPI_COMM_WORLD);
        } else {
            MPI_Recv(taken, BYTES, MPI_CHAR, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            work((i + round) % 2 ? 1500 : 500);
        }
    if (rank == 0 && repaired) MPI_Waitall(PARTS, sent, MPI_STATUSES_IGNORE);
}

/* A large sum is begun, but the library is not called until it is waited for; or it is, now and then. */
static void quiet_sum(void) {
    enum { COUNT = 100000, PIECES = 300 };
    MPI_Request asked;
    int over = 0;
    MPI_Iallreduce(given, taken, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &asked);
    for (int i = 0; i < PIECES; ++i) {
        work(10);
        if (repaired && !over) MPI_Test(&asked, &over, MPI_STATUS_IGNORE);
    }
    if (!over) MPI_Wait(&asked, MPI_STATUS_IGNORE);
}

/* A root prepares what all then work on, or all prepare their shares. */
static void root_prepares(void) {
    if (repaired || rank == 0) work(repaired ? 600 : 1200);
    if (repaired)
        MPI_Allgather(given, 2000, MPI_CHAR, taken, 2000, MPI_CHAR, MPI_COMM_WORLD);
    else
        MPI_Bcast(taken, 4000, MPI_CHAR, 0, MPI_COMM_WORLD);
    work(1000);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* ---- one cause each, whatever the calls look like ---- */

/* Each step gives another rank most of the work, or all the same. */
static void moving(int round) {
    double x = 1, y;
    work(repaired ? 1000 : round % size == rank ? 500 + 500 * size : 500);
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Ranks whose steps take long by turns meet after each, though nothing depends on it; a sum every tenth step does. */
static void idle_barrier(int round) {
    double x = 1, y;
    work((round + rank) % 2 ? 1500 : 500);
    if (!repaired) MPI_Barrier(MPI_COMM_WORLD);
    if (round % 10 == 9) MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Many small items for one rank, each under a tag of its own, or all in one message. */
static void tagged(void) {
    enum { ITEMS = 300 };
    const int items = repaired ? 1 : ITEMS, num_bytes = 24 * ITEMS / items;
    work(150);
    for (int i = 0; i < items; ++i)
        if (rank == 0)
            MPI_Send(given + i * num_bytes, num_bytes, MPI_CHAR, 1, i, MPI_COMM_WORLD);
        else
            MPI_Recv(taken + i * num_bytes, num_bytes, MPI_CHAR, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Each waits for the other's answer by looking for it every 2 ms, or by waiting. */
static void naps(int round) {
    const struct timespec nap = {0, 2000000};
    MPI_Request asked;
    int over = 0;
    if (rank == round % 2) {
        work(900);
        MPI_Send(given, 512, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD);
        return;
    }
    MPI_Irecv(taken, 512, MPI_CHAR, rank ^ 1, 0, MPI_COMM_WORLD, &asked);
    if (repaired) MPI_Wait(&asked, MPI_STATUS_IGNORE);
    for (over = repaired; !over;) {
        MPI_Test(&asked, &over, MPI_STATUS_IGNORE);
        if (!over) nanosleep(&nap, NULL);
    }
}

/* All work, then one rank does what no other can begin before; or each does its part of it. */
static void serial_part(void) {
    double x = 1, y;
    work(800);
    if (rank == 0 || repaired) work(repaired ? 1200.0 / size : 1200);
    MPI_Barrier(MPI_COMM_WORLD);
    work(300);
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Results come to a root, which handles each; it takes them in the order of ranks, of which the first is the last to
   come, or as they come. */
static void in_order(void) {
    if (rank == 0)
        for (int i = 1; i < size; ++i) {
            MPI_Recv(taken, 4096, MPI_CHAR, repaired ? MPI_ANY_SOURCE : i, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            work(1000);
        }
    else {
        work(4000 - 1000 * rank);
        MPI_Send(given, 4096, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A chain of ranks: each takes a part, works on it, and passes it on. Parts take long by turns; a rank waits until the
   next takes its part, or goes on. */
static void passed_on(int round) {
    if (rank > 0) MPI_Recv(taken, 2000, MPI_CHAR, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    work((round + rank) % 2 ? 2500 : 500);
    if (rank == size - 1) return;
    if (repaired)
        MPI_Send(given, 2000, MPI_CHAR, rank + 1, 0, MPI_COMM_WORLD);
    else
        MPI_Ssend(given, 2000, MPI_CHAR, rank + 1, 0, MPI_COMM_WORLD);
}

/* A sum of which only every eighth is looked at, or only that one. */
static void often(int round) {
    double x = 1, y;
    work((round * 7 + rank * 3) % 5 ? 300 : 1500);
    if (!repaired || round % 8 == 7) MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void one(const char* name, int round) {
    if (!strcmp(name, "merge")) merge();
    if (!strcmp(name, "block")) block();
    if (!strcmp(name, "temporal_block")) temporal_block();
    if (!strcmp(name, "post_earlier")) post_earlier(round);
    if (!strcmp(name, "overlap")) overlap(round);
    if (!strcmp(name, "nonblocking")) nonblocking(round);
    if (!strcmp(name, "rendezvous")) rendezvous();
    if (!strcmp(name, "eager")) eager();
    if (!strcmp(name, "progress")) progress(round);
    if (!strcmp(name, "imbalance")) imbalance();
    if (!strcmp(name, "slow_rank")) slow_rank();
    if (!strcmp(name, "slow_link")) slow_link();
    if (!strcmp(name, "tell_one_by_one")) tell_one_by_one();
    if (!strcmp(name, "small_parts")) small_parts();
    if (!strcmp(name, "stencil")) stencil(round);
    if (!strcmp(name, "triangle")) triangle();
    if (!strcmp(name, "two_fields")) two_fields();
    if (!strcmp(name, "residual")) residual(round);
    if (!strcmp(name, "hand_over")) hand_over();
    if (!strcmp(name, "laggard")) laggard();
    if (!strcmp(name, "three_sums")) three_sums();
    if (!strcmp(name, "uneven_pipeline")) uneven_pipeline(round);
    if (!strcmp(name, "quiet_sum")) quiet_sum();
    if (!strcmp(name, "root_prepares")) root_prepares();
    if (!strcmp(name, "moving")) moving(round);
    if (!strcmp(name, "idle_barrier")) idle_barrier(round);
    if (!strcmp(name, "tagged")) tagged();
    if (!strcmp(name, "naps")) naps(round);
    if (!strcmp(name, "serial_part")) serial_part();
    if (!strcmp(name, "in_order")) in_order();
    if (!strcmp(name, "passed_on")) passed_on(round);
    if (!strcmp(name, "often")) often(round);
}

int main(int argc, char** argv) {
    if (argc < 4) return 2;
    const char* name = argv[1];
    repaired = atoi(argv[2]), rounds = atoi(argv[3]);
    given = calloc(1, MOST), taken = calloc(1, MOST);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    one(name, 0); /* to warm up */
    MPI_Barrier(MPI_COMM_WORLD);
    double spent = now(), most;
    for (int round = 0; round < rounds; ++round) one(name, round);
    spent = now() - spent;
    MPI_Reduce(&spent, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%s %d: %.6f s\n", name, repaired, most);
    MPI_Finalize();
    return 0;
}
