// What we call of cuBLASLt: its numbers and signatures, which are the same from version 11 on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dovetail::cuda::blaslt {

enum Type : int { real_32 = 0, real_64 = 1, real_16 = 2, bfloat_16 = 14 };
enum Compute : int { in_32 = 68, in_64 = 70 };
enum DescAttribute : int { sm_count_target = 15 };
enum PreferenceAttribute : int { max_workspace_bytes = 1, least_alignment_a = 5 };  // b, c and d follow

struct Algorithm {
    std::uint64_t data[8];
};

struct Heuristic {
    Algorithm algorithm;
    std::size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};

using Handle = void*;
using Create = int(Handle*);
using Destroy = int(Handle);
using Version = std::size_t();
using DescCreate = int(Handle*, Compute, Type);
using LayoutCreate = int(Handle*, Type, std::uint64_t rows, std::uint64_t columns, std::int64_t ld);
using SetAttribute = int(Handle, int which, const void*, std::size_t);
using Choose = int(Handle, Handle desc, Handle a, Handle b, Handle c, Handle d, Handle preference, int wanted,
                   Heuristic*, int* found);
using Multiply = int(Handle, Handle desc, const void* alpha, const void* a, Handle, const void* b, Handle,
                     const void* beta, const void* c, Handle, void* d, Handle, const Algorithm*, void* workspace,
                     std::size_t, void* stream);

}  // namespace dovetail::cuda::blaslt
