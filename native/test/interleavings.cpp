// Every interleaving of two or three ranks on the channels of native/shm, and of planted faults that must be found.
//
//     interleavings CASE    prints the number of executions, or the first error, with exit code 1
#include "test/interleavings.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shm/channel.hpp"

namespace {

using namespace dovetail::shm;
using dovetail::test::Interleavings;
using Body = Interleavings::Body;
using Bodies = std::vector<Body>;

void wait_for(const std::function<bool()>& done) {
    while (!done()) Interleavings::current().pause();
}

// Memory of an execution: the channels of `size` ranks.
struct Shared {
    Shared(int size, const Geometry& with) : geometry(with), memory(geometry.bytes(static_cast<Count>(size)) + 64) {
        auto* begin = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
        for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<Ends>(begin, rank, size, geometry));
    }
    Geometry geometry;
    std::vector<std::byte> memory;
    std::vector<std::unique_ptr<Ends>> ranks;
};

Geometry small() {
    Geometry geometry;
    geometry.fifos = 1, geometry.lines = 4, geometry.slots = 2, geometry.slot_bytes = 256;
    return geometry;
}

void send(Writer& to, Count num_bytes, int value) {
    wait_for([&] { return to.has_room(num_bytes); });
    Interleavings::current().touch(to.place(num_bytes), true);
    std::memset(to.place(num_bytes), value, num_bytes);
    to.commit(num_bytes);
}

void receive(Reader& from, Count num_bytes, int value) {
    wait_for([&] { return from.has_come(num_bytes); });
    Interleavings::current().expect(!from.loan(num_bytes).is_one, "what was lent is still there");
    const std::byte* message = from.place(num_bytes);
    Interleavings::current().touch(message, false);
    const bool right = std::all_of(message, message + num_bytes, [&](std::byte b) { return b == std::byte(value); });
    from.release(num_bytes);
    Interleavings::current().expect(right, "a message holds other bytes than were sent");
}

// `count` messages one way, of sizes that alternate.
Bodies stream(const std::vector<Count>& sizes, int count) {
    auto shared = std::make_shared<Shared>(2, small());
    const auto size = [sizes](int i) { return sizes[static_cast<std::size_t>(i) % sizes.size()]; };
    return {[=] {
                for (int i = 0; i < count; ++i) send(shared->ranks[0]->to(1, 0), size(i), i + 1);
            },
            [=] {
                for (int i = 0; i < count; ++i) receive(shared->ranks[1]->from(0, 0), size(i), i + 1);
            },
            [] {}};
}

// `count` messages one way from two buffers of the sender: it lends some, and copies every third.
Bodies loans(int count) {
    struct Lent : Shared {
        Lent() : Shared(2, small()) {}
        int buffers[2] = {};
    };
    auto shared = std::make_shared<Lent>();
    const Count num_bytes = 200;
    const auto is_lent = [](int i) { return i % 3 != 2; };
    return {[=] {
                Writer& to = shared->ranks[0]->to(1, 0);
                Count lent[2] = {};
                for (int i = 0; i < count; ++i) {
                    if (!is_lent(i)) {
                        send(to, num_bytes, i + 1);
                        continue;
                    }
                    wait_for([&] { return to.have_taken(lent[i % 2]); });
                    Interleavings::current().touch(&shared->buffers[i % 2], true);
                    shared->buffers[i % 2] = i + 1;
                    wait_for([&] { return to.has_room(num_bytes); });
                    to.commit(num_bytes, {0, 1, static_cast<std::uint64_t>(i)});
                    lent[i % 2] = to.slots_sent();
                }
            },
            [=] {
                Reader& from = shared->ranks[1]->from(0, 0);
                for (int i = 0; i < count; ++i) {
                    if (!is_lent(i)) {
                        receive(from, num_bytes, i + 1);
                        continue;
                    }
                    wait_for([&] { return from.has_come(num_bytes); });
                    const Loan loan = from.loan(num_bytes);
                    Interleavings::current().touch(&shared->buffers[i % 2], false);
                    const bool right = loan.is_one && loan.offset == static_cast<std::uint64_t>(i);
                    const int found = shared->buffers[i % 2];
                    from.release(num_bytes);
                    Interleavings::current().expect(right && found == i + 1, "what was lent is not what was sent");
                }
            },
            [] {}};
}

// All ranks send to all others, then take: the flat exchange of short messages, `rounds` times.
Bodies exchange(int size, Count num_bytes, int rounds) {
    auto shared = std::make_shared<Shared>(size, small());
    Bodies bodies;
    for (int rank = 0; rank < size; ++rank)
        bodies.push_back([=] {
            for (int round = 1; round <= rounds; ++round) {
                for (int other = 0; other < size; ++other)
                    if (other != rank)
                        send(shared->ranks[static_cast<std::size_t>(rank)]->to(other, 0), num_bytes, round);
                for (int other = 0; other < size; ++other)
                    if (other != rank)
                        receive(shared->ranks[static_cast<std::size_t>(rank)]->from(other, 0), num_bytes, round);
            }
        });
    bodies.push_back([] {});
    return bodies;
}

// What the exploration itself must find: data behind a flag, and two ranks that each store and then load.
Bodies flag(std::memory_order store, std::memory_order load) {
    struct Memory {
        Atomic<int> flag;
        std::byte data{};
    };
    auto memory = std::make_shared<Memory>();
    return {[=] {
                Interleavings::current().touch(&memory->data, true);
                memory->flag.store(1, store);
            },
            [=] {
                wait_for([&] { return memory->flag.load(load) == 1; });
                Interleavings::current().touch(&memory->data, false);
            },
            [] {}};
}

Bodies crossing(std::memory_order store, std::memory_order load) {
    struct Memory {
        Atomic<int> flags[2];
        int found[2] = {};
    };
    auto memory = std::make_shared<Memory>();
    Bodies bodies;
    for (const int rank : {0, 1})
        bodies.push_back([=] {
            memory->flags[rank].store(1, store);
            memory->found[rank] = memory->flags[1 - rank].load(load);
        });
    bodies.push_back([=] {
        Interleavings::current().expect(memory->found[0] || memory->found[1], "both loads came before both stores");
    });
    return bodies;
}

Bodies no_answer() {
    auto flag = std::make_shared<Atomic<int>>();
    return {[=] { wait_for([&] { return flag->load(std::memory_order_acquire) == 1; }); }, [] {}, [] {}};
}

constexpr auto relaxed = std::memory_order_relaxed, acquire = std::memory_order_acquire,
               release = std::memory_order_release, total = std::memory_order_seq_cst;

const std::map<std::string, std::function<Bodies()>> cases = {
    {"lines", [] { return stream({8}, 10); }},
    {"slots", [] { return stream({200}, 9); }},
    {"lines and slots", [] { return stream({8, 200}, 12); }},
    {"exchange by lines", [] { return exchange(2, 8, 9); }},
    {"exchange by slots", [] { return exchange(2, 200, 5); }},
    {"loans", [] { return loans(8); }},
    {"three ranks", [] { return exchange(3, 8, 2); }},
    {"check: relaxed flag", [] { return flag(relaxed, acquire); }},
    {"check: relaxed look", [] { return flag(release, relaxed); }},
    {"check: store buffers", [] { return crossing(release, acquire); }},
    {"check: total order", [] { return crossing(total, total); }},
    {"check: nobody answers", no_answer},
};

}  // namespace

int main(int argc, char** argv) {
    const auto found = cases.find(argc > 1 ? argv[1] : "");
    if (found == cases.end()) {
        for (const auto& [name, make] : cases) std::puts(name.c_str());
        return argc > 1 ? 2 : 0;
    }
    try {
        std::printf("%lld executions\n", static_cast<long long>(Interleavings::explore(found->second)));
        return 0;
    } catch (const std::exception& error) {
        std::puts(error.what());
        return 1;
    }
}
