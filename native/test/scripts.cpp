// Programs from a file, with inputs and what must come of them, as Scripts on ranks that are threads; for sanitizers.
// Usage: scripts FILE ROUNDS SEED (see cases.hpp).
#include <algorithm>
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
using dovetail::shm::Region;
using dovetail::shm::Script;
using dovetail::shm::Segment;

// Rings so short that every one of them runs full, and slots that most messages do not fit.
Geometry drawn(std::minstd_rand& random) {
    Geometry geometry;
    geometry.lines = 8u << random() % 3;
    geometry.slots = 2u << random() % 3;
    geometry.slot_bytes = 512u << random() % 4;
    geometry.fifos = 32;
    return geometry;
}

std::vector<std::size_t> lengths(const Case& asked) {
    std::vector<std::size_t> found;
    for (const auto& buffers : asked.before) {
        found.push_back(0);
        for (const auto& each : buffers) found.back() += each.size() * sizeof(std::int64_t);
    }
    return found;
}

// The buffers of each rank lie in its part of a region, or in memory of its own.
struct Threads {
    Threads(const Case& asked, std::minstd_rand& random)
        : geometry(drawn(random)),
          memory(Neighbours::bytes(asked.ranks, geometry) + 128),
          shared(std::make_shared<Segment>(Segment::make(Region::bytes(lengths(asked))))),
          own(asked.before) {
        const auto at = (reinterpret_cast<std::uintptr_t>(memory.data()) + 127) / 128 * 128;
        const Columns columns = asked.columns();
        Extent extent = dovetail::shm::extent_of(columns, 0);
        for (const auto& buffers : asked.starts)
            for (const auto& starts : buffers)
                for (std::size_t i = 1; i < starts.size(); ++i)
                    extent.slot_bytes = std::max(extent.slot_bytes, starts[i] - starts[i - 1]);
        for (int rank = 0; rank < asked.ranks; ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            auto ranks = std::make_shared<Neighbours>(reinterpret_cast<std::byte*>(at), rank, asked.ranks, geometry);
            auto region = std::make_shared<Region>(shared, rank, lengths(asked));
            ranks->regions.add(region);
            held.emplace_back();
            std::vector<Memory> homes;
            auto* next = reinterpret_cast<std::int64_t*>(region->part(rank));
            const bool lends = random() % 4 != 0;
            for (std::size_t b = 0; b < own[r].size(); next += own[r][b++].size()) {
                held[r].push_back(lends ? next : own[r][b].data());
                homes.push_back({reinterpret_cast<std::byte*>(held[r][b]), 8, DT_INT64, asked.starts[r][b].data()});
            }
            Share share = load(rank, columns, asked.lane_is_net, asked.channels, homes);
            scripts.push_back(std::make_unique<Script>(std::move(ranks), std::move(share), asked.starts[r], extent));
        }
    }

    // Fills the rank's buffers, but for random slots of the first one: those are in `aside`, and their place is spoilt.
    Script::Options fill(std::size_t r, const Case& asked, Numbers& aside, std::minstd_rand& random) {
        for (std::size_t b = 0; b < held[r].size(); ++b)
            std::copy(asked.before[r][b].begin(), asked.before[r][b].end(), held[r][b]);
        Script::Options options{30.0, DT_SUM, false, 0, nullptr, 0, 0, 64, 0};
        const Numbers& starts = asked.starts[r][0];
        const auto all = starts.size() - 1;
        const std::size_t first = random() % 2 ? 0 : random() % (all + 1), some = random() % (all - first + 1);
        const auto begin = starts[first], end = starts[first == 0 && random() % 2 ? all : first + some];
        if (begin == end) return options;
        std::int64_t *from = held[r][0] + begin / 8, *to = held[r][0] + end / 8;
        aside.assign(from, to);
        std::fill(from, to, -1);
        options.source = reinterpret_cast<const std::byte*>(aside.data());
        options.source_at = begin, options.source_bytes = end - begin;
        return options;
    }

    // Several calls one after the other, without a barrier between.
    std::string run(int rounds, const Case& asked) {
        std::vector<std::string> failures(scripts.size());
        std::vector<std::thread> threads;
        for (std::size_t r = 0; r < scripts.size(); ++r)
            threads.emplace_back([&, r] {
                std::minstd_rand random(static_cast<unsigned>(r + 1));
                Numbers aside;
                for (int round = 0; round < rounds && failures[r].empty(); ++round)
                    failures[r] = scripts[r]->run(fill(r, asked, aside, random));
            });
        for (auto& thread : threads) thread.join();
        for (const auto& failure : failures)
            if (!failure.empty()) return failure;
        return "";
    }

    Geometry geometry;
    std::vector<std::byte> memory;
    std::shared_ptr<Segment> shared;
    std::vector<std::vector<Numbers>> own;
    std::vector<std::vector<std::int64_t*>> held;
    std::vector<std::unique_ptr<Script>> scripts;
};

// 0: as expected, 1: not, 2: refused.
int outcome(const Case& asked, int rounds, std::minstd_rand& random, std::int64_t& lent) {
    try {
        Threads threads(asked, random);
        const std::string failure = threads.run(rounds, asked);
        for (const auto& each : threads.scripts) lent += each->num_lent();
        if (!failure.empty()) return std::printf("%s: %s\n", asked.name.c_str(), failure.c_str()), 1;
        for (std::size_t r = 0; r < threads.held.size(); ++r)
            for (std::size_t b = 0; b < threads.held[r].size(); ++b)
                if (!std::equal(asked.after[r][b].begin(), asked.after[r][b].end(), threads.held[r][b]))
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
    std::int64_t lent = 0;
    for (auto left = number(); left > 0; --left, ++count) {
        const int found = outcome(Case(), std::atoi(argv[2]), random, lent);
        if (found == 1) return 1;
        refused += found == 2;
    }
    std::printf("%d of %d refused; all others as expected; %s lent\n", refused, count, lent ? "messages" : "nothing");
    return 0;
}
