/* The chain of calls that leads to an MPI call. Included only by wrappers that are compiled with DM_CALLERS.

   A chain is a path of nodes: a call, and the node of the call that led there. Each node gets a number and, at its
   first use, a note; MPI calls are recorded with call site -number, beyond the numbers of Python lines.

   The unwinder takes about 0.2 us a frame, so a thread remembers, of the last chains, where on the stack their return
   addresses lie: if all are still there, the chain is the same. Only x86-64 has them at a known place. */
#include <unwind.h>

enum { DM_DEPTH = 16, DM_NODES = 16384, DM_RECENT = 64 };

static struct {
    int64_t call; /* a return address, or minus the number of a Python line; 0: free */
    int caller, number;
} dm_nodes[DM_NODES]; /* protected by dm_nodes_lock */
static int dm_num_nodes;
static pthread_mutex_t dm_nodes_lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the number of a node; `caller` if there are too many nodes. */
static int dm_node(int64_t call, int caller) {
    pthread_mutex_lock(&dm_nodes_lock);
    uint64_t at = ((uint64_t)call ^ (uint64_t)caller << 48) * 0x9E3779B97F4A7C15u >> 50;
    while (dm_nodes[at].call && (dm_nodes[at].call != call || dm_nodes[at].caller != caller)) at = (at + 1) % DM_NODES;
    if (!dm_nodes[at].call && dm_num_nodes < DM_NODES / 2) {
        char note[128];
        dm_nodes[at].call = call, dm_nodes[at].caller = caller, dm_nodes[at].number = DM_SLOTS + ++dm_num_nodes;
        snprintf(note, sizeof note, "{\"path\": %d, \"call\": %lld, \"caller\": %d}", dm_nodes[at].number,
                 (long long)call, caller);
        dovetail_trace_note(note);
    }
    const int number = dm_nodes[at].call ? dm_nodes[at].number : caller;
    pthread_mutex_unlock(&dm_nodes_lock);
    return number;
}

/* Returns the call site of a chain, the innermost call first. */
static int64_t dm_path(const int64_t* calls, int count) {
    int number = 0;
    while (count) number = dm_node(calls[--count], number);
    return -(int64_t)number;
}

typedef struct {
    int64_t site;             /* of the path; 0: free */
    int64_t call[DM_DEPTH];   /* return addresses, the program's call of MPI first */
    uintptr_t slot[DM_DEPTH]; /* where they lie */
    int depth;
} dm_chain;

static _Unwind_Reason_Code dm_take_frame(struct _Unwind_Context* frame, void* taken) {
    dm_chain* chain = taken;
    const int64_t at = (int64_t)_Unwind_GetIP(frame);
    if (!at || chain->depth == DM_DEPTH) return _URC_END_OF_STACK;
    if (!chain->depth && at != chain->call[0]) return _URC_NO_REASON; /* still in a wrapper or the library */
    chain->slot[chain->depth] = (uintptr_t)_Unwind_GetCFA(frame) - sizeof(void*);
    chain->call[chain->depth++] = at;
    return _URC_NO_REASON;
}

#ifdef __x86_64__
static pthread_key_t dm_chains_key;
static pthread_once_t dm_chains_once = PTHREAD_ONCE_INIT;
static __thread dm_chain* dm_chains __attribute__((tls_model("initial-exec")));

static void dm_make_chains_key(void) { pthread_key_create(&dm_chains_key, free); }

static int dm_is_same(const dm_chain* it, int64_t call, uintptr_t above) {
    if (!it->site || it->call[0] != call) return 0;
    for (int i = 0; i < it->depth; ++i)
        if (it->slot[i] < above || *(const int64_t*)it->slot[i] != it->call[i]) return 0;
    return 1;
}

/* Returns the place of a chain that this thread has seen last at this depth of the stack; NULL: no memory. */
static dm_chain* dm_recent(int64_t call, uintptr_t above) {
    if (!dm_chains) {
        pthread_once(&dm_chains_once, dm_make_chains_key);
        dm_chains = calloc(DM_RECENT, sizeof *dm_chains);
        pthread_setspecific(dm_chains_key, dm_chains);
    }
    return dm_chains ? &dm_chains[((uint64_t)call ^ above << 20) * 0x9E3779B97F4A7C15u >> 58] : NULL;
}
#else
static int dm_is_same(const dm_chain* it, int64_t call, uintptr_t above) {
    return (void)it, (void)call, (void)above, 0;
}
static dm_chain* dm_recent(int64_t call, uintptr_t above) { return (void)call, (void)above, NULL; }
#endif

/* Returns the call site of the chain that leads to `call`, an address; `call` if the stack cannot be unwound.
   `above`: an address on the stack below which no frame of the chain lies. */
__attribute__((noinline)) static int64_t dm_chain_of(int64_t call, uintptr_t above) {
    dm_chain *known = dm_recent(call, above), new;
    if (known && dm_is_same(known, call, above)) return known->site;
    dm_chain* chain = known ? known : &new;
    chain->call[0] = call, chain->depth = 0;
    _Unwind_Backtrace(dm_take_frame, chain);
    chain->site = chain->depth ? dm_path(chain->call, chain->depth) : 0;
    return chain->site ? chain->site : call;
}
