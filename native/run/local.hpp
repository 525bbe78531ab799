// LocalHub: ranks that are threads of one process. Messages are copied by memcpy.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "run/message.hpp"
#include "run/transport.hpp"

namespace dovetail::run {

class LocalHub {
  public:
    explicit LocalHub(int num_ranks) : num_ranks_(num_ranks), inboxes_(static_cast<std::size_t>(num_ranks)) {
        for (auto& inbox : inboxes_) inbox.channels.resize(inboxes_.size());
    }
    int num_ranks() const { return num_ranks_; }

    using Flag = std::atomic<int>;  // 0 pending, 1 done, 2 refused: sizes differ
    using Flags = std::deque<Flag>;
    Flags& flags();  // new flags, which live as long as the hub: other ranks may still refer to them
    void send(int src, int dst, int tag, const void* data, long long num_bytes, Flag& flag);
    void receive(int src, int dst, int tag, void* data, long long num_bytes, Flag& flag);
    void collective(int rank, const LibraryCall& call, Flag& flag);
    int group(const std::vector<int>& ranks, int turn);
    void stop(int rank);  // the next test of every other rank throws
    int stopped() const { return stopped_; }
    void busy(int change) { busy_ += change; }
    int num_busy() const { return busy_; }

  private:
    struct Message {
        const void* from = nullptr;
        void* to = nullptr;
        long long num_bytes = 0;
        Flag* flag = nullptr;
    };
    struct Channel {
        Ring<Message> sent, posted;
    };
    struct Inbox {
        std::mutex lock;
        std::vector<std::vector<Channel>> channels;  // by source and tag
        Channel& channel(int src, int tag);
    };
    struct Call {  // one collective, by member
        int arrived = 0;
        std::vector<LibraryCall> members;
        std::vector<Flag*> flags;
        bool fits() const;  // whether the calls match
        // Elements that go from one member to another: their number, their place at the source, and at the destination.
        long long count(std::size_t from, std::size_t to) const;
        long long sent_at(std::size_t from, std::size_t to) const;
        long long taken_at(std::size_t to, std::size_t from) const;
        const std::byte* source(std::size_t member, long long at) const;
        std::byte* result(std::size_t member, long long at) const;
        void move(std::byte* to, const std::byte* from, long long count) const;
        // The sum, or the other reduction asked for, of all members' elements from `at` on, in `room`.
        const std::byte* total(long long at, long long count, std::vector<std::byte>& room) const;
    };
    static void deliver(const Message& sent, const Message& posted);
    static void carry_out(const Call& call);

    int num_ranks_;
    std::vector<Inbox> inboxes_;
    std::mutex calls_lock_;
    std::deque<Flags> flags_;
    std::vector<std::pair<std::vector<int>, int>> groups_;
    std::map<std::pair<int, int>, int> sequence_;  // (rank, group) -> calls made
    std::map<std::pair<int, int>, Call> calls_;    // (group, sequence) -> the call under way
    std::atomic<int> stopped_{-1}, busy_{0};       // the first rank that failed; how many compute
};

class LocalTransport final : public Transport {
  public:
    LocalTransport(std::shared_ptr<LocalHub> hub, int rank)
        : hub_(std::move(hub)), rank_(rank), flags_(hub_->flags()) {}
    int rank() const override { return rank_; }
    int size() const override { return hub_->num_ranks(); }
    int isend(const void* data, long long num_bytes, int dst, int tag, bool) override {  // it ends once matched
        const int handle = take();
        hub_->send(rank_, dst, tag, data, num_bytes, flags_[static_cast<std::size_t>(handle)]);
        return handle;
    }
    int irecv(void* data, long long num_bytes, int src, int tag) override {
        const int handle = take();
        hub_->receive(src, rank_, tag, data, num_bytes, flags_[static_cast<std::size_t>(handle)]);
        return handle;
    }
    int icollective(const LibraryCall& call) override {
        const int handle = take();
        hub_->collective(rank_, call, flags_[static_cast<std::size_t>(handle)]);
        return handle;
    }
    int group(const std::vector<int>& ranks, int turn) override { return hub_->group(ranks, turn); }
    bool test(int handle) override;
    void busy(bool is) override { hub_->busy(is ? 1 : -1); }
    bool anyone_busy() const override { return hub_->num_busy() > 0; }
    void stop() override { hub_->stop(rank_); }

  private:
    int take();

    std::shared_ptr<LocalHub> hub_;
    int rank_;
    LocalHub::Flags& flags_;  // by handle
    std::vector<int> free_;
};

}  // namespace dovetail::run
