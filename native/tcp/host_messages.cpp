// HostMessages: see host_messages.hpp. Handles are even for shared memory and odd for sockets.
#include "tcp/host_messages.hpp"

#include <utility>

namespace dovetail::tcp {

namespace {

constexpr int misses_per_look = 256;
constexpr std::uint64_t never = ~std::uint64_t{0};

}  // namespace

HostMessages::HostMessages(int rank, std::vector<int> here, std::unique_ptr<RingMessages> near,
                           std::unique_ptr<RingMessages> spare, std::shared_ptr<Sockets> far, int size, int channel)
    : rank_(rank),
      channel_(channel),
      here_(std::move(here)),
      near_rank_(static_cast<std::size_t>(size), -1),
      near_(std::move(near)),
      spare_(std::move(spare)),
      far_(std::move(far)) {
    for (std::size_t i = 0; i < here_.size(); ++i) near_rank_[static_cast<std::size_t>(here_[i])] = static_cast<int>(i);
}

std::unique_ptr<Messages> HostMessages::another() {
    return std::make_unique<HostMessages>(rank_, here_, std::move(spare_), nullptr, far_, size(), channel_ + 1);
}

int HostMessages::isend(const void* data, long long num_bytes, int dst, Label label, bool matched) {
    const int near = near_rank(dst);
    return near >= 0 ? 2 * near_->isend(data, num_bytes, near, label, matched)
                     : begun(far_->isend(channel_, data, num_bytes, dst, label, matched));
}

int HostMessages::irecv(void* data, long long num_bytes, int src, Label label, const std::byte** lent) {
    if (lent) *lent = nullptr;
    const int near = near_rank(src);
    return near >= 0 ? 2 * near_->irecv(data, num_bytes, near, label)
                     : begun(far_->irecv(channel_, data, num_bytes, src, label));
}

int HostMessages::begun(int handle) {
    if (seen_.size() <= static_cast<std::size_t>(handle)) seen_.resize(static_cast<std::size_t>(handle) + 1);
    seen_[static_cast<std::size_t>(handle)] = never;
    return 2 * handle + 1;
}

bool HostMessages::test_far(int handle, int& code) {
    latest_seen_ = seen_[static_cast<std::size_t>(handle)];
    if (latest_seen_ == far_->num_ended() || !far_->test(handle, code, latest_seen_)) {
        seen_[static_cast<std::size_t>(handle)] = latest_seen_;
        return false;
    }
    return true;
}

int HostMessages::translated(int code) const {
    if (code <= 0) return code;
    return shm::code_of(shm::state_of(code), here_[static_cast<std::size_t>(shm::rank_of(code))]);
}

// Messages of this host move while this rank waits for another host: a rank there may wait for one of them.
bool HostMessages::test(int handle, int& code) {
    const bool is_far = handle % 2;
    if (is_far ? test_far(handle / 2, code) : near_->test(handle / 2, code)) {
        code = is_far ? code : translated(code);
        return true;
    }
    if (is_far && here_.size() > 1) near_->progress();
    if (++misses_ % misses_per_look) return false;
    code = is_far ? translated(near_->broken()) : far_->broken(channel_);
    if (code) cancel(handle);
    return code != 0;
}

int HostMessages::peer_of(int handle) const {
    return handle % 2 ? far_->peer_of(handle / 2) : here_[static_cast<std::size_t>(near_->peer_of(handle / 2))];
}

void HostMessages::cancel(int handle) { handle % 2 ? far_->cancel(handle / 2) : near_->cancel(handle / 2); }

void HostMessages::leave(State how, const std::string& why) {
    near_->leave(how);
    far_->leave(channel_, how, why);
}

// Only messages of other hosts move by themselves.
void HostMessages::nap() { here_.size() > 1 ? Messages::nap() : far_->nap(latest_seen_); }

std::string HostMessages::text(int code) const { return far_->why(code); }

}  // namespace dovetail::tcp
