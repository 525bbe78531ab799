/* A communicator's collectives as C functions, for code that is compiled where it is used. No call needs Python's lock.
 */
#ifndef DOVETAIL_DOOR_H
#define DOVETAIL_DOOR_H

#define DT_DOOR_VERSION 3

enum {
    DT_CALL_DONE,
    DT_CALL_NEEDS_ENGINE, /* the caller adds an engine, and calls again: `Communicator.run` of run/ranks/comm.py */
    DT_CALL_OTHER_FAILED, /* another rank failed before data moved: `raise_fault` raises its error */
    DT_CALL_FAILED        /* `text` has the cause */
};

typedef struct { /* a collective: as `Call` of native/run/comm.hpp */
    int kind;
    const void* src;
    void* dst;
    long long count;
    int dtype, op, root;
    long long num_bytes;
} dt_asked;

typedef struct {
    int version;
    void* comm;
    int number; /* of the communicator of one host, for `rest`; -1: of several hosts */
    int (*call)(void* comm, const dt_asked* asked, char* text, int size);    /* A barrier goes by the library. */
    int (*library)(void* comm, const dt_asked* asked, char* text, int size); /* By the library, without rules. */
    /* As Communicator::begin and Communicator::finish. */
    int (*begin)(void* comm, const dt_asked* asked);
    int (*finish)(void* comm, const dt_asked* asked, int handle, char* text, int size);
    /* Lets calls sleep between polls, because this rank computes, or no longer. Any thread may call it. */
    void (*rest)(void* comm, int number, int on);
} dt_door;

/* Sends and receives between ranks: those of a Mailbox (run/mailbox.hpp). Any thread may call these. `done` is called
   once, by any thread: `text`, `found`: the fault; an empty text where there is none. */
typedef void (*dt_done)(void* about, int is_of_transport, const char* text, const char* found, int source);

typedef struct {
    int version; /* DT_DOOR_VERSION */
    void* box;
    void (*send)(void* box, const void* data, long long num_bytes, int target, long long tag, dt_done done,
                 void* about);
    void (*receive)(void* box, void* data, long long num_bytes, int source, long long tag, dt_done done, void* about);
    int (*wait)(void* box, int (*has_ended)(void* about), void* about, double limit_s);
} dt_mail;

#endif
