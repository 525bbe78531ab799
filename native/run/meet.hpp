// Compares the clocks of ranks over a transport.
#pragma once

#include "run/transport.hpp"
#include "trace/dovetail_trace_meet.h"

namespace dovetail::run {

// All ranks call it: see dovetail_trace_meet. Throws TransportError if one does not answer within the limit.
dovetail_trace_meeting meet(Transport& transport, int tag, double limit_s);

}  // namespace dovetail::run
