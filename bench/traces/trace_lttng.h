/* The event of trace_lttng.c: one number, as dovetail_trace_point records it. LTTng reads this several times. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER dovetail_bench
#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "trace_lttng.h"
#if !defined(TRACE_LTTNG_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define TRACE_LTTNG_H
#include <lttng/tracepoint.h>
LTTNG_UST_TRACEPOINT_EVENT(dovetail_bench, point, LTTNG_UST_TP_ARGS(int, number),
                           LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(int, number, number)))
#endif
#include <lttng/tracepoint-event.h>
