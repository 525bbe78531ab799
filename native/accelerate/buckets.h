/* Buckets: calls of one kind, operation, type and log2 of the bytes, on one communicator. Included once.

   $DOVETAIL_ACCELERATE_START names buckets in which an earlier run of the program has won, so that they are checked and
   replaced from their first call on: words KEY@SIZE:BLOCK with commas between them, KEY in hexadecimal, SIZE the
   communicator's, BLOCK the calls of a block. */

enum { DX_BUCKETS = 64, DX_PAIRS = 16, DX_STAMPS = 4, DX_FIRST = 16, DX_MOST_KNOWN = 256 };

typedef enum { DX_WATCH, DX_CHECK, DX_TRIAL, DX_RUN, DX_SLOWER, DX_LATER, DX_DIFFERS, DX_NO_MEMORY, DX_TASTE } dx_state;

typedef struct {
    uint32_t key; /* 0: free */
    dx_state state;
    int is_known;            /* an earlier run has won */
    int is_ours, is_kept;    /* calls of this block are ours; blocks have one order, the library's first */
    int is_after_run;        /* the long run of ours before a pair is over */
    int num_stamps;          /* of the pairs of blocks */
    uint64_t calls, moved;   /* moved: through shared memory */
    uint64_t left, block;    /* calls left of this block, and of a block in all */
    uint64_t next;           /* number of the call at which the ranks agree on what to do */
    uint64_t begun, counted; /* when calls were last counted, and how many there were */
    uint64_t salt, seen;     /* of the order of blocks; calls of the bucket that was tried when last consulted */
    int64_t stamp[DX_PAIRS][DX_STAMPS]; /* exits before and after each of the two blocks of a pair */
    double was, now;                    /* ticks from one call to the next, the library's and ours: medians of blocks */
    double ratio, low, high;            /* of now to was: median and quartiles */
    double each_ns, lost_ns;            /* the library's, from one call to the next; what ours adds, 0: unknown */
    int is_tasted;                      /* lost_ns is of some calls in a row, not of the first one */
} dx_bucket;

static struct {
    uint32_t key;
    int size;
    uint64_t block;
} dx_known[DX_MOST_KNOWN];
static int dx_num_known;
static uint64_t dx_first = DX_FIRST; /* the call at which a bucket is consulted first; 0: there is no guard */

/* Reads the buckets in which an earlier run has won; a word that cannot be read ends the list. */
static void dx_read_known(const char* text) {
    unsigned key, block;
    int size, length;
    while (text && dx_num_known < DX_MOST_KNOWN && sscanf(text, "%x@%d:%u%n", &key, &size, &block, &length) == 3) {
        dx_known[dx_num_known].key = key, dx_known[dx_num_known].size = size;
        dx_known[dx_num_known++].block = block ? block : 1;
        text += length;
        if (*text++ != ',') break;
    }
}

static dx_bucket* dx_begin_bucket(dx_bucket* bucket, uint32_t key, int comm_size) {
    bucket->key = key, bucket->next = dx_first, bucket->begun = da_clock();
    for (int i = 0; i < dx_num_known; ++i)
        if (dx_known[i].key == key && dx_known[i].size == comm_size)
            bucket->is_known = 1, bucket->next = 1, bucket->block = dx_known[i].block;
    return bucket;
}

/* Returns the bucket of a communicator's calls; NULL if there are too many. */
static inline dx_bucket* dx_find_bucket(dx_bucket* buckets, uint32_t key, int comm_size) {
    int at = (int)(key * 0x9E3779B1u >> 26);
    for (int i = 0; i < DX_BUCKETS; ++i, at = (at + 1) % DX_BUCKETS) {
        if (DM_LIKELY(buckets[at].key == key)) return &buckets[at];
        if (!buckets[at].key) return dx_begin_bucket(&buckets[at], key, comm_size);
    }
    return NULL;
}
