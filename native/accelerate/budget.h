/* What learning may cost: a share of the time since MPI_Init, which no step is expected to exceed. Included once. */

enum { DX_AGAIN = 64, DX_EARLY = 2, DX_WINS = 13, DX_BUSY = 64, DX_MOST_BLOCK = 1 << 14 };
enum { DX_WARMED = 2, DX_TASTED = 4 };         /* calls of ours before, and in, what is timed first */
enum { DX_FEW_CALLS = 2, DX_SOME_CALLS = 24 }; /* least calls of a block: of those that fill the time, and of others */
enum { DX_LATELY = 4 };                        /* pairs in a row, all slower by dx_lately: ours has become slower */
static const double dx_budget = 0.005, dx_gain = 0.99; /* ratios of ours to the library's time */
static const double dx_far = 1.5, dx_lately = 1.1;
static const int64_t dx_share_ns = 500000, dx_agree_ns = 20000, dx_block_ns = 100000;
static const double dx_trial_calls =
    3.6; /* calls of a block that a trial may lose: two of DX_EARLY, a tenth of others */

/* Returns how much of the budget this rank has left; `ns`: receives the length of a tick. */
static double dx_left_ns(double* ns) {
    const double elapsed_ns = (double)(dvt_system_ns(CLOCK_MONOTONIC) - dc.begun_ns);
    *ns = elapsed_ns / ((double)(da_clock() - dc.begun) + 1);
    return dx_budget * elapsed_ns - (double)dx.spent * *ns;
}

/* Sets values to their maxima over the ranks, and `left_ns` to the least that a rank has left; returns whether they are
   known. */
static int dx_agree_left(dx_comm* on, int64_t* values, int count, double* left_ns) {
    const uint64_t begun = da_clock();
    double ns;
    values[count] = -(int64_t)dx_left_ns(&ns);
    const int is_known = !dx_agree(on->group.comm, values, count + 1);
    *left_ns = -(double)values[count];
    dx.spent += da_clock() - begun;
    return is_known;
}

/* Returns the calls of ours before the first pairs of a trial are judged, and in the pairs after these. */
static double dx_early_calls(const dx_bucket* bucket) { return DX_EARLY * (1.25 * (double)bucket->block + 1); }
static double dx_other_calls(const dx_bucket* bucket) {
    return dx_early_calls(bucket) * (DX_PAIRS - DX_EARLY) / DX_EARLY;
}

/* Returns what a trial loses, at most, before it is given up; `library_ns`: of a call. */
static double dx_cost_ns(const dx_bucket* bucket, double library_ns) {
    const double usual = dx_trial_calls * (double)bucket->block * library_ns;
    const double calls = 1 + DX_WARMED + DX_TASTED + (bucket->is_tasted ? dx_early_calls(bucket) : 0);
    const double known = bucket->lost_ns * calls;
    return known > usual ? known : usual;
}

/* Returns the number of calls until the ranks agree again, when `lacking_ns` of the budget have probably been added. */
static uint64_t dx_pause(uint64_t calls, double lacking_ns, double each_ns) {
    const double wait = lacking_ns / dx_budget / (each_ns + 1);
    return wait<(double)calls / 8 ? calls / 8 + 1 : wait>(double)(3 * calls) ? 3 * calls : (uint64_t)wait;
}
