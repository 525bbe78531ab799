/* Descriptors that the recorder keeps open in a program that may close all descriptors and reuse their numbers. */
#ifndef DOVETAIL_TRACE_OWNED_H
#define DOVETAIL_TRACE_OWNED_H

#include <sys/types.h>

/* A descriptor and the file that it stands for; zeroed: none. */
struct dvt_owned {
    int number; /* the descriptor + 1; 0: none */
    dev_t device;
    ino_t inode;
};

/* Keeps `fd`, moved to a high number, which no program gets that asks for any. Returns the descriptor, or -1. */
int dvt_own(struct dvt_owned* owned, int fd);

/* Returns the descriptor if it still stands for its file, else -1. Does not change errno. */
int dvt_owned_fd(const struct dvt_owned* owned);

/* As dvt_owned_fd, but opens `path` again, if that is still the same file, after the program closed the descriptor. */
int dvt_reopened(struct dvt_owned* owned, const char* path, int flags);

void dvt_disown(struct dvt_owned* owned); /* closes it, unless the number stands for another file by now */

#endif
