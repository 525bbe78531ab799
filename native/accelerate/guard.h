/* The guard: replaces a bucket's calls only while the program as a whole gets on faster with them. Included once.

   WATCH: the library's calls are counted. Now and then the ranks agree whether a trial fits into the budget: all of
   learning may cost DX_BUDGET of the time since MPI_Init. CHECK: one call is made both ways, and the bytes compared.
   TASTE: a few calls in a row are ours. Each step begins only if what it may lose, by what the step before it has
   shown, fits into the budget: a way that is far slower is left after few calls. TRIAL: blocks of calls alternate
   between the ways; a bucket that does not win may try again when its calls have doubled, with longer blocks. RUN:
   ours, but for about one block in DX_AGAIN that is the library's; if these show that ours has become slower, the
   library's are used, until a new trial when the calls have doubled.

   A block is timed from one exit of the last rank to another, so that it contains all that the program does between its
   calls. The time of a call alone does not decide: what one call saves may come out as waiting in the next one, in
   messages that nobody drives, or in caches. Before each timed block some calls go the same way untimed, since the
   first calls after a change are slower, the library's above all. One bucket of a communicator is tried at a time. */

#include "budget.h"

static inline void dx_restart(dx_bucket* bucket, dx_state state) {
    bucket->state = state, bucket->num_stamps = 0, bucket->left = 0;
}

/* ---- what blocks show ---- */

static int dx_compare(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double dx_middle(double* values, int count) {
    qsort(values, (size_t)count, sizeof *values, dx_compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Returns whether pair `i` begins with our block: two pairs in a row have both orders, which first is by chance. */
static inline int dx_begins_ours(const dx_bucket* bucket, int i) {
    const uint64_t chance = (bucket->salt + (uint64_t)(i / 2)) * 0x9E3779B97F4A7C15u;
    return (int)(chance >> 63) ^ (i & 1);
}

/* Returns the time of pair `i`'s block of one way. */
static inline double dx_lasted(const dx_bucket* bucket, int is_ours, int i) {
    const int which = bucket->is_kept ? is_ours : is_ours ^ dx_begins_ours(bucket, i);
    const double took = (double)(bucket->stamp[i][2 * which + 1] - bucket->stamp[i][2 * which]);
    return took > 1 ? took : 1;
}

/* The ranks agree on the last rank's exits. */
static int dx_agree_stamps(dx_comm* on, dx_bucket* bucket) {
    const uint64_t begun = da_clock();
    const int code = dx_agree(on->group.comm, &bucket->stamp[0][0], DX_STAMPS * DX_PAIRS);
    dx.spent += da_clock() - begun;
    return code;
}

/* Computes what `pairs` pairs show, of one call; returns in how many of them ours was faster. */
static int dx_judge(dx_bucket* bucket, int pairs) {
    double ratio[DX_PAIRS], was[DX_PAIRS], now[DX_PAIRS];
    int wins = 0;
    for (int i = 0; i < pairs; ++i) {
        was[i] = dx_lasted(bucket, 0, i) / bucket->block, now[i] = dx_lasted(bucket, 1, i) / bucket->block;
        ratio[i] = now[i] / was[i];
        wins += ratio[i] < 1;
    }
    bucket->was = dx_middle(was, pairs), bucket->now = dx_middle(now, pairs);
    bucket->ratio = dx_middle(ratio, pairs);
    bucket->low = ratio[pairs / 4], bucket->high = ratio[pairs - 1 - pairs / 4];
    return wins;
}

/* ---- blocks ---- */

static inline void dx_stamp(dx_bucket* bucket) {
    const int at = bucket->num_stamps++;
    bucket->stamp[at / DX_STAMPS][at % DX_STAMPS] = (int64_t)da_clock();
}

/* Begins `length` calls of one way. */
static inline void dx_begin_block(dx_bucket* bucket, int is_ours, uint64_t length) {
    bucket->is_ours = is_ours, bucket->left = length;
}

/* Begins the untimed calls before a timed block. */
static inline void dx_lead_in(dx_bucket* bucket, int is_ours) {
    dx_begin_block(bucket, is_ours, 1 + bucket->block / 4);
}

static void dx_begin_trial(dx_comm* on, dx_bucket* bucket) {
    dx_restart(bucket, DX_TRIAL);
    memset(bucket->stamp, 0, sizeof bucket->stamp);
    bucket->salt = bucket->calls, bucket->is_kept = 0;
    on->tried = bucket;
    dx_lead_in(bucket, dx_begins_ours(bucket, 0));
}

/* A few calls of ours in a row, before a trial. */
static void dx_begin_taste(dx_comm* on, dx_bucket* bucket) {
    dx_restart(bucket, DX_TASTE);
    on->tried = bucket;
    dx_begin_block(bucket, 1, DX_WARMED);
}

/* These calls have been made: a trial begins if what it may lose fits into the budget. */
static void dx_end_taste(dx_comm* on, dx_bucket* bucket) {
    double left_ns, ns;
    dx_left_ns(&ns);
    const double took = (double)((int64_t)da_clock() - bucket->stamp[0][0]);
    int64_t values[2] = {(int64_t)(took * ns / DX_TASTED - bucket->each_ns)};
    const int is_known = dx_agree_left(on, values, 1, &left_ns);
    bucket->lost_ns = values[0] > 0 ? (double)values[0] : 0, bucket->is_tasted = 1;
    if (bucket->lost_ns > 0) dx.spent += (uint64_t)(bucket->lost_ns / ns * (DX_WARMED + DX_TASTED));
    if (is_known && bucket->lost_ns * dx_early_calls(bucket) <= left_ns) {
        dx_begin_trial(on, bucket);
        return;
    }
    on->tried = NULL;
    dx_restart(bucket, DX_WATCH);
    bucket->next = 2 * bucket->calls;
}

/* Ours, for about as many blocks that the library's are 1 in DX_AGAIN; how many is by chance, so that two buckets do
   not turn to the library at the same time again and again. */
static void dx_begin_run(dx_bucket* bucket) {
    const uint64_t chance = (bucket->calls * 0x9E3779B97F4A7C15u) >> 58;
    bucket->is_after_run = 0;
    dx_begin_block(bucket, 1, (DX_AGAIN / 2 + chance) * bucket->block);
}

static void dx_run(dx_bucket* bucket) {
    dx_restart(bucket, DX_RUN);
    memset(bucket->stamp, 0, sizeof bucket->stamp);
    bucket->is_kept = 1;
    dx_begin_run(bucket);
}

/* After a trial that was not won: longer blocks show smaller differences. */
static void dx_lose(dx_bucket* bucket) {
    dx_restart(bucket, DX_SLOWER);
    if (bucket->block < DX_MOST_BLOCK) bucket->block *= 2;
    bucket->next = 2 * bucket->calls;
}

/* Charges calls of ours that were slower. */
static void dx_charge(const dx_bucket* bucket, double calls) {
    const double lost = (bucket->now - bucket->was) * calls;
    if (lost > 0) dx.spent += (uint64_t)lost;
}

static void dx_end_trial(dx_comm* on, dx_bucket* bucket) {
    const int is_known = !dx_agree_stamps(on, bucket);
    const int wins = dx_judge(bucket, DX_PAIRS);
    dx_charge(bucket, dx_early_calls(bucket) + dx_other_calls(bucket));
    on->tried = NULL;
    if (is_known && wins >= DX_WINS && bucket->ratio < dx_gain)
        dx_run(bucket);
    else
        dx_lose(bucket);
}

/* Returns whether each of the last `count` of `pairs` pairs shows that ours takes more than `far` of the library's
 * time. */
static int dx_is_far_slower(dx_comm* on, dx_bucket* bucket, int pairs, int count, double far) {
    int is_slow = !dx_agree_stamps(on, bucket);
    dx_judge(bucket, pairs);
    for (int i = pairs - count; i < pairs; ++i)
        is_slow = is_slow && dx_lasted(bucket, 1, i) > far * dx_lasted(bucket, 0, i);
    return is_slow;
}

/* Returns whether the first pairs show that ours is far slower, or that a trial loses more than the budget has left. */
static int dx_is_too_slow(dx_comm* on, dx_bucket* bucket) {
    int64_t values[2];
    double left_ns, ns;
    const int is_slow = dx_is_far_slower(on, bucket, DX_EARLY, DX_EARLY, dx_far);
    if (is_slow || bucket->now <= bucket->was) return is_slow;
    dx_left_ns(&ns);
    values[0] = (int64_t)((bucket->now - bucket->was) * ns * (dx_early_calls(bucket) + dx_other_calls(bucket)));
    return !dx_agree_left(on, values, 1, &left_ns) || (double)values[0] > left_ns;
}

/* A pair is complete. */
static void dx_go_on_trying(dx_comm* on, dx_bucket* bucket, int pairs) {
    if (pairs == DX_PAIRS) {
        dx_end_trial(on, bucket);
    } else if (pairs == DX_EARLY && dx_is_too_slow(on, bucket)) {
        dx_charge(bucket, dx_early_calls(bucket));
        on->tried = NULL;
        dx_lose(bucket);
    } else {
        dx_lead_in(bucket, dx_begins_ours(bucket, pairs));
    }
}

/* A pair is complete. */
static void dx_go_on_running(dx_comm* on, dx_bucket* bucket, int pairs) {
    const int is_done = pairs == DX_PAIRS;
    int is_slower = 0;
    if (pairs == DX_EARLY) {
        is_slower = dx_is_far_slower(on, bucket, pairs, DX_EARLY, dx_far);
    } else if (!is_done && pairs != DX_PAIRS / 2) {
        is_slower = pairs % DX_LATELY == 0 && dx_is_far_slower(on, bucket, pairs, DX_LATELY, dx_lately);
    } else {
        const int is_known = !dx_agree_stamps(on, bucket);
        const int wins = dx_judge(bucket, pairs);
        is_slower = is_done ? !is_known || 2 * wins < pairs || bucket->ratio >= 1 : is_known && !wins;
    }
    if (is_slower) {
        dx_charge(bucket, (double)(bucket->block * DX_AGAIN) * pairs);
        dx_restart(bucket, DX_LATER), bucket->next = 2 * bucket->calls;
    } else if (is_done)
        dx_run(bucket);
    else
        dx_begin_run(bucket);
}

/* The calls of a block, of a lead-in, or of a long run of ours have been made. */
__attribute__((noinline)) static void dx_end_block(dx_comm* on, dx_bucket* bucket) {
    if (bucket->state == DX_TASTE && bucket->num_stamps) {
        dx_end_taste(on, bucket);
        return;
    }
    if (bucket->state == DX_TASTE) {
        dx_stamp(bucket), dx_begin_block(bucket, 1, DX_TASTED);
        return;
    }
    const int is_trial = bucket->state == DX_TRIAL, is_long = !is_trial && !bucket->is_after_run;
    bucket->is_after_run = 1;
    if (is_long) { /* what comes next is the library's half of a pair */
        dx_lead_in(bucket, 0);
        return;
    }
    dx_stamp(bucket);
    const int at = bucket->num_stamps % DX_STAMPS, pairs = bucket->num_stamps / DX_STAMPS;
    if (at % 2) /* after a lead-in */
        dx_begin_block(bucket, bucket->is_ours, bucket->block);
    else if (at)
        dx_lead_in(bucket, !bucket->is_ours);
    else if (is_trial)
        dx_go_on_trying(on, bucket, pairs);
    else
        dx_go_on_running(on, bucket, pairs);
}

/* ---- before a trial ---- */

/* Sets the length of blocks; `each_ns`: from one call to the next, `lasted_ns`: of that in the call. */
static void dx_choose_block(dx_bucket* bucket, double each_ns, double lasted_ns) {
    uint64_t block = 2 * lasted_ns > each_ns ? DX_FEW_CALLS : DX_SOME_CALLS;
    while ((double)block * each_ns < (double)dx_block_ns && block < DX_MOST_BLOCK) block *= 2;
    if (bucket->block < block) bucket->block = block;
}

/* Returns whether another bucket of the communicator is being tried. One that was not called while this one made
   DX_BUSY calls is tried no longer. */
static int dx_is_busy(dx_comm* on, dx_bucket* bucket) {
    dx_bucket* other = on->tried;
    if (!other) return 0;
    if (bucket->seen == other->calls) {
        dx_restart(other, DX_WATCH);
        other->next = 2 * other->calls;
        on->tried = NULL;
        return 0;
    }
    bucket->seen = other->calls;
    bucket->next = bucket->calls + DX_BUSY;
    return 1;
}

/* The ranks agree whether there is time for a trial; `lasted`: of the library's call just made. */
__attribute__((noinline)) static void dx_consult(dx_comm* on, dx_bucket* bucket, uint64_t lasted) {
    if (!on->is_shared && !dx_all_joined(on->group.comm, on->group.size)) {
        on->is_left_alone = 1;
        return;
    }
    if (!bucket->is_known && dx_is_busy(on, bucket)) return;
    const uint64_t begun = da_clock();
    double ns;
    const double fixed_ns = (double)(dx_agree_ns + (on->is_shared ? 0 : dx_share_ns));
    const double left_ns = dx_left_ns(&ns) - fixed_ns;
    const double each_ns = (double)(begun - bucket->begun) * ns / (double)(bucket->calls - bucket->counted + 1);
    int64_t values[3] = {-(int64_t)left_ns, (int64_t)((double)lasted * ns), (int64_t)each_ns};
    const int code = dx_agree(on->group.comm, values, 3);
    if (!code) dx_choose_block(bucket, (double)values[2], (double)values[1]);
    const double cost_ns = dx_cost_ns(bucket, (double)values[1]);
    const int may_begin = !code && (bucket->is_known || (double)-values[0] > cost_ns);
    bucket->begun = begun, bucket->counted = bucket->calls, bucket->each_ns = (double)values[2];
    bucket->next = bucket->calls + dx_pause(bucket->calls, cost_ns + (double)values[0], (double)values[2]);
    if (may_begin && !on->is_shared && !dx_share(on)) bucket->state = DX_NO_MEMORY, on->is_left_alone = 1;
    dx.spent += da_clock() - begun;
    if (may_begin && on->is_shared && !on->is_left_alone) dx_restart(bucket, DX_CHECK), bucket->next = 0;
}

/* The ranks agree whether a check has failed, and whether a taste fits into the budget, which is returned; `lost`: what
   this rank's call took longer. */
static int dx_agree_check(dx_comm* on, dx_bucket* bucket, int64_t* failed, int64_t lost) {
    double left_ns, ns;
    dx_left_ns(&ns);
    int64_t values[3] = {*failed, (int64_t)((double)lost * ns)};
    if (!dx_agree_left(on, values, 2, &left_ns)) values[0] = 1;
    *failed = values[0];
    if (!bucket->is_tasted) bucket->lost_ns = values[1] > 0 ? (double)values[1] : 0;
    return bucket->lost_ns * (DX_WARMED + DX_TASTED) <= left_ns;
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
    const uint64_t entered = da_clock();
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
    dx.spent += da_clock() - begun - lasted;
    const int may_taste = dx_agree_check(on, bucket, &failed, (int64_t)(middle - entered) - (int64_t)lasted);
    if (failed == 2 && on->group.rank == 0)
        fprintf(stderr, DM_WHO ": a collective in shared memory gave other bytes than the library's: it is not used\n");
    free(ours);
    if (!is_reduced) free(theirs);
    if (failed)
        dx_restart(bucket, failed == 2 ? DX_DIFFERS : DX_NO_MEMORY);
    else if (on->group.num_doubtful != doubtful) /* the bytes say nothing: check again later */
        bucket->next = 2 * bucket->calls;
    else if (bucket->is_known)
        dx_run(bucket);
    else if (!may_taste)
        dx_restart(bucket, DX_WATCH), bucket->next = 2 * bucket->calls;
    else if (!dx_is_busy(on, bucket))
        dx_begin_taste(on, bucket);
    return code;
}

/* Without a guard, for tests: every call in shared memory, but for the first, after which all ranks have joined. */
__attribute__((noinline)) static int dx_forced(dx_comm* on, dx_bucket* bucket, const dx_call* call) {
    if (!on->is_shared) {
        const int code = dx_library(call);
        on->is_left_alone = !(dx_all_joined(on->group.comm, on->group.size) && dx_share(on));
        return code;
    }
    ++bucket->moved;
    bucket->state = DX_RUN;
    return dx_shared(on, call, NULL);
}

/* A call outside of blocks. */
__attribute__((noinline)) static int dx_outside(dx_comm* on, dx_bucket* bucket, const dx_call* call) {
    if (dx.is_forced) return dx_forced(on, bucket, call);
    if (bucket->state == DX_CHECK) return dx_checked(on, bucket, call);
    if (bucket->state == DX_DIFFERS || bucket->state == DX_NO_MEMORY) bucket->next = UINT64_MAX;
    if (bucket->calls < bucket->next) return dx_library(call);
    const uint64_t begun = da_clock();
    const int code = dx_library(call);
    if (bucket->next != UINT64_MAX) dx_consult(on, bucket, da_clock() - begun);
    return code;
}

static inline int dx_guarded(dx_comm* on, const dx_call* call) {
    const uint32_t key = 1u << 31 | (uint32_t)call->kind << 24 | (uint32_t)(call->class + 1) << 16 |
                         (uint32_t)(call->op + 1) << 8 | (uint32_t)(dc_log2(call->num_bytes) + 1);
    dx_bucket* bucket = dx_find_bucket(on->bucket, key, on->group.size);
    if (!bucket) return dx_library(call);
    ++bucket->calls;
    if (bucket->left) {
        const int code = bucket->is_ours ? dx_shared(on, call, NULL) : dx_library(call);
        bucket->moved += (uint64_t)bucket->is_ours;
        if (DM_LIKELY(--bucket->left)) return code;
        dx_end_block(on, bucket);
        return code;
    }
    return bucket->calls < bucket->next ? dx_library(call) : dx_outside(on, bucket, call);
}
