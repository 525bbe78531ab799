// Programs from a file, with inputs and what must come of them: whitespace-separated numbers, as
// tests/run/test_sanitizers.py writes them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "run/load.hpp"

namespace dovetail::run {

using Numbers = std::vector<std::int64_t>;

inline std::ifstream file;

inline std::int64_t number() {
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

}  // namespace dovetail::run
