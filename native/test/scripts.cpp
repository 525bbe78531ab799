// Programs from a file, with inputs and what must come of them, as Scripts on ranks that are threads; for sanitizers.
// Usage: scripts FILE ROUNDS SEED (see cases.hpp).
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "run/mpi_table.h"
#include "shm/script.hpp"
#include "test/cases.hpp"

namespace {

using namespace dovetail::run;
using dovetail::shm::Extent;
using dovetail::shm::Geometry;
using dovetail::shm::Neighbours;
using dovetail::shm::Script;

// Rings so short that every one of them runs full, and slots that most messages do not fit.
Geometry drawn(std::minstd_rand& random) {
    Geometry geometry;
    geometry.lines = 8u << random() % 3;
    geometry.slots = 2u << random() % 3;
    geometry.slot_bytes = 512u << random() % 4;
    geometry.fifos = 32;
    return geometry;
}

struct Threads {
    Threads(const Case& asked, const Geometry& geometry)
        : memory(Neighbours::bytes(asked.ranks, geometry) + 128), held(asked.before) {
        const auto at = (reinterpret_cast<std::uintptr_t>(memory.data()) + 127) / 128 * 128;
        const Columns columns = asked.columns();
        Extent extent{dovetail::shm::most_slots(columns), 0};
        for (const auto& buffers : asked.starts)
            for (const auto& starts : buffers)
                for (std::size_t i = 1; i < starts.size(); ++i)
                    extent.slot_bytes = std::max(extent.slot_bytes, starts[i] - starts[i - 1]);
        for (int rank = 0; rank < asked.ranks; ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            std::vector<Memory> homes;
            for (std::size_t b = 0; b < held[r].size(); ++b)
                homes.push_back(
                    {reinterpret_cast<std::byte*>(held[r][b].data()), 8, DT_INT64, asked.starts[r][b].data()});
            auto ranks = std::make_shared<Neighbours>(reinterpret_cast<std::byte*>(at), rank, asked.ranks, geometry);
            Share share = load(rank, columns, asked.lane_is_net, asked.channels, homes);
            scripts.push_back(std::make_unique<Script>(std::move(ranks), std::move(share), asked.starts[r], extent));
        }
    }

    // Several calls one after the other, without a barrier between.
    std::string run(int rounds, const std::vector<std::vector<Numbers>>& before) {
        std::vector<std::string> failures(scripts.size());
        std::vector<std::thread> threads;
        for (std::size_t r = 0; r < scripts.size(); ++r)
            threads.emplace_back([&, r] {
                for (int round = 0; round < rounds && failures[r].empty(); ++round) {
                    for (std::size_t b = 0; b < held[r].size(); ++b)
                        std::copy(before[r][b].begin(), before[r][b].end(), held[r][b].begin());
                    failures[r] = scripts[r]->run({30.0, DT_SUM, false, -1, nullptr});
                }
            });
        for (auto& thread : threads) thread.join();
        for (const auto& failure : failures)
            if (!failure.empty()) return failure;
        return "";
    }

    std::vector<std::byte> memory;
    std::vector<std::vector<Numbers>> held;
    std::vector<std::unique_ptr<Script>> scripts;
};

// 0: as expected, 1: not, 2: refused.
int outcome(const Case& asked, int rounds, std::minstd_rand& random) {
    try {
        Threads threads(asked, drawn(random));
        const std::string failure = threads.run(rounds, asked.before);
        if (!failure.empty()) return std::printf("%s: %s\n", asked.name.c_str(), failure.c_str()), 1;
        for (std::size_t r = 0; r < threads.held.size(); ++r)
            for (std::size_t b = 0; b < threads.held[r].size(); ++b)
                if (!asked.after[r][b].empty() && asked.after[r][b] != threads.held[r][b])
                    return std::printf("%s: buffer %zu of rank %zu is wrong\n", asked.name.c_str(), b, r), 1;
    } catch (const std::invalid_argument& error) {
        return std::printf("%s is refused: %s\n", asked.name.c_str(), error.what()), 2;
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    file.open(argv[1]);
    std::minstd_rand random(static_cast<unsigned>(std::atoi(argv[3])));
    int refused = 0, count = 0;
    for (auto left = number(); left > 0; --left, ++count) {
        const int found = outcome(Case(), std::atoi(argv[2]), random);
        if (found == 1) return 1;
        refused += found == 2;
    }
    std::printf("%d of %d refused; all others as expected\n", refused, count);
    return 0;
}
