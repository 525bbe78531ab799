// Board: memory that the ranks of a communicator share on one host. Every rank records there which call it begins.
// A rank that fails before a transfer posts its error there, so that no rank waits for it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail::run {

// The arguments of a call that are the same on every rank; numbers as in `Call`.
struct Recorded {
    std::int64_t count = 0, num_bytes = 0;
    std::int32_t root = 0;
    std::int8_t kind = 0, dtype = 0, op = 0;
    bool by_rules : 1 = false;  // false: by the library, whatever the rules are
    bool begun : 1 = false;     // as `Transport::begun`
};

// An error that a rank raised: the name of its class if that is one of ours, and its text. Rank -1: no longer known.
struct Posted {
    int rank = -1;
    std::string kind, text;
};

// The protocol. Calls are numbered on every rank. A fault, once posted, fixes the number `through` of the last call
// that some rank has entered. All ranks do the calls up to that; a rank that failed before one does it on temporary
// arrays. Then every rank raises the fault once, and all go on with call `through` + 1.
//
// `enter` stores its number and then loads `posted`; `post` stores `posted` and then loads the numbers, all in one
// total order. So either the fault's `through` counts the call, or the rank that enters sees the fault.
class Board {
  public:
    static std::size_t bytes(int size);
    // `memory`: the same `bytes(size)` bytes on every rank, zeroed before the first call. `has_ended`: whether a
    // rank's process has. Functions that read a fault throw TransportError if a rank ended while it changed the board.
    Board(std::byte* memory, int rank, int size, std::function<bool(int)> has_ended);
    Board(const Board&) = delete;
    Board& operator=(const Board&) = delete;

    // Begins the next call. False if a fault is to be raised in its place: then it has not begun.
    bool enter(const Recorded& call, std::string_view all_counts) {
        const std::uint64_t number = ++number_;
        own_->calls[number % kept_calls] = call;
        if (!all_counts.empty()) keep_counts(all_counts);
        own_->entered.store(number, std::memory_order_seq_cst);
        return !has_fault() || may_go_on();
    }
    // After a call: whether a fault is to be raised now. A fault of a later call is not: all ranks have done this one.
    bool raises() const { return has_fault() && is_reached(); }
    bool has_fault() const { return head_->posted.load(std::memory_order_seq_cst) != acked_; }

    // Posts a fault of this rank, which then raises its own error in place of the next fault. If a fault of another
    // rank waits to be raised here, nothing is posted: this rank's error is raised in its place. False if there is
    // no room.
    bool post(const std::string& kind, const std::string& text);

    // Of the fault that this rank raises next:
    Posted fault();
    std::uint64_t owed();  // the next call that this rank has to do before it; 0: none
    void acknowledge();    // it has been raised

    // What other ranks recorded of a call, with the counts of a v-variant; none if they are too far ahead.
    std::optional<std::pair<Recorded, std::string>> recorded(std::uint64_t number);
    std::vector<int> absent(std::uint64_t number) const;  // ranks that have not reached the call

  private:
    static constexpr std::size_t kept_calls = 128, kept_faults = 1024, kept_texts = 16;
    static constexpr std::size_t most_kind = 64, most_text = 1024;
    static constexpr int most_ranks_v = 64;  // counts of more ranks than these are not recorded
    struct Text {
        std::uint64_t fault;  // its number: a rank that is far behind finds a later one
        int rank;
        char kind[most_kind], text[most_text];
    };
    struct Place {
        std::uint64_t call, through;  // the call that failed, and the last one that all ranks do
    };
    struct alignas(128) Head {
        std::atomic<std::uint64_t> posted;
        alignas(128) std::atomic<std::uint32_t> holder;  // of the lock: its rank + 1; 0: none
        std::array<Place, kept_faults> places;
        std::array<Text, kept_texts> texts;
    };
    struct alignas(128) Row {
        std::atomic<std::uint64_t> entered, acked;
        std::atomic<std::uint64_t> owed;  // a call that it has to do, on temporary arrays
        std::uint64_t counted;            // the call whose counts are kept
        std::size_t counts_size;
        std::array<Recorded, kept_calls> calls;
    };
    class Lock;

    void keep_counts(std::string_view all_counts);
    bool may_go_on();
    bool is_reached() const;
    std::uint64_t entered(int rank) const;
    Place& place(std::uint64_t fault) const { return head_->places[fault % kept_faults]; }
    Row& row(int rank) const { return rows_[rank]; }
    std::byte* counts(int rank) const { return counts_ + static_cast<std::size_t>(rank) * counts_room_; }

    static std::size_t counts_room(int size);

    const int rank_, size_;
    const std::function<bool(int)> has_ended_;
    const std::size_t counts_room_;
    Head* const head_;
    Row *const rows_, *const own_;
    std::byte* const counts_;
    std::uint64_t number_ = 0, acked_ = 0;  // of this rank: the latest call, and how many faults it has raised
};

}  // namespace dovetail::run
