// The state of messages on net lanes: those being received, and those in the FIFOs of their channels.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "run/op.hpp"

namespace dovetail::run {

constexpr int ahead = 16;  // pieces of one message in flight at once, at either end

// About how many messages one rank may send another that has not posted receives for them. MPI libraries keep only so
// many: over TCP libfabric keeps 64 of a connection, then reads no more from it, even if a receive waits for the next.
constexpr int unasked = 40;

// A message of `bytes`, cut into pieces of `each` bytes, the last one shorter: in the same way at both ends.
struct Cut {
    std::int64_t bytes, each;
    int pieces() const { return bytes <= each ? 1 : static_cast<int>((bytes + each - 1) / each); }
    std::int64_t begin(int piece) const { return piece * each; }
    std::int64_t size(int piece) const { return std::min(each, bytes - piece * each); }
    std::int64_t some() const { return std::min(bytes, ahead * each); }  // bytes of those in flight
};

struct Block {
    std::unique_ptr<std::byte[]> data;
    std::size_t size = 0;
};

// Memory for messages, reused by later ones, never cleared.
class Pool {
  public:
    Block take(std::int64_t bytes) {
        const auto place = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(bytes) / 64));
        auto& free = free_[place];
        if (!free.empty()) {
            Block block = std::move(free.back());
            free.pop_back();
            return block;
        }
        const std::size_t size = std::size_t{64} << place;
        total_ += size;
        return {std::unique_ptr<std::byte[]>(new std::byte[size]), size};
    }
    void give(Block& block) {
        if (block.data) free_[static_cast<std::size_t>(std::bit_width(block.size / 128))].push_back(std::move(block));
        block.size = 0;
    }
    void shrink(std::size_t most) {  // only while no block is taken
        if (total_ <= most) return;
        for (auto& free : free_) free.clear();
        total_ = 0;
    }

  private:
    std::array<std::vector<Block>, 64> free_;
    std::size_t total_ = 0;
};

// A queue whose entries keep their numbers, from begin() to end().
template <class T>
class Ring {
  public:
    std::int64_t begin() const { return begin_; }
    std::int64_t end() const { return end_; }
    std::int64_t size() const { return end_ - begin_; }
    T& operator[](std::int64_t number) { return slots_[static_cast<std::size_t>(number) & (slots_.size() - 1)]; }
    const T& operator[](std::int64_t number) const {
        return slots_[static_cast<std::size_t>(number) & (slots_.size() - 1)];
    }
    T& push() {
        if (size() == static_cast<std::int64_t>(slots_.size())) grow();
        return (*this)[end_++];
    }
    void pop() { ++begin_; }

  private:
    void grow() {
        std::vector<T> wider(std::max<std::size_t>(2 * slots_.size(), 4));
        for (auto i = begin_; i < end_; ++i)
            wider[static_cast<std::size_t>(i) & (wider.size() - 1)] = std::move((*this)[i]);
        slots_ = std::move(wider);
    }
    std::vector<T> slots_;
    std::int64_t begin_ = 0, end_ = 0;
};

struct Flight {  // an issued op of a net lane
    enum { receiving, sending, ended } stage = ended;
    int op = -1;
    int pieces = 0, posted = 0, taken = 0;   // of the message that it receives
    int handles[ahead] = {};                 // of the pieces posted and not taken; a collective has one
    std::int64_t in_turn = 0, out_turn = 0;  // its number among the ops that receive, and that send, there
    std::int64_t message = -1;               // its number in the FIFO, once it is there
    std::uint64_t begun = 0;                 // by the event clock
    Block staging;                           // the message, or those of its pieces in flight
    std::byte* landing = nullptr;            // its address, whoever owns it
    const std::byte* lent[ahead] = {};       // pieces that lie with their sender
    std::vector<std::byte> packed;
};

struct Outgoing {  // a message in its channel's FIFO
    int op = -1;
    int pieces = 0, available = 0, started = 0, left = 0;
    int copied = 0;       // pieces below this are in `whole`
    bool copies = false;  // pieces are sent from copies: an op may still overwrite them
    int handles[ahead] = {};
    std::uint64_t begun = 0;  // by the event clock
    const std::byte* data = nullptr;
    Block whole, some;  // all of it; copies of pieces in flight
};

struct Fifo : Ring<Outgoing> {
    std::int64_t starting = 0;          // the first message with pieces not yet started
    std::int64_t issued = 0, turn = 0;  // ops that send here: issued, and with their message in the FIFO
    int period = 1, pieces = 0;         // of pieces sent in a run; the last of each period is sent matched
    bool active = false;
};

struct Inbound {                        // a channel received on
    std::int64_t issued = 0, turn = 0;  // ops: issued, and with all of their pieces posted
    int ops = 0;                        // in a run
    int under_way = 0, expected = 0;    // pieces posted; those that had not arrived at the last poll
};

struct Move {  // facts about an op that its net lane needs
    Kind kind{};
    bool receives = false, sends = false;
    bool in_place = false;   // messages are received at their destination
    bool piecewise = false;  // pieces are stored, reduced and forwarded one by one
    int peer = -1, in = -1, fifo = -1, depth = 0;
    std::int64_t bytes = 0;   // of the message
    std::int64_t behind = 0;  // ops of its lane that must have ended before it begins
    const Span *read = nullptr, *write = nullptr;
    const Span* source = nullptr;  // the message it sends; null: in staging, or it has no bytes
    std::vector<int> writers;      // ops that overwrite it
    std::vector<int> readers;      // of the message it receives, if that may stay with its sender until they have ended
    std::byte* place = nullptr;    // what its readers take for the base of the buffer
    bool computed = false;         // some of them are on compute lanes
};

}  // namespace dovetail::run
