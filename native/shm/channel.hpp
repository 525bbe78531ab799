// Channels in memory that ranks share, threads or processes. Each ordered pair of ranks has several FIFOs, each
// with a ring of lines for short messages and a ring of slots for long ones.
//
// A line is a cache line: 56 bytes of data and the number of the line in its FIFO. That is stored last, so data and
// flag move together. A slot has its number on a line beside its data. Messages of several lines were slower than one
// at every size. Numbers have 64 bits and never restart: data of an earlier call in a ring are never taken for a
// later message. A channel begins as zeroed memory.
//
// A slot may hold a loan in place of data: the place of the message in memory that both ranks map. Until the reader has
// released the slot, the writer does not change those bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "shm/atomic.hpp"
#include "shm/stores.hpp"

namespace dovetail::shm {

using Count = std::uint64_t;

struct alignas(64) Line {
    static constexpr std::size_t room = 64 - sizeof(Count);
    std::byte data[room];
    Atomic<Count> number;  // of the line, from 1 on; 0: never written
};
static_assert(sizeof(Line) == 64 && std::atomic<Count>::is_always_lock_free);  // so processes can share it

// The place of a message: a region, with the same number on all ranks, and bytes from the begin of its sender's part.
struct Loan {
    std::uint32_t region = 0, is_one = 0;
    std::uint64_t offset = 0;
};

// The memory of each channel. The same on all ranks.
struct Geometry {
    Count fifos = 8;   // of each ordered pair
    Count lines = 64;  // powers of two
    Count slots = 8;
    Count slot_bytes = 128 * 1024;  // a multiple of 64

    static constexpr Count flag_bytes = 128;  // before each slot's data, so that no two flags share a line or its pair
    Count fifo_bytes() const { return 256 + lines * sizeof(Line) + slots * (flag_bytes + slot_bytes); }
    Count bytes(Count ranks) const { return ranks * ranks * fifos * fifo_bytes(); }
    // The largest geometry of at most `most_bytes` bytes: slots first become shorter, then FIFOs fewer.
    static Geometry within(int ranks, Count most_bytes) {
        Geometry found;
        const auto size = static_cast<Count>(ranks);
        while (found.bytes(size) > most_bytes && found.slot_bytes > 4096) found.slot_bytes /= 2;
        while (found.bytes(size) > most_bytes && found.fifos > 2) found.fifos /= 2;
        return found;
    }
    // Messages that a FIFO can hold in any case, even if the reader has not yet published which lines it has taken.
    Count depth() const { return std::min(lines * 3 / 4, slots); }
};

// One FIFO's memory. The reader writes what was taken, rarely; the writer what was sent, after a failure only.
class Fifo {
  public:
    Fifo() = default;
    Fifo(std::byte* memory, const Geometry& geometry) : memory_(memory), geometry_(&geometry) {}
    Atomic<Count>& lines_taken() const { return *reinterpret_cast<Atomic<Count>*>(memory_); }
    Atomic<Count>& lines_sent() const { return *reinterpret_cast<Atomic<Count>*>(memory_ + 64); }
    Atomic<Count>& slots_taken() const { return *reinterpret_cast<Atomic<Count>*>(memory_ + 128); }
    Atomic<Count>& slots_sent() const { return *reinterpret_cast<Atomic<Count>*>(memory_ + 192); }
    Line& line(Count position) const {
        return reinterpret_cast<Line*>(memory_ + 256)[position & (geometry_->lines - 1)];
    }
    Atomic<Count>& slot_number(Count position) const { return *reinterpret_cast<Atomic<Count>*>(slot(position)); }
    Loan& slot_loan(Count position) const { return *reinterpret_cast<Loan*>(slot(position) + sizeof(Count)); }
    Turn& slot_turn(Count position) const {
        return *reinterpret_cast<Turn*>(slot(position) + sizeof(Count) + sizeof(Loan));
    }
    ReadTimes& read_times() const { return *reinterpret_cast<ReadTimes*>(memory_ + 128 + sizeof(Count)); }
    std::byte* slot_data(Count position) const { return slot(position) + Geometry::flag_bytes; }
    const Geometry& geometry() const { return *geometry_; }

  private:
    std::byte* slot(Count position) const {
        return memory_ + 256 + geometry_->lines * sizeof(Line) +
               (position & (geometry_->slots - 1)) * (Geometry::flag_bytes + geometry_->slot_bytes);
    }
    std::byte* memory_ = nullptr;
    const Geometry* geometry_ = nullptr;
};

inline bool fits_line(Count num_bytes) { return num_bytes <= Line::room; }

// The end that writes: if there is room, a message is written to its place, then sent by `commit`.
class Writer {
  public:
    Writer() = default;
    explicit Writer(Fifo fifo) : fifo_(fifo) {}

    bool has_room(Count num_bytes) {
        const Geometry& g = fifo_.geometry();
        if (fits_line(num_bytes))
            return line_ - lines_taken_ < g.lines || look(fifo_.lines_taken(), lines_taken_, line_, g.lines);
        if (slot_ - slots_taken_ < g.slots) return true;
        stores_.hear(fifo_.read_times());
        return look(fifo_.slots_taken(), slots_taken_, slot_, g.slots);
    }
    // How the next message is to be stored.
    Turn turn(Count num_bytes) {
        const Count slots = fifo_.geometry().slots;
        return fits_line(num_bytes) ? Turn{} : stores_.turn(num_bytes, slot_ / slots, slot_ % slots == 0);
    }
    std::byte* place(Count num_bytes) const {
        return fits_line(num_bytes) ? fifo_.line(line_).data : fifo_.slot_data(slot_);
    }
    // `began`: ticks before a message was stored that is timed.
    void commit(Count num_bytes, const Loan& loan = {}, Turn turn = {}, std::uint64_t began = 0) {
        if (!fits_line(num_bytes)) {
            fifo_.slot_loan(slot_) = loan;
            fifo_.slot_turn(slot_) = turn;
        }
        if (turn.way == Way::nontemporal) settle();
        if (turn.is_timed) stores_.wrote(ticks() - began, num_bytes);
        Atomic<Count>& number = fits_line(num_bytes) ? fifo_.line(line_).number : fifo_.slot_number(slot_);
        number.store(++(fits_line(num_bytes) ? line_ : slot_), std::memory_order_release);
    }

    Count slots_sent() const { return slot_; }
    // Whether the reader has released this number of slots.
    bool have_taken(Count slots) {
        return slots_taken_ >= slots || (slots_taken_ = fifo_.slots_taken().load(std::memory_order_acquire)) >= slots;
    }

    void publish() const {  // what was sent, for `skip`
        fifo_.lines_sent().store(line_, std::memory_order_release);
        fifo_.slots_sent().store(slot_, std::memory_order_release);
    }

  private:
    static bool look(const Atomic<Count>& said, Count& taken, Count written, Count room) {
        taken = said.load(std::memory_order_acquire);
        return written - taken < room;
    }
    Fifo fifo_;
    Count line_ = 0, slot_ = 0;                // written
    Count lines_taken_ = 0, slots_taken_ = 0;  // as last read
    Stores stores_;                            // of slots
};

// The end that reads: a message that has arrived stays in its place until `release`.
class Reader {
  public:
    Reader() = default;
    explicit Reader(Fifo fifo) : fifo_(fifo) {}

    bool has_come(Count num_bytes) const {
        return fits_line(num_bytes) ? fifo_.line(line_).number.load(std::memory_order_acquire) == line_ + 1
                                    : fifo_.slot_number(slot_).load(std::memory_order_acquire) == slot_ + 1;
    }
    const std::byte* place(Count num_bytes) const {
        return fits_line(num_bytes) ? fifo_.line(line_).data : fifo_.slot_data(slot_);
    }
    Loan loan(Count num_bytes) const { return fits_line(num_bytes) ? Loan{} : fifo_.slot_loan(slot_); }
    bool is_timed(Count num_bytes) const { return !fits_line(num_bytes) && fifo_.slot_turn(slot_).is_timed; }
    // Tells the writer of each slot at once, and of lines after each quarter of the ring. `began`: ticks before a
    // message was read that is timed.
    void release(Count num_bytes, std::uint64_t began = 0) {
        if (is_timed(num_bytes)) fifo_.read_times().add(fifo_.slot_turn(slot_).way, ticks() - began, num_bytes);
        if (!fits_line(num_bytes)) return fifo_.slots_taken().store(++slot_, std::memory_order_release);
        if (++line_ % (fifo_.geometry().lines / 4) == 0) fifo_.lines_taken().store(line_, std::memory_order_release);
    }

    void skip() {  // all that was sent when the writer published it
        line_ = fifo_.lines_sent().load(std::memory_order_acquire);
        slot_ = fifo_.slots_sent().load(std::memory_order_acquire);
        fifo_.lines_taken().store(line_, std::memory_order_release);
        fifo_.slots_taken().store(slot_, std::memory_order_release);
    }

  private:
    Fifo fifo_;
    Count line_ = 0, slot_ = 0;  // read
};

// One rank's ends of all channels.
class Ends {
  public:
    Ends(std::byte* memory, int rank, int size, const Geometry& geometry)
        : geometry_(geometry), fifos_(geometry.fifos) {
        const auto of = [&](int src, int dst, Count fifo) {
            const Count place = (static_cast<Count>(src) * static_cast<Count>(size) + static_cast<Count>(dst)) * fifos_;
            return Fifo(memory + (place + fifo) * geometry_.fifo_bytes(), geometry_);
        };
        for (int other = 0; other < size; ++other)
            for (Count fifo = 0; fifo < fifos_; ++fifo) {
                writers_.emplace_back(of(rank, other, fifo));
                readers_.emplace_back(of(other, rank, fifo));
            }
    }
    Ends(const Ends&) = delete;
    Ends& operator=(const Ends&) = delete;
    Writer& to(int rank, int fifo) { return writers_[index(rank, fifo)]; }
    Reader& from(int rank, int fifo) { return readers_[index(rank, fifo)]; }
    const Geometry& geometry() const { return geometry_; }
    void publish() const {
        for (const Writer& each : writers_) each.publish();
    }
    void skip() {
        for (Reader& each : readers_) each.skip();
    }

  private:
    std::size_t index(int rank, int fifo) const {
        return static_cast<std::size_t>(rank) * fifos_ + static_cast<std::size_t>(fifo);
    }
    const Geometry geometry_;
    const Count fifos_;
    std::vector<Writer> writers_;
    std::vector<Reader> readers_;
};

}  // namespace dovetail::shm
