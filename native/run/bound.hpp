// BoundEngine: an engine and its transport, as Python holds them. The caller keeps the arrays alive.
#pragma once

#include <memory>

#include "run/engine.hpp"

namespace dovetail::run {

struct BoundEngine {
    std::shared_ptr<Transport> transport;
    std::unique_ptr<Engine> engine;
};

}  // namespace dovetail::run
