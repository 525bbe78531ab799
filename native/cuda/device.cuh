// Lanes on a device: a group is a threadblock, with what host.hpp gives a group of host threads.
#pragma once

#include "cuda/lane.hpp"

namespace dovetail::cuda {

class DeviceGroup {
  public:
    static constexpr int room = 112;
    struct Shared {  // what a threadblock has in memory that its threads share
        std::uint64_t steps[2][sizeof(Step) / sizeof(std::uint64_t)];
        std::byte values[2][room];
    };
    __device__ DeviceGroup(const Image& image, Shared& shared) : image_(image), shared_(&shared) {}
    __device__ bool leads() const { return threadIdx.x == 0; }
    __device__ bool all(bool good) { return __syncthreads_and(good); }
    __device__ std::int64_t thread() const { return threadIdx.x; }
    __device__ std::int64_t threads() const { return blockDim.x; }
    __device__ std::int64_t unit(std::int64_t turn, int) const { return turn * blockDim.x + threadIdx.x; }

    // A lane's step, in shared memory: tables lie far away, and a step is read again and again. `next` comes after it,
    // and is on its way while this one runs. Each of the two places is written once all have left the step before last.
    __device__ const Step& step(const Step* at, const Step* next) {
        constexpr unsigned words = sizeof(Step) / sizeof(std::uint64_t);
        static_assert(sizeof(Step) % sizeof(std::uint64_t) == 0 && words <= 32,
                      "the fewest threads move a step at once");
        const bool moves = threadIdx.x < words;
        if (moves && turn_ == 0) coming_ = reinterpret_cast<const std::uint64_t*>(at)[threadIdx.x];
        std::uint64_t* here = shared_->steps[turn_++ & 1];
        if (moves) {
            here[threadIdx.x] = coming_;
            coming_ = reinterpret_cast<const std::uint64_t*>(next)[threadIdx.x];
        }
        __syncthreads();
        return *reinterpret_cast<const Step*>(here);
    }

    // Two values that all threads need, made by one of them each, in shared memory: in registers of all there would be
    // no room for them.
    template <class T, class Make>
    __device__ const T* share(T (&)[2], Make make) {
        static_assert(sizeof(T) == room, "values lie one after the other");
        const unsigned maker = threadIdx.x * 2 / blockDim.x;  // two warps, where there are two
        if (threadIdx.x == 0 || (maker == 1 && (threadIdx.x - 1) * 2 / blockDim.x == 0)) {
            const T made = make(static_cast<int>(maker));
            std::memcpy(shared_->values[maker], &made, sizeof(T));
        }
        __syncthreads();
        return reinterpret_cast<const T*>(shared_->values);
    }

    static __device__ std::uint64_t load_relaxed(std::uint64_t& word) {
        std::uint64_t value;
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(&word) : "memory");
        return value;
    }
    static __device__ std::uint64_t load_acquire(std::uint64_t& word) {
        std::uint64_t value;
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(&word) : "memory");
        return value;
    }
    // Before this group's stores, none of which begins before the value was seen.
    static __device__ std::uint64_t load_place(std::uint64_t& word) { return load_relaxed(word); }
    static __device__ void store_relaxed(std::uint64_t& word, std::uint64_t value) {
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(&word), "l"(value) : "memory");
    }
    static __device__ void store_release(std::uint64_t& word, std::uint64_t value) {
        asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(&word), "l"(value) : "memory");
    }
    // After what this group has loaded, whose values it has seen: no later store of another can have been among them.
    static __device__ void store_loaded(std::uint64_t& word, std::uint64_t value) { store_relaxed(word, value); }
    static __device__ void store_release_both(std::uint64_t& one, std::uint64_t value, std::uint64_t& other,
                                              std::uint64_t more) {
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        store_relaxed(one, value), store_relaxed(other, more);
    }
    static __device__ std::uint64_t now_ns() {
        std::uint64_t value;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
        return value;
    }

    template <class F>
    __device__ bool spin(F ready) {
        Patience so_far;
        for (unsigned turn = 1; !ready(); ++turn)
            if (turn % 1024 == 0 && !patient<DeviceGroup>(image_, so_far)) return false;
        return true;
    }
    // Of the eight threads that move a line: all go on when all are ready. Threads of a warp may run apart, so one may
    // have loaded before the line came, and the thread that sees the flag after: all load again once it was seen.
    template <class F>
    __device__ bool spin_together(F ready) {
        const unsigned line = 0xffu << (threadIdx.x & 24);
        Patience so_far;
        for (unsigned turn = 1; !__all_sync(line, ready()); ++turn)
            if (turn % 1024 == 0 && __any_sync(line, !patient<DeviceGroup>(image_, so_far))) return false;
        __syncwarp(line);
        ready();
        return true;
    }

    static __device__ void load_pair(const std::uint64_t* line, std::uint64_t& low, std::uint64_t& high) {
        asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(line) : "memory");
    }
    static __device__ void store_pair(std::uint64_t* line, std::uint64_t low, std::uint64_t high) {
        asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(line), "l"(low), "l"(high) : "memory");
    }

    // Eight threads of a warp load, or store, 16 bytes each of one line of 128 at once: they become visible together.
    static __device__ bool load_line(const std::uint64_t* line, int place, std::uint64_t flag, Unit& data) {
        load_pair(line + 2 * place, data.word[0], data.word[1]);
        return place < 7 || data.word[1] == flag;
    }
    static __device__ void store_line(std::uint64_t* line, int place, std::uint64_t flag, const Unit& data) {
        __syncwarp(0xffu << (threadIdx.x & 24));
        store_pair(line + 2 * place, data.word[0], place < 7 ? data.word[1] : flag);
    }

  private:
    const Image& image_;
    Shared* shared_;
    unsigned turn_ = 0;
    std::uint64_t coming_ = 0;
};

}  // namespace dovetail::cuda
