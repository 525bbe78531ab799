// OpMemory: the memory for the ops of a simulation, which a thread keeps for its next one.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "sim/queues.hpp"

namespace dovetail::sim {

// Fresh memory costs as much as a tenth of a simulation: the kernel clears it. So a thread keeps one block, unless that
// is large. Pages of 2 MiB spare the processor a look-up of the page at nearly every op.
class OpMemory {
  public:
    explicit OpMemory(std::size_t num_ops) : block_(std::exchange(kept(), {})) {
        const std::size_t size = (num_ops * sizeof(Op) + kPage - 1) / kPage * kPage;
        if (size <= block_.size) return;
        block_ = {};
        block_.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, size)));
        if (!block_.memory) throw std::bad_alloc();
        block_.size = size;
        madvise(block_.memory.get(), size, MADV_HUGEPAGE);  // advice; small pages do as well
    }

    ~OpMemory() {
        if (block_.size <= kMostKept) kept() = std::move(block_);
    }

    OpMemory(const OpMemory&) = delete;
    OpMemory& operator=(const OpMemory&) = delete;

    Op* ops() const { return reinterpret_cast<Op*>(block_.memory.get()); }

  private:
    static constexpr std::size_t kPage = std::size_t{2} << 20, kMostKept = std::size_t{32} << 20;

    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };
    struct Block {
        std::unique_ptr<std::byte, Free> memory;
        std::size_t size = 0;
    };

    static Block& kept() {
        thread_local Block block;
        return block;
    }

    Block block_;
};

}  // namespace dovetail::sim
