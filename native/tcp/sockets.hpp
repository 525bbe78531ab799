// Sockets: messages between ranks of several hosts, over a connection for each pair. A thread of their own moves them.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shm/messages.hpp"

namespace dovetail::tcp {

using shm::Label;
using shm::State;

// Requests are matched by source, channel and label, in the order in which they were made. Any thread may use it. A
// channel ends by itself, all end with a rank's process.
//
// Bytes go from the user's array to the kernel and from the kernel to the user's array. A message is sent at once, and
// kept aside if its receive comes later. Of long ones only `credit` bytes may be there without a receive: beyond that,
// and for a `matched` message, the sender asks first and waits for a grant.
class Sockets {
  public:
    static constexpr int channels = 2;
    static constexpr long long credit = 1LL << 24, longest_short = 1LL << 16;  // bytes

    // `files`: a connected socket for each rank, which this takes; -1 where there is none.
    Sockets(int rank, std::vector<int> files);
    ~Sockets();
    Sockets(const Sockets&) = delete;
    Sockets& operator=(const Sockets&) = delete;

    int isend(int channel, const void* data, long long num_bytes, int dst, Label label, bool matched);
    int irecv(int channel, void* data, long long num_bytes, int src, Label label);
    // Whether the request has ended; it is freed then. If not, `seen` is how many requests have ended so far: it has
    // not ended either while that is `num_ended`.
    bool test(int handle, int& code, std::uint64_t& seen);
    std::uint64_t num_ended() const { return num_ended_.load(std::memory_order_acquire); }
    void cancel(int handle);
    int peer_of(int handle);
    void leave(int channel, State how, const std::string& why);
    void nap(std::uint64_t seen);  // until more requests have ended than were seen, or some milliseconds are over
    int broken(int channel);
    std::string why(int code);

  private:
    enum class Kind : std::uint16_t { whole, ask, grant, data, taken, left, failed };
    struct Head {
        Kind kind;
        std::uint16_t channel;
        std::uint32_t request;       // of the sender: ask, grant; of the receiver: data
        std::uint64_t context, tag;  // tag of a grant: the receiver's request
        std::uint64_t num_bytes;
    };
    struct Request {
        enum class Use : std::uint8_t { none, send, receive } use = Use::none;
        bool done = false, forgotten = false;
        int code = 0, peer = -1, channel = 0;
        Label label;
        std::byte* data = nullptr;
        long long num_bytes = 0;
    };
    struct Frame {  // to write
        Head head;
        const std::byte* data = nullptr;
        long long num_bytes = 0, moved = 0;  // of the payload; moved: of head and payload
        int request = -1;                    // a send that ends with it
        std::unique_ptr<std::byte[]> kept;   // the payload, if it is the frame's own
    };
    struct Early {  // a message that came before its receive
        Head head;
        std::unique_ptr<std::byte[]> data;
        bool is_here = false;  // all of it
        int taker = -1;        // a receive that waits for the rest of it
    };
    struct Peer {
        int file = -1;
        std::deque<Frame> out;
        std::list<int> posted;  // receives without a message so far
        std::list<Early> early;
        long long unanswered = 0;  // bytes of long messages that were sent and not taken so far
        std::array<int, channels> code{};
        std::array<std::string, channels> why;
        bool is_open = false, awaits_room = false;
        int low_water = 1;

        std::unique_ptr<std::byte[]> staged;  // bytes that were read and not used so far
        std::size_t begin = 0, end = 0;
        bool has_head = false;
        Head head;  // of the payload that is read now
        std::byte* into = nullptr;
        long long fits = 0, rest = 0;  // bytes that have room at `into`; all that are still to come
        int taker = -1;                // the receive whose payload it is, or
        std::list<Early>::iterator place;
        std::string text;
    };

    struct Open {
        std::mutex lock;
        std::vector<Sockets*> all;
    };
    static Open& open();

    using Lock = std::unique_lock<std::mutex>;
    Request& at(int handle) { return requests_[static_cast<std::size_t>(handle)]; }
    Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
    int make(Request::Use use, int channel, void* data, long long num_bytes, int peer, Label label);
    void free(int handle);
    void end(int handle, int code = 0);
    int code_for(const Request& request) const;
    void forget(int handle);
    void put(Peer& to, Head head, const void* data = nullptr, long long num_bytes = 0, int request = -1);
    void keep(Frame& frame);
    void write(Peer& to);
    bool write_some(Peer& to);
    void watch_room(Peer& to, bool on);
    void read(int src);
    bool fill(Peer& from);
    void use_staged(int src);
    void begin_payload(int src);
    void end_payload(int src);
    void take(int handle, const Early& early);
    void answer(Peer& to, const Head& head);
    void set_low_water(Peer& from);
    void lose(int rank);
    void loop();
    bool is_written(int channel) const;

    const int rank_, process_;  // process: that which made it, and not one that was forked from it
    int epoll_ = -1, wake_ = -1;
    std::vector<Peer> peers_;
    std::deque<Request> requests_;
    std::vector<int> unused_;
    std::array<int, channels> broken_{};
    std::array<bool, channels> has_left_{};
    std::atomic<std::uint64_t> num_ended_{0};  // and how often a rank has
    bool stops_ = false;
    std::mutex lock_;
    std::condition_variable ended_;
    std::thread thread_;
};

}  // namespace dovetail::tcp
