// Python bindings of native/ir.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "ir/verify.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace ir = dovetail::ir;

namespace {

using Table = nb::typed<nb::dict, nb::str, nb::any>;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Spans over the arrays of a dictionary, which keeps them alive.
class Reader {
  public:
    explicit Reader(Table arrays) : arrays_(std::move(arrays)) {}

    template <class T>
    void operator()(const char* name, std::span<const T>& out) const {
        const auto column = nb::cast<Column<T>>(arrays_[name], false);
        out = {column.data(), column.size()};
    }

    void operator()(const std::string& side, ir::Regions& out) const {
        (*this)((side + "_buffer").c_str(), out.buffer);
        (*this)((side + "_offset").c_str(), out.offset);
        (*this)((side + "_count").c_str(), out.count);
        (*this)((side + "_stride").c_str(), out.stride);
        (*this)((side + "_blocks").c_str(), out.blocks);
    }

  private:
    Table arrays_;
};

ir::Program read_program(const Table& columns, const Table& tables, std::int32_t num_ranks) {
    ir::Program p;
    p.num_ranks = num_ranks;
    const Reader column(columns), table(tables);
    column("kind", p.kind);
    column("rank", p.rank), column("lane", p.lane);
    column("chan_in", p.chan_in), column("chan_out", p.chan_out), column("call", p.call);
    column("read_start", p.read_start), column("write_start", p.write_start);
    column("dep_start", p.dep_start), column("dep", p.dep);
    column("read", p.read), column("write", p.write);
    table("buffer_slots", p.buffer_slots), table("buffer_is_input", p.buffer_is_input);
    table("buffer_is_result", p.buffer_is_result);
    table("chan_src", p.chan_src), table("chan_dst", p.chan_dst), table("chan_depth", p.chan_depth);
    table("mode_start", p.mode_start), table("mode", p.mode);
    table("accumulate", p.accumulate), table("kernel_name", p.kernel_name);
    table("collective", p.collective), table("group_start", p.group_start), table("group", p.group);
    p.num_buffers = static_cast<std::int32_t>(p.buffer_is_input.size());
    p.num_lanes = nb::cast<std::int32_t>(tables["num_lanes"]);
    return p;
}

void read_posts(const Table& tables, ir::Posts& posts) {
    const Reader table(tables);
    table("post_set", posts.set), table("post", posts.region);
    table("post_rank_start", posts.rank_start), table("post_rank", posts.rank);
    table("post_term_start", posts.term_start), table("term_kernel", posts.term_kernel);
    table("term_is_inner", posts.is_inner), table("term_arg_start", posts.arg_start);
    table("arg_term", posts.arg_term), table("arg_rank", posts.arg_rank), table("arg", posts.arg);
}

nb::object pair(const ir::Pair& p) { return p.first < 0 ? nb::none() : nb::object(nb::make_tuple(p.first, p.second)); }

using List = nb::typed<nb::list, nb::any>;

List to_list(const std::vector<ir::Wrong>& wrong) {
    List out;
    for (const ir::Wrong& w : wrong)
        out.append(w.post < 0 ? nb::none() : nb::object(nb::make_tuple(w.post, w.rank, w.place)));
    return out;
}

Table to_dict(const ir::Slice& slice) {
    Table out;
    out["ops"] = slice.ops;
    out["matched"] = slice.matched;
    out["first"] = slice.first;
    out["last"] = slice.last;
    return out;
}

Table to_dict(const ir::Verdict& v) {
    Table out;
    out["unfit"] = v.unfit;
    out["mismatch_ops"] = v.mismatch_ops;
    out["complete"] = v.complete;
    out["deep_enough"] = v.deep_enough;
    out["depth"] = v.depth;
    out["done"] = v.done;
    out["unmatched"] = v.unmatched;
    out["has_result"] = v.has_result;
    out["self"] = v.races.self;
    out["turns"] = pair(v.races.turns);
    out["slots"] = pair(v.races.slots);
    out["wrong"] = to_list(v.results.wrong);
    const ir::Difference& d = v.results.differs;
    out["differs"] = d.buffer < 0 ? nb::none() : nb::object(nb::make_tuple(d.buffer, d.rank, d.slot));
    out["cells"] = v.results.cells;
    out["work"] = v.results.work;
    out["by_induction"] = v.results.by_induction;
    out["slice"] = to_dict(v.slice);
    out["origin"] = to_dict(v.origin);
    return out;
}

}  // namespace

void bind_ir(nb::module_& m) {
    m.def(
        "verify",
        [](const Table& columns, const Table& tables, std::int32_t num_ranks, std::int32_t num_sets, std::uint64_t k0,
           std::uint64_t k1, const std::optional<std::pair<Table, Table>>& reference) {
            ir::Program program = read_program(columns, tables, num_ranks), other;
            read_posts(tables, program.posts);
            if (reference) other = read_program(reference->first, reference->second, num_ranks);
            ir::Verdict verdict;
            {
                const nb::gil_scoped_release release;
                verdict = ir::verify(program, {k0, k1}, num_sets, reference ? &other : nullptr);
            }
            return to_dict(verdict);
        },
        "columns"_a, "tables"_a, "num_ranks"_a, "num_sets"_a, "k0"_a, "k1"_a, "reference"_a = nb::none(),
        "Judge a Program that has passed check_columns; tables as dovetail.ir.proof.native lays them out. `reference`: "
        "columns and tables of another, with buffers numbered alike, to be compared with.");
    m.def(
        "ask",
        [](const Table& columns, const Table& tables, std::int32_t num_ranks, std::int32_t num_sets, std::uint64_t k0,
           std::uint64_t k1) {
            ir::Program program = read_program(columns, tables, num_ranks);
            read_posts(tables, program.posts);
            ir::Results results;
            {
                const nb::gil_scoped_release release;
                results = ir::ask(program, {k0, k1}, num_sets);
            }
            return to_list(results.wrong);
        },
        "columns"_a, "tables"_a, "num_ranks"_a, "num_sets"_a, "k0"_a, "k1"_a,
        "Of a Program for which `verify` has looked at results: what is wrong, by set of post-conditions.");
}
