/* Which loaded object an address lies in, by the objects' segments. Included once, by gate.h.

   dladdr would also search the object for the nearest symbol: 20 to 50 us in a library of MPI, for each of hundreds of
   calls, in every process. */
#include <link.h>
#include <stdint.h>

typedef struct {
    uintptr_t low, high; /* addresses of its segments: low <= address < high; 0, 0: unknown */
} dg_range;

/* Two objects that most addresses lie in; set while no other thread asks. */
static struct {
    dg_range own, mpi;
} dg_objects;

typedef struct {
    uintptr_t address;
    dg_range found;
} dg_within;

static int dg_is_in(const dg_range* range, uintptr_t address) { return address >= range->low && address < range->high; }

static int dg_look_within(struct dl_phdr_info* object, size_t size, void* asked) {
    dg_within* search = asked;
    dg_range range = {UINTPTR_MAX, 0};
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
        const ElfW(Phdr)* part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD) continue;
        const uintptr_t low = object->dlpi_addr + part->p_vaddr;
        if (low < range.low) range.low = low;
        if (low + part->p_memsz > range.high) range.high = low + part->p_memsz;
    }
    if (!dg_is_in(&range, search->address)) return 0;
    search->found = range;
    return 1;
}

/* Returns the object that an address lies in. */
static dg_range dg_object_of(const void* address) {
    dg_within search = {(uintptr_t)address, {0, 0}};
    if (dg_is_in(&dg_objects.own, search.address)) return dg_objects.own;
    if (dg_is_in(&dg_objects.mpi, search.address)) return dg_objects.mpi;
    if (address) dl_iterate_phdr(dg_look_within, &search);
    return search.found;
}

/* Returns what tells the object that an address lies in from others; 0 if there is none. */
static uintptr_t dg_base_of(const void* address) { return dg_object_of(address).low; }

static int dg_is_own(const void* address) {
    if (!dg_objects.own.high) dg_objects.own = dg_object_of((void*)dg_is_own);
    return dg_is_in(&dg_objects.own, (uintptr_t)address);
}
