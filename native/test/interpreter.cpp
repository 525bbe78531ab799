// The interpreter's lanes on host threads that dawdle at random, by every protocol; for sanitizers.
// Usage: interpreter FILE SEED [in_turn | lost | unordered]: `in_turn` gives each case one protocol, not all; the
// others plant a fault (see cases.hpp for the file).
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cuda/host.hpp"
#include "cuda/load.hpp"
#include "run/mpi_table.h"
#include "test/cases.hpp"

namespace {

using namespace dovetail::cuda;
using dovetail::run::Case;

// Sleeps or yields before it looks at a flag or sets one: any legal interleaving may come.
class Dawdler : public HostGroup {
  public:
    Dawdler(const Image& image, Barrier& barrier, int thread, int size)
        : HostGroup(image, barrier, thread, size), random_(seed + turn++) {}
    std::uint64_t load_acquire(std::uint64_t& word) { return dawdle(), HostGroup::load_acquire(word); }
    void store_release(std::uint64_t& word, std::uint64_t value) { dawdle(), HostGroup::store_release(word, value); }
    void store_release_both(std::uint64_t& one, std::uint64_t value, std::uint64_t& other, std::uint64_t more) {
        store_release(one, value), store_release(other, more);
    }
    void load_pair(const std::uint64_t* line, std::uint64_t& low, std::uint64_t& high) {
        dawdle(), HostGroup::load_pair(line, low, high);
    }
    void store_pair(std::uint64_t* line, std::uint64_t low, std::uint64_t high) {
        dawdle(), HostGroup::store_pair(line, low, high);
    }
    bool load_line(const std::uint64_t* line, int place, std::uint64_t flag, Unit& data) {
        return dawdle(), HostGroup::load_line(line, place, flag, data);
    }
    void store_line(std::uint64_t* line, int place, std::uint64_t flag, const Unit& data) {
        dawdle(), HostGroup::store_line(line, place, flag, data);
    }
    static inline unsigned seed = 0;
    static inline std::atomic<unsigned> turn{0};

  private:
    void dawdle() {
        const auto chance = random_() % 64;
        if (chance == 0) usleep(50);
        if (chance < 8) sched_yield();
    }
    std::minstd_rand random_;
};

// Loses one flag that it should set: a counter, or that of a line.
struct Loser : HostGroup {
    using HostGroup::HostGroup;
    static bool lost() { return left.fetch_sub(1) == 0; }
    static void store_release(std::uint64_t& word, std::uint64_t value) {
        if (!lost()) HostGroup::store_release(word, value);
    }
    static void store_release_both(std::uint64_t& one, std::uint64_t value, std::uint64_t& other, std::uint64_t more) {
        store_release(one, value), store_release(other, more);
    }
    static void store_pair(std::uint64_t* line, std::uint64_t low, std::uint64_t high) {
        if (!lost()) HostGroup::store_pair(line, low, high);
    }
    static void store_line(std::uint64_t* line, int place, std::uint64_t flag, const Unit& data) {
        if (place != 7 || !lost()) HostGroup::store_line(line, place, flag, data);
    }
    static inline std::atomic<int> left{0};
};

// Sets counters without ordering what came before.
struct Unordered : HostGroup {
    using HostGroup::HostGroup;
    static void store_release(std::uint64_t& word, std::uint64_t value) { store_relaxed(word, value); }
    static void store_release_both(std::uint64_t& one, std::uint64_t value, std::uint64_t& other, std::uint64_t more) {
        store_relaxed(one, value), store_relaxed(other, more);
    }
};

Crew crew;

struct Run {
    explicit Run(const Case& asked, const Layout& layout) : held(asked.before) {
        std::vector<dovetail::run::Memory> memory;
        std::vector<std::int64_t> slots, order(asked.kind.size());
        for (std::size_t r = 0; r < held.size(); ++r)
            for (std::size_t b = 0; b < held[r].size(); ++b) {
                auto* base = reinterpret_cast<std::byte*>(held[r][b].data());
                memory.push_back({base, 8, DT_INT64, asked.starts[r][b].data()});
                slots.push_back(static_cast<std::int64_t>(asked.starts[r][b].size()) - 1);
            }
        std::iota(order.begin(), order.end(), 0);
        loaded = load(asked.columns(), asked.ranks, asked.channels, memory, slots, order, layout);
        bytes.resize(static_cast<std::size_t>(loaded.num_bytes) + 128);
        const auto place = reinterpret_cast<std::uintptr_t>(bytes.data());
        loaded.image.base = bytes.data() + (128 - place % 128) % 128;
        std::copy(loaded.tables.begin(), loaded.tables.end(), loaded.image.base);
    }

    template <class Group>
    std::string once(const Case& asked, int threads, double stall_s) {
        for (std::size_t r = 0; r < held.size(); ++r)
            for (std::size_t b = 0; b < held[r].size(); ++b)
                std::copy(asked.before[r][b].begin(), asked.before[r][b].end(), held[r][b].begin());
        loaded.image.stall_ns = static_cast<std::uint64_t>(1e9 * stall_s);
        const bool good = run_on_threads<Group>(loaded.image, loaded.protocol, threads, crew);
        loaded.image.first_round += static_cast<std::uint64_t>(loaded.image.rounds);
        if (!good) return "stalled:" + loaded.explain(loaded.image);
        for (std::size_t r = 0; r < held.size(); ++r)
            for (std::size_t b = 0; b < held[r].size(); ++b)
                if (!asked.after[r][b].empty() && asked.after[r][b] != held[r][b])
                    return "buffer " + std::to_string(b) + " of rank " + std::to_string(r) + " is wrong";
        return "";
    }

    std::vector<std::vector<dovetail::run::Numbers>> held;
    Loaded loaded;
    std::vector<std::byte> bytes;
};

constexpr Protocol protocols[] = {Protocol::simple, Protocol::ll, Protocol::ll128};

// Twice over the same FIFOs, so that flags of the run before are met.
bool fails(const Case& asked, std::span<const Protocol> by, std::minstd_rand& random) {
    for (const Protocol protocol : by) {
        const std::int64_t places[] = {0, 16, 64, 200};
        Run run(asked, {protocol, places[random() % 4], static_cast<std::int64_t>(16 * (random() % 5))});
        const bool few = run.loaded.image.num_lanes <= 200;  // threads that meet at barriers keep the cores from others
        const int threads = random() % 3 == 0 && few ? 2 : 1;
        for (int turn = 0; turn < 2; ++turn) {
            const std::string failure = run.once<Dawdler>(asked, threads, 60);
            if (failure.empty()) continue;
            std::printf("%s, protocol %d: %s\n", asked.name.c_str(), static_cast<int>(protocol), failure.c_str());
            return true;
        }
    }
    return false;
}

// After a lost flag, the counter's next flag lets the run complete, or the run stalls and names the waiting op; nothing
// else may happen.
int count_stalls(const Case& asked, Protocol protocol, std::minstd_rand& random) {
    int stalls = 0;
    for (int turn = 0; turn < 6; ++turn) {
        Run run(asked, {protocol});
        Loser::left = static_cast<int>(random() % 20);
        const std::string failure = run.once<Loser>(asked, 1, 0.1);
        const bool is_named = failure.find("waits at its op") != std::string::npos;
        if (!failure.empty() && !is_named) return std::printf("a lost flag: %s\n", failure.c_str()), -1;
        stalls += is_named;
    }
    return stalls;
}

int lose(const Case& asked, std::minstd_rand& random) {
    for (const Protocol protocol : protocols) {
        const int stalls = count_stalls(asked, protocol, random);
        if (stalls < 0) return 1;
        std::printf("protocol %d: %d of 6 lost flags stall\n", static_cast<int>(protocol), stalls);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    const std::string fault = argc > 3 ? argv[3] : "";
    dovetail::run::file.open(argv[1]);
    std::minstd_rand random(static_cast<unsigned>(std::atoi(argv[2])));
    const std::span<const Protocol> all(protocols);
    for (auto left = dovetail::run::number(); left > 0; --left) {
        const Case asked;
        Dawdler::seed = static_cast<unsigned>(random());
        if (fault == "lost" && lose(asked, random)) return 1;
        if (fault == "unordered") Run(asked, {}).once<Unordered>(asked, 1, 60);
        if (fault.empty() && fails(asked, all, random)) return 1;
        if (fault == "in_turn" && fails(asked, all.subspan(static_cast<std::size_t>(left) % 3, 1), random)) return 1;
    }
    std::puts("all as expected");
    return 0;
}
