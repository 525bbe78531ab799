// The columns of a Program as Python holds them, for C++ to read where they lie.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "run/load.hpp"

namespace dovetail::bind {

using Table = nanobind::typed<nanobind::dict, nanobind::str, nanobind::any>;

template <class T>
const T* column(const Table& columns, const char* name) {
    using Array = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
    return nanobind::cast<Array>(columns[name]).data();
}

inline run::Regions regions(const Table& c, const std::string& side) {
    return {column<std::int64_t>(c, (side + "_start").c_str()),  column<std::int32_t>(c, (side + "_buffer").c_str()),
            column<std::int64_t>(c, (side + "_offset").c_str()), column<std::int64_t>(c, (side + "_count").c_str()),
            column<std::int64_t>(c, (side + "_stride").c_str()), column<std::int64_t>(c, (side + "_blocks").c_str())};
}

inline run::Columns read_columns(const Table& c) {
    run::Columns columns{};
    columns.num_ops = static_cast<std::int64_t>(nanobind::len(nanobind::handle(nanobind::object(c["kind"]))));
    columns.kind = column<std::uint8_t>(c, "kind");
    columns.rank = column<std::int32_t>(c, "rank");
    columns.lane = column<std::int32_t>(c, "lane");
    columns.chan_in = column<std::int32_t>(c, "chan_in");
    columns.chan_out = column<std::int32_t>(c, "chan_out");
    columns.call = column<std::int32_t>(c, "call");
    columns.dep_start = column<std::int64_t>(c, "dep_start");
    columns.dep = column<std::int64_t>(c, "dep");
    columns.reads = regions(c, "read");
    columns.writes = regions(c, "write");
    return columns;
}

}  // namespace dovetail::bind
