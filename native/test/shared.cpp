// Messages and collectives in shared memory and by sockets, between ranks that are threads; for sanitizers.
// Usage: shared RANKS ROUNDS SEED HOSTS. All ranks draw the same calls from the seed, and know what must come of them.
// HOSTS 0: all share memory. Else only the ranks of one host do; other messages go by sockets.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "run/mpi_table.h"
#include "shm/ring_messages.hpp"
#include "shm/transport.hpp"
#include "test/transports.hpp"

namespace {

using dovetail::run::LibraryCall;
using dovetail::shm::MessageTransport;
using dovetail::shm::Region;
using dovetail::shm::RingMessages;
using dovetail::shm::Segment;
using dovetail::test::on_hosts;
using dovetail::test::on_one_host;
using dovetail::test::Transports;
using Values = std::vector<std::int64_t>;

// What rank `rank` has at place `at` of its `turn`-th array.
std::int64_t value(int turn, int rank, long long at) { return turn * 1000003LL + rank * 10007LL + at * 31; }

Values array(int turn, int rank, long long count) {
    Values made(static_cast<std::size_t>(count));
    for (long long i = 0; i < count; ++i) made[static_cast<std::size_t>(i)] = value(turn, rank, i);
    return made;
}

std::int64_t sum(int turn, const std::vector<int>& ranks, long long at) {
    return std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0},
                           [&](std::int64_t total, int rank) { return total + value(turn, rank, at); });
}

struct Rank {
    MessageTransport& on;
    std::minstd_rand random;  // the same on all ranks
    std::minstd_rand own;     // this rank's delays
    std::shared_ptr<Region> region;
    int turn = 0;

    void finish(std::vector<int> handles) {
        while (!handles.empty()) {
            const auto at = own() % handles.size();
            if (own() % 8 == 0) sched_yield();
            if (on.test(handles[at])) handles.erase(handles.begin() + static_cast<std::ptrdiff_t>(at));
        }
    }

    // The same values where other ranks read them. All messages that lay there have ended.
    const std::int64_t* lent(const Values& values) {
        auto* to = reinterpret_cast<std::int64_t*>(region->part(on.rank()));
        std::copy(values.begin(), values.end(), to);
        return to;
    }

    // Messages to and from every other rank, two tags, received in another order than sent.
    bool messages() {
        const int size = on.size(), rank = on.rank();
        const long long counts[2] = {static_cast<long long>(random() % 600), static_cast<long long>(random() % 40000)};
        const bool matched = random() % 3 == 0;
        std::vector<Values> out, in;
        for (int tag = 0; tag < 2; ++tag) out.push_back(array(turn + tag, rank, counts[tag]));
        const std::int64_t* from[2] = {out[0].data(), out[1].data()};
        if (random() % 2) from[1] = lent(out[1]);
        for (int peer = 0; peer < size; ++peer)
            for (const int tag : {1, 0}) in.emplace_back(static_cast<std::size_t>(counts[tag]));
        std::vector<int> handles, sent;
        const bool borrows = own() % 2;
        std::vector<const std::byte*> lent(in.size());
        const auto post = [&](int peer) {
            for (const int tag : {1, 0}) {
                const auto place = static_cast<std::size_t>(2 * peer + 1 - tag);
                const long long num_bytes = 8 * counts[tag];
                handles.push_back(borrows ? on.borrow(in[place].data(), num_bytes, peer, tag, &lent[place])
                                          : on.irecv(in[place].data(), num_bytes, peer, tag));
            }
        };
        const bool late = own() % 2;
        for (int peer = 0; peer < size && !late; ++peer) post(peer);
        for (int peer = 0; peer < size; ++peer)
            for (const int tag : {0, 1}) sent.push_back(on.isend(from[tag], 8 * counts[tag], peer, tag, matched));
        for (int peer = 0; peer < size && late; ++peer) post(peer);
        finish(handles);
        bool right = true;
        for (std::size_t place = 0; place < in.size(); ++place) {
            const int peer = static_cast<int>(place / 2), tag = 1 - static_cast<int>(place % 2);
            const auto* values = reinterpret_cast<const std::int64_t*>(lent[place]);
            if (values) in[place].assign(values, values + counts[tag]);
            while (values && !on.give_back(handles[place])) sched_yield();
            right = right && in[place] == array(turn + tag, peer, counts[tag]);
        }
        finish(sent);
        return right;
    }

    // Two collectives under way at once, of one group.
    bool collectives(const std::vector<int>& ranks) {
        const int n = static_cast<int>(ranks.size()), group = on.group(ranks, 0);
        const auto own_place = std::find(ranks.begin(), ranks.end(), on.rank()) - ranks.begin();
        const long long each = 1 + static_cast<long long>(random() % (random() % 2 ? 12000 : 64)), whole = each * n;
        const int root = static_cast<int>(random() % static_cast<unsigned>(n)), kind = static_cast<int>(random() % 9);
        Values counts(static_cast<std::size_t>(n));
        for (auto& count : counts) count = static_cast<std::int64_t>(random() % 3000);
        const Values src = array(turn, on.rank(), whole);
        Values dst(static_cast<std::size_t>(whole)), total = src;
        const std::vector<long long> lengths(counts.begin(), counts.end());
        Values all(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), 0LL)));
        const Values part = array(turn, on.rank(), lengths[static_cast<std::size_t>(own_place)]);
        if (kind == DT_BROADCAST && own_place == root) dst = src;
        const bool is_whole = kind == DT_ALL_REDUCE || kind == DT_BROADCAST || kind == DT_REDUCE;
        const auto first = on.icollective(
            {kind, src.data(), dst.data(), is_whole ? whole : each, nullptr, DT_INT64, DT_SUM, group, root});
        finish(
            {first,
             on.icollective({DT_ALL_REDUCE, total.data(), total.data(), whole, nullptr, DT_INT64, DT_SUM, group}),
             on.icollective({DT_ALL_GATHER_V, part.data(), all.data(), 0, lengths.data(), DT_INT64, DT_SUM, group})});
        long long at = 0;
        for (int member = 0; member < n; ++member)
            for (long long i = 0; i < lengths[static_cast<std::size_t>(member)]; ++i)
                if (all[static_cast<std::size_t>(at++)] != value(turn, ranks[static_cast<std::size_t>(member)], i))
                    return false;
        for (long long i = 0; i < whole; ++i) {
            const auto place = static_cast<std::size_t>(i);
            const int from = ranks[static_cast<std::size_t>(i / each)];
            if (total[place] != sum(turn, ranks, i)) return false;
            const bool is_root = own_place == root, is_own = i < each;
            std::int64_t wanted = dst[place];
            if (kind == DT_ALL_REDUCE || (kind == DT_REDUCE && is_root)) wanted = sum(turn, ranks, i);
            if (kind == DT_BROADCAST) wanted = value(turn, ranks[static_cast<std::size_t>(root)], i);
            if (kind == DT_ALL_GATHER || (kind == DT_GATHER && is_root)) wanted = value(turn, from, i % each);
            if (kind == DT_ALL_TO_ALL) wanted = value(turn, from, own_place * each + i % each);
            if (kind == DT_REDUCE_SCATTER && is_own) wanted = sum(turn, ranks, own_place * each + i);
            if (kind == DT_SCATTER && is_own)
                wanted = value(turn, ranks[static_cast<std::size_t>(root)], own_place * each + i);
            if (dst[place] != wanted) return std::printf("kind %d\n", kind), false;
        }
        return true;
    }

    bool rounds(int count) {
        std::vector<int> all(static_cast<std::size_t>(on.size()));
        std::iota(all.begin(), all.end(), 0);
        for (turn = 1; turn <= count; ++turn) {
            std::vector<int> some = all;
            std::shuffle(some.begin(), some.end(), random);
            some.resize(1 + random() % some.size());
            if (!messages() || !collectives(all)) return false;
            if (random() % 2 == 0) continue;
            auto kept = random;  // members draw more than others: these catch up
            if (std::find(some.begin(), some.end(), on.rank()) != some.end() && !collectives(some)) return false;
            random = kept;
            random.discard(100000);
        }
        return true;
    }
};

bool fails(int size, int rounds, unsigned seed, int hosts) {
    const std::vector<std::size_t> lengths(static_cast<std::size_t>(size), std::size_t{8} * 40000);
    const auto lendable = std::make_shared<Segment>(Segment::make(Region::bytes(lengths)));
    const Transports transports = hosts ? on_hosts(size, hosts) : on_one_host(size);
    std::vector<int> right(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
            auto& on = *transports[static_cast<std::size_t>(rank)];
            Rank each{on, std::minstd_rand(seed), std::minstd_rand(seed + 1 + static_cast<unsigned>(rank)),
                      std::make_shared<Region>(lendable, rank, lengths)};
            on.add(each.region);
            right[static_cast<std::size_t>(rank)] = each.rounds(rounds);
        });
    for (auto& thread : threads) thread.join();
    for (int rank = 0; rank < size; ++rank)
        if (!right[static_cast<std::size_t>(rank)]) return std::printf("rank %d got something else\n", rank), true;
    return false;
}

// One thread of each rank begins all_reduces of several lengths, another one finishes them in their order.
bool fails_ahead(int size, int calls) {
    const Transports transports = on_hosts(size, size);
    const auto count = [](int turn) { return 1 + 7919LL * turn % 60000; };
    std::vector<int> everyone(static_cast<std::size_t>(size));
    std::iota(everyone.begin(), everyone.end(), 0);
    std::atomic<bool> wrong{false};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
            auto& on = *transports[static_cast<std::size_t>(rank)];
            std::vector<Values> values;
            for (int turn = 0; turn < calls; ++turn) values.push_back(array(turn, rank, count(turn)));
            std::vector<int> handles(static_cast<std::size_t>(calls));
            std::atomic<int> begun{0};
            std::thread begins([&] {
                for (int turn = 0; turn < calls; ++turn) {
                    auto& own = values[static_cast<std::size_t>(turn)];
                    handles[static_cast<std::size_t>(turn)] =
                        on.icollective({DT_ALL_REDUCE, own.data(), own.data(), count(turn), nullptr, DT_INT64, DT_SUM});
                    ++begun;
                }
            });
            for (int turn = 0; turn < calls; ++turn) {
                while (begun <= turn) sched_yield();
                if (on.result(handles[static_cast<std::size_t>(turn)])) wrong = true;
                for (long long i = 0; i < count(turn); ++i)
                    if (values[static_cast<std::size_t>(turn)][static_cast<std::size_t>(i)] != sum(turn, everyone, i))
                        wrong = true;
            }
            begins.join();
        });
    for (auto& thread : threads) thread.join();
    if (wrong) std::puts("calls that were begun ahead got something else");
    return wrong;
}

// A rank that has taken a message, or given it back, may not look at its messages again for long: its sender sees it
// nevertheless, as soon as there is room to say so.
bool says_late(bool borrows) {
    constexpr int most = 5000;
    constexpr std::size_t count = 3000, room = std::size_t{1} << 16;
    const auto memory =
        std::make_shared<Segment>(Segment::make(RingMessages::bytes(2, RingMessages::ring_bytes(2, room))));
    const std::vector<std::size_t> lengths(2, 8 * count);
    const auto lendable = std::make_shared<Segment>(Segment::make(Region::bytes(lengths)));
    MessageTransport taker(std::make_unique<RingMessages>(memory, 0, 2)),
        sender(std::make_unique<RingMessages>(memory, 1, 2));
    const auto region = std::make_shared<Region>(lendable, 1, lengths);
    taker.add(std::make_shared<Region>(lendable, 0, lengths)), sender.add(region);
    Values into(count);
    const std::byte* lent = nullptr;
    const int sent = sender.isend(region->part(1), 8 * count, 0, 0, false);
    const int taken =
        borrows ? taker.borrow(into.data(), 8 * count, 1, 0, &lent) : taker.irecv(into.data(), 8 * count, 1, 0);
    bool early = borrows && (!taker.test(taken) || !lent || sender.test(sent));
    int fillers = 0;
    for (; fillers < most; ++fillers)
        if (!taker.test(taker.isend(nullptr, 0, 1, 1, false))) break;  // the ring is full
    early = early || fillers == most || (borrows ? taker.give_back(taken) : taker.test(taken)) || sender.test(sent);
    for (int i = 0; i < fillers; ++i)
        while (!sender.test(sender.irecv(nullptr, 0, 0, 1))) continue;
    const bool late = !(borrows ? taker.give_back(taken) : taker.test(taken)) || !sender.test(sent);
    if (early || late) std::printf("a message is said to be taken too %s\n", early ? "early" : "late");
    return early || late;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    if (says_late(false) || says_late(true)) return 1;
    if (fails(std::atoi(argv[1]), std::atoi(argv[2]), static_cast<unsigned>(std::atoi(argv[3])), std::atoi(argv[4])))
        return 1;
    if (std::atoi(argv[4]) && fails_ahead(std::atoi(argv[1]), 40)) return 1;
    std::puts("all as expected");
    return 0;
}
