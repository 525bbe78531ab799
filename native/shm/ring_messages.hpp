// RingMessages: messages between the ranks of a host through rings in shared memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "shm/messages.hpp"
#include "shm/peers.hpp"
#include "shm/region.hpp"
#include "shm/ring.hpp"
#include "shm/segment.hpp"

namespace dovetail::shm {

// A short message is copied into the ring at once: then its send is complete. For a long
// or a `matched` one, the sender asks, the receiver grants, and the data are sent in pieces: the receiver
// takes one while the sender writes the next. A message in a region is lent: the receiver copies it from there, or
// reads it there until it gives it back; until then the send has not ended.
class RingMessages final : public Messages {
  public:
    static std::size_t bytes(int size, std::size_t ring_bytes);  // of the segment
    // Bytes of a ring between two of `size` ranks, a power of two; all rings together stay within the budget.
    static std::size_t ring_bytes(int size, std::size_t budget = std::size_t{32} << 20);

    RingMessages(std::shared_ptr<Segment> memory, int rank, int size);
    ~RingMessages() { leave(State::left); }

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    int isend(const void* data, long long num_bytes, int dst, Label label, bool matched) override;
    int irecv(void* data, long long num_bytes, int src, Label label, const std::byte** lent = nullptr) override;
    bool give_back(int handle) override;
    bool test(int handle, int& code) override;
    int peer_of(int handle) const override { return requests_[static_cast<std::size_t>(handle)].peer; }
    void cancel(int handle) override;
    void leave(State how, const std::string& why = "") override;
    void add(std::shared_ptr<Region> region) override { regions_.add(std::move(region)); }
    void hide() override { memory_->hide(); }
    long long whole_bytes() const override { return longest_short; }

    void progress();  // moves what can be moved
    int broken();     // the code of a rank that has failed, for all requests; 0: none has

    static constexpr std::size_t longest_short = 8192;  // bytes of a message that is copied at once

  private:
    enum class Kind : std::uint32_t { whole, ask, lend, grant, data, taken };
    struct Head {
        Kind kind;
        std::uint32_t request;  // of the sender: ask, lend, grant, taken; of the receiver: data
        // Tag of a grant: the receiver's request. Of data: how they were stored, and whether that is timed.
        std::uint64_t context, tag;
        std::uint64_t num_bytes;  // of the message; of data: of this piece
    };
    struct Lent {  // follows the head of `lend`: the message's place in the sender's part
        Loan loan;
        std::byte unused[grain - sizeof(Loan)];
    };
    struct Request {
        enum class Use : std::uint8_t { none, send, receive } use = Use::none;
        bool done = false, forgotten = false, matched = false;
        int code = 0, peer = -1;
        std::uint32_t other = 0;  // the receiver's number for a send
        Label label;
        std::byte* data = nullptr;
        const std::byte** lent = nullptr;  // of a receive that may leave the message where it lies: where that is
        bool is_lent() const { return lent && *lent; }
        long long num_bytes = 0, moved = 0, total = 0;  // total: bytes sent, which may be more than fit
    };
    struct Early {  // a message that arrived before its receive
        Label label;
        std::uint32_t from;
        bool asks;
        long long num_bytes;
        Loan loan;
        std::vector<std::byte> data;
    };
    struct Peer {
        RingWriter out;
        RingReader in;
        std::deque<Head> answers;        // to write: grants, and notices that a message was taken
        std::deque<int> heads, streams;  // sends whose head is to be written, in order; sends that were granted
        std::list<int> posted;           // receives without a message so far
        std::list<Early> early;
        int code = 0;  // of a rank that has ended
    };

    int make(Request::Use use, void* data, long long num_bytes, int peer, Label label);
    Request& at(std::size_t handle) { return requests_[handle]; }
    Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
    void end(Request& request, int handle, int code = 0);
    bool is_over(const Request& request);
    void free(int handle);
    void read(int src);
    void write(Peer& to);
    bool write_head(Peer& to, int handle);
    bool write_pieces(Peer& to, int handle);
    void arrived(int src, const Head& head);
    void take_piece(Peer& from, const Head& head);
    void take_whole(int handle, long long num_bytes, const std::byte* data, RingReader* ring);
    void answer(int handle, std::uint32_t from, long long num_bytes, const Loan& loan);
    Loan loan_of(const Request& sent) const;
    void send_to_self(int handle);
    void move_to_self(int sent, int taken);
    bool look();  // whether some rank has ended
    bool has_to_send() const;

    const int rank_, size_;
    std::shared_ptr<Segment> memory_;
    Peers states_;
    std::vector<Peer> peers_;
    std::deque<Request> requests_;
    std::vector<int> unused_;
    Regions regions_;
    int misses_ = 0, broken_ = 0;  // broken: the code of a rank that has failed, for all requests
    std::chrono::steady_clock::time_point looked_;
    bool has_left_ = false;
};

}  // namespace dovetail::shm
