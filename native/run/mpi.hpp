// MpiTransport: the engine's transport over a loaded mpi_table.h shim.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "run/mpi_table.h"
#include "run/transport.hpp"

namespace dovetail::run {

class MpiTransport final : public Transport {
  public:
    MpiTransport(const dt_mpi_table* table, dt_comm* comm) : mpi_(table), comm_(comm) {}
    int rank() const override { return mpi_->rank(comm_); }
    int size() const override { return mpi_->size(comm_); }

    int isend(const void* data, long long num_bytes, int dst, int tag, bool matched) override {
        int handle = -1;
        check(mpi_->isend(comm_, data, num_bytes, dst, tag, matched, &handle), "MPI_Isend");
        return handle;
    }

    int irecv(void* data, long long num_bytes, int src, int tag) override {
        int handle = -1;
        check(mpi_->irecv(comm_, data, num_bytes, src, tag, &handle), "MPI_Irecv");
        return handle;
    }

    int borrow(void* data, long long num_bytes, int src, int tag, const std::byte** lent) override {
        if (!mpi_->borrow) return Transport::borrow(data, num_bytes, src, tag, lent);
        int handle = -1;
        check(mpi_->borrow(comm_, data, num_bytes, src, tag, reinterpret_cast<const void**>(lent), &handle),
              "a receive");
        return handle;
    }

    bool give_back(int handle) override {
        int done = 0;
        check(mpi_->give_back(comm_, handle, &done), "a receive");
        return done != 0;
    }

    int icollective(const LibraryCall& c) override {
        int handle = -1;
        check_fault();
        check(c.counts
                  ? mpi_->icollective_v(comm_, c.kind, c.src, c.dst, c.counts, c.dtype, c.op, c.group, &handle)
                  : mpi_->icollective(comm_, c.kind, c.src, c.dst, c.count, c.dtype, c.op, c.root, c.group, &handle),
              "the collective");
        return handle;
    }

    void collective(const LibraryCall& c) override {
        check(c.counts ? mpi_->collective_v(comm_, c.kind, c.src, c.dst, c.counts, c.dtype, c.op, c.group)
                       : mpi_->collective(comm_, c.kind, c.src, c.dst, c.count, c.dtype, c.op, c.root, c.group),
              "the collective");
    }

    int group(const std::vector<int>& ranks, int turn) override {
        bool whole = turn == 0 && static_cast<int>(ranks.size()) == size();
        for (int i = 0; whole && i < size(); ++i) whole = ranks[static_cast<std::size_t>(i)] == i;
        if (whole) return -1;
        const auto known = groups_.find({ranks, turn});
        if (known != groups_.end()) return known->second;
        int group = -1;
        check(mpi_->group(comm_, ranks.data(), static_cast<int>(ranks.size()), &group), "MPI_Comm_create_group");
        return groups_[{ranks, turn}] = group;
    }

    bool test(int handle) override {
        int done = 0;
        check_fault();
        check(mpi_->test(comm_, handle, &done), "the collective");
        return done != 0;
    }

    bool waits() const override { return mpi_->wait != nullptr; }
    void wait(int handle) override {
        check_fault();
        check(mpi_->wait(comm_, handle), "the collective");
    }

    void cancel(int handle) override { mpi_->cancel(comm_, handle); }

    void fail(const std::string& why) override {
        const std::lock_guard guard(lock_);
        if (fault_.empty()) fault_ = why;
        failed_ = true;
    }

    void check(int code, const char* call) const {
        if (code == 0) return;
        char text[512];
        mpi_->error_text(code, text, sizeof text);
        throw TransportError{std::string(call) + " failed: " + text};
    }

  private:
    void check_fault() {
        if (!failed_.load(std::memory_order_relaxed)) return;
        const std::lock_guard guard(lock_);
        throw TransportError{fault_};
    }

    const dt_mpi_table* mpi_;
    dt_comm* comm_;
    std::atomic<bool> failed_{false};
    std::mutex lock_;
    std::string fault_;  // the argument of `fail`
    std::map<std::pair<std::vector<int>, int>, int> groups_;
};

}  // namespace dovetail::run
