// Messages: what collectives between ranks without MPI need of the messages below them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "shm/peers.hpp"
#include "shm/region.hpp"

namespace dovetail::shm {

// The code of a request that failed because of a rank's state. 0: no failure; -1 is DT_OTHER_SIZE of mpi_table.h.
int code_of(State state, int rank);
int rank_of(int code);
State state_of(int code);
std::string text_of(int code);

struct Label {
    std::uint64_t context = 0;  // messages of other contexts never match
    std::uint64_t tag = 0;
    bool operator==(const Label&) const = default;
};

// Matched by source, context and tag, in the order in which they were sent. Used by one thread at a time.
class Messages {
  public:
    virtual ~Messages() = default;
    Messages() = default;
    Messages(const Messages&) = delete;
    Messages& operator=(const Messages&) = delete;

    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual int isend(const void* data, long long num_bytes, int dst, Label label, bool matched) = 0;
    // `lent`: a message in a region stays there until it is given back: see run::Transport::borrow.
    virtual int irecv(void* data, long long num_bytes, int src, Label label, const std::byte** lent = nullptr) = 0;
    virtual bool give_back(int) { return true; }  // whether there was room to say so; the request is then gone
    // Whether the request has ended. It is freed then, unless it is lent, and `code` is its result.
    virtual bool test(int handle, int& code) = 0;
    virtual int peer_of(int handle) const = 0;
    virtual void cancel(int handle) = 0;  // of a receive that is no longer awaited; a send is freed once it has ended
    // Other ranks wait for this one no longer: it has `left`, after sending what is still to send, or `failed`, for
    // this reason.
    virtual void leave(State how, const std::string& why = "") = 0;

    virtual void add(std::shared_ptr<Region>) {}  // on all ranks: see Region
    virtual void hide() {}                        // its memory, if that has a name
    virtual void nap() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }  // of a rank that waits long
    virtual bool are_ahead() const { return false; }   // several collectives are under way at once, begun by any thread
    virtual bool move_alone() const { return false; }  // also while no rank tests them: then `nap` ends with a message
    virtual std::string text(int code) const { return text_of(code); }
    virtual long long whole_bytes() const = 0;  // longest array that an all_reduce sends whole to every rank
    // Messages between the same ranks that another thread may use; null: the caller makes them.
    virtual std::unique_ptr<Messages> another() { return nullptr; }
};

}  // namespace dovetail::shm
