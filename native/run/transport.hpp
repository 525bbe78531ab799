// Transport: how an engine moves bytes between ranks. MPI, or threads of one process.
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
    long long count = 0;                // elements of a rank
    const long long* counts = nullptr;  // instead, of a v-variant: as dt_mpi_table takes them, kept until it has ended
    int dtype = 0, op = 0, group = -1, root = 0;
};

struct Transport {
    virtual ~Transport() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    // `matched`: complete only once the receiver has asked for it.
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
    // The same, ended before it returns: by the library's own blocking call where it has one.
    virtual void collective(const LibraryCall& call) {
        for (const int handle = icollective(call); !test(handle);) std::this_thread::yield();
    }
    // All members call it with the same arguments. Calls of different `turn` on the same ranks do not meet.
    virtual int group(const std::vector<int>& ranks, int turn) = 0;
    virtual bool test(int handle) = 0;  // true once complete; the handle is then gone
    virtual void cancel(int) {}         // of a receive that nobody waits for: its memory is about to be another's

    // Where ranks share a process: this rank computes or no longer does, whether any does, and the end of all.
    virtual void busy(bool) {}
    virtual bool anyone_busy() const { return false; }
    virtual void stop() {}

    // A call that the user has begun, and waits for later: the same on all ranks. The library's collectives are then
    // the nonblocking ones, which do not meet the blocking ones of other ranks.
    bool begun = false;
    std::atomic<bool> rests{false};  // while the user's thread computes: whoever waits here sleeps between polls
};

// What a transport throws: the message for people.
struct TransportError {
    std::string message;
};

}  // namespace dovetail::run
