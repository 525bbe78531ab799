// What a Script learns of its steps from its first run, and which messages it lends: see script.hpp.
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "shm/script.hpp"

namespace dovetail::shm {

using run::Kind;
using run::Span;

// Where the message of a step that sends lies, once the step is done; null: in no buffer, or there is none.
const Span* Script::message_of(const Step& step) {
    if (step.kind == Kind::send) return step.op->reads.empty() ? nullptr : &step.op->reads[0];
    const bool forwards = step.kind == Kind::recv_copy_send || step.kind == Kind::recv_reduce_copy_send;
    return forwards && !step.op->writes.empty() ? &step.op->writes[0] : nullptr;
}

// Of a message that is long, lies in one piece, there in a region, and stays. Those of the source stay.
Loan Script::loan_of(const Step& step, std::int64_t tile, std::int64_t bytes) const {
    const Place& place = step.kind == Kind::send ? step.read : step.write;
    if (bytes < least_lent_ || !message_of(step) || place.cuts.size() != 1) return {};
    const bool is_source = place.base == &source_ && source_ != share_.bases[static_cast<std::size_t>(input_)];
    const bool is_short = extent_.most_slots * extent_.slot_bytes < least_answered_;
    if (!is_source && (step.is_overwritten || (step.is_answered && is_short))) return {};
    const std::byte* begin = *place.base + place.cuts[0].offset + (tiles_ > 1 ? tile * tile_bytes_ : 0);
    return ranks_->regions.find(begin, static_cast<std::size_t>(bytes), ranks_->rank());
}

void Script::note_loan(const Step& step) {
    ++num_lent_;
    const auto same = [&](const auto& each) { return each.first->out == step.out; };
    const auto found = std::find_if(unread_.begin(), unread_.end(), same);
    if (found == unread_.end())
        unread_.emplace_back(&step, step.out->slots_sent());
    else
        found->second = step.out->slots_sent();
}

bool Script::is_all_read() {
    while (!unread_.empty() && unread_.back().first->out->have_taken(unread_.back().second)) unread_.pop_back();
    return unread_.empty();
}

std::int64_t Script::half_a_cache() {
    static const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return found > 0 ? found / 2 : std::int64_t{1} << 19;
}

// Whether a rank read a message before it sent, by a later op of the same lane or by the same op, what the step
// receives.
bool Script::was_read_before(const Step& sent, const Step& step) const {
    const std::int64_t reader = extent_.receiver[static_cast<std::size_t>(sent.op->row)];
    const std::int64_t answer = extent_.sender[static_cast<std::size_t>(step.op->row)];
    const auto lane = [this](std::int64_t row) { return extent_.lane[static_cast<std::size_t>(row)]; };
    return reader >= 0 && answer >= reader && lane(reader) == lane(answer);
}

// Two accesses that conflict come in the same order in every run, as was proved, so one run shows it.
void Script::observe(Step& step) {
    if (survey_.buffer >= 0) {
        survey_.read(step.read);
        survey_.read(step.sum);
        survey_.write(step.write);
    }
    for (Step* sent : sent_)
        if (!step.op->writes.empty() && run::overlap(*message_of(*sent), step.op->writes[0]))
            (was_read_before(*sent, step) ? sent->is_answered : sent->is_overwritten) = true;
    if (message_of(step)) sent_.push_back(&step);
}

// Bytes of a cut that have been written.
std::int64_t Script::Survey::count(const Cut& cut) const {
    std::int64_t total = 0;
    auto it = written.upper_bound(cut.offset);
    if (it != written.begin()) --it;
    for (; it != written.end() && it->first < cut.offset + cut.bytes; ++it)
        total +=
            std::max<std::int64_t>(0, std::min(it->second, cut.offset + cut.bytes) - std::max(it->first, cut.offset));
    return total;
}

void Script::Survey::read(Place& place) {
    if (place.buffer != buffer) return;
    std::int64_t all = 0, before = 0;
    for (const Cut& cut : place.cuts) all += cut.bytes, before += count(cut);
    if (before == 0)
        early.push_back(&place);
    else
        mixed = mixed || before < all;
}

void Script::Survey::write(const Place& place) {
    if (place.buffer != buffer) return;
    for (const Cut& cut : place.cuts) {
        std::int64_t begin = cut.offset, end = cut.offset + cut.bytes;
        auto it = written.upper_bound(begin);
        if (it != written.begin() && std::prev(it)->second >= begin) --it;
        while (it != written.end() && it->first <= end) {
            begin = std::min(begin, it->first), end = std::max(end, it->second);
            it = written.erase(it);
        }
        if (begin < end) written[begin] = end;
    }
}

// It is proved that two accesses that conflict have the same order in every run: so all runs read the same bytes early.
void Script::end_survey() {
    const Survey found = std::exchange(survey_, {});
    surveyed_ = true;
    if (found.mixed || found.written.size() != 1 || found.written.begin()->first != 0) return;
    borrows_ = found.written.begin()->second;
    for (Place* place : found.early) place->base = &source_;
}

}  // namespace dovetail::shm
