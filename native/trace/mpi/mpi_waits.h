/* Calls that complete requests: MPI overwrites the handles of completed requests, so they are copied before the call.
   Included once, at the end of mpi_frame.h. */

enum { DM_FEW = 32 };

typedef struct {
    MPI_Request few[DM_FEW], *asked; /* asked: the handles before the call, in `few` if they fit; NULL: no memory */
    MPI_Status few_statuses[DM_FEW], *statuses;
} dm_wait;

static __thread struct {
    void* memory;
    size_t num_bytes;
} dm_kept __attribute__((tls_model("initial-exec"))); /* this thread's memory for calls with many requests */
static pthread_key_t dm_kept_key;                     /* frees the memory when the thread ends */
static pthread_once_t dm_kept_once = PTHREAD_ONCE_INIT;

static void dm_free_kept(void* memory) {
    free(memory);
    dm_kept.memory = NULL;
    dm_kept.num_bytes = 0;
}

static void dm_make_kept_key(void) { pthread_key_create(&dm_kept_key, dm_free_kept); }

/* Returns memory of this thread, valid until the next call of dm_room; NULL: none. */
static void* dm_room(size_t num_bytes) {
    if (DM_LIKELY(num_bytes <= dm_kept.num_bytes)) return dm_kept.memory;
    pthread_once(&dm_kept_once, dm_make_kept_key);
    free(dm_kept.memory);
    dm_kept.memory = malloc(2 * num_bytes);
    dm_kept.num_bytes = dm_kept.memory ? 2 * num_bytes : 0;
    pthread_setspecific(dm_kept_key, dm_kept.memory);
    return dm_kept.memory;
}

static MPI_Status* dm_ask(dm_wait* wait, int count, const MPI_Request* requests, MPI_Status* statuses) {
    wait->asked = wait->few;
    wait->statuses = statuses == MPI_STATUSES_IGNORE || statuses == MPI_STATUS_IGNORE ? wait->few_statuses : statuses;
    if (count > DM_FEW) {
        const size_t bytes = (size_t)count * sizeof(MPI_Request);
        wait->asked = dm_room(bytes + sizeof(MPI_Status) * ((size_t)count + 1));
        if (!wait->asked) return statuses; /* the requests are then not recorded */
        const size_t aligned = (bytes + sizeof(MPI_Status) - 1) / sizeof(MPI_Status);
        if (wait->statuses == wait->few_statuses) wait->statuses = (MPI_Status*)wait->asked + aligned;
    }
    if (count > 0) memcpy(wait->asked, requests, (size_t)count * sizeof(MPI_Request));
    return wait->statuses;
}

static void dm_ask_all(const dm_wait* wait, int count) {
    for (int i = 0; wait->asked && i < count; ++i) dm_request(wait->asked[i], i);
}

/* Records that the request at `position` completed, with status number `nth`. */
static void dm_over(const dm_wait* wait, int position, int nth, int is_recorded) {
    if (!wait->asked || position < 0 || wait->asked[position] == MPI_REQUEST_NULL) return;
    if (!is_recorded) dm_request(wait->asked[position], position);
    dm_done(&wait->statuses[nth], position);
}
