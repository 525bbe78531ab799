// Programs from a file, with inputs and what must come of them, on ranks that are threads; for sanitizers.
// Usage: collectives FILE ROUNDS SEED. The file is whitespace-separated numbers (see tests/test_run_sanitizers.py).
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "run/mpi_table.h"
#include "run/order.hpp"
#include "test/ranks.hpp"

namespace {

using namespace dovetail::run;
using Numbers = std::vector<std::int64_t>;

std::ifstream file;

std::int64_t number() {
    std::int64_t value = 0;
    if (!(file >> value)) std::puts("the file ends too early"), std::exit(2);
    return value;
}

template <class T = std::int64_t>
std::vector<T> numbers() {
    std::vector<T> all(static_cast<std::size_t>(number()));
    for (auto& each : all) each = static_cast<T>(number());
    return all;
}

struct Side {
    Numbers start = numbers();
    std::vector<std::int32_t> buffer = numbers<std::int32_t>();
    Numbers offset = numbers(), count = numbers(), stride = numbers(), blocks = numbers();
    Regions regions() const {
        return {start.data(), buffer.data(), offset.data(), count.data(), stride.data(), blocks.data()};
    }
};

struct Case {
    std::string name;
    int ranks = 0;
    std::vector<bool> lane_is_net;
    std::vector<ChannelRow> channels;
    std::vector<std::uint8_t> kind = {};
    std::vector<std::int32_t> rank, lane, chan_in, chan_out, call;
    Numbers dep_start, dep;
    std::vector<Side> sides;
    // By rank and buffer: where slots begin (in bytes, the end last), what is in them at first and in the end (none:
    // nothing is asked).
    std::vector<std::vector<Numbers>> starts, before, after;

    explicit Case() {
        file >> name;
        ranks = static_cast<int>(number());
        for (const auto net : numbers()) lane_is_net.push_back(net != 0);
        const Numbers ends = numbers();
        for (std::size_t i = 0; i < ends.size(); i += 3)
            channels.push_back(
                {static_cast<int>(ends[i]), static_cast<int>(ends[i + 1]), static_cast<int>(ends[i + 2])});
        kind = numbers<std::uint8_t>();
        for (auto* column : {&rank, &lane, &chan_in, &chan_out, &call}) *column = numbers<std::int32_t>();
        dep_start = numbers(), dep = numbers();
        sides = std::vector<Side>(2);
        const auto buffers = number();
        for (int r = 0; r < ranks; ++r)
            for (auto* part : {&starts, &before, &after}) {
                part->emplace_back();
                for (std::int64_t b = 0; b < buffers; ++b) part->back().push_back(numbers());
            }
    }

    Columns columns() const {
        Columns c{};
        c.num_ops = static_cast<std::int64_t>(kind.size());
        c.kind = kind.data(), c.rank = rank.data(), c.lane = lane.data();
        c.chan_in = chan_in.data(), c.chan_out = chan_out.data(), c.call = call.data();
        c.dep_start = dep_start.data(), c.dep = dep.data();
        c.reads = sides[0].regions(), c.writes = sides[1].regions();
        return c;
    }
};

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
