// Programs from a file, with inputs and what must come of them, on ranks that are threads; for sanitizers.
// Usage: collectives FILE ROUNDS SEED (see cases.hpp).
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "run/mpi_table.h"
#include "run/order.hpp"
#include "test/cases.hpp"
#include "test/ranks.hpp"

namespace {

using namespace dovetail::run;

bool fails(const Case& asked, int rounds, unsigned seed) {
    Ranks ranks(asked.ranks, seed);
    const Columns columns = asked.columns();
    const bool in_order = !ordered_locally(asked.ranks, columns);
    auto memory = asked.before;
    for (std::size_t r = 0; r < memory.size(); ++r) {
        std::vector<Memory> homes;
        for (std::size_t b = 0; b < memory[r].size(); ++b)
            homes.push_back(
                {reinterpret_cast<std::byte*>(memory[r][b].data()), 8, DT_INT64, asked.starts[r][b].data()});
        ranks.add(load(static_cast<int>(r), columns, asked.lane_is_net, asked.channels, homes), in_order, {});
    }
    std::minstd_rand random(seed);
    for (int round = 0; round < rounds; ++round) {
        Options options{random() % 3 == 0, 1e-5, 0, 1 << (random() % 6), 30.0};
        options.slice_bytes = 64 * static_cast<std::int64_t>(random() % 4);
        options.spans = random() % 2 == 0;
        for (std::size_t r = 0; r < memory.size(); ++r)
            for (std::size_t b = 0; b < memory[r].size(); ++b)
                std::copy(asked.before[r][b].begin(), asked.before[r][b].end(), memory[r][b].begin());
        const std::string failure = ranks.run(options);
        if (!failure.empty()) return std::printf("%s: %s\n", asked.name.c_str(), failure.c_str()), true;
        for (std::size_t r = 0; r < memory.size(); ++r)
            for (std::size_t b = 0; b < memory[r].size(); ++b)
                if (!asked.after[r][b].empty() && asked.after[r][b] != memory[r][b])
                    return std::printf("%s: buffer %zu of rank %zu is wrong\n", asked.name.c_str(), b, r), true;
    }
    return false;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    file.open(argv[1]);
    const int rounds = std::atoi(argv[2]);
    for (auto left = number(); left > 0; --left)
        if (fails(Case(), rounds, static_cast<unsigned>(std::atoi(argv[3])))) return 1;
    std::puts("all as expected");
    return 0;
}
