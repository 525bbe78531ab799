// MessageTransport: the functions of mpi_table.h between ranks without MPI, over Messages: collectives of flat
// algorithms, groups. `shared_table` has them, so that all code for MPI runs on it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "run/mpi_table.h"
#include "run/transport.hpp"
#include "shm/messages.hpp"

namespace dovetail::shm {

// Handles are even for messages and odd for collectives. One thread at a time uses it, unless messages are `are_ahead`;
// several threads can each have a transport.
class MessageTransport final : public run::Transport {
  public:
    explicit MessageTransport(std::unique_ptr<Messages> messages);

    int rank() const override { return messages_->rank(); }
    int size() const override { return messages_->size(); }
    int isend(const void* data, long long num_bytes, int dst, int tag, bool matched) override {
        const auto guard = locked();
        return 2 * messages_->isend(data, num_bytes, dst, {0, static_cast<std::uint32_t>(tag)}, matched);
    }
    int irecv(void* data, long long num_bytes, int src, int tag) override {
        const auto guard = locked();
        return 2 * messages_->irecv(data, num_bytes, src, {0, static_cast<std::uint32_t>(tag)});
    }
    int borrow(void* data, long long num_bytes, int src, int tag, const std::byte** lent) override {
        const auto guard = locked();
        return 2 * messages_->irecv(data, num_bytes, src, {0, static_cast<std::uint32_t>(tag)}, lent);
    }
    bool give_back(int handle) override { return messages_->give_back(handle / 2); }
    int icollective(const run::LibraryCall& call) override;
    void collective(const run::LibraryCall& call) override;
    int group(const std::vector<int>& ranks, int turn) override;
    bool test(int handle) override;  // throws TransportError if the request failed
    void cancel(int handle) override;

    bool test(int handle, int& code);  // whether it has ended; `code`: its result
    int result(int handle);  // waits for its code; throws std::runtime_error after `limit_s`, and in all later calls
    void leave(State how) { messages_->leave(how); }
    Messages& messages() { return *messages_; }
    std::unique_ptr<Messages> take_messages() { return std::move(messages_); }  // it can then only be deleted
    void add(std::shared_ptr<Region> region) { messages_->add(std::move(region)); }
    void hide() { messages_->hide(); }  // the memory: all ranks have it open
    void fail(const std::string& why);  // calls of all ranks fail from now on
    double limit_s = 0.0;               // seconds that a collective waits for another rank; 0: as long as it lives

  private:
    struct Group {
        std::vector<int> ranks;
        int own = -1;  // index among them
        std::uint64_t context = 0, calls = 0;
    };
    // Steps of a collective: each posts messages, and begins once the messages before it have ended.
    struct Collective {
        std::vector<int> waits;
        std::deque<std::function<void()>> steps;
        std::unique_ptr<std::byte[]> room;  // kept for the next call
        std::size_t room_bytes = 0;
        Label label;
        const Group* group = nullptr;
        std::byte* aside(std::size_t num_bytes);
        int size() const { return static_cast<int>(group->ranks.size()); }
        int own() const { return group->own; }
    };
    // The place of each member's part, in bytes.
    struct Parts {
        std::byte* data = nullptr;
        std::vector<long long> starts, lengths;
        std::byte* at(int member) const { return data + starts[static_cast<std::size_t>(member)]; }
        long long length(int member) const { return lengths[static_cast<std::size_t>(member)]; }
        void add(long long length) {
            starts.push_back(starts.empty() ? 0 : starts.back() + lengths.back());
            lengths.push_back(length);
        }
    };

    void plan(Collective& made, const run::LibraryCall& call);
    void send(Collective& made, const void* data, long long num_bytes, int member);
    void receive(Collective& made, void* data, long long num_bytes, int member);
    void send_parts(Collective& made, const Parts& parts);
    void receive_parts(Collective& made, const Parts& parts);
    void reduce_part(Collective& made, const run::LibraryCall& call, const Parts& parts, std::byte* result, bool sends);
    void reduce_array(Collective& made, const run::LibraryCall& call);
    void move_rooted(Collective& made, const run::LibraryCall& call, long long num_bytes);
    void exchange(Collective& made, const Parts& out, const Parts& in);
    static Parts equal_parts(const void* data, long long length, const Collective& made);
    static Parts whole_parts(const void* data, long long length, const Collective& made);
    bool advance(Collective& call, int& code);
    [[noreturn]] void give_up(int handle);

    std::unique_lock<std::mutex> locked() {
        return is_shared_ ? std::unique_lock(lock_) : std::unique_lock<std::mutex>();
    }

    std::unique_ptr<Messages> messages_;
    std::mutex lock_;  // of all that follows, if `is_shared_`
    bool is_shared_ = false;
    std::deque<Group> groups_;                               // the first one: all ranks
    std::map<std::pair<std::vector<int>, int>, int> known_;  // groups, by ranks and turn
    std::deque<Collective> collectives_;
    std::vector<int> unused_;
    bool has_core_each_ = false;
    std::string broken_;  // why no collective can begin any more
};

// Makes a communicator of processes that have found each other. Returns its number for `adopt` and `find`, which for
// MPI take the number in Fortran.
int join(std::unique_ptr<Messages> messages);
std::unique_ptr<Messages> taken(int number);    // the messages of a communicator, which is then no more
dt_comm* communicator(int number);              // null if there is none
void hide(int number);                          // its memory: all ranks have joined
void limit(int number, double seconds);         // that collectives on it and on its duplicate wait for another rank
void rest(int number, bool on);                 // whether collectives on its duplicate sleep between polls
void fail(int number, const std::string& why);  // calls on its duplicate, on all ranks
void part(int number);                          // frees it and its duplicate: calls that wait for this rank fail
void add_region(dt_comm* comm, std::shared_ptr<Region> region);  // all ranks: see Messages::add
void leave_all();                                                // when the process ends

extern const dt_mpi_table shared_table, hosts_table;  // hosts_table: the same by another name, for HostMessages

}  // namespace dovetail::shm
