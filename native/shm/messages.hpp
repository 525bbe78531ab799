// Messages: between the ranks of a host through rings in shared memory, matched by source, context and tag in the order
// in which they were sent.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "shm/peers.hpp"
#include "shm/region.hpp"
#include "shm/ring.hpp"
#include "shm/segment.hpp"

namespace dovetail::shm {

// Why a request failed: what happened to a rank. 0: it did not; -1 is DT_OTHER_SIZE of mpi_table.h.
int code_of(State state, int rank);
std::string text_of(int code);

struct Label {
    std::uint64_t context = 0;  // messages of other contexts never match
    std::uint64_t tag = 0;
    bool operator==(const Label&) const = default;
};

// Used by one thread at a time. A short message is copied into the ring at once, and ends there. For a longer one, or
// one that is `matched`, the sender asks, the receiver grants it a place, and the data come in pieces that the receiver
// takes while the sender writes the next. One that lies in a region is lent: the receiver copies it from where it lies,
// or reads it there until it gives it back. Until then the send has not ended.
class Messages {
  public:
    static std::size_t bytes(int size, std::size_t ring_bytes);  // of the segment
    // Bytes of a ring between two of `size` ranks, a power of two; all rings together stay within the budget.
    static std::size_t ring_bytes(int size, std::size_t budget = std::size_t{32} << 20);

    Messages(std::shared_ptr<Segment> memory, int rank, int size);
    ~Messages() { leave(State::left); }
    Messages(const Messages&) = delete;
    Messages& operator=(const Messages&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    int isend(const void* data, long long num_bytes, int dst, Label label, bool matched);
    // `lent`: a message in a region stays there until it is given back: see run::Transport::borrow.
    int irecv(void* data, long long num_bytes, int src, Label label, const std::byte** lent = nullptr);
    bool give_back(int handle);  // whether there was room to say so; the request is then gone
    // Whether the request has ended; then it is gone, unless it is lent, and `code` says how.
    bool test(int handle, int& code);
    void cancel(int handle);  // of a receive that nobody waits for; a send is forgotten once it has ended
    void add(std::shared_ptr<Region> region);  // all ranks add the same ones, in the same order
    void hide() { memory_->hide(); }
    void leave(State how);  // sends out what is still here first, unless this rank has failed

    static constexpr std::size_t longest_short = 8192;  // bytes of a message that is copied at once

  private:
    enum class Kind : std::uint32_t { whole, ask, lend, grant, data, taken };
    struct Head {
        Kind kind;
        std::uint32_t request;       // of the sender: ask, lend, grant, taken; of the receiver: data
        std::uint64_t context, tag;  // tag of a grant: the receiver's request
        std::uint64_t num_bytes;     // of the message; of data: of this piece
    };
    struct Loan {  // what follows the head of `lend`: where the message lies in the sender's part
        std::uint32_t region = 0, is_one = 0;
        std::uint64_t offset = 0;
        std::byte unused[grain - 16];
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
        long long num_bytes = 0, moved = 0, total = 0;  // total: bytes that come, which may be more than fit
    };
    struct Early {  // a message that came before its receive
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
        std::deque<Head> answers;        // to write: grants, and that a message was taken
        std::deque<int> heads, streams;  // sends to announce, in their order; sends whose data may go
        std::list<int> posted;           // receives that no message has matched
        std::list<Early> early;
        int code = 0;  // of a rank that is gone
    };

    int make(Request::Use use, void* data, long long num_bytes, int peer, Label label);
    Request& at(std::size_t handle) { return requests_[handle]; }
    Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
    void end(Request& request, int handle, int code = 0);
    bool is_over(const Request& request);
    void free(int handle);
    void progress();
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
    bool look();  // whether some rank is gone
    bool has_to_send() const;

    const int rank_, size_;
    std::shared_ptr<Segment> memory_;
    Peers states_;
    std::vector<Peer> peers_;
    std::deque<Request> requests_;
    std::vector<int> unused_;
    std::vector<std::shared_ptr<Region>> regions_;  // null: all ranks have given it back
    int misses_ = 0, broken_ = 0;                   // broken: the code of a rank that has failed, for all requests
    std::chrono::steady_clock::time_point looked_;
    bool has_left_ = false;
};

}  // namespace dovetail::shm
