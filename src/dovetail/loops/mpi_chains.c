
/* Messages: for each next processor the points of a tile, counted from its origin, that are needed there. */
typedef struct {
    int64_t count, *points;
} message_set;

static message_set sets[NUM_OFFSETS + 1];
static int rank, size;
static int64_t num_chains, first_chain, end_chain; /* chains of tiles: this rank's are from the first up to the end */

static int64_t cell(const int64_t* p) {
    int64_t found = 0;
    for (int k = 0; k < N; k++) found = found * (array_high[k] - array_low[k] + 1) + p[k] - array_low[k];
    return found;
}

/* The tile of a point: H p, rounded down. */
static void tile_of(const int64_t* p, int64_t* t) {
    for (int i = 0; i < N; i++) {
        int64_t height = 0;
        for (int k = 0; k < N; k++) height += normals[i][k] * p[k];
        t[i] = floord(height, volume);
    }
}

static void origin_of(const int64_t* t, int64_t* p) {
    for (int i = 0; i < N; i++) {
        p[i] = 0;
        for (int k = 0; k < N; k++) p[i] += sides[i][k] * t[k];
    }
}

/* Chains are numbered in the order of their tiles; those next to each other are on one rank. -1: there is no such. */
static int64_t chain_of(const int64_t* t) {
    int64_t found = 0;
    for (int k = 0; k < N; k++) {
        if (k == MAPPED) continue;
        if (t[k] < tile_low[k] || t[k] > tile_high[k]) return -1;
        found = found * (tile_high[k] - tile_low[k] + 1) + t[k] - tile_low[k];
    }
    return found;
}

static void tile_at(int64_t chain, int64_t step, int64_t* t) {
    for (int k = N - 1; k >= 0; k--) {
        const int64_t extent = tile_high[k] - tile_low[k] + 1;
        if (k == MAPPED) continue;
        t[k] = tile_low[k] + chain % extent, chain /= extent;
    }
    t[MAPPED] = step;
}

static int owner_of(int64_t chain) { return (int)(((chain + 1) * size - 1) / num_chains); }

/* Whether offset `f` is where the tile of p + d is executed, for some dependence d. */
static int is_needed(const int64_t* p, int f) {
    for (int d = 0; d < NUM_DEPS; d++) {
        int64_t end[N], t[N];
        int is_there = 1;
        for (int k = 0; k < N; k++) end[k] = p[k] + deps[d][k];
        tile_of(end, t);
        for (int k = 0; k < N; k++) is_there &= k == MAPPED || t[k] == offsets[f][k];
        if (is_there) return 1;
    }
    return 0;
}

/* Goes to the next point of a box, the last axis first; 0 after the last. */
static int next_in(const int64_t* low, const int64_t* high, int64_t* p) {
    for (int k = N - 1; k >= 0; k--) {
        if (p[k]++ < high[k]) return 1;
        p[k] = low[k];
    }
    return 0;
}

static void find_messages(void) {
    int64_t low[N], high[N], p[N], t[N];
    for (int i = 0; i < N; i++) {
        low[i] = high[i] = 0;
        for (int k = 0; k < N; k++) *(sides[i][k] < 0 ? low + i : high + i) += sides[i][k];
    }
    for (int f = 0; f < NUM_OFFSETS; f++) sets[f].points = malloc((size_t)volume * sizeof p);
    memcpy(p, low, sizeof p);
    do {
        int is_own = 1;
        tile_of(p, t);
        for (int k = 0; k < N; k++) is_own &= t[k] == 0;
        for (int f = 0; is_own && f < NUM_OFFSETS; f++)
            if (is_needed(p, f)) memcpy(sets[f].points + N * sets[f].count++, p, sizeof p);
    } while (next_in(low, high, p));
}

/* A message's values between the array and a buffer, those of points in the space; how many they are. */
static int move(const int64_t* t, int f, double* buffer, int into_array) {
    int64_t origin[N], p[N];
    int count = 0;
    origin_of(t, origin);
    for (int64_t i = 0; i < sets[f].count; i++) {
        for (int k = 0; k < N; k++) p[k] = origin[k] + sets[f].points[N * i + k];
        if (!inside(p)) continue;
        if (buffer && into_array) array[cell(p)] = buffer[count];
        if (buffer && !into_array) buffer[count] = array[cell(p)];
        count++;
    }
    return count;
}

/* The chain that exchanges message `f` with that of tile t: the next one (way 1), or the one before (-1); -1 for none
 * on another rank. */
static int64_t other_chain(const int64_t* t, int f, int way) {
    int64_t other[N], chain;
    for (int k = 0; k < N; k++) other[k] = t[k] + way * offsets[f][k];
    chain = chain_of(other);
    return chain < 0 || owner_of(chain) == rank ? -1 : chain;
}

static int tag_of(int64_t sender, int f) { return (int)(sender % 2000) * NUM_OFFSETS + f; }

typedef struct {
    double* values;
    MPI_Request request;
} buffer;

static buffer *coming, *going; /* two of each message of each own chain */

static buffer* buffer_of(buffer* all, int64_t chain, int f, int64_t step) {
    return all + 2 * ((chain - first_chain) * NUM_OFFSETS + f) + (step & 1);
}

/* The tile whose message `f` tile t needs; 0 where there is none on another rank, or nothing in it. */
static int needed(const int64_t* t, int f, int64_t* sender, int64_t* chain) {
    *chain = other_chain(t, f, -1);
    if (*chain < 0 || t[MAPPED] - first_step[f] < tile_low[MAPPED]) return 0;
    tile_at(*chain, t[MAPPED] - first_step[f], sender);
    return move(sender, f, NULL, 0);
}

/* Receives for all own tiles of a step. */
static void post(int64_t step) {
    if (step > tile_high[MAPPED]) return;
    for (int64_t chain = first_chain; chain < end_chain; chain++)
        for (int f = 0; f < NUM_OFFSETS; f++) {
            int64_t t[N], sender[N], from;
            tile_at(chain, step, t);
            const int count = needed(t, f, sender, &from);
            buffer* b = buffer_of(coming, chain, f, step);
            if (count)
                MPI_Irecv(b->values, count, MPI_DOUBLE, owner_of(from), tag_of(from, f), MPI_COMM_WORLD, &b->request);
        }
}

static void receive(const int64_t* t, int64_t chain) {
    for (int f = 0; f < NUM_OFFSETS; f++) {
        int64_t sender[N], from;
        buffer* b = buffer_of(coming, chain, f, t[MAPPED]);
        const int count = needed(t, f, sender, &from);
        if (!count) continue;
        if (OVERLAPPED)
            MPI_Wait(&b->request, MPI_STATUS_IGNORE);
        else
            MPI_Recv(b->values, count, MPI_DOUBLE, owner_of(from), tag_of(from, f), MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        move(sender, f, b->values, 1);
    }
}

static void send(const int64_t* t, int64_t chain) {
    for (int f = 0; f < NUM_OFFSETS; f++) {
        const int64_t to = other_chain(t, f, 1);
        buffer* b = buffer_of(going, chain, f, t[MAPPED]);
        if (to < 0 || t[MAPPED] + first_step[f] > tile_high[MAPPED]) continue;
        MPI_Wait(&b->request, MPI_STATUS_IGNORE); /* of two steps before */
        const int count = move(t, f, b->values, 0);
        if (count) MPI_Isend(b->values, count, MPI_DOUBLE, owner_of(to), tag_of(chain, f), MPI_COMM_WORLD, &b->request);
    }
}

static void wait_for_sends(int64_t step) {
    for (int64_t chain = first_chain; chain < end_chain; chain++)
        for (int f = 0; f < NUM_OFFSETS; f++) MPI_Wait(&buffer_of(going, chain, f, step)->request, MPI_STATUS_IGNORE);
}

/* All tiles of this rank. */
static void run(void) {
    if (OVERLAPPED) post(tile_low[MAPPED]);
    for (int64_t step = tile_low[MAPPED]; step <= tile_high[MAPPED]; step++) {
        if (OVERLAPPED) post(step + 1);
        for (int64_t chain = first_chain; chain < end_chain; chain++) {
            int64_t t[N];
            tile_at(chain, step, t);
            receive(t, chain);
            compute_tile(t);
            send(t, chain);
        }
        if (!OVERLAPPED) wait_for_sends(step);
    }
    wait_for_sends(0), wait_for_sends(1);
}

static buffer* buffers(void) {
    buffer* all = malloc((2 * (size_t)(end_chain - first_chain) * NUM_OFFSETS + 1) * sizeof *all);
    for (int64_t chain = first_chain; chain < end_chain; chain++)
        for (int f = 0; f < NUM_OFFSETS; f++)
            for (int step = 0; step < 2; step++) {
                buffer* b = buffer_of(all, chain, f, step);
                b->values = malloc((size_t)(sets[f].count + 1) * sizeof(double));
                b->request = MPI_REQUEST_NULL;
            }
    return all;
}

static int64_t num_cells(void) {
    int64_t found = 1;
    for (int k = 0; k < N; k++) found *= array_high[k] - array_low[k] + 1;
    return found;
}

static double* fresh_array(void) {
    double* found = malloc((size_t)num_cells() * sizeof *found);
    int64_t p[N];
    memcpy(p, array_low, sizeof p);
    do found[cell(p)] = start_of(p);
    while (next_in(array_low, array_high, p));
    return found;
}

/* On rank 0: how many points differ from those of the plain loops, and the sum of all. */
static int64_t num_wrong(double* sum) {
    int64_t p[N], t[N], wrong = 0;
    double *own = calloc((size_t)num_cells(), sizeof *own), *all = calloc((size_t)num_cells(), sizeof *all);
    memcpy(p, array_low, sizeof p);
    do {
        tile_of(p, t);
        if (inside(p) && owner_of(chain_of(t)) == rank) own[cell(p)] = array[cell(p)];
    } while (next_in(array_low, array_high, p));
    for (int64_t i = 0; i < num_cells(); i += 1 << 20) {
        const int64_t left = num_cells() - i;
        MPI_Reduce(own + i, all + i, left < 1 << 20 ? (int)left : 1 << 20, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    }
    if (rank) return 0;
    array = fresh_array();
    memcpy(p, array_low, sizeof p);
    do
        if (inside(p)) compute_point(p);
    while (next_in(array_low, array_high, p));
    do
        if (inside(p)) wrong += array[cell(p)] != all[cell(p)], *sum += all[cell(p)];
    while (next_in(array_low, array_high, p));
    return wrong;
}

int main(int argc, char** argv) {
    double begin, mine, seconds;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    num_chains = 1;
    for (int k = 0; k < N; k++) num_chains *= k == MAPPED ? 1 : tile_high[k] - tile_low[k] + 1;
    first_chain = num_chains * rank / size, end_chain = num_chains * (rank + 1) / size;
    find_messages();
    coming = buffers(), going = buffers();
    array = fresh_array();
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    run();
    mine = MPI_Wtime() - begin;
    MPI_Reduce(&mine, &seconds, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!rank) printf("%lld chains of tiles on %d ranks: %.6f s\n", (long long)num_chains, size, seconds);
    if (argc > 1 && !strcmp(argv[1], "check")) {
        double sum = 0;
        const int64_t wrong = num_wrong(&sum);
        if (!rank) printf("%lld of %lld points differ from the plain loops\n", (long long)wrong, (long long)num_points);
        if (!rank) printf("their sum is %.17g\n", sum);
    }
    return MPI_Finalize();
}
