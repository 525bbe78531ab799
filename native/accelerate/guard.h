/* The guard: replaces a bucket's calls only while measurements say that it is faster. Included once.

   WATCH: the library's calls are counted. Now and then the ranks agree whether a trial fits into the budget: all of
   learning may cost DX_BUDGET of the time since MPI_Init. CHECK: one call is made both ways, and the bytes compared.
   TRIAL: the ways alternate by call; a bucket that loses may try again when its calls have doubled. RUN: ours, but for
   one call in DX_AGAIN that is the library's; if these show that ours has become slower, the library's are used for the
   rest of the run. A call lasts from the entry of the last rank to the exit of the last rank. */

enum { DX_FIRST = 16, DX_AGAIN = 64, DX_EARLY = 2, DX_WINS = 13 };
static const double dx_budget = 0.005, dx_gain = 0.95; /* the least gain: ours takes 0.95 of the library's time */
static const int64_t dx_share_ns = 500000, dx_agree_ns = 20000, dx_trial_calls = 24;

static inline dx_bucket* dx_bucket_of(dx_comm* on, const dx_call* call) {
    const uint32_t key = 1u << 31 | (uint32_t)call->kind << 24 | (uint32_t)(call->class + 1) << 16 |
                         (uint32_t)(call->op + 1) << 8 | (uint32_t)(dc_log2(call->num_bytes) + 1);
    int at = (int)(key * 0x9E3779B1u >> 26);
    for (int i = 0; i < DX_BUCKETS; ++i, at = (at + 1) % DX_BUCKETS) {
        if (DM_LIKELY(on->bucket[at].key == key)) return &on->bucket[at];
        if (!on->bucket[at].key) return on->bucket[at].key = key, &on->bucket[at];
    }
    return NULL;
}

/* Returns the time of pair `i`'s call of one way. */
static inline double dx_lasted(const dx_bucket* bucket, int is_ours, int i) {
    const double took = (double)(bucket->stamp[is_ours][1][i] - bucket->stamp[is_ours][0][i]);
    return took > 1 ? took : 1;
}

static int dx_compare(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double dx_middle(double* values, int count) {
    qsort(values, (size_t)count, sizeof *values, dx_compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* The ranks agree on the entry and exit of the last rank of each call of the pairs so far. */
static int dx_agree_stamps(dx_comm* on, dx_bucket* bucket) {
    const uint64_t begun = da_clock();
    const int code = dx_agree(on->group.comm, &bucket->stamp[0][0][0], 4 * DX_PAIRS);
    dx.spent += da_clock() - begun;
    return code;
}

/* Computes what the pairs show; returns in how many of them ours was faster. */
static int dx_judge(dx_bucket* bucket) {
    double ratio[DX_PAIRS], was[DX_PAIRS], now[DX_PAIRS];
    int wins = 0;
    for (int i = 0; i < DX_PAIRS; ++i) {
        was[i] = dx_lasted(bucket, 0, i), now[i] = dx_lasted(bucket, 1, i);
        ratio[i] = now[i] / was[i];
        wins += ratio[i] < 1;
    }
    bucket->was = dx_middle(was, DX_PAIRS), bucket->now = dx_middle(now, DX_PAIRS);
    dx_middle(ratio, DX_PAIRS);
    bucket->low = ratio[DX_PAIRS / 4], bucket->high = ratio[DX_PAIRS - 1 - DX_PAIRS / 4];
    return wins;
}

static void dx_restart(dx_bucket* bucket, dx_state state) {
    bucket->state = state, bucket->num_stamps = 0;
    memset(bucket->stamp, 0, sizeof bucket->stamp);
}

/* The ranks agree whether there is time for a trial; `lasted`: of the library's call just made. */
__attribute__((noinline)) static void dx_consult(dx_comm* on, dx_bucket* bucket, uint64_t lasted) {
    if (!on->is_shared && !dx_all_joined(on->group.comm, on->group.size)) {
        on->is_left_alone = 1;
        return;
    }
    const uint64_t begun = da_clock();
    const double elapsed = (double)(begun - dc.begun);
    const double elapsed_ns = (double)(dvt_system_ns(CLOCK_MONOTONIC) - dc.begun_ns);
    const double fixed_ns = (double)(dx_agree_ns + (on->is_shared ? 0 : dx_share_ns));
    const double left = dx_budget * elapsed - (double)dx.spent - fixed_ns * elapsed / (elapsed_ns + 1);
    int64_t values[2] = {-(int64_t)left, -(int64_t)lasted};
    const int code = dx_agree(on->group.comm, values, 2);
    const int is_affordable = !code && -values[0] > dx_trial_calls * -values[1];
    if (is_affordable && !on->is_shared && !dx_share(on)) bucket->state = DX_NO_MEMORY, on->is_left_alone = 1;
    dx.spent += da_clock() - begun;
    if (is_affordable && on->is_shared && !on->is_left_alone) dx_restart(bucket, DX_CHECK);
}

/* Makes a call both ways; `own` bytes of result are compared. */
__attribute__((noinline)) static int dx_checked(dx_comm* on, dx_bucket* bucket, const dx_call* call) {
    const int is_reduced = call->kind == DX_ALLREDUCE;
    const int64_t own = call->kind == DX_BARRIER ? 0 : is_reduced ? call->num_bytes : call->num_bytes * on->group.size;
    const uint64_t begun = da_clock();
    char *ours = malloc((size_t)own + 1), *theirs = is_reduced ? call->out : malloc((size_t)own + 1);
    int64_t failed = !ours || !theirs;
    const int64_t doubtful = on->group.num_doubtful;
    if (dx_agree(on->group.comm, &failed, 1)) failed = 1;
    int code = failed ? MPI_SUCCESS : dx_shared(on, call, ours);
    const uint64_t middle = da_clock();
    if (!code) code = dx_library(call);
    const uint64_t lasted = da_clock() - middle;
    if (!failed && own && !code) {
        dx_call result = *call;
        result.in = call->out, result.incount = call->outcount * (call->kind == DX_ALLGATHER ? on->group.size : 1);
        result.intype = call->outtype;
        const void* packed = is_reduced ? call->out : dx_sent(on, &result, theirs);
        const int may_round = on->group.size > 2 && is_reduced && dx_rounds((dx_class)call->class, (dx_op)call->op);
        failed = !may_round && on->group.num_doubtful == doubtful && memcmp(ours, packed, (size_t)own) ? 2 : 0;
    }
    if (dx_agree(on->group.comm, &failed, 1)) failed = 1;
    if (failed == 2 && on->group.rank == 0)
        fprintf(stderr, DM_WHO ": a collective in shared memory gave other bytes than the library's: it is not used\n");
    free(ours);
    if (!is_reduced) free(theirs);
    dx.spent += da_clock() - begun - lasted;
    if (on->group.num_doubtful == doubtful)
        dx_restart(bucket, failed == 2 ? DX_DIFFERS : failed ? DX_NO_MEMORY : DX_TRIAL);
    return code;
}

/* Makes a timed call of a pair. Returns an error code of MPI. */
static int dx_timed(dx_comm* on, dx_bucket* bucket, const dx_call* call, int is_ours) {
    const int pair = bucket->num_stamps++ / 2;
    const int64_t begun = (int64_t)da_clock();
    const int code = is_ours ? dx_shared(on, call, NULL) : dx_library(call);
    bucket->stamp[is_ours][0][pair] = begun, bucket->stamp[is_ours][1][pair] = (int64_t)da_clock();
    bucket->moved += (uint64_t)is_ours;
    return code;
}

__attribute__((noinline)) static int dx_tried(dx_comm* on, dx_bucket* bucket, const dx_call* call) {
    const int i = bucket->num_stamps;
    const int code = dx_timed(on, bucket, call, (i & 1) ^ (i >> 1 & 1));
    if (bucket->num_stamps == 2 * DX_EARLY) { /* far slower: stop */
        int is_slow = !dx_agree_stamps(on, bucket);
        for (int k = 0; k < DX_EARLY; ++k) is_slow = is_slow && dx_lasted(bucket, 1, k) > 2 * dx_lasted(bucket, 0, k);
        bucket->was = dx_lasted(bucket, 0, 0), bucket->now = dx_lasted(bucket, 1, 0);
        if (is_slow) bucket->state = DX_SLOWER;
    }
    if (bucket->num_stamps < 2 * DX_PAIRS) return code;
    const int is_known = !dx_agree_stamps(on, bucket);
    const int wins = dx_judge(bucket);
    for (int k = 0; k < DX_PAIRS; ++k) {
        const double lost = dx_lasted(bucket, 1, k) - dx_lasted(bucket, 0, k);
        if (lost > 0) dx.spent += (uint64_t)lost;
    }
    const int is_faster = is_known && wins >= DX_WINS && bucket->now < dx_gain * bucket->was;
    dx_restart(bucket, is_faster ? DX_RUN : DX_SLOWER);
    return code;
}

/* The library's call in between, and the one of ours after it. */
__attribute__((noinline)) static int dx_again(dx_comm* on, dx_bucket* bucket, const dx_call* call, int is_ours) {
    if (bucket->num_stamps % 2 != is_ours) {
        bucket->moved += (uint64_t)is_ours;
        return is_ours ? dx_shared(on, call, NULL) : dx_library(call);
    }
    const int code = dx_timed(on, bucket, call, is_ours);
    if (bucket->num_stamps < 2 * DX_PAIRS) return code;
    const int is_known = !dx_agree_stamps(on, bucket);
    const int wins = dx_judge(bucket);
    dx_restart(bucket, is_known && 2 * wins >= DX_PAIRS && bucket->now < bucket->was ? DX_RUN : DX_LATER);
    return code;
}

/* Without a guard, for tests: every call in shared memory. */
__attribute__((noinline)) static int dx_forced(dx_comm* on, dx_bucket* bucket, const dx_call* call) {
    if (!on->is_shared && !(dx_all_joined(on->group.comm, on->group.size) && dx_share(on))) on->is_left_alone = 1;
    bucket->moved += !on->is_left_alone;
    bucket->state = DX_RUN;
    return !on->is_left_alone ? dx_shared(on, call, NULL) : dx_library(call);
}

static inline int dx_guarded(dx_comm* on, const dx_call* call) {
    dx_bucket* bucket = dx_bucket_of(on, call);
    if (!bucket) return dx_library(call);
    const uint64_t number = bucket->calls++;
    if (dx.is_forced) return dx_forced(on, bucket, call);
    if (DM_LIKELY(bucket->state == DX_RUN)) {
        const unsigned turn = number % DX_AGAIN;
        if (turn < 2) return dx_again(on, bucket, call, (int)turn);
        ++bucket->moved;
        return dx_shared(on, call, NULL);
    }
    if (bucket->state == DX_CHECK) return dx_checked(on, bucket, call);
    if (bucket->state == DX_TRIAL) return dx_tried(on, bucket, call);
    const int may_try = bucket->state == DX_WATCH || bucket->state == DX_SLOWER;
    const int is_consulted = may_try && number >= DX_FIRST && !(number & (number - 1));
    if (DM_LIKELY(!is_consulted)) return dx_library(call);
    const uint64_t begun = da_clock();
    const int code = dx_library(call);
    dx_consult(on, bucket, da_clock() - begun);
    return code;
}
