/* In each step another rank has more work, as long as all together. Repaired: each step's work is shared. */
#include "steps.h"

static void step(int i) {
#ifdef REPAIRED
    (void)i;
    work(3);
#else
    work(i % ranks == rank ? 4 : 2);
#endif
    sum_of_all();
}
