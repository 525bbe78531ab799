// Script: one rank's share of a Program, without computations, as steps on channels in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "run/load.hpp"
#include "shm/extent.hpp"
#include "shm/neighbours.hpp"

namespace dovetail::shm {

// Slots longer than a channel's are cut into tiles, and the whole Program runs tile after tile. A lane goes on to the
// next tile without waiting for others. Tiles touch different bytes of every slot, and each message of a tile fits a
// slot of its channel. So the proof of the Program holds for each tile, and for tiles one after the other. Unless all
// ranks send at once, shorter slots are cut too, so that a rank takes the first tile while another writes the next.
//
// A long message is lent if it lies in a region of all ranks: its receiver reads it from where it lies. No later step
// may write there, except with what the receiver sent after it had read. A run ends once all that it lent was read. No
// step waits for that, so a run that lends ends if the same run with copies does.
class Script {
  public:
    // Bytes at which each slot of a buffer begins, and the last ends; empty: all slots have the same size.
    using Starts = std::vector<std::int64_t>;

    // Throws std::invalid_argument, with the reason, if a Script cannot run this: on all ranks, but the reasons may
    // differ.
    Script(std::shared_ptr<Neighbours> ranks, run::Share share, const std::vector<Starts>& starts, Extent extent);

    static std::int64_t half_a_cache();  // bytes of the second level

    struct Options {
        double stall_s = 10.0;  // no progress for this long is a stall
        int reduce_op = 0;      // as in run::Options
        bool rests = false;     // sleep while waiting: the user's thread computes
        int input = -1;         // the buffer of `source`
        // The first contents of that buffer, `source_bytes` from `source_at` on, if they are not in it. A Script that
        // `borrows` them reads them where they are; any other copies those of a tile before the tile's first step.
        const std::byte* source = nullptr;
        std::int64_t source_at = 0, source_bytes = 0;
        // Bytes from which on messages are lent: of shorter ones, a copy is faster than waiting for the reader.
        std::int64_t least_lent = 4096;
        // Bytes from which on messages are lent that a later step overwrites: shorter ones stay in both ranks' caches.
        std::int64_t least_answered = half_a_cache();
    };
    // Runs every step of every tile. Returns an empty string, or why it stopped. Then the call fails on every rank, or
    // the next one does on ranks that had done their part; after that, Scripts of these ranks run again.
    std::string run(const Options& options);

    // Bytes of the input of earlier runs, if all of it is written, and no step reads bytes of which only some were
    // written before: then its first contents may be in another array. 0: not so, or not known yet.
    std::int64_t borrows() const { return borrows_; }
    std::int64_t num_lent() const { return num_lent_; }  // messages, of all runs
    void rebase(int buffer, std::byte* base) { share_.bases.at(static_cast<std::size_t>(buffer)) = base; }

  private:
    struct Cut {  // a slot's bytes; without tiles, those of all adjacent slots
        std::int64_t offset, bytes;
    };
    struct Place {
        std::byte* const* base = nullptr;
        std::vector<Cut> cuts;
        int buffer = -1;
    };
    struct Step {
        run::Kind kind{};
        int dtype = 0;
        Reader* in = nullptr;
        Writer* out = nullptr;
        Place read, write, sum;       // `sum`: the operand of a reduce that it then overwrites
        bool is_overwritten = false;  // the message of a step that sends, by a later step
        bool is_answered = false;     // so, with what its reader sent after it had read
        std::vector<std::pair<int, std::int64_t>> after;
        const run::Op* op = nullptr;
    };
    struct Lane {
        std::vector<Step> steps;
        std::size_t next = 0;
        std::int64_t tile = 0, done = 0;  // steps done, of all tiles
        std::int64_t bytes = 0;           // of the next step's message
    };
    class Tile;
    struct Into;
    struct Survey {  // of one run: the parts of the input that were written
        int buffer = -1;
        std::map<std::int64_t, std::int64_t> written = {};  // end by begin; they do not touch
        std::vector<Place*> early = {};                     // read before any byte there was written
        bool mixed = false;
        std::int64_t count(const Cut& cut) const;
        void read(Place& place);
        void write(const Place& place);
    };

    void cut(const Extent& extent, std::int64_t room);
    void check(const run::Op& op, const Geometry& geometry) const;
    void add_steps();
    Place place(const run::Span& span, const Starts& starts, bool whole) const;
    std::int64_t message_bytes(const Step& step, std::int64_t tile) const;
    std::string reset(const Options& options);
    void begin(const Options& options);
    void begin_filling(const Options& options);
    void fill();
    void fill(std::byte* to, const std::byte* from, std::int64_t num_bytes);
    void end_survey();
    bool advance();
    bool step(Lane& lane);
    bool is_ready(const Step& step, std::int64_t tile) const;
    Turn own_turn(const std::byte* to, std::int64_t bytes);
    Turn own_turn(const Step& step, std::int64_t tile, std::int64_t bytes);
    void perform(const Step& step, std::int64_t tile, std::int64_t bytes);
    static const run::Span* message_of(const Step& step);
    void observe(Step& step);
    bool was_read_before(const Step& sent, const Step& step) const;
    Loan loan_of(const Step& step, std::int64_t tile, std::int64_t bytes) const;
    void note_loan(const Step& step);
    bool is_all_read();
    static int awaited(const Lane& lane);  // rank whose message or room the next step awaits; -1: another lane
    int died() const;
    std::string lost() const;
    std::string stalled(const Options& options) const;

    std::shared_ptr<Neighbours> ranks_;
    const Extent extent_;
    run::Share share_;
    std::vector<Lane> lanes_;
    std::int64_t tile_bytes_ = std::numeric_limits<std::int64_t>::max(), tiles_ = 1;  // of each slot
    std::size_t left_ = 0;                                                            // lanes that are not done
    int reduce_op_ = 0;
    Survey survey_;
    std::int64_t borrows_ = 0;
    bool surveyed_ = false;
    int input_ = -1;
    std::byte* source_ = nullptr;
    const std::vector<Starts> starts_;      // of slots, by buffer
    std::vector<std::int64_t> slot_bytes_;  // by buffer, where all slots have the same size
    std::vector<Cut> unfilled_;             // of the input: what is copied from `own_`, tile by tile
    const std::byte* own_ = nullptr;        // the source
    std::int64_t own_at_ = 0, filled_ = 0;  // where it begins in the input; tiles that were copied
    Patience patience_;
    Stores stores_{false};    // in regions
    std::uint64_t runs_ = 0;  // laps of these
    bool lends_ = false;
    std::vector<Step*> sent_;  // of the run that is observed
    std::int64_t least_lent_ = 0, least_answered_ = 0, num_lent_ = 0;
    std::vector<std::pair<const Step*, Count>> unread_;  // steps that lent, and the slots their channels had sent then
};

}  // namespace dovetail::shm
