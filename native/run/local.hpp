// LocalHub: ranks as threads of one process, messages by memcpy through the shared memory they all see.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "run/transport.hpp"

namespace dovetail::run {

class LocalHub {
  public:
    explicit LocalHub(int num_ranks) : num_ranks_(num_ranks), inboxes_(static_cast<std::size_t>(num_ranks)) {}
    int num_ranks() const { return num_ranks_; }

    using Flag = std::shared_ptr<std::atomic<int>>;  // 0 pending, 1 done, 2 refused: sizes differ
    Flag send(int src, int dst, int tag, const void* data, long long num_bytes);
    Flag receive(int src, int dst, int tag, void* data, long long num_bytes);
    Flag collective(int rank, int group, int kind, const void* src, void* dst, long long count, int dtype, int op);
    int group(const std::vector<int>& ranks, int turn);
    void stop(int rank);  // all others are told at their next test
    int stopped() const { return stopped_; }
    void busy(int change) { busy_ += change; }
    int num_busy() const { return busy_; }

  private:
    struct Message {
        const void* from;
        void* to;
        long long num_bytes;
        Flag flag;
    };
    struct Channel {
        std::deque<Message> sent, posted;
    };
    struct Inbox {
        std::mutex lock;
        std::map<std::pair<int, int>, Channel> channels;  // (src, tag)
    };
    struct Call {
        int arrived = 0, kind = 0, dtype = 0, op = 0;
        long long count = 0;
        bool mixed = false;
        std::vector<const void*> src;
        std::vector<void*> dst;
        std::vector<Flag> flags;
    };
    static void deliver(const Message& sent, const Message& posted);
    static void carry_out(const Call& call);

    int num_ranks_;
    std::vector<Inbox> inboxes_;
    std::mutex calls_lock_;
    std::vector<std::pair<std::vector<int>, int>> groups_;
    std::map<std::pair<int, int>, int> sequence_;  // (rank, group) -> calls made
    std::map<std::pair<int, int>, Call> calls_;    // (group, sequence) -> the call under way
    std::atomic<int> stopped_{-1}, busy_{0};       // the first rank that gave up; how many compute
};

class LocalTransport final : public Transport {
  public:
    LocalTransport(std::shared_ptr<LocalHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return hub_->num_ranks(); }
    int isend(const void* data, long long num_bytes, int dst, int tag) override {
        return keep(hub_->send(rank_, dst, tag, data, num_bytes));
    }
    int irecv(void* data, long long num_bytes, int src, int tag) override {
        return keep(hub_->receive(src, rank_, tag, data, num_bytes));
    }
    int icollective(int kind, const void* src, void* dst, long long count, int dtype, int op, int group) override {
        return keep(hub_->collective(rank_, group, kind, src, dst, count, dtype, op));
    }
    int group(const std::vector<int>& ranks, int turn) override { return hub_->group(ranks, turn); }
    bool test(int handle) override;
    void busy(bool is) override { hub_->busy(is ? 1 : -1); }
    bool anyone_busy() const override { return hub_->num_busy() > 0; }
    void stop() override { hub_->stop(rank_); }

  private:
    int keep(LocalHub::Flag flag);

    std::shared_ptr<LocalHub> hub_;
    int rank_;
    std::vector<LocalHub::Flag> pending_;
    std::vector<int> free_;
};

}  // namespace dovetail::run
