/* Replaces collectives by exchanges in shared memory: which calls, on which communicators. Included once.

   Every decision is made of facts that are equal on all ranks of the communicator: the kind, the operation, the bytes
   of the signature, the number of the call among those that qualify, and what the ranks have agreed on. Buffers and
   datatypes of gathers may differ between ranks, and decide nothing. */
#include <sched.h>

#include "exchange.h"

typedef enum { DX_ALLREDUCE, DX_ALLGATHER, DX_ALLTOALL, DX_BARRIER } dx_kind;
enum { DX_CHAINS = 64 };
static const int64_t dx_most_bytes = 1 << 24;

/* One call. in, out, incount, intype, outcount, outtype: as the program passes them. */
typedef struct {
    dx_kind kind;
    int class, op, incount, outcount;
    const void* in;
    void* out;
    MPI_Datatype intype, outtype;
    MPI_Op reduction;
    MPI_Comm comm;
    int64_t num_bytes; /* of a block */
} dx_call;

#include "buckets.h"

typedef struct dx_comm {
    struct dx_comm *next, *next_freed; /* a freed one keeps `next`: another thread may be at it */
    dx_group group;
    int is_left_alone, is_shared; /* is_shared: the group has its memory */
    void* scratch;                /* for data that are not contiguous */
    dx_bucket* tried;             /* the bucket whose trial is under way */
    dx_bucket bucket[DX_BUCKETS];
} dx_comm;

static struct {
    int is_on, reorders, is_forced, keyval;
    dx_comm* chain[DX_CHAINS];
    dx_comm* freed; /* communicators that the program has freed, for the report */
    uint64_t spent; /* ticks of learning: agreements, checks, and trials that were slower */
    uint64_t left_op, left_order, left_long, left_comm;
    MPI_Datatype int64;
} dx;

/* ---- communicators ---- */

static inline int dx_chain_of(MPI_Comm comm) { return (int)(DM_HANDLE(comm) * 0x9E3779B97F4A7C15u >> 58); }

static int dx_no_copy(MPI_Comm comm, int keyval, void* extra, void* value, void* copied, int* flag) {
    (void)comm, (void)keyval, (void)extra, (void)value, (void)copied;
    *flag = 0;
    return MPI_SUCCESS;
}

/* The program frees a communicator, whose handle may be used again. */
static int dx_forget(MPI_Comm comm, int keyval, void* value, void* extra) {
    (void)keyval, (void)extra;
    pthread_mutex_lock(&dm_lock);
    dx_comm** at = &dx.chain[dx_chain_of(comm)];
    while (*at && *at != value) at = &(*at)->next;
    dx_comm* found = *at;
    if (found) {
        *at = found->next;
        if (found->is_shared) munmap(found->group.place, sizeof(dx_place) * 2 * (size_t)found->group.size);
        free(found->scratch);
        found->is_shared = 0, found->scratch = NULL;
        found->next_freed = dx.freed, dx.freed = found;
    }
    pthread_mutex_unlock(&dm_lock);
    return MPI_SUCCESS;
}

/* Returns whether every rank of a communicator is one of this job's on this host, and counted. */
static int dx_all_joined(MPI_Comm comm, int size) {
    int theirs[DX_MOST_RANKS], world[DX_MOST_RANKS], all = 1;
    MPI_Group group, whole;
    for (int i = 0; i < size; ++i) theirs[i] = i;
    real_Comm_group(comm, &group);
    real_Comm_group(MPI_COMM_WORLD, &whole);
    real_Group_translate_ranks(group, size, theirs, whole, world);
    real_Group_free(&group), real_Group_free(&whole);
    for (int i = 0; i < size; ++i) all = all && da_has_joined(world[i]);
    return all;
}

__attribute__((noinline)) static dx_comm* dx_add_comm(MPI_Comm comm) {
    int joins_two = 0;
    dx_comm* made = calloc(1, sizeof *made);
    if (!made) { /* the other ranks would wait for this one */
        fprintf(stderr, DM_WHO ": no memory for a communicator's counts\n");
        abort();
    }
    made->group.comm = comm;
    real_Comm_test_inter(comm, &joins_two);
    real_Comm_size(comm, &made->group.size);
    real_Comm_rank(comm, &made->group.rank);
    made->is_left_alone = joins_two || made->group.size < 2 || made->group.size > DX_MOST_RANKS;
    pthread_mutex_lock(&dm_lock);
    made->next = dx.chain[dx_chain_of(comm)];
    __atomic_store_n(&dx.chain[dx_chain_of(comm)], made, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&dm_lock);
    real_Comm_set_attr(comm, dx.keyval, made);
    return made;
}

static inline dx_comm* dx_comm_of(MPI_Comm comm) {
    dx_comm* found = __atomic_load_n(&dx.chain[dx_chain_of(comm)], __ATOMIC_ACQUIRE);
    while (found && found->group.comm != comm) found = found->next;
    return DM_LIKELY(found) ? found : dx_add_comm(comm);
}

/* ---- the memory of a communicator's ranks ---- */

static void* dx_map(const char* path, int flags, size_t num_bytes) {
    const int file = open(path, flags | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) return NULL;
    void* found = flags && ftruncate(file, (off_t)num_bytes)
                      ? MAP_FAILED
                      : mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    close(file);
    return found == MAP_FAILED ? NULL : found;
}

/* Sets values to their maxima over the ranks; returns an error code of MPI. */
static int dx_agree(MPI_Comm comm, int64_t* values, int count) {
    return real_Allreduce(MPI_IN_PLACE, values, count, dx.int64, dx_ops[DX_MAX], comm);
}

/* Returns whether a communicator's ranks may use a core each: a launcher may have bound each of them to its own. */
static int dx_has_cores(const dx_group* group) {
    union {
        cpu_set_t cores;
        int64_t words[sizeof(cpu_set_t) / sizeof(int64_t)];
    } any;
    memset(&any, 0, sizeof any);
    if (sched_getaffinity(0, sizeof any.cores, &any.cores)) CPU_ZERO(&any.cores);
    const int count = sizeof any.words / sizeof *any.words;
    if (real_Allreduce(MPI_IN_PLACE, any.words, count, dx.int64, dx_ops[DX_BOR], group->comm)) return 0;
    return CPU_COUNT(&any.cores) >= group->size;
}

/* Gives a communicator's ranks memory in common. All of them call it in the same collective. */
static int dx_share(dx_comm* on) {
    static int64_t number;
    char path[64];
    dx_group* group = &on->group;
    const size_t num_bytes = sizeof(dx_place) * 2 * (size_t)group->size;
    int64_t name[2] = {group->rank ? 0 : getpid(), group->rank ? 0 : __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED)};
    if (dx_agree(group->comm, name, 2)) return 0;
    snprintf(path, sizeof path, "/dev/shm/dovetail-%lld-%lld", (long long)name[0], (long long)name[1]);
    void* place = group->rank ? NULL : dx_map(path, O_CREAT | O_EXCL, num_bytes);
    int64_t failed = !group->rank && !place;
    if (dx_agree(group->comm, &failed, 1) || failed) return 0;
    if (group->rank) place = dx_map(path, 0, num_bytes);
    on->scratch = malloc((size_t)group->size * DX_PIECE);
    void* cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD); /* buffers may be in a device's memory */
    failed = !place || !on->scratch || cuda;
    if (cuda) dlclose(cuda);
    const int code = dx_agree(group->comm, &failed, 1);
    if (!group->rank) unlink(path);
    group->polls = dx_has_cores(group) ? DX_POLLS : DX_POLLS_SHARED;
    group->place = place;
    on->is_shared = place != NULL;
    return !code && !failed;
}

/* ---- the library's call and ours ---- */

static int dx_library(const dx_call* call) {
    switch (call->kind) {
        case DX_ALLREDUCE:
            return real_Allreduce(call->in, call->out, call->outcount, call->outtype, call->reduction, call->comm);
        case DX_ALLGATHER:
            return real_Allgather(call->in, call->incount, call->intype, call->out, call->outcount, call->outtype,
                                  call->comm);
        case DX_ALLTOALL:
            return real_Alltoall(call->in, call->incount, call->intype, call->out, call->outcount, call->outtype,
                                 call->comm);
        default:
            return real_Barrier(call->comm);
    }
}

/* Returns the data that this rank sends, contiguous; they may be packed to `scratch`. */
static const void* dx_sent(const dx_comm* on, const dx_call* call, void* scratch) {
    const int is_here = call->in == MPI_IN_PLACE, is_all = call->kind == DX_ALLTOALL;
    const MPI_Datatype type = is_here ? call->outtype : call->intype;
    const int count = (is_here ? call->outcount : call->incount) * (is_all ? on->group.size : 1);
    const char* from = is_here ? call->out : call->in;
    const int skipped = is_here && !is_all ? on->group.rank * call->outcount : 0;
    if (dx_class_of(type) >= 0) return from + skipped * (int64_t)dx_sizes[dx_class_of(type)];
    MPI_Aint lowest, extent = 0;
    int position = 0;
    real_Type_get_extent(type, &lowest, &extent);
    real_Pack(from + skipped * extent, count, type, scratch, on->group.size * DX_PIECE, &position, call->comm);
    return scratch;
}

/* Performs a call in shared memory; the result is stored as the program wants it, or at `apart` if that is given. */
static int dx_shared(dx_comm* on, const dx_call* call, void* apart) {
    dx_group* group = &on->group;
    if (call->kind == DX_BARRIER) return dx_all_enter(group), MPI_SUCCESS;
    if (call->kind == DX_ALLREDUCE)
        return dx_all_reduce(group, (dx_class)call->class, (dx_op)call->op,
                             call->in == MPI_IN_PLACE ? call->out : call->in, apart ? apart : call->out, call->outcount,
                             call->outtype, apart ? MPI_OP_NULL : call->reduction);
    const void* in = dx_sent(on, call, on->scratch);
    const int is_plain = apart || dx_class_of(call->outtype) >= 0;
    void* out = apart ? apart : is_plain ? call->out : on->scratch;
    if (call->kind == DX_ALLGATHER)
        dx_all_gather(group, in, out, call->num_bytes);
    else
        dx_all_to_all(group, in, out, call->num_bytes);
    int position = 0;
    return is_plain ? MPI_SUCCESS
                    : real_Unpack(out, (int)(group->size * call->num_bytes), &position, call->out,
                                  group->size * call->outcount, call->outtype, call->comm);
}

#include "guard.h"

/* ---- entries: one for each replaced call ---- */

static inline int dx_replaced(const dx_call* call) {
    dx_comm* on = dx_comm_of(call->comm);
    if (on->is_left_alone) {
        ++dx.left_comm;
        return dx_library(call);
    }
    if (on->group.size > 2 && call->kind == DX_ALLREDUCE && !dx.reorders &&
        dx_rounds((dx_class)call->class, (dx_op)call->op)) {
        ++dx.left_order;
        return dx_library(call);
    }
    return dx_guarded(on, call);
}

static inline int dx_Barrier(MPI_Comm comm) {
    if (DM_LIKELY(!dx.is_on) || comm == MPI_COMM_NULL) return real_Barrier(comm);
    const dx_call call = {.kind = DX_BARRIER, .comm = comm, .class = -1, .op = -1};
    return dx_replaced(&call);
}

/* The reduction that this thread has called last. */
typedef struct {
    MPI_Datatype type;
    MPI_Op op;
    int is_set, class, number, is_known;
} dx_reduction;
static __thread dx_reduction dx_last __attribute__((tls_model("initial-exec")));

__attribute__((noinline)) static void dx_recognize(dx_reduction* made, MPI_Datatype type, MPI_Op op) {
    made->class = dx_class_of(type), made->number = dx_op_of(op);
    made->is_known = made->class >= 0 && made->number >= 0 && dx_functions[made->class][made->number];
    made->type = type, made->op = op, made->is_set = 1;
}

static inline int dx_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    if (DM_LIKELY(!dx.is_on) || count <= 0 || comm == MPI_COMM_NULL)
        return real_Allreduce(in, out, count, type, op, comm);
    dx_reduction* last = &dx_last;
    if (last->type != type || last->op != op || !last->is_set) dx_recognize(last, type, op);
    const int class = last->class, number = last->number, is_known = last->is_known;
    const int64_t num_bytes = is_known ? count * (int64_t)dx_sizes[class] : 0;
    const int is_ordered = class >= DX_F32 && (number == DX_MAX || number == DX_MIN);
    if (!is_known || num_bytes > (is_ordered ? DX_PIECE : dx_most_bytes)) {
        ++*(is_known ? &dx.left_long : &dx.left_op);
        return real_Allreduce(in, out, count, type, op, comm);
    }
    const dx_call call = {DX_ALLREDUCE, class, number, count, count, in, out, type, type, op, comm, num_bytes};
    return dx_replaced(&call);
}

static inline int dx_blocks(const dx_call* call) {
    const int blocks = call->comm == MPI_COMM_NULL ? 0 : call->kind == DX_ALLTOALL ? dc_size_of(call->comm) : 1;
    if (call->num_bytes <= 0 || !blocks) return dx_library(call);
    if (blocks * call->num_bytes > DX_PIECE) {
        ++dx.left_long;
        return dx_library(call);
    }
    return dx_replaced(call);
}

#define DX_GATHERS \
    const void *in, int incount, MPI_Datatype intype, void *out, int outcount, MPI_Datatype outtype, MPI_Comm comm
#define DX_BLOCKS(kind) \
    {kind, -1, -1, incount, outcount, in, out, intype, outtype, MPI_OP_NULL, comm, dm_bytes(outcount, outtype)}

static inline int dx_Allgather(DX_GATHERS) {
    if (DM_LIKELY(!dx.is_on)) return real_Allgather(in, incount, intype, out, outcount, outtype, comm);
    const dx_call call = DX_BLOCKS(DX_ALLGATHER);
    return dx_blocks(&call);
}

static inline int dx_Alltoall(DX_GATHERS) {
    if (DM_LIKELY(!dx.is_on)) return real_Alltoall(in, incount, intype, out, outcount, outtype, comm);
    const dx_call call = DX_BLOCKS(DX_ALLTOALL);
    return dx_blocks(&call);
}

/* Called after MPI_Init: returns whether calls of this process may be replaced. */
static int dx_begin(void) {
    const char* asked = getenv("DOVETAIL_ACCELERATE_REPLACE");
    if (!asked || !*asked || *asked == '0') return 0;
    dx_learn_types(), dx_learn_ops();
    dx.int64 = DX_CONSTANT(MPI_Datatype, MPI_INT64_T, "int64_t");
    dx.reorders = strcmp(asked, "reorder") == 0, dx.is_forced = strcmp(asked, "always") == 0;
    if (dx.is_forced) dx_first = 0;
    dx_read_known(getenv("DOVETAIL_ACCELERATE_START"));
    dx.is_on = real_Comm_create_keyval(dx_no_copy, dx_forget, &dx.keyval, NULL) == MPI_SUCCESS;
    return dx.is_on;
}
