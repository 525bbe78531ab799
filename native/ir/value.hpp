// Value: what a slot holds, a multiset of contributions, as a keyed hash that adds.
#pragma once

#include <bit>
#include <cstdint>

namespace dovetail::ir {

// SipHash-1-3, with a random key for every run, maps each contribution to two 64-bit numbers; a multiset is represented
// by their sums and its number of members. Two different multisets of equal size collide if both sums are equal: if
// SipHash is indistinguishable from a random function, with a probability of at most 2^-(128 - 2 k), where 2^k is the
// largest power of two that divides every difference of multiplicities. In practice k = 0; it is never above 62, since
// counts saturate at 2^62, which no post-condition reaches. The probability of a wrong verdict on a program of 10^9
// slots is below 2^-90. Nobody can write a Program that is wrongly accepted, since the key is unknown in advance.
struct Value {
    std::uint64_t a = 0, b = 0;
    std::uint64_t count = 0;  // contributions; 0 for a slot not touched yet

    bool operator==(const Value&) const = default;
};

constexpr std::uint64_t kMostContributions = std::uint64_t{1} << 62;

struct Key {
    std::uint64_t k0 = 0, k1 = 0;
};

// Hashes a sequence of 64-bit words to a contribution.
class Hash {
  public:
    explicit Hash(const Key& key)
        : v0_(key.k0 ^ 0x736f6d6570736575),
          v1_(key.k1 ^ 0x646f72616e646f6d ^ 0xee),
          v2_(key.k0 ^ 0x6c7967656e657261),
          v3_(key.k1 ^ 0x7465646279746573) {}

    void word(std::uint64_t m) {
        v3_ ^= m;
        round();
        v0_ ^= m;
        ++words_;
    }

    void value(const Value& v) { word(v.a), word(v.b), word(v.count); }

    // Returns the contribution; call it once.
    Value finish() {
        word(words_);
        Value value{0, 0, 1};
        v2_ ^= 0xee;
        for (int i = 0; i < 3; ++i) round();
        value.a = v0_ ^ v1_ ^ v2_ ^ v3_;
        v1_ ^= 0xdd;
        for (int i = 0; i < 3; ++i) round();
        value.b = v0_ ^ v1_ ^ v2_ ^ v3_;
        return value;
    }

  private:
    void round() {
        v0_ += v1_, v1_ = std::rotl(v1_, 13) ^ v0_, v0_ = std::rotl(v0_, 32);
        v2_ += v3_, v3_ = std::rotl(v3_, 16) ^ v2_;
        v0_ += v3_, v3_ = std::rotl(v3_, 21) ^ v0_;
        v2_ += v1_, v1_ = std::rotl(v1_, 17) ^ v2_, v2_ = std::rotl(v2_, 32);
    }

    std::uint64_t v0_, v1_, v2_, v3_, words_ = 0;
};

}  // namespace dovetail::ir
