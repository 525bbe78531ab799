// Compares the clocks of ranks over a transport: see meet.hpp.
#include "run/meet.hpp"

#include <sched.h>

#include <chrono>
#include <exception>

namespace dovetail::run {

namespace {

// The mail of dovetail_trace_meet. Nothing may be thrown through C: an exception is kept until it returns.
class Mail {
  public:
    Mail(Transport& transport, int tag, double limit_s) : transport_(transport), tag_(tag), limit_s_(limit_s) {}

    dovetail_trace_meeting meet() {
        const dovetail_trace_mail mail = {send, receive, this};
        dovetail_trace_meeting found;
        if (dovetail_trace_meet(transport_.rank(), transport_.size(), &mail, &found)) std::rethrow_exception(failure_);
        return found;
    }

  private:
    static int send(void* with, int rank, const void* data, int num_bytes) {
        auto& mail = *static_cast<Mail*>(with);
        return mail.carry(rank, [&] { return mail.transport_.isend(data, num_bytes, rank, mail.tag_, false); });
    }

    static int receive(void* with, int rank, void* data, int num_bytes) {
        auto& mail = *static_cast<Mail*>(with);
        return mail.carry(rank, [&] { return mail.transport_.irecv(data, num_bytes, rank, mail.tag_); });
    }

    template <class Start>
    int carry(int rank, Start start) {
        try {
            finish(start(), rank);
            return 0;
        } catch (...) {
            failure_ = std::current_exception();
            return 1;
        }
    }

    void finish(int handle, int rank) {
        using Clock = std::chrono::steady_clock;
        const auto until = Clock::now() + std::chrono::duration<double>(limit_s_);
        while (!transport_.test(handle)) {
            if (Clock::now() > until)
                throw TransportError{"rank " + std::to_string(rank) + " did not answer rank " +
                                     std::to_string(transport_.rank()) + " when clocks were compared"};
            sched_yield();
        }
    }

    Transport& transport_;
    int tag_;
    double limit_s_;
    std::exception_ptr failure_;
};

}  // namespace

dovetail_trace_meeting meet(Transport& transport, int tag, double limit_s) {
    return Mail(transport, tag, limit_s).meet();
}

}  // namespace dovetail::run
