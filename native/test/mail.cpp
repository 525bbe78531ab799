// Sends and receives of mailboxes in random order and sizes, between ranks that are threads; for sanitizers.
// Usage: mail RANKS ROUNDS SEED HOSTS, as for `shared`. Each rank sends in one thread, and receives in another one.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "run/mailbox.hpp"
#include "test/transports.hpp"

namespace {

using dovetail::run::Mailbox;
using Bytes = std::vector<std::uint8_t>;

constexpr int tags = 2, any_tag = 7;  // messages of `any_tag` are received from any rank
constexpr long long any_bytes = 64;

// What comes with the `turn`-th message of this tag between two ranks.
Bytes content(unsigned seed, int from, int to, int tag, int turn) {
    std::minstd_rand draw(1 + seed + static_cast<unsigned>(((from * 31 + to) * 31 + tag) * 4099 + turn));
    const long long lengths[] = {static_cast<long long>(draw() % 48), static_cast<long long>(draw() % 3000),
                                 static_cast<long long>(draw() % 300000)};
    Bytes made(static_cast<std::size_t>(tag == any_tag ? any_bytes : lengths[draw() % 3]));
    for (auto& each : made) each = static_cast<std::uint8_t>(draw());
    return made;
}

// A send or receive under way.
struct Call {
    Bytes data, wanted;
    std::atomic<bool> has_ended{false};
    Mailbox::Fault fault;
    int source = -1;
    Mailbox::Done done() {
        return [this](const Mailbox::Fault& found, int from) {
            fault = found, source = from;
            has_ended = true;
        };
    }
};

struct Rank {
    Mailbox& mail;
    const int rank, size, rounds;
    const unsigned seed;
    std::minstd_rand own;  // the order and delays of this rank's calls

    bool ends(Call& call) {
        return mail.wait([&] { return call.has_ended.load(); }, 0);
    }

    // In each round a message of each tag to each rank, some of them at once.
    bool sends() {
        std::list<Call> under_way;
        bool right = true;
        for (int turn = 0; turn < rounds; ++turn)
            for (int to = 0; to < size; ++to)
                for (const int tag : {0, 1, any_tag}) {
                    if (to == rank) continue;
                    Call& call = under_way.emplace_back();
                    call.data = content(seed, rank, to, tag, turn);
                    mail.send(call.data.data(), static_cast<long long>(call.data.size()), to, tag, call.done());
                    while (own() % 3 == 0 && !under_way.empty()) {
                        right = ends(under_way.front()) && !under_way.front().fault.is_any && right;
                        under_way.pop_front();
                    }
                }
        for (Call& call : under_way) right = ends(call) && !call.fault.is_any && right;
        return right;
    }

    // Tags of a round in another order than they were sent; then as many from any rank.
    bool receives() {
        std::vector<int> turns(static_cast<std::size_t>(size));  // messages from any rank that have come from each
        for (int turn = 0; turn < rounds; ++turn) {
            std::list<Call> under_way;
            for (int tag = tags - 1; tag >= 0; --tag)
                for (int from = 0; from < size; ++from)
                    if (from != rank) begin(under_way.emplace_back(), content(seed, from, rank, tag, turn), from, tag);
            for (Call& call : under_way)
                if (!ends(call) || call.fault.is_any || call.data != call.wanted) return false;
            for (int others = 1; others < size; ++others) {
                Call call;
                begin(call, Bytes(any_bytes), -1, any_tag);
                if (!ends(call) || call.fault.is_any || call.source == rank) return false;
                int& count = turns[static_cast<std::size_t>(call.source)];
                if (call.data != content(seed, call.source, rank, any_tag, count++)) return false;
            }
        }
        return true;
    }

    void begin(Call& call, Bytes wanted, int from, int tag) {
        call.wanted = std::move(wanted);
        call.data.resize(call.wanted.size());
        if (own() % 4 == 0) std::this_thread::yield();
        mail.receive(call.data.data(), static_cast<long long>(call.data.size()), from, tag, call.done());
    }
};

bool fails(int size, int rounds, unsigned seed, int hosts) {
    auto transports = hosts ? dovetail::test::on_hosts(size, hosts) : dovetail::test::on_one_host(size);
    std::vector<std::unique_ptr<Mailbox>> mails;
    for (auto& each : transports)
        mails.push_back(std::make_unique<Mailbox>(std::shared_ptr<dovetail::shm::MessageTransport>(std::move(each))));
    std::atomic<bool> wrong{false};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        for (const bool sends : {false, true})
            threads.emplace_back([&, rank, sends] {
                const auto place = static_cast<std::size_t>(rank);
                Rank each{*mails[place], rank, size, rounds, seed, std::minstd_rand(seed + 2 * place + sends)};
                if (!(sends ? each.sends() : each.receives())) wrong = true;
            });
    for (auto& thread : threads) thread.join();
    Call too_long, never;  // a message of another size, and a receive without a message, are faults
    const Bytes one(100);
    Call sent;
    mails[0]->send(one.data(), 100, 1, 0, sent.done());
    too_long.data.resize(60);
    mails[1]->receive(too_long.data.data(), 60, 0, 0, too_long.done());
    mails[1]->wait([&] { return too_long.has_ended.load(); }, 0);
    mails[0]->wait([&] { return sent.has_ended.load(); }, 0);
    never.data.resize(8);
    mails[1]->receive(never.data.data(), 8, 0, 5, never.done());
    for (auto& mail : mails) mail->close();
    if (!too_long.fault.is_any || !never.has_ended || !never.fault.is_any) wrong = true;
    if (wrong) std::puts("a message was wrong");
    return wrong;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    if (fails(std::atoi(argv[1]), std::atoi(argv[2]), static_cast<unsigned>(std::atoi(argv[3])), std::atoi(argv[4])))
        return 1;
    std::puts("all as expected");
    return 0;
}
