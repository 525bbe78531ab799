// Communicator: collectives on the arrays of a user's MPI program, by the library's own call or by a Program's engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "run/board.hpp"
#include "run/engine.hpp"
#include "run/mpi.hpp"
#include "shm/script.hpp"
#include "shm/segment.hpp"

namespace dovetail::run {

// What one rank asks: kinds, dtypes and ops are those of mpi_table.h, and `count` elements of the part where ranks cut
// the whole. A v-variant has `counts` instead, as dt_mpi_table::collective_v takes them; `all_counts` distinguishes
// its calls.
struct Call {
    int kind = 0;
    const std::byte* src = nullptr;
    std::byte* dst = nullptr;  // null where this rank gets no result
    long long count = 0;
    int dtype = 0, op = 0, root = 0;
    long long num_bytes = 0;  // of the larger of a rank's input and output, the same on every rank: what rules go by
    std::vector<long long> counts;
    std::string all_counts;
};

// From `least_bytes` on, until the next rule: a choice, or -1: the library.
struct Rule {
    long long least_bytes;
    int choice;
};

// A bound engine and the buffers of its Program: rows of input and output (-1: none on this rank), bytes of each
// scratch.
struct Service {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<shm::Script> script;  // in place of the engine
    Options options;
    bool in_place = false;
    int input = -1, output = -1;
    std::vector<std::pair<int, std::size_t>> scratch;
    long long num_bytes = 0;  // of the call: an upper bound of its messages' bytes
    bool added = false;       // false: the call was seen once, and has no engine yet
};

// Thrown in place of a transfer, or after it: by the board, another rank failed before this transfer.
struct OtherRankFailed {};

// One thread at a time, as MPI asks of a communicator.
class Communicator {
  public:
    // Collective over the user's communicator. When they free it, `ends` is called with this, then `freed`.
    Communicator(const dt_mpi_table* mpi, int fortran, void (*ends)(void*), void (*freed)(void*));
    ~Communicator() { mpi_->release(comm_); }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    int rank() const { return transport_->rank(); }
    int size() const { return transport_->size(); }
    const std::shared_ptr<MpiTransport>& transport() const { return transport_; }
    const dt_comm* comm() const { return comm_; }

    // Rules that were measured for one dtype serve no other; -1: any.
    void set_rules(int kind, std::vector<Rule> rules, int dtype = -1);
    int choice(int kind, long long num_bytes, int dtype = -1) const;

    // Returns false if the rules ask for an engine and an equal call came before: the caller should `add` one. The
    // first such call goes to the library, so that sizes which never come again cost nothing. Throws TransportError if
    // the call fails, OtherRankFailed if `board` has a fault to raise, unless this rank is `standing_in`.
    bool run(const Call& call);
    void library(const Call& call, bool by_rules = false);  // by the library, ignoring the rules
    void add(const Call& call, Service service);            // without an engine: by the library from now on
    void clear();                                           // forgets all engines
    std::size_t num_engines() const;
    std::size_t most_engines = 64;  // the least lately used go; by their calls' bytes too, for engines keep buffers
    long long most_bytes = 1LL << 28;
    // Of memory that all ranks share: for a board and for channels, which take at most `most_bytes`.
    static std::size_t shared_bytes(int size, std::size_t most_bytes);
    void share(shm::Segment memory);
    void hide() const { memory_ ? memory_->hide() : void(); }  // once all ranks share it
    void unshare();
    std::unique_ptr<Board> board;  // where all ranks share memory
    const std::shared_ptr<shm::Neighbours>& neighbours() const { return neighbours_; }
    bool standing_in = false;  // doing a call that this rank was to do before it raises a fault

  private:
    struct Key {
        int kind, choice, dtype, root;
        long long count;
        std::string all_counts;
        bool operator==(const Key&) const = default;
    };
    struct Hash {
        std::size_t operator()(const Key& key) const;
    };
    using Engines = std::list<std::pair<Key, Service>>;  // the latest used first

    static Key key_of(const Call& call, int choice);
    Engines::iterator find(const Call& call, int choice);
    void enter(const Call& call, bool by_rules);
    void leave() const;
    void transfer(const Call& call);
    void call_library(const LibraryCall& asked);
    void to_next(const LibraryCall& asked, long long num_bytes);
    void await(int handle);
    void serve(const Call& call, Service& service);
    void remember(const Call& call, Service service);
    std::byte* room(std::size_t num_bytes);
    std::pair<long long, long long> sides(const Call& call) const;  // bytes of this rank's input and output
    long long own_part(const Call& call) const;                     // where it lies in the whole

    const dt_mpi_table* mpi_;
    dt_comm* comm_ = nullptr;
    std::shared_ptr<MpiTransport> transport_;
    std::vector<std::vector<Rule>> rules_;  // by kind
    std::vector<int> dtypes_;               // that they serve
    Engines engines_;
    long long total_bytes_ = 0;
    std::unordered_map<Key, Engines::iterator, Hash> find_;
    std::vector<std::byte> arena_;
    std::shared_ptr<shm::Segment> memory_;
    std::shared_ptr<shm::Neighbours> neighbours_;
    std::string broken_;  // why no engine runs here any more
};

}  // namespace dovetail::run
