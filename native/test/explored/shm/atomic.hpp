// In place of native/shm/atomic.hpp: atomics whose every interleaving Interleavings tries.
#pragma once

#include "test/interleavings.hpp"

namespace dovetail::shm {

template <class T>
using Atomic = test::Atomic<T>;

}  // namespace dovetail::shm
