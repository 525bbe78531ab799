// Communicator: see comm.hpp.
#include "run/comm.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "run/reduce.hpp"

namespace dovetail::run {

namespace {

constexpr std::size_t alignment = 128;

double clock_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::size_t aligned(std::size_t num_bytes) { return (num_bytes + alignment - 1) / alignment * alignment; }

bool overlap(const std::byte* a, long long a_bytes, const std::byte* b, long long b_bytes) {
    return a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}

// A trace shows the call from its constructor to its destructor. Kinds are those of mpi_table.h.
class Shown {
  public:
    Shown(int kind, long long num_bytes) : name_(dovetail_trace_is_on() ? number(static_cast<std::size_t>(kind)) : 0) {
        if (name_) dovetail_trace_begin(name_, num_bytes);
    }
    ~Shown() {
        if (name_) dovetail_trace_end(name_, 0);
    }
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;

  private:
    static int number(std::size_t kind) {
#define DT_TITLE(name, text) "dovetail." text,
        static constexpr std::array<const char*, DT_NUM_KINDS> titles = {DT_KINDS(DT_TITLE)};
#undef DT_TITLE
        static std::array<std::atomic<int>, DT_NUM_KINDS> numbers{};
        if (!numbers[kind]) numbers[kind] = dovetail_trace_name(titles[kind]);
        return numbers[kind];
    }
    const int name_;
};

void copy(std::byte* to, const std::byte* from, long long num_bytes) {
    if (to != from && num_bytes) std::memmove(to, from, static_cast<std::size_t>(num_bytes));
}

}  // namespace

Communicator::Communicator(const dt_mpi_table* mpi, int fortran, void (*ends)(void*), void (*freed)(void*))
    : mpi_(mpi), rules_(DT_NUM_KINDS), dtypes_(DT_NUM_KINDS, -1) {
    const int code = mpi->adopt(fortran, this, ends, freed, &comm_);
    transport_ = std::make_shared<MpiTransport>(mpi, comm_);
    transport_->check(code, "MPI_Comm_dup");
}

void Communicator::set_rules(int kind, std::vector<Rule> rules, int dtype) {
    std::sort(rules.begin(), rules.end(), [](const Rule& a, const Rule& b) { return a.least_bytes < b.least_bytes; });
    rules_[static_cast<std::size_t>(kind)] = std::move(rules);
    dtypes_[static_cast<std::size_t>(kind)] = dtype;
}

int Communicator::choice(int kind, long long num_bytes, int dtype) const {
    int choice = -1;
    const int only = dtypes_[static_cast<std::size_t>(kind)];
    if (only >= 0 && dtype >= 0 && dtype != only) return choice;
    for (const Rule& rule : rules_[static_cast<std::size_t>(kind)]) {
        if (rule.least_bytes > num_bytes) break;
        choice = rule.choice;
    }
    return choice;
}

std::size_t Communicator::Hash::operator()(const Key& key) const {
    std::size_t mixed = static_cast<std::size_t>(key.count);
    for (const int part : {key.kind, key.choice, key.dtype, key.root})
        mixed = mixed * 0x9e3779b97f4a7c15u + static_cast<std::size_t>(part + 1);
    return key.all_counts.empty() ? mixed : mixed ^ std::hash<std::string>()(key.all_counts);
}

Communicator::Key Communicator::key_of(const Call& call, int choice) {
    return {call.kind, choice, call.dtype, call.root, call.count, call.all_counts};
}

// The latest is compared first: a program often repeats its call, and hashing takes longer than a short call.
Communicator::Engines::iterator Communicator::find(const Call& call, int choice) {
    if (!engines_.empty()) {
        const Key& key = engines_.front().first;
        if (key.count == call.count && key.kind == call.kind && key.dtype == call.dtype && key.choice == choice &&
            key.root == call.root && key.all_counts == call.all_counts)
            return engines_.begin();
    }
    const auto found = find_.find(key_of(call, choice));
    return found == find_.end() ? engines_.end() : found->second;
}

bool Communicator::run(const Call& call) {
    if (call.num_bytes == 0) return true;
    const Shown shown(call.kind, call.num_bytes);
    const int chosen = choice(call.kind, call.num_bytes, call.dtype);
    if (chosen < 0 || call.dtype >= DT_COMPLEX64) {
        library(call, true);
        return true;
    }
    const auto found = find(call, chosen);
    if (found != engines_.end() && !found->second.added) return false;
    enter(call, true);
    if (found == engines_.end()) {
        remember(call, {});
        transfer(call);
    } else {
        if (found != engines_.begin()) engines_.splice(engines_.begin(), engines_, found);
        Service& service = found->second;
        service.engine || service.script ? serve(call, service) : transfer(call);
    }
    leave();
    return true;
}

void Communicator::enter(const Call& call, bool by_rules) {
    if (!board) return;
    const Recorded asked{call.count,
                         call.num_bytes,
                         call.root,
                         static_cast<std::int8_t>(call.kind),
                         static_cast<std::int8_t>(call.dtype),
                         static_cast<std::int8_t>(call.op),
                         by_rules,
                         transport_->begun};
    if (!board->enter(asked, call.all_counts)) throw OtherRankFailed{};
}

void Communicator::leave() const {
    if (board && board->raises() && !standing_in) throw OtherRankFailed{};
}

void Communicator::library(const Call& call, bool by_rules) {
    enter(call, by_rules);
    transfer(call);
    leave();
}

int Communicator::begin(const Call& call) {
    const bool by_rules = choice(call.kind, call.num_bytes, call.dtype) >= 0 && call.dtype < DT_COMPLEX64;
    if (board || by_rules || call.num_bytes == 0 || !transport_->waits()) return -1;
    const auto [src_bytes, dst_bytes] = sides(call);
    const bool has_room = is_in_place(call) || !overlap(call.src, src_bytes, call.dst, dst_bytes);
    if (!has_room || !call.counts.empty() || call.kind == DT_ALL_TO_NEXT) return -1;
    return transport_->icollective(
        {call.kind, call.src, call.dst, call.count, nullptr, call.dtype, call.op, -1, call.root});
}

void Communicator::finish(const Call& call, int handle) {
    await(handle);
    average(call);
}

void Communicator::add(const Call& call, Service service) {
    service.added = true;
    service.num_bytes = call.num_bytes;
    remember(call, std::move(service));
}

void Communicator::remember(const Call& call, Service service) {
    total_bytes_ += service.num_bytes;
    engines_.emplace_front(key_of(call, choice(call.kind, call.num_bytes, call.dtype)), std::move(service));
    const auto [entry, fresh] = find_.try_emplace(engines_.front().first, engines_.begin());
    if (!fresh) {
        total_bytes_ -= entry->second->second.num_bytes;
        engines_.erase(entry->second);
        entry->second = engines_.begin();
    }
    while (engines_.size() > 1 && (engines_.size() > most_engines || total_bytes_ > most_bytes)) {
        total_bytes_ -= engines_.back().second.num_bytes;
        find_.erase(engines_.back().first);
        engines_.pop_back();
    }
}

void Communicator::clear() {
    find_.clear();
    engines_.clear();
    total_bytes_ = 0;
}

std::size_t Communicator::num_engines() const {
    return static_cast<std::size_t>(
        std::count_if(engines_.begin(), engines_.end(), [](const auto& entry) { return entry.second.added; }));
}

std::pair<long long, long long> Communicator::sides(const Call& call) const {
    const long long one = dtype_bytes(call.dtype), part = call.count * one, whole = part * size();
    const auto sum = [&](int side) {
        const auto begin = call.counts.begin() + side * size();
        return std::accumulate(begin, begin + size(), 0LL) * one;
    };
    switch (call.kind) {
        case DT_ALL_GATHER:
        case DT_GATHER:
            return {part, call.dst ? whole : 0};
        case DT_REDUCE_SCATTER:
        case DT_SCATTER:
            return {call.src ? whole : 0, part};
        case DT_ALL_TO_ALL:
            return {whole, whole};
        case DT_ALL_GATHER_V:
            return {call.counts[static_cast<std::size_t>(rank())] * one, sum(0)};
        case DT_REDUCE_SCATTER_V:
            return {sum(0), call.counts[static_cast<std::size_t>(rank())] * one};
        case DT_ALL_TO_ALL_V:
            return {sum(0), sum(1)};
        default:
            return {part, call.dst ? part : 0};
    }
}

long long Communicator::own_part(const Call& call) const {
    const long long one = dtype_bytes(call.dtype);
    if (call.kind == DT_ALL_GATHER) return rank() * call.count * one;
    if (call.kind != DT_ALL_GATHER_V) return 0;
    return std::accumulate(call.counts.begin(), call.counts.begin() + rank(), 0LL) * one;
}

// MPI forbids that source and destination overlap, except by MPI_IN_PLACE: if they do, the source is copied first.
// So it is for an all_to_all in place: with MPI_IN_PLACE, libraries use another algorithm, which does not match that of
// ranks that have other arrays for source and result.
void Communicator::transfer(const Call& call) {
    const auto [src_bytes, dst_bytes] = sides(call);
    const std::byte* src = call.src;
    if (!is_in_place(call) && overlap(src, src_bytes, call.dst, dst_bytes)) {
        std::byte* aside = room(static_cast<std::size_t>(src_bytes));
        copy(aside, src, src_bytes);
        src = aside;
    }
    const long long* counts = call.counts.empty() ? nullptr : call.counts.data();
    call_library({call.kind, src, call.dst, call.count, counts, call.dtype, call.op, -1, call.root});
    average(call);
}

bool Communicator::is_in_place(const Call& call) const {
    const bool gathers = call.kind == DT_ALL_GATHER || call.kind == DT_ALL_GATHER_V;
    const bool may = gathers || call.kind == DT_ALL_REDUCE || call.kind == DT_REDUCE;
    return call.kind == DT_BROADCAST || (may && call.src == call.dst + own_part(call));
}

void Communicator::average(const Call& call) const {
    if (call.op == DT_AVG && call.dst)
        divide(call.dtype, call.dst, sides(call).second / dtype_bytes(call.dtype), size());
}

void Communicator::call_library(const LibraryCall& asked) {
    if (!transport_->begun && !transport_->polls) return transport_->collective(asked);
    constexpr long long longest = std::numeric_limits<int>::max();
    if (asked.kind != DT_ALL_TO_NEXT) return await(transport_->icollective(asked));
    const long long num_bytes = asked.count * dtype_bytes(asked.dtype);
    num_bytes <= longest ? to_next(asked, num_bytes) : transport_->collective(asked);
}

void Communicator::to_next(const LibraryCall& asked, long long num_bytes) {
    const int before = rank() - 1, next = rank() + 1;
    const int coming = before >= 0 ? transport_->irecv(asked.dst, num_bytes, before, 0) : -1;
    if (next < size()) await(transport_->isend(asked.src, num_bytes, next, 0, false));
    if (coming >= 0) await(coming);
}

// Only these polls advance the call, and each costs the computing thread more than it takes itself. So while that
// computes, pauses grow with the time waited so far, and delay the end by that share at most.
void Communicator::await(int handle) {
    if (transport_->waits()) return transport_->wait(handle);
    constexpr double share = 1.0 / 8, shortest_s = 50e-6, longest_s = 1e-3;
    constexpr int polls_per_clock = 256;
    const double limit_s = transport_->limit_s;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    double began_s = 0.0, waited_s = 0.0;
    for (int polls = 1; !transport_->test(handle); ++polls) {
        const bool rests = transport_->rests;
        if (rests || (limit_s > 0.0 && polls % polls_per_clock == 1)) {
            if (began_s == 0.0) began_s = clock_s();
            waited_s = clock_s() - began_s;
        }
        const std::chrono::duration<double> pause(std::clamp(share * waited_s, shortest_s, longest_s));
        rests ? std::this_thread::sleep_for(pause) : std::this_thread::yield();
        if (limit_s > 0.0 && waited_s > limit_s) {
            std::ostringstream text;
            text << "timeout after " << limit_s << " s";
            transport_->fail(text.str());  // the request stays: its messages may still come
        }
    }
}

// A Program in place works on one array, the caller's result. The caller's own part is copied into it first, unless
// a script reads the part where it is.
void Communicator::serve(const Call& call, Service& service) {
    if (!broken_.empty()) throw TransportError{"an earlier call failed on this communicator: " + broken_};
    const auto rebase = [&](int row, std::byte* base) {
        service.script ? service.script->rebase(row, base) : service.engine->rebase(row, base);
    };
    const auto [src_bytes, dst_bytes] = sides(call);
    std::size_t needed = 0;
    for (const auto& [row, num_bytes] : service.scratch) needed += aligned(num_bytes);
    const bool spare_src = !service.in_place && overlap(call.src, src_bytes, call.dst, dst_bytes);
    std::byte* next = room(needed + (spare_src ? aligned(static_cast<std::size_t>(src_bytes)) : 0));
    for (const auto& [row, num_bytes] : service.scratch) {
        rebase(row, next);
        next += aligned(num_bytes);
    }
    const bool fills = service.in_place && service.script && service.input >= 0 && src_bytes &&
                       !overlap(call.src, src_bytes, call.dst, dst_bytes);
    if (service.in_place && !fills) copy(call.dst + own_part(call), call.src, src_bytes);
    if (spare_src) copy(next, call.src, src_bytes);
    std::byte* input = service.in_place ? call.dst : spare_src ? next : const_cast<std::byte*>(call.src);
    if (service.input >= 0) rebase(service.input, input);
    if (service.output >= 0) rebase(service.output, call.dst);
    if (service.script) {
        const std::string why = service.script->run({service.options.stall_s, call.op, transport_->rests,
                                                     service.in_place ? service.input : -1, fills ? call.src : nullptr,
                                                     own_part(call), src_bytes});
        if (!why.empty()) throw TransportError{why};
        return;
    }
    service.options.reduce_op = call.op;
    broken_ = service.engine->run(service.options, clock_s);
    if (!broken_.empty()) throw TransportError{broken_};
}

std::size_t Communicator::shared_bytes(int size, std::size_t most_bytes) {
    return aligned(Board::bytes(size)) + shm::Neighbours::bytes(size, shm::Geometry::within(size, most_bytes));
}

void Communicator::share(shm::Segment memory) {
    const std::size_t first = aligned(Board::bytes(size()));
    if (memory.size() < shared_bytes(size(), 0))
        throw std::runtime_error("the memory that the ranks share is too small");
    const auto geometry = shm::Neighbours::geometry(size(), memory.size() - first);
    memory_ = std::make_shared<shm::Segment>(std::move(memory));
    std::byte* data = memory_->data();
    neighbours_ = {new shm::Neighbours(data + first, rank(), size(), geometry, memory_->file()),
                   [kept = memory_](const shm::Neighbours* made) { delete made; }};
    board = std::make_unique<Board>(data, rank(), size(), [ranks = neighbours_](int r) { return ranks->has_ended(r); });
}

void Communicator::unshare() {
    board.reset();
    neighbours_.reset();
    memory_.reset();
}

std::byte* Communicator::room(std::size_t num_bytes) {
    if (arena_.size() < num_bytes + alignment) arena_.resize(num_bytes + alignment);
    const auto at = reinterpret_cast<std::uintptr_t>(arena_.data());
    return arena_.data() + (aligned(at) - at);
}

}  // namespace dovetail::run
