// Board: see board.hpp.
#include "run/board.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "run/mpi_table.h"
#include "run/transport.hpp"

namespace dovetail::run {

namespace {

template <std::size_t N>
void put(char (&to)[N], const std::string& text) {
    const std::size_t size = std::min(text.size(), N - 1);
    std::memcpy(to, text.data(), size);
    to[size] = 0;
}

}  // namespace

// A lock held for less than a microsecond, by ranks that fail or read another rank's fault.
class Board::Lock {
  public:
    explicit Lock(const Board& board) : holder_(board.head_->holder) {
        const auto own = static_cast<std::uint32_t>(board.rank_) + 1;
        std::uint32_t found = 0;
        for (int yields = 1; !holder_.compare_exchange_weak(found, own, std::memory_order_seq_cst); ++yields) {
            if (found && yields % yields_per_look == 0 && board.has_ended_(static_cast<int>(found) - 1) &&
                holder_.load(std::memory_order_seq_cst) == found)  // it did not open the lock before it ended
                throw TransportError{"rank " + std::to_string(found - 1) + " has died"};
            found = 0;
            sched_yield();
        }
    }
    ~Lock() { holder_.store(0, std::memory_order_seq_cst); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

  private:
    static constexpr int yields_per_look = 1000;
    std::atomic<std::uint32_t>& holder_;
};

std::size_t Board::counts_room(int size) {
    const auto ranks = static_cast<std::size_t>(size);
    return size <= most_ranks_v ? ranks * ranks * sizeof(std::int64_t) : 0;
}

std::size_t Board::bytes(int size) {
    return sizeof(Head) + static_cast<std::size_t>(size) * (sizeof(Row) + counts_room(size));
}

Board::Board(std::byte* memory, int rank, int size, std::function<bool(int)> has_ended)
    : rank_(rank),
      size_(size),
      has_ended_(std::move(has_ended)),
      counts_room_(counts_room(size)),
      head_(reinterpret_cast<Head*>(memory)),  // all of it begins as zeros
      rows_(reinterpret_cast<Row*>(memory + sizeof(Head))),
      own_(rows_ + rank),
      counts_(reinterpret_cast<std::byte*>(rows_ + size)) {}

void Board::keep_counts(std::string_view all_counts) {
    if (all_counts.size() > counts_room_) return;
    std::memcpy(counts(rank_), all_counts.data(), all_counts.size());
    own_->counts_size = all_counts.size();
    own_->counted = number_;
}

// A fault was posted: the call goes on only if all ranks have to do it before they raise the fault.
bool Board::may_go_on() {
    const Lock lock(*this);
    if (number_ <= place(acked_ + 1).through) return true;
    own_->entered.store(--number_, std::memory_order_seq_cst);
    return false;
}

bool Board::is_reached() const {
    const Lock lock(*this);
    return place(acked_ + 1).call <= number_;
}

// The latest call that a rank does: a fault that it has still to raise may cancel the later one it has entered.
std::uint64_t Board::entered(int rank) const {
    const std::uint64_t number = row(rank).entered.load(std::memory_order_seq_cst);
    const std::uint64_t acked = row(rank).acked.load(std::memory_order_seq_cst);
    return acked < head_->posted.load() ? std::min(number, place(acked + 1).through) : number;
}

bool Board::post(const std::string& kind, const std::string& text) {
    const Lock lock(*this);
    if (has_fault()) return true;
    std::uint64_t oldest = acked_, latest = 0;
    for (int other = 0; other < size_; ++other) oldest = std::min(oldest, row(other).acked.load());
    const std::uint64_t fault = acked_ + 1;
    if (fault - oldest >= kept_faults) return false;
    Text& made = head_->texts[fault % kept_texts];
    made.fault = fault;
    made.rank = rank_;
    put(made.kind, kind);
    put(made.text, text);
    place(fault) = {number_ + 1, ~std::uint64_t{0}};
    head_->posted.store(fault, std::memory_order_seq_cst);
    for (int other = 0; other < size_; ++other) latest = std::max(latest, entered(other));
    place(fault).through = latest;
    return true;
}

Posted Board::fault() {
    const Lock lock(*this);
    const Text& found = head_->texts[(acked_ + 1) % kept_texts];
    if (found.fault != acked_ + 1) return {-1, "", "another rank failed in an earlier call"};
    return {found.rank, found.kind, found.text};
}

std::uint64_t Board::owed() {
    const Lock lock(*this);
    const std::uint64_t number = number_ < place(acked_ + 1).through ? number_ + 1 : 0;
    own_->owed.store(number);
    return number;
}

void Board::acknowledge() { own_->acked.store(++acked_, std::memory_order_seq_cst); }

std::optional<std::pair<Recorded, std::string>> Board::recorded(std::uint64_t number) {
    const Lock lock(*this);
    for (int other = 0; other < size_; ++other) {
        const std::uint64_t latest = entered(other);
        if (other == rank_ || latest < number || latest - number >= kept_calls - 1) continue;
        const Row& theirs = row(other);
        const Recorded& found = theirs.calls[number % kept_calls];
        if (found.kind < DT_ALL_GATHER_V) return {{found, ""}};
        if (theirs.counted == number)
            return {{found, std::string(reinterpret_cast<const char*>(counts(other)), theirs.counts_size)}};
    }
    return std::nullopt;
}

std::vector<int> Board::absent(std::uint64_t number) const {
    std::vector<int> found;
    for (int other = 0; other < size_; ++other)
        if (other != rank_ && std::max(row(other).entered.load(), row(other).owed.load()) < number)
            found.push_back(other);
    return found;
}

}  // namespace dovetail::run
