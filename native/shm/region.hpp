// Region: memory that all ranks map, with a part for each, for arrays that other ranks read without a copy in between.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shm/channel.hpp"
#include "shm/segment.hpp"

namespace dovetail::shm {

class Region {
  public:
    // `lengths`: bytes of each rank's part. Every part begins at a page.
    Region(std::shared_ptr<Segment> memory, int rank, std::vector<std::size_t> lengths)
        : memory_(std::move(memory)), rank_(rank), lengths_(std::move(lengths)), starts_{page()} {
        for (const std::size_t length : lengths_) starts_.push_back(starts_.back() + padded(length));
    }
    static std::size_t bytes(const std::vector<std::size_t>& lengths) {
        std::size_t total = page();
        for (const std::size_t length : lengths) total += padded(length);
        return total;
    }

    std::byte* part(int rank) const { return memory_->data() + starts_[static_cast<std::size_t>(rank)]; }
    std::size_t length(int rank) const { return lengths_[static_cast<std::size_t>(rank)]; }
    void hide() { memory_->hide(); }

    // Whether `num_bytes` at `data` lie in this rank's part.
    bool holds(const std::byte* data, std::size_t num_bytes) const {
        const std::byte* own = part(rank_);
        return data >= own && data + num_bytes <= own + length(rank_);
    }
    // This rank no longer uses its part: its pages are freed at once, the mapping once all ranks have called this.
    void give_back() {
        madvise(part(rank_), padded(length(rank_)), MADV_REMOVE);
        given_back().fetch_add(1, std::memory_order_acq_rel);
    }
    bool is_over() const { return given_back().load(std::memory_order_acquire) == lengths_.size(); }

  private:
    static std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
    static std::size_t padded(std::size_t num_bytes) { return (num_bytes + page() - 1) / page() * page(); }
    std::atomic<std::uint64_t>& given_back() const {
        return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_->data());
    }

    std::shared_ptr<Segment> memory_;
    const int rank_;
    const std::vector<std::size_t> lengths_;
    std::vector<std::size_t> starts_;
};

// The regions of a communicator. All ranks add the same ones, in the same order.
class Regions {
  public:
    void add(std::shared_ptr<Region> region) {
        for (auto& each : all_)
            if (each && each->is_over()) each.reset();
        all_.push_back(std::move(region));
    }
    // The place of `num_bytes` at `data` in this rank's part of some region; no loan if they are in none.
    Loan find(const std::byte* data, std::size_t num_bytes, int rank) const {
        Loan found;
        for (std::size_t i = 0; i < all_.size(); ++i)
            if (all_[i] && all_[i]->holds(data, num_bytes))
                found = {static_cast<std::uint32_t>(i), 1, static_cast<std::uint64_t>(data - all_[i]->part(rank))};
        return found;
    }
    std::byte* at(const Loan& loan, int rank) const { return all_[loan.region]->part(rank) + loan.offset; }
    bool empty() const { return all_.empty(); }

  private:
    std::vector<std::shared_ptr<Region>> all_;  // null: all ranks have called `give_back`
};

// The arrays in this rank's part own one: the last to be freed gives the part back.
struct Lease {
    explicit Lease(std::shared_ptr<Region> of) : region(std::move(of)) {}
    ~Lease() { region->give_back(); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    const std::shared_ptr<Region> region;
};

}  // namespace dovetail::shm
