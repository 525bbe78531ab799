// Mailbox: sends and receives by tag between the ranks of a transport, from a given rank or from any.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "run/transport.hpp"

namespace dovetail::run {

// A message is a head (tag, bytes, number, and its data if they have room there), then its data. Each rank always
// awaits the next head of every other rank. So a receive from any rank takes the earliest head that fits, and sizes are
// compared before data arrive. A thread makes progress while some send or receive has not ended. Any thread may use it.
class Mailbox {
  public:
    struct Fault {
        bool is_any = false, is_of_transport = false;
        std::string text, found;
    };
    // Called once, by any thread, without a lock. It may begin sends and receives.
    using Done = std::function<void(const Fault& fault, int source)>;

    explicit Mailbox(std::shared_ptr<Transport> transport);
    ~Mailbox() { close(); }
    Mailbox(const Mailbox&) = delete;
    Mailbox& operator=(const Mailbox&) = delete;

    // The bytes must not change before `done` is called.
    void send(const void* data, long long num_bytes, int target, long long tag, Done done);
    // `source` -1: any rank. `done` gets a fault if the message has another size.
    void receive(void* data, long long num_bytes, int source, long long tag, Done done);
    // Polls until `has_ended()`, at most `limit_s` seconds (0: without a limit). Returns whether it has.
    bool wait(const std::function<bool()>& has_ended, double limit_s);
    // Lets what is sent to a rank or awaited from it fail: it has ended, which the transport may not notice.
    void lose(int rank, const std::string& why);
    // Cancels what has not ended. The ranks no longer send to each other.
    void close();

  private:
    struct Head {
        static constexpr long long longest = 40;  // bytes of data that have room in it
        std::int64_t tag = 0, num_bytes = 0, number = 0;
        std::array<std::byte, longest> data{};
    };
    struct Receive {
        std::byte* data;
        long long num_bytes;
        int source;
        std::int64_t tag;
        Done done;
        bool takes(int from, std::int64_t its_tag) const { return tag == its_tag && (source < 0 || source == from); }
    };
    struct Active {
        int handle, peer;
        std::function<void(const Fault&)> ended;
        std::shared_ptr<void> kept;  // what the transport still reads or writes
    };
    struct Awaited {
        int handle;
        std::shared_ptr<Head> head;
    };
    using Lock = std::unique_lock<std::mutex>;

    void begin(bool sends, void* data, long long num_bytes, int peer, int tag, std::function<void(const Fault&)> ended,
               std::shared_ptr<void> kept);
    void await_head(int source);
    bool poll();
    bool look_for_head(int source);
    void match(int source, const Head& head);
    void take(const Receive& asked, int source, const Head& head);
    void fail_unanswerable();
    bool is_busy() const { return !active_.empty() || !receives_.empty(); }
    void progress();
    void leave(Lock& held);
    static Fault fault_of(const TransportError& error) { return {true, true, error.message, ""}; }

    const std::shared_ptr<Transport> transport_;
    std::mutex lock_;
    std::condition_variable wake_;
    std::map<int, Awaited> heads_;             // by source: its next head
    std::map<int, Fault> gone_;                // why a rank sends nothing any more
    std::list<std::pair<int, Head>> arrived_;  // heads without a receive, with their sources
    std::list<Receive> receives_;              // without a head so far, in the order of their calls
    std::list<Active> active_;
    std::vector<std::function<void()>> calls_;  // of `Done`, made without the lock
    std::vector<std::int64_t> sent_;            // messages to each rank
    std::vector<std::shared_ptr<void>> lost_;   // memory that the transport may still use
    bool is_closed_ = false;
    std::atomic<int> num_waiting_{0};
    std::thread thread_;
};

}  // namespace dovetail::run
