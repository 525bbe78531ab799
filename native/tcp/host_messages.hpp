// HostMessages: messages between ranks of several hosts: through shared memory on one host, by sockets to others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shm/ring_messages.hpp"
#include "tcp/sockets.hpp"

namespace dovetail::tcp {

using shm::Messages;
using shm::RingMessages;

class HostMessages final : public Messages {
  public:
    // `here`: the ranks of this host, in the order of their numbers in `near`. `spare`: more messages between them.
    HostMessages(int rank, std::vector<int> here, std::unique_ptr<RingMessages> near,
                 std::unique_ptr<RingMessages> spare, std::shared_ptr<Sockets> far, int size, int channel = 0);
    ~HostMessages() override { leave(State::left); }

    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(near_rank_.size()); }
    int isend(const void* data, long long num_bytes, int dst, Label label, bool matched) override;
    int irecv(void* data, long long num_bytes, int src, Label label, const std::byte** lent = nullptr) override;
    bool test(int handle, int& code) override;
    int peer_of(int handle) const override;
    void cancel(int handle) override;
    void leave(State how, const std::string& why = "") override;
    void nap() override;
    bool are_ahead() const override { return true; }
    bool move_alone() const override { return here_.size() == 1; }
    std::string text(int code) const override;
    long long whole_bytes() const override { return size() == 2 ? longest_whole : longest_short; }
    std::unique_ptr<Messages> another() override;

  private:
    // Two ranks that exchange whole arrays send as many bytes as if each reduced a half, and wait once.
    static constexpr long long longest_whole = 1LL << 20, longest_short = 1LL << 14;

    int near_rank(int rank) const { return near_rank_[static_cast<std::size_t>(rank)]; }
    int translated(int code) const;
    int begun(int handle);
    bool test_far(int handle, int& code);

    const int rank_, channel_;
    const std::vector<int> here_;
    std::vector<int> near_rank_;  // of each rank; -1 on another host
    std::unique_ptr<RingMessages> near_, spare_;
    std::shared_ptr<Sockets> far_;
    // By handle of `far_`: how many of its requests had ended when this one had not; and of the latest that was tested.
    std::vector<std::uint64_t> seen_;
    std::uint64_t latest_seen_ = 0;
    int misses_ = 0;
};

}  // namespace dovetail::tcp
