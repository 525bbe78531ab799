// What a writer chooses if stores take given times, and that stores past the caches store what they should.
// Prints the checks that fail. Times are ticks per byte: of a write and a read, each way.
#include "shm/stores.hpp"

#include <cstdio>
#include <random>
#include <vector>

namespace {

using namespace dovetail::shm;

struct Times {
    double write[2], read[2];  // by way
};
constexpr Times near{{0.09, 0.06}, {0.05, 0.11}}, far{{0.70, 0.08}, {0.12, 0.12}};

// A writer and a reader, lap after lap.
struct Pair {
    Stores stores;
    ReadTimes sums{};
    std::uint64_t lap = 0;
    double spent[2] = {};  // of both, by way
    explicit Pair(bool hears = true) : stores(hears) {}

    // Stores `laps` laps of 8 messages; returns how many of them went past the caches.
    int run(int laps, const Times& times, std::uint64_t num_bytes = 16384) {
        int past = 0;
        for (int i = 0; i < laps; ++i, ++lap, stores.hear(sums))
            for (int slot = 0; slot < 8; ++slot) {
                const Turn turn = stores.turn(num_bytes, lap, slot == 0);
                const auto way = static_cast<std::size_t>(turn.way);
                const auto ticks = [&](double each) {
                    return static_cast<std::uint64_t>(each * static_cast<double>(num_bytes));
                };
                spent[way] += (times.write[way] + times.read[way]) * static_cast<double>(num_bytes);
                if (slot == 0 && turn.way == Way::nontemporal) ++past;
                if (!turn.is_timed) continue;
                stores.wrote(ticks(times.write[way]), num_bytes);
                sums.add(turn.way, ticks(times.read[way]), num_bytes);
            }
        return past;
    }
};

void check(bool holds, const char* what) {
    if (!holds) std::puts(what);
}

Times slower(const Times& times, double factor) {
    return {{times.write[0] * factor, times.write[1]}, {times.read[0] * factor, times.read[1]}};
}

void choices() {
    Pair one;
    check(one.run(2000, near) < 100, "near: few laps past the caches");
    check(one.spent[1] < 0.06 * one.spent[0], "near: tries take little time");
    int past = 0;
    for (int i = 0; i < 1000; ++i) past += one.run(3, near) + one.run(1, slower(near, 100));
    check(past < 300, "interrupts do not decide");
    one.run(10, near);
    one.run(3, slower(near, 5));
    check(one.run(20, near) < 5, "a few cold laps do not decide");
    one.run(20, far);
    check(one.run(200, far) > 190, "after a change to far: past the caches, soon");
    one.spent[0] = one.spent[1] = 0;
    one.run(5000, far);
    check(one.spent[0] < 0.06 * one.spent[1], "far: tries take little time");
    one.run(2000, near);
    check(one.run(1000, near) < 50, "after a change back: through the caches");

    Pair short_ones;
    short_ones.run(1000, far, 2048);
    check(short_ones.run(100, far, 2048) > 90, "short messages are timed once a lap");
    check(short_ones.run(100, far, 512) == 0, "very short messages never go past the caches");
    Pair alone(false);
    check(alone.run(1000, near) < 60, "without a reader, near");
    alone.run(20, far);
    check(alone.run(1000, far) > 880, "without a reader, far");
}

void bytes() {
    std::minstd_rand random(7);
    std::vector<std::byte> from(1024), to(1024);
    for (auto& each : from) each = static_cast<std::byte>(random());
    bool same = true;
    for (int i = 0; i < 20000; ++i) {
        const std::size_t at = random() % 100, size = random() % 800, begin = random() % 100;
        for (auto& each : to) each = std::byte{0xA5};
        store_nontemporal(to.data() + at, from.data() + begin, size);
        settle();
        for (std::size_t k = 0; k < to.size(); ++k)
            same = same && to[k] == (k < at || k >= at + size ? std::byte{0xA5} : from[begin + k - at]);
    }
    check(same, "stores past the caches store what they should, there alone");
}

}  // namespace

int main() {
    choices();
    bytes();
    std::puts("done");
}
