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
#include "shm/neighbours.hpp"

namespace dovetail::shm {

// The size of a Program's messages, the same on all ranks: the most slots of one, and the bytes of the largest slot.
struct Extent {
    std::int64_t most_slots = 1, slot_bytes = 0;
};

std::int64_t most_slots(const run::Columns& columns);

// Slots longer than a channel's are cut into tiles, and the whole Program runs tile after tile. A lane goes on to the
// next tile without waiting for others. Tiles touch different bytes of every slot, and each message of a tile fits a
// slot of its channel. So the proof of the Program holds for each tile, and for tiles one after the other.
class Script {
  public:
    // Bytes at which each slot of a buffer begins, and the last ends; empty: all slots have the same size.
    using Starts = std::vector<std::int64_t>;

    // Throws std::invalid_argument, with the reason, if a Script cannot run this: on all ranks, but the reasons may
    // differ.
    Script(std::shared_ptr<Neighbours> ranks, run::Share share, const std::vector<Starts>& starts,
           const Extent& extent);

    struct Options {
        double stall_s = 10.0;  // no progress for this long is a stall
        int reduce_op = 0;      // as in run::Options
        bool rests = false;     // sleep while waiting: the user's thread computes
        int input = -1;         // the buffer that `source` replaces
        // The first contents of that buffer, if they are not in it. Only for a Script that `borrows`.
        const std::byte* source = nullptr;
    };
    // Runs every step of every tile. Returns an empty string, or why it stopped: then channels hold half a call, and no
    // Script of these ranks may run again.
    std::string run(const Options& options);

    // Bytes of the input of earlier runs, if all of it is written, and no step reads bytes of which only some were
    // written before: then its first contents may be in another array. 0: not so, or not known yet.
    std::int64_t borrows() const { return borrows_; }
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
        Place read, write, sum;  // `sum`: the operand of a reduce that it then overwrites
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
    struct Survey {  // of one run: the parts of the input that were written
        int buffer = -1;
        std::map<std::int64_t, std::int64_t> written = {};  // end by begin; they do not touch
        std::vector<Place*> early = {};                     // read before any byte there was written
        bool mixed = false;
        std::int64_t count(const Cut& cut) const;
        void read(Place& place);
        void write(const Place& place);
    };

    void check(const run::Op& op, const Geometry& geometry) const;
    void add_steps(const std::vector<Starts>& starts);
    Place place(const run::Span& span, const Starts& starts, bool whole) const;
    std::int64_t message_bytes(const Step& step, std::int64_t tile) const;
    void begin(const Options& options);
    void end_survey();
    bool advance();
    bool step(Lane& lane);
    bool is_ready(const Step& step, std::int64_t tile) const;
    void perform(const Step& step, std::int64_t tile, std::int64_t bytes);
    static int awaited(const Lane& lane);  // rank whose message or room the next step awaits; -1: another lane
    std::string lost() const;
    std::string stalled(const Options& options) const;

    std::shared_ptr<Neighbours> ranks_;
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
    Patience patience_;
};

}  // namespace dovetail::shm
