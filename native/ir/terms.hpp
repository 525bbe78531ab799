// Terms: the numbers of slots of terms of post-conditions and of their operands. Same rules as dovetail/ir/terms.py.
#pragma once

#include <cstdint>

#include "ir/program.hpp"

namespace dovetail::ir {

// A view of the term in one row of the tables.
class TermView {
  public:
    TermView(const Program& p, std::int64_t row) : p_(p), row_(row) {}

    std::int32_t kernel() const { return p_.posts.term_kernel[row_]; }
    std::int64_t size() const { return p_.posts.arg_start[row_ + 1] - p_.posts.arg_start[row_]; }
    std::int64_t arg(std::int64_t i) const { return p_.posts.arg_start[row_] + i; }
    std::uint8_t mode(std::int64_t i) const { return kernel() < 0 ? std::uint8_t{kEach} : p_.modes(kernel())[i]; }
    bool is_by_slot() const { return kernel() < 0 || p_.is_by_slot(kernel()); }
    bool is_term(std::int64_t i) const { return p_.posts.arg_term[arg(i)] != 0; }
    TermView term(std::int64_t i) const { return {p_, row_ + p_.posts.arg_term[arg(i)]}; }
    Region region(std::int64_t i) const { return p_.posts.arg[arg(i)]; }
    std::int32_t rank(std::int64_t i) const { return p_.posts.arg_rank[arg(i)]; }

    // The slots of operand i if they follow from the operand alone; else 1.
    std::int64_t own_slots(std::int64_t i) const {
        const std::int64_t stated = stated_slots(i);
        return stated < 0 ? 1 : stated;
    }

    // The number of terms that each slot of a term of `slots` slots sums.
    std::int64_t num_terms(std::int64_t slots) const {
        if (kernel() < 0) return 1;
        return ir::num_terms(p_.modes(kernel()), slots, [&](std::int64_t i) { return own_slots(i); });
    }

    // The slots that operand i of a term of `slots` slots must have.
    std::int64_t slots_needed(std::int64_t i, std::int64_t slots) const {
        switch (mode(i)) {
            case kEach:
                return slots;
            case kSum:
                return num_terms(slots);
            case kEachSum:
                return slots * num_terms(slots);
            default:
                return own_slots(i);
        }
    }

  private:
    // The slots of operand i if they follow from the operand alone; else -1.
    std::int64_t stated_slots(std::int64_t i) const {
        if (!is_term(i)) return region(i).slots();
        const TermView inner = term(i);
        std::int64_t summed = -1, both = -1;
        for (std::int64_t k = 0; k < inner.size(); ++k) {
            const std::uint8_t mode = inner.mode(k);
            if (mode == kAll) continue;
            const std::int64_t stated = inner.stated_slots(k);
            if (stated < 0) continue;
            if (mode == kEach) return stated;
            std::int64_t& size = mode == kSum ? summed : both;
            if (size < 0) size = stated;
        }
        return summed < 0 || both < 0 ? -1 : both / (summed > 0 ? summed : 1);
    }

    const Program& p_;
    std::int64_t row_;
};

}  // namespace dovetail::ir
