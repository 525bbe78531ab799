// Engines of all ranks on threads of their own, over a transport that dawdles at random: any legal interleaving may
// come.
#pragma once

#include <sched.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "run/engine.hpp"
#include "run/local.hpp"

namespace dovetail::run {

inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A slow transport: yields before calls, and reports arrived messages as not yet arrived, a limited number of times.
class Dawdler final : public Transport {
  public:
    Dawdler(std::shared_ptr<LocalHub> hub, int rank, unsigned seed) : inner_(std::move(hub), rank), random_(seed) {}
    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    int isend(const void* data, long long num_bytes, int dst, int tag, bool matched) override {
        dawdle();
        return inner_.isend(data, num_bytes, dst, tag, matched);
    }
    int irecv(void* data, long long num_bytes, int src, int tag) override {
        dawdle();
        return inner_.irecv(data, num_bytes, src, tag);
    }
    int icollective(const LibraryCall& call) override {
        dawdle();
        return inner_.icollective(call);
    }
    int group(const std::vector<int>& ranks, int turn) override { return inner_.group(ranks, turn); }
    bool test(int handle) override {
        if (random_() % 3 == 0) return dawdle(), false;
        return inner_.test(handle);
    }
    void busy(bool is) override { inner_.busy(is); }
    bool anyone_busy() const override { return inner_.anyone_busy(); }
    void stop() override { inner_.stop(); }

  private:
    void dawdle() {
        if (random_() % 4 == 0) sched_yield();
    }
    LocalTransport inner_;
    std::minstd_rand random_;
};

struct Ranks {
    Ranks(int num_ranks, unsigned seed) : hub(std::make_shared<LocalHub>(num_ranks)) {
        for (int rank = 0; rank < num_ranks; ++rank)
            transports.push_back(std::make_unique<Dawdler>(hub, rank, seed + static_cast<unsigned>(rank)));
    }

    void add(Share share, bool in_order, std::vector<Collective> calls) {
        engines.push_back(std::make_unique<Engine>(*transports[engines.size()], std::move(share), in_order,
                                                   std::move(calls), Blas{}, [](std::int64_t) {}));
    }

    std::string run(const Options& options) {
        std::vector<std::string> failures(engines.size());
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < engines.size(); ++i)
            threads.emplace_back([&, i] { failures[i] = engines[i]->run(options, now_s); });
        for (auto& thread : threads) thread.join();
        for (const auto& failure : failures)
            if (!failure.empty()) return failure;
        return "";
    }

    std::shared_ptr<LocalHub> hub;
    std::vector<std::unique_ptr<Transport>> transports;
    std::vector<std::unique_ptr<Engine>> engines;
};

}  // namespace dovetail::run
