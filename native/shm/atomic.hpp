// Atomic: the type of variables that ranks share. Tests replace this header by one that tries every interleaving.
#pragma once

#include <atomic>

namespace dovetail::shm {

template <class T>
using Atomic = std::atomic<T>;

}  // namespace dovetail::shm
