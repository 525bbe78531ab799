
/* Messages: for each next processor the points of a tile, relative to its origin, that are needed there, and for which
 * statement. */
typedef struct {
    int64_t point[N];
    int field;
} item;

typedef struct {
    int64_t count;
    item* items;
} message_set;

static message_set sets[NUM_OFFSETS + 1];
static int rank, size;
static int64_t num_chains, first_chain, end_chain; /* chains of tiles; this rank's: first_chain to end_chain - 1 */

/* The address of an iteration's value. */
static char* cell(int f, const int64_t* p) {
    int64_t found = 0;
    for (int k = 0; k < N; k++) found = found * (array_high[f][k] - array_low[f][k] + 1) + p[k] - array_low[f][k];
    return memory[f] + found * (int64_t)value_bytes[f];
}

/* The iteration of a statement that is computed at point q. Of each folded axis, an image has the lower half or the
 * upper one. Returns 0 if there is none. */
static int place(const int64_t* q, int f, int image, int64_t* p) {
    int axis = 0;
    for (int k = 0; k < N; k++) {
        p[k] = q[k] - shifts[f][k];
        if (!folded[k]) continue;
        const int64_t far = folded[k] - 1 - p[k];
        if (p[k] < 0 || p[k] > far) return 0;
        if (image >> axis++ & 1) {
            if (far == p[k]) return 0;
            p[k] = far;
        }
    }
    return inside(f, p);
}

/* The point at which an iteration is computed. */
static void point_of(int f, const int64_t* p, int64_t* q) {
    for (int k = 0; k < N; k++) q[k] = shifts[f][k] + (folded[k] ? min2(p[k], folded[k] - 1 - p[k]) : p[k]);
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

/* Chains are numbered in the order of their tiles; each rank has consecutive ones. -1: there is no such chain. */
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

/* Whether the tile of p + d is executed at offset `f`, for some dependence d on statement `field`. */
static int is_needed(const int64_t* p, int f, int field) {
    for (int d = 0; d < NUM_DEPS; d++) {
        if (read_of[d] != field) continue;
        int64_t end[N], t[N];
        int is_there = 1;
        for (int k = 0; k < N; k++) end[k] = p[k] + deps[d][k];
        tile_of(end, t);
        for (int k = 0; k < N; k++) is_there &= k == MAPPED || t[k] == offsets[f][k];
        if (is_there) return 1;
    }
    return 0;
}

/* Advances p to the next point of a box, the last axis fastest. Returns 0 after the last point. */
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
    for (int f = 0; f < NUM_OFFSETS; f++) sets[f].items = malloc((size_t)volume * NUM_FIELDS * sizeof(item));
    memcpy(p, low, sizeof p);
    do {
        int is_own = 1;
        tile_of(p, t);
        for (int k = 0; k < N; k++) is_own &= t[k] == 0;
        for (int f = 0; is_own && f < NUM_OFFSETS; f++)
            for (int field = 0; field < NUM_FIELDS; field++)
                if (is_needed(p, f, field)) {
                    item* one = sets[f].items + sets[f].count++;
                    memcpy(one->point, p, sizeof p);
                    one->field = field;
                }
    } while (next_in(low, high, p));
}

/* Copies the computed values of a message between the arrays and a buffer. Returns their bytes. */
static int move(const int64_t* t, int f, char* buffer, int into_array) {
    int64_t origin[N], q[N], p[N];
    size_t bytes = 0;
    origin_of(t, origin);
    for (int64_t i = 0; i < sets[f].count; i++) {
        const int field = sets[f].items[i].field;
        const size_t one = value_bytes[field];
        for (int k = 0; k < N; k++) q[k] = origin[k] + sets[f].items[i].point[k];
        for (int image = 0; image < NUM_IMAGES; image++) {
            if (!place(q, field, image, p)) continue;
            if (buffer && into_array) memcpy(cell(field, p), buffer + bytes, one);
            if (buffer && !into_array) memcpy(buffer + bytes, cell(field, p), one);
            bytes += one;
        }
    }
    return (int)bytes;
}

/* The chain that exchanges message `f` with that of tile t: the next one (way 1), or the one before (way -1). -1: none
 * on another rank. */
static int64_t other_chain(const int64_t* t, int f, int way) {
    int64_t other[N], chain;
    for (int k = 0; k < N; k++) other[k] = t[k] + way * offsets[f][k];
    chain = chain_of(other);
    return chain < 0 || owner_of(chain) == rank ? -1 : chain;
}

static int tag_of(int64_t sender, int f) { return (int)(sender % 2000) * NUM_OFFSETS + f; }

typedef struct {
    char* values;
    MPI_Request request;
} buffer;

static buffer *coming, *going; /* two for each message of each own chain */

static buffer* buffer_of(buffer* all, int64_t chain, int f, int64_t step) {
    return all + 2 * ((chain - first_chain) * NUM_OFFSETS + f) + (step & 1);
}

/* Finds the tile whose message `f` tile t needs. Returns its bytes; 0 if it is on no other rank, or empty. */
static int needed(const int64_t* t, int f, int64_t* sender, int64_t* chain) {
    *chain = other_chain(t, f, -1);
    if (*chain < 0 || t[MAPPED] - first_step[f] < tile_low[MAPPED]) return 0;
    tile_at(*chain, t[MAPPED] - first_step[f], sender);
    return move(sender, f, NULL, 0);
}

/* Posts receives for all own tiles of a step. */
static void post(int64_t step) {
    if (step > tile_high[MAPPED]) return;
    for (int64_t chain = first_chain; chain < end_chain; chain++)
        for (int f = 0; f < NUM_OFFSETS; f++) {
            int64_t t[N], sender[N], from;
            tile_at(chain, step, t);
            const int count = needed(t, f, sender, &from);
            buffer* b = buffer_of(coming, chain, f, step);
            if (count)
                MPI_Irecv(b->values, count, MPI_BYTE, owner_of(from), tag_of(from, f), MPI_COMM_WORLD, &b->request);
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
            MPI_Recv(b->values, count, MPI_BYTE, owner_of(from), tag_of(from, f), MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        move(sender, f, b->values, 1);
    }
}

static void send(const int64_t* t, int64_t chain) {
    for (int f = 0; f < NUM_OFFSETS; f++) {
        const int64_t to = other_chain(t, f, 1);
        buffer* b = buffer_of(going, chain, f, t[MAPPED]);
        if (to < 0 || t[MAPPED] + first_step[f] > tile_high[MAPPED]) continue;
        MPI_Wait(&b->request, MPI_STATUS_IGNORE); /* for the send of two steps before */
        const int count = move(t, f, b->values, 0);
        if (count) MPI_Isend(b->values, count, MPI_BYTE, owner_of(to), tag_of(chain, f), MPI_COMM_WORLD, &b->request);
    }
}

static void wait_for_sends(int64_t step) {
    for (int64_t chain = first_chain; chain < end_chain; chain++)
        for (int f = 0; f < NUM_OFFSETS; f++) MPI_Wait(&buffer_of(going, chain, f, step)->request, MPI_STATUS_IGNORE);
}

static void compute_tile(const int64_t* t);

/* Runs all tiles of this rank. */
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
                b->values = malloc((size_t)(sets[f].count + 1) * NUM_IMAGES * 8);
                b->request = MPI_REQUEST_NULL;
            }
    return all;
}

static size_t num_bytes(int f) {
    size_t found = value_bytes[f];
    for (int k = 0; k < N; k++) found *= (size_t)(array_high[f][k] - array_low[f][k] + 1);
    return found;
}

static void fresh_memory(void) {
    for (int f = 0; f < NUM_FIELDS; f++) {
        memory[f] = malloc(num_bytes(f));
        if (memory[f]) continue;
        fprintf(stderr, "rank %d has no memory for %zu bytes: take fewer steps, or a smaller space\n", rank,
                num_bytes(f));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    use_memory();
    for (int f = 0; f < NUM_FIELDS; f++) {
        int64_t p[N];
        memcpy(p, array_low[f], sizeof p);
        do start(f, p);
        while (next_in(array_low[f], array_high[f], p));
    }
}

/* Gathers the values of a statement from all ranks on rank 0. */
static char* gathered(int f) {
    int64_t p[N], q[N], t[N];
    char *own = calloc(num_bytes(f), 1), *all = calloc(num_bytes(f), 1);
    memcpy(p, array_low[f], sizeof p);
    do {
        point_of(f, p, q), tile_of(q, t);
        if (inside(f, p) && owner_of(chain_of(t)) == rank)
            memcpy(own + (cell(f, p) - memory[f]), cell(f, p), value_bytes[f]);
    } while (next_in(array_low[f], array_high[f], p));
    for (size_t i = 0; i < num_bytes(f); i += 1 << 20) {
        const size_t left = num_bytes(f) - i;
        MPI_Reduce(own + i, all + i, left < 1 << 20 ? (int)left : 1 << 20, MPI_BYTE, MPI_BOR, 0, MPI_COMM_WORLD);
    }
    free(own);
    return all;
}

/* On rank 0: returns how many values differ, in any bit, from those of the plain loops; `sum`: of all values. */
static int64_t num_wrong(double* sum) {
    int64_t wrong = 0;
    char* found[NUM_FIELDS];
    for (int f = 0; f < NUM_FIELDS; f++) found[f] = gathered(f);
    if (rank) return 0;
    fresh_memory();
    plain_loops();
    for (int f = 0; f < NUM_FIELDS; f++) {
        int64_t p[N];
        memcpy(p, array_low[f], sizeof p);
        do
            if (inside(f, p)) {
                *sum += value_at(f, p);
                wrong += !!memcmp(cell(f, p), found[f] + (cell(f, p) - memory[f]), value_bytes[f]);
            }
        while (next_in(array_low[f], array_high[f], p));
    }
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
    fresh_memory();
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
