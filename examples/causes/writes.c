/* Rank 0 writes records of 16 bytes, one by one, while all wait. Repaired: it collects them, and writes them at once.
 */
#include <string.h>
#include <unistd.h>

#include "steps.h"

enum { RECORDS = 8000, BYTES = 16 };

static void write_records(void) {
    static FILE* file;
    static char all[RECORDS * BYTES];
    ssize_t done = 0;
    if (!file) file = tmpfile();
    lseek(fileno(file), 0, SEEK_SET);
#ifdef REPAIRED
    for (int i = 0; i < RECORDS; ++i) memset(all + i * BYTES, i, BYTES);
    done += write(fileno(file), all, sizeof all);
#else
    for (int i = 0; i < RECORDS; ++i) {
        memset(all, i, BYTES);
        done += write(fileno(file), all, BYTES);
    }
#endif
    if (done != sizeof all) MPI_Abort(MPI_COMM_WORLD, 1);
}

static void step(int i) {
    (void)i;
    work(2);
    if (rank == 0) write_records();
    sum_of_all();
}
