// Random programs on ranks that are threads, in both progress modes, whole and in pieces, for sanitizers.
// Usage: run SEED COUNT [TRACE_FOLDER]. Each program is its own check: what every slot must end with is counted along.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "run/mpi_table.h"
#include "run/order.hpp"
#include "test/ranks.hpp"

namespace {

using namespace dovetail::run;

constexpr int num_lanes = 3, slots = 6, width = 37;  // lane 0 computes; a slot is `width` int64

struct Held {  // what a slot holds: element i is first + i * step, and sums of such are such
    std::int64_t first = 0, step = 0;
    std::int64_t at(std::size_t i) const { return first + static_cast<std::int64_t>(i) * step; }
    Held& operator+=(const Held& other) {
        first += other.first, step += other.step;
        return *this;
    }
};

// Writes the columns of a Program op by op; one buffer, whose final slots are `expected`.
struct Writer {
    explicit Writer(unsigned seed) : random(seed), ranks(2 + pick(3)) {
        expected.assign(static_cast<std::size_t>(ranks), std::vector<Held>(slots));
        for (int rank = 0; rank < ranks; ++rank)
            for (int slot = 0; slot < slots; ++slot)
                expected[at(rank)][at(slot)] = {rank * 100 + slot, 7 * rank + slot + 1};
        initial = expected;
        for (int steps = 20 + pick(30); steps > 0; --steps) step();
    }

    static std::size_t at(int i) { return static_cast<std::size_t>(i); }
    int pick(int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); }

    // An op waits for those of other lanes of its rank before it that touch the same slot, channel end or collective.
    void add(Kind op, int on, int in_lane, int from, int to, int in = -1, int out = -1, int which = -1) {
        kind.push_back(static_cast<std::uint8_t>(op));
        rank.push_back(on), lane.push_back(in_lane), chan_in.push_back(in), chan_out.push_back(out);
        call.push_back(which);
        for (const bool write : {false, true}) {
            auto& side = write ? writes : reads;
            const int slot = write ? to : from;
            if (slot >= 0) side.offset.push_back(slot);
            side.start.push_back(static_cast<std::int64_t>(side.offset.size()));
        }
        const auto row = static_cast<std::int64_t>(kind.size()) - 1;
        const auto touch = [&](int what, int place, bool write) {
            if (place < 0) return;
            auto& [writer, readers] =
                touched.try_emplace({on, what, place}, -1, std::vector<std::int64_t>{}).first->second;
            if (writer >= 0) dep.push_back(writer);
            if (write) dep.insert(dep.end(), readers.begin(), readers.end()), readers.clear(), writer = row;
            if (!write) readers.push_back(row);
        };
        const auto before = dep.size();
        touch(0, from, false), touch(0, to, true), touch(1, in, true), touch(2, out, true), touch(3, which, true);
        const auto by_lane = [&](std::int64_t other) { return lane[static_cast<std::size_t>(other)] == in_lane; };
        dep.erase(std::remove_if(dep.begin() + static_cast<std::ptrdiff_t>(before), dep.end(), by_lane), dep.end());
        dep_start.push_back(static_cast<std::int64_t>(dep.size()));
    }

    int channel(int src, int dst) {
        const auto found = channel_of.emplace(std::pair{src, dst}, static_cast<int>(channels.size()));
        if (found.second) channels.push_back({src, dst, 1 + pick(3)});
        return found.first->second;
    }

    void step() {
        const int a = pick(ranks), from = pick(slots), to = pick(slots);
        const int b = (a + 1 + pick(ranks - 1)) % ranks, net = 1 + pick(2);
        auto &mine = expected[at(a)], &theirs = expected[at(b)];
        switch (pick(8)) {
            case 0:
                add(Kind::copy, a, pick(num_lanes), from, to);
                mine[at(to)] = mine[at(from)];
                break;
            case 1:
                add(Kind::reduce, a, pick(num_lanes), from, to);
                mine[at(to)] += mine[at(from)];
                break;
            case 2:
                add(Kind::signal, a, net, -1, -1, -1, channel(a, b));
                add(Kind::wait, b, net, -1, -1, channel(a, b));
                break;
            case 3:
                for (int r = 0; r < ranks; ++r) add(Kind::collective, r, net, from, to, -1, -1, net - 1);
                all_reduce(from, to);
                break;
            case 4:
            case 5:
                forward(a, b, (b + 1 + pick(ranks - 1)) % ranks, net, from, to);
                break;
            default:
                add(Kind::send, a, net, from, -1, -1, channel(a, b));
                if (pick(2)) {
                    add(Kind::recv, b, 1 + pick(2), -1, to, channel(a, b));
                    theirs[at(to)] = mine[at(from)];
                } else {
                    add(Kind::recv_reduce, b, 1 + pick(2), to, to, channel(a, b));
                    theirs[at(to)] += mine[at(from)];
                }
        }
    }

    // Rank a's slot goes to c by way of b, which may keep it, or add a slot of its own, or both.
    void forward(int a, int b, int c, int net, int from, int to) {
        const int own = pick(2) ? to : pick(slots), last = pick(slots), kind = pick(3);
        Held message = expected[at(a)][at(from)];
        add(Kind::send, a, net, from, -1, -1, channel(a, b));
        const Kind fused[] = {Kind::recv_copy_send, Kind::recv_reduce_send, Kind::recv_reduce_copy_send};
        add(fused[kind], b, 1 + pick(2), kind ? own : -1, kind == 1 ? -1 : to, channel(a, b), channel(b, c));
        if (kind) message += expected[at(b)][at(own)];
        if (kind != 1) expected[at(b)][at(to)] = message;
        add(Kind::recv, c, 1 + pick(2), -1, last, channel(b, c));
        expected[at(c)][at(last)] = message;
    }

    void all_reduce(int from, int to) {
        Held sum;
        for (const auto& held : expected) sum += held[at(from)];
        for (auto& held : expected) held[at(to)] = sum;
    }

    struct Side {
        std::vector<std::int64_t> start{0}, offset, ones, zeros;
        std::vector<std::int32_t> buffer;
        Regions regions() {
            ones.assign(offset.size(), 1), zeros.assign(offset.size(), 0), buffer.assign(offset.size(), 0);
            return {start.data(), buffer.data(), offset.data(), ones.data(), zeros.data(), ones.data()};
        }
    };

    Columns columns() {
        Columns c{};
        c.num_ops = static_cast<std::int64_t>(kind.size());
        c.kind = kind.data(), c.rank = rank.data(), c.lane = lane.data();
        c.chan_in = chan_in.data(), c.chan_out = chan_out.data(), c.call = call.data();
        c.dep_start = dep_start.data(), c.dep = dep.data();
        c.reads = reads.regions(), c.writes = writes.regions();
        return c;
    }

    std::mt19937 random;
    int ranks;
    std::vector<std::vector<Held>> initial, expected;
    std::vector<ChannelRow> channels;

  private:
    std::map<std::pair<int, int>, int> channel_of;
    std::vector<std::uint8_t> kind;
    std::vector<std::int32_t> rank, lane, chan_in, chan_out, call;
    std::vector<std::int64_t> dep_start{0}, dep;
    std::map<std::tuple<int, int, int>, std::pair<std::int64_t, std::vector<std::int64_t>>> touched;
    Side reads, writes;
};

struct Machine {  // all ranks of a program, and their memory
    Machine(Writer& writer, unsigned seed) : ranks(writer.ranks, seed) {
        const Columns columns = writer.columns();
        const bool in_order = !ordered_locally(writer.ranks, columns);
        if (in_order) std::puts("a program that orders its accesses was reported as unordered"), std::exit(1);
        std::vector<int> everyone;
        for (int rank = 0; rank < writer.ranks; ++rank) everyone.push_back(rank);
        for (int rank = 0; rank < writer.ranks; ++rank) {
            memory.emplace_back(slots * width);
            auto* base = reinterpret_cast<std::byte*>(memory.back().data());
            std::vector<Collective> calls;
            for (int turn : {0, 1}) {
                const int group = ranks.transports[static_cast<std::size_t>(rank)]->group(everyone, turn);
                calls.push_back({DT_ALL_REDUCE, group, writer.ranks, rank == 0});
            }
            const std::vector<Memory> homes{{base, 8 * width, DT_INT64}};
            ranks.add(load(rank, columns, {false, true, true}, writer.channels, homes), in_order, std::move(calls));
        }
    }

    Ranks ranks;
    std::vector<std::vector<std::int64_t>> memory;
};

bool fails(unsigned seed) {
    Writer writer(seed);
    Machine machine(writer, seed);
    for (int round = 0; round < 3; ++round) {
        Options options{((seed + static_cast<unsigned>(round)) % 2) == 0, 1e-5, 0, 1 + writer.pick(8), 20.0};
        options.slice_bytes = 64 * writer.pick(4);
        for (std::size_t r = 0; r < machine.memory.size(); ++r)
            for (std::size_t i = 0; i < machine.memory[r].size(); ++i)
                machine.memory[r][i] = writer.initial[r][i / width].at(i % width);
        const std::string failure = machine.ranks.run(options);
        if (!failure.empty()) return std::printf("seed %u: %s\n", seed, failure.c_str()), true;
        for (std::size_t r = 0; r < machine.memory.size(); ++r)
            for (std::size_t i = 0; i < machine.memory[r].size(); ++i)
                if (machine.memory[r][i] != writer.expected[r][i / width].at(i % width))
                    return std::printf("seed %u: element %zu of rank %zu is wrong\n", seed, i, r), true;
    }
    return false;
}

// A rank that waits for ever is reported, by either thread, and nobody hangs.
bool stalls_wrongly(bool thread) {
    Writer lonely(2);
    lonely.add(Kind::recv, 0, 1, -1, 0, lonely.channel(1, 0));
    Machine machine(lonely, 2);
    const std::string failure = machine.ranks.run({thread, 1e-5, 0, 4, 0.2});
    const bool reported = failure.find("waits at its op") != std::string::npos;
    if (!reported) std::printf("a stall was reported as '%s'\n", failure.c_str());
    return !reported;
}

// One rank of three; what the others do is pretended.
struct Pretended : Transport {
    int rank() const override { return 1; }
    int size() const override { return 3; }
    int isend(const void*, long long, int, int, bool) override { return sent++; }
    int irecv(void*, long long, int, int) override { return posted++; }
    int icollective(const LibraryCall&) override { return -1; }
    int group(const std::vector<int>&, int) override { return -1; }
    int sent = 0, posted = 0;
};

// Runs one op of 13 pieces or more, which receives from rank 0, sends to rank 2, or both.
std::string run_alone(Kind kind, Transport& transport, std::size_t slots = 100) {
    const auto op = static_cast<std::uint8_t>(kind);
    const std::int32_t rank = 1, lane = 0, in = receives(kind) ? 0 : -1, out = sends(kind) ? 1 : -1, none = -1;
    const std::int32_t buffer = 0;
    const std::int64_t no_deps[] = {0, 0}, reads[] = {0, kind == Kind::send || adds(kind)};
    const std::int64_t writes[] = {0, receives(kind) && kind != Kind::recv_reduce_send}, zero = 0, one = 1;
    const Regions read{reads, &buffer, &zero, &one, &zero, &one}, write{writes, &buffer, &zero, &one, &zero, &one};
    const Columns columns{1, &op, &rank, &lane, &in, &out, &none, no_deps, nullptr, read, write};
    std::vector<std::int64_t> memory(slots);
    const auto bytes = static_cast<std::int64_t>(8 * slots);
    const std::vector<Memory> homes{{reinterpret_cast<std::byte*>(memory.data()), bytes, DT_INT64}};
    Engine engine(transport, load(1, columns, {true}, {{0, 1, 1}, {1, 2, 1}}, homes), false, {}, {}, {});
    Options options;
    options.slice_bytes = 64, options.stall_s = 0.2;
    return engine.run(options, now_s);
}

// A message of which each piece comes only once the piece before it has been sent on.
struct Reluctant final : Pretended {
    int isend(const void*, long long, int, int, bool) override { return ++sent, -1; }
    bool test(int handle) override { return handle <= sent; }
};

bool forwards_late(Kind kind) {
    Reluctant transport;
    const std::string failure = run_alone(kind, transport);
    const bool late = !failure.empty() || transport.sent != 13;
    if (late) std::printf("%s does not forward piece by piece: %s\n", kind_name(kind), failure.c_str());
    return late;
}

// Pieces leave, one after the other; all of them take longer than what would be a stall.
struct Slow final : Pretended {
    bool test(int handle) override { return now_s() > begin_s + 0.03 * (handle + 1); }
    double begin_s = now_s();
};

bool takes_slow_for_stalled() {
    Slow transport;
    const std::string failure = run_alone(Kind::send, transport);
    if (!failure.empty()) std::printf("a message that leaves slowly is taken for a stall: %s\n", failure.c_str());
    return !failure.empty();
}

// Messages leave at once, and nobody ever asks for them.
struct Unasked final : Pretended {
    int isend(const void*, long long, int, int, bool matched) override { return ++sent, matched ? 1 : 0; }
    bool test(int handle) override { return handle == 0; }
};

bool floods() {
    Unasked transport;
    const bool reported = !run_alone(Kind::send, transport, 8000).empty();
    const bool flooded = !reported || transport.sent >= 64;
    if (flooded) std::printf("%d pieces were sent before anybody asked for one\n", transport.sent);
    return flooded;
}

// The first pieces come, and then no more.
struct Silent final : Pretended {
    bool test(int handle) override { return handle < 3; }
    void cancel(int handle) override { cancelled.push_back(handle); }
    std::vector<int> cancelled;
};

bool leaves_receives_behind() {
    Silent transport;
    const bool reported = !run_alone(Kind::recv, transport, 400).empty();
    std::vector<int> awaited(ahead);
    std::iota(awaited.begin(), awaited.end(), 3);
    const bool left = !reported || transport.posted != 3 + ahead || transport.cancelled != awaited;
    if (left) std::printf("of %d receives, %zu were cancelled\n", transport.posted, transport.cancelled.size());
    return left;
}

// Every message that may lies with its sender, which holds `lent` there.
struct Lender final : Pretended {
    int borrow(void*, long long, int, int, const std::byte** at) override {
        *at = reinterpret_cast<const std::byte*>(lent);
        return ++borrowed, posted++;
    }
    bool test(int) override { return true; }
    bool give_back(int) override {
        is_early = is_early || result[0] != lent[0];
        return ++given_back % 2 == 0;  // at the second time of asking
    }
    std::int64_t lent[2] = {5, 6}, result[2] = {};
    int borrowed = 0, given_back = 0;
    bool is_early = false;
};

// Two messages from rank 0, the second one into slot `second`; then `count` slots from the first one on are copied.
struct Reading {
    std::int64_t second, count;
    bool is_scratch, on_net;
    int depth, borrowed;  // borrowed: how many messages stay with their sender
};

bool lends_wrongly(const Reading& how) {
    Lender transport;
    const auto recv = static_cast<std::uint8_t>(Kind::recv), copy = static_cast<std::uint8_t>(Kind::copy);
    const std::uint8_t kinds[] = {recv, recv, copy};
    const std::int32_t ranks[] = {1, 1, 1}, lanes[] = {0, 0, how.on_net ? 0 : 1};
    const std::int32_t in[] = {0, 0, -1}, none[] = {-1, -1, -1}, read[] = {0}, written[] = {0, 0, 1};
    const std::int64_t deps[] = {0, 1}, dep_start[] = {0, 0, 0, 2}, reads[] = {0, 0, 0, 1}, writes[] = {0, 1, 2, 3};
    const std::int64_t to[] = {0, how.second, 0}, counts[] = {1, 1, how.count}, zeros[] = {0, 0, 0}, ones[] = {1, 1, 1};
    const Regions sources{reads, read, zeros, &how.count, zeros, ones},
        targets{writes, written, to, counts, zeros, ones};
    const Columns columns{3, kinds, ranks, lanes, in, none, none, dep_start, deps, sources, targets};
    std::int64_t held[2] = {1, 2};
    const std::vector<Memory> homes{{reinterpret_cast<std::byte*>(held), 8, DT_INT64, nullptr, how.is_scratch},
                                    {reinterpret_cast<std::byte*>(transport.result), 8, DT_INT64}};
    Engine engine(transport, load(1, columns, {true, false}, {{0, 1, how.depth}}, homes), false, {}, {}, {});
    Options options;
    options.stall_s = 0.2;
    const std::string failure = engine.run(options, now_s);
    const bool wrong = !failure.empty() || transport.borrowed != how.borrowed || transport.is_early ||
                       transport.given_back != 2 * how.borrowed || transport.result[0] != (how.borrowed ? 5 : 1);
    if (wrong) std::printf("%d messages stayed with their sender: %s\n", transport.borrowed, failure.c_str());
    return wrong;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3 || (argc > 3 && dovetail_trace_init(argv[3]))) return 2;
    const auto first = static_cast<unsigned>(std::atoi(argv[1])), count = static_cast<unsigned>(std::atoi(argv[2]));
    for (unsigned seed = first; seed < first + count; ++seed)
        if (fails(seed)) return 1;
    if (stalls_wrongly(false) || stalls_wrongly(true)) return 1;
    for (const Kind kind : {Kind::recv_copy_send, Kind::recv_reduce_send, Kind::recv_reduce_copy_send})
        if (forwards_late(kind)) return 1;
    for (const Reading& how : {Reading{1, 1, true, false, 2, 1},   // another message read by nobody arrives in place
                               Reading{1, 2, true, false, 2, 0},   // two messages are read at once
                               Reading{0, 1, true, false, 2, 0},   // one overwrites the other
                               Reading{1, 1, false, false, 2, 0},  // the user sees it
                               Reading{1, 1, true, true, 2, 0},    // its reader is no computation
                               Reading{1, 1, true, false, 1, 0}})  // the sender would wait for it
        if (lends_wrongly(how)) return 1;
    if (takes_slow_for_stalled() || leaves_receives_behind() || floods()) return 1;
    std::puts("all as expected");
    return 0;
}
