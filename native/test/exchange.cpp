// How long two processes take to exchange messages through channels, beside an exchange of bare words.
// Usage: exchange [BYTES…]. Prints nanoseconds of one exchange, the least of several rounds.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "shm/channel.hpp"

namespace {

using namespace dovetail::shm;

double now_ns() {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::byte* shared(std::size_t num_bytes) {
    return static_cast<std::byte*>(mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

// Runs `exchange(rank)` on two processes, each bound to a core; the least nanoseconds of one.
template <class F>
double timed(int times, F exchange) {
    const pid_t child = fork();
    const int rank = child == 0;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(rank, &own);
    sched_setaffinity(0, sizeof own, &own);
    double least = 1e30;
    for (int round = 0; round < 20; ++round) {
        const double begin = now_ns();
        for (int i = 0; i < times; ++i) exchange(rank);
        least = std::min(least, (now_ns() - begin) / times);
    }
    if (rank) _exit(0);
    waitpid(child, nullptr, 0);
    return least;
}

// Other programs may want the core.
template <class F>
void until(F ready) {
    for (int spins = 0; !ready(); ++spins)
        if (spins > 2000) sched_yield();
}

double words() {
    struct alignas(128) Word {
        std::atomic<Count> value;
    };
    auto* word = reinterpret_cast<Word*>(shared(4096));
    Count turn = 0;
    return timed(100000, [&](int rank) {
        word[rank].value.store(++turn, std::memory_order_release);
        until([&] { return word[!rank].value.load(std::memory_order_acquire) >= turn; });
    });
}

double messages(Count num_bytes) {
    const Geometry geometry;
    std::byte* memory = shared(geometry.bytes(2));
    std::vector<std::byte> src(num_bytes), dst(num_bytes);
    Ends* ends[2] = {new Ends(memory, 0, 2, geometry), new Ends(memory, 1, 2, geometry)};
    return timed(static_cast<int>(20000000 / (num_bytes + 1000)), [&](int rank) {
        Writer& out = ends[rank]->to(!rank, 0);
        Reader& in = ends[rank]->from(!rank, 0);
        until([&] { return out.has_room(num_bytes); });
        std::memcpy(out.place(num_bytes), src.data(), num_bytes);
        out.commit(num_bytes);
        until([&] { return in.has_come(num_bytes); });
        std::memcpy(dst.data(), in.place(num_bytes), num_bytes);
        in.release(num_bytes);
    });
}

}  // namespace

int main(int argc, char** argv) {
    std::printf("words %.0f\n", words());
    std::vector<Count> sizes;
    for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
    if (sizes.empty()) sizes = {8, 56, 128, 256, 512, 1024, 2048, 4096, 16384, 32768};
    for (const Count num_bytes : sizes)
        std::printf("%llu bytes: %.0f\n", static_cast<unsigned long long>(num_bytes), messages(num_bytes));
}
