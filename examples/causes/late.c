/* One rank always has more work. Repaired: ranks have equal shares. */
#include "steps.h"

static void step(int i) {
    (void)i;
#ifdef REPAIRED
    work(3);
#else
    work(rank == 0 ? 4 : 2);
#endif
    sum_of_all();
}
