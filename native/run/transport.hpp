// Transport: moves an engine's bytes between ranks, by MPI or between threads of one process.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace dovetail::run {

// A collective of the library. Kinds, dtypes and ops are those of mpi_table.h, the group is what `group` returned.
struct LibraryCall {
    int kind = 0;
    const void* src = nullptr;
    void* dst = nullptr;
    long long count = 0;                // elements of one rank
    const long long* counts = nullptr;  // of a v-variant instead: those of dt_mpi_table, valid until it ends
    int dtype = 0, op = 0, group = -1, root = 0;
};

struct Transport {
    virtual ~Transport() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    // `matched`: complete only once a receive has matched it.
    virtual int isend(const void* data, long long num_bytes, int dst, int tag, bool matched) = 0;
    virtual int irecv(void* data, long long num_bytes, int src, int tag) = 0;
    // As irecv. A message that lies where this rank can read it stays there: once `test` is true, `*lent` is its
    // address until it is given back. Otherwise `*lent` is null, the message is in `data`, and the handle is gone.
    virtual int borrow(void* data, long long num_bytes, int src, int tag, const std::byte** lent) {
        *lent = nullptr;
        return irecv(data, num_bytes, src, tag);
    }
    virtual bool give_back(int) { return true; }  // whether it is back; call again where it is not
    virtual int icollective(const LibraryCall& call) = 0;
    // The same, complete when it returns: by the library's blocking call if there is one.
    virtual void collective(const LibraryCall& call) {
        for (const int handle = icollective(call); !test(handle);) std::this_thread::yield();
    }
    // All members call it with the same arguments. Calls of different `turn` on the same ranks make different groups.
    virtual int group(const std::vector<int>& ranks, int turn) = 0;
    virtual bool test(int handle) = 0;  // true once complete, and frees the handle then
    // Whether `wait` waits for a collective that was begun, as `collective` would; else the caller tests it.
    virtual bool waits() const { return false; }
    virtual void wait(int) {}
    virtual void cancel(int) {}  // of a receive that is no longer awaited: its memory will be freed

    // If ranks share a process: whether this rank computes; whether any rank does; make all others fail.
    virtual void busy(bool) {}
    virtual bool anyone_busy() const { return false; }
    virtual void stop() {}

    // From now on calls of this rank fail with this text, also one that is polled meanwhile: another thread may call
    // it.
    virtual void fail(const std::string&) {}
    bool polls = false;  // all ranks: blocking collectives are begun and polled, so that `fail` and `limit_s` end them
    double limit_s = 0.0;  // seconds that such a collective waits for other ranks; 0: without a limit

    // True for a call that the user begins, and waits for later: the same on all ranks. The library's collectives are
    // then nonblocking, which do not match blocking ones of other ranks.
    bool begun = false;
    std::atomic<bool> rests{false};  // while the user's thread computes: other threads sleep between polls
};

// A transport throws it: the text of an error.
struct TransportError {
    std::string message;
};

}  // namespace dovetail::run
