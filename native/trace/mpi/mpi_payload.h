/* A checksum of a sample of what a rank gives to a collective, or sends, by which a reader sees that it gives the same
   again and again. Included once, by mpi_frame.h. */

enum { DM_LEAST_GIVEN = 4096, DM_LEAST_SENT = 16384, DM_SAMPLES = 128, DM_LANES = 4 };
enum { DM_CHECKSUM_BITS = 24, DM_SENT_SHIFT = 40, DM_SENT_MOST = 127 }; /* of a message, 7 bits above its bytes */

static int dm_finds_gpu(struct dl_phdr_info* object, size_t size, void* found) {
    static const char* const drivers[] = {"libcuda.so", "libamdhip64.so", "libze_loader.so"};
    (void)size;
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; ++i)
        if (strstr(object->dlpi_name, drivers[i])) *(int*)found = 1;
    return *(int*)found;
}

static int dm_counts_loads(struct dl_phdr_info* object, size_t size, void* loads) {
    (void)size;
    *(unsigned long long*)loads = object->dlpi_adds;
    return 1;
}

/* Returns whether the process has a GPU's driver: buffers may then lie in memory that the CPU cannot read. */
static int dm_may_use_gpu(void) {
    static unsigned long long checked;
    static int found;
    unsigned long long loads = 0;
    dl_iterate_phdr(dm_counts_loads, &loads);
    if (loads != __atomic_load_n(&checked, __ATOMIC_ACQUIRE)) {
        dl_iterate_phdr(dm_finds_gpu, &found);
        __atomic_store_n(&checked, loads, __ATOMIC_RELEASE);
    }
    return found;
}

static inline uint64_t dm_mixed(uint64_t word) {
    word *= 0x9E3779B97F4A7C15u;
    return word ^ word >> 32;
}

/* Returns the checksum of DM_SAMPLES words of 8 bytes, at equal distances, of `count` elements; 0: unknown, or all
   words are equal, as in memory that is not yet filled. Only data of the library's own datatypes are read: others may
   have holes, or lie elsewhere. */
static uint64_t dm_checksum(const void* from, int64_t count, MPI_Datatype datatype, int64_t least) {
    const int64_t size = dm_bytes(count, datatype);
    if (size < least || !from || !dm_is_named(datatype) || dm_may_use_gpu()) return 0;
    const int64_t step = (size - 8) / (DM_SAMPLES - 1);
    uint64_t sums[DM_LANES] = {1, 2, 3, 4}, sum = 0; /* lanes without dependences between them */
    uint64_t first, differs = 0;
    memcpy(&first, from, sizeof first);
    for (int i = 0; i < DM_SAMPLES; ++i) {
        uint64_t word;
        memcpy(&word, (const char*)from + i * step, sizeof word);
        differs |= word ^ first;
        sums[i % DM_LANES] = dm_mixed(sums[i % DM_LANES] ^ word);
    }
    if (!differs) return 0;
    for (int i = 0; i < DM_LANES; ++i) sum = dm_mixed(sum ^ sums[i]);
    sum >>= 64 - DM_CHECKSUM_BITS;
    return sum ? sum : 1;
}

static __thread uint64_t dm_sampled __attribute__((tls_model("initial-exec"))); /* of the next collective, or send */

static inline void dm_sample(const void* from, int64_t count, MPI_Datatype datatype) {
    dm_sampled = dm_checksum(from, count, datatype, DM_LEAST_GIVEN);
}

/* Returns the bytes of a message, with the checksum in the bits above: see DVT_SEND. */
static inline int64_t dm_sent_with_checksum(int64_t num_bytes) {
    const int64_t most = (INT64_C(1) << DM_SENT_SHIFT) - 1;
    const int64_t checksum = dm_sampled ? (int64_t)(dm_sampled % DM_SENT_MOST) + 1 : 0;
    dm_sampled = 0;
    return (num_bytes < most ? num_bytes : most) | checksum << DM_SENT_SHIFT;
}

/* Returns the bytes received, with the checksum in the bits above: see DVT_COLLECTIVE. */
static inline uint64_t dm_with_checksum(int64_t received) {
    const uint64_t most = (UINT64_C(1) << (64 - DM_CHECKSUM_BITS)) - 1;
    const uint64_t word = ((uint64_t)received < most ? (uint64_t)received : most) | dm_sampled
                                                                                        << (64 - DM_CHECKSUM_BITS);
    dm_sampled = 0;
    return word;
}
