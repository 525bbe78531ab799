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

// One rank's call. Kinds, dtypes and ops are those of mpi_table.h. `count`: elements; of one rank's part if ranks
// divide the whole. A v-variant has `counts` instead, those of dt_mpi_table::collective_v; `all_counts` distinguishes
// its calls.
struct Call {
    int kind = 0;
    const std::byte* src = nullptr;
    std::byte* dst = nullptr;  // null if this rank gets no result
    long long count = 0;
    int dtype = 0, op = 0, root = 0;
    long long num_bytes = 0;  // of the larger of a rank's input and output, the same on every rank: rules use it
    std::vector<long long> counts;
    std::string all_counts;
};

// The choice from `least_bytes` to the next rule; -1: the library.
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
    long long num_bytes = 0;  // of the call: an upper bound of its messages
    bool added = false;       // false: the call was seen once, and has no engine yet
};

// Thrown in place of a transfer, or after it: the board has an error of another rank, from before this transfer.
struct OtherRankFailed {};

// One thread at a time uses it, as MPI requires of a communicator.
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

    // Rules that were measured for one dtype hold for no other; -1: any.
    void set_rules(int kind, std::vector<Rule> rules, int dtype = -1);
    int choice(int kind, long long num_bytes, int dtype = -1) const;

    // Returns false if the rules ask for an engine and an equal call was made before: the caller should `add` one. The
    // first such call goes to the library, so that sizes which are not repeated cost nothing. Throws TransportError if
    // the call fails, OtherRankFailed if `board` has a fault to raise, unless this rank is `standing_in`.
    bool run(const Call& call);
    // Begins a call that the library makes, so that later ones can begin before it ends; -1: it has to be made whole.
    // Another thread may do so while this one finishes earlier calls, in their order. Only for ranks on several hosts.
    int begin(const Call& call);
    void finish(const Call& call, int handle);
    void library(const Call& call, bool by_rules = false);  // by the library, whatever the rules are
    void add(const Call& call, Service service);            // without an engine: by the library from now on
    void clear();                                           // forgets all engines
    std::size_t num_engines() const;
    std::size_t most_engines = 64;  // with more engines or bytes, the least recently used are dropped
    long long most_bytes = 1LL << 28;
    // Bytes of the memory that all ranks share: for a board, and for channels of at most `most_bytes`.
    static std::size_t shared_bytes(int size, std::size_t most_bytes);
    void share(shm::Segment memory);
    void hide() const { memory_ ? memory_->hide() : void(); }  // once all ranks share it
    void unshare();
    std::unique_ptr<Board> board;  // if all ranks share memory
    const std::shared_ptr<shm::Neighbours>& neighbours() const { return neighbours_; }
    bool standing_in = false;  // this rank does a call that it has to do before it raises a fault

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
    using Engines = std::list<std::pair<Key, Service>>;  // the most recently used first

    static Key key_of(const Call& call, int choice);
    Engines::iterator find(const Call& call, int choice);
    void enter(const Call& call, bool by_rules);
    void leave() const;
    void transfer(const Call& call);
    bool is_in_place(const Call& call) const;
    void average(const Call& call) const;
    void call_library(const LibraryCall& asked);
    void to_next(const LibraryCall& asked, long long num_bytes);
    void await(int handle);
    void serve(const Call& call, Service& service);
    void remember(const Call& call, Service service);
    std::byte* room(std::size_t num_bytes);
    std::pair<long long, long long> sides(const Call& call) const;  // bytes of this rank's input and output
    long long own_part(const Call& call) const;                     // its place in the whole

    const dt_mpi_table* mpi_;
    dt_comm* comm_ = nullptr;
    std::shared_ptr<MpiTransport> transport_;
    std::vector<std::vector<Rule>> rules_;  // by kind
    std::vector<int> dtypes_;               // that they hold for
    Engines engines_;
    long long total_bytes_ = 0;
    std::unordered_map<Key, Engines::iterator, Hash> find_;
    std::vector<std::byte> arena_;
    std::shared_ptr<shm::Segment> memory_;
    std::shared_ptr<shm::Neighbours> neighbours_;
    std::string broken_;  // why no engine can run here any more
};

}  // namespace dovetail::run
