// shared_table: the functions of mpi_table.h over MessageTransport; and the communicators of this process by number.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <mutex>
#include <stdexcept>

#include "shm/ring_messages.hpp"
#include "shm/transport.hpp"

struct dt_comm {
    explicit dt_comm(std::unique_ptr<dovetail::shm::Messages> messages) : transport(std::move(messages)) {}
    dovetail::shm::MessageTransport transport;
    void* owner = nullptr;
    void (*ends)(void*) = nullptr;
    void (*freed)(void*) = nullptr;
    dt_comm* adopted = nullptr;             // the result of `find` for it
    std::map<std::vector<int>, int> turns;  // by ranks: how many groups of these were made
};

namespace dovetail::shm {

namespace {

constexpr int other_fault = 1, multiple = 3;  // a code without a rank; MPI_THREAD_MULTIPLE, as in MPICH
constexpr std::size_t most_name = 256, named_budget = std::size_t{4} << 20;

// Every communicator of this process, and those of users by their numbers.
struct Registry {
    std::mutex lock;
    std::vector<dt_comm*> all;
    std::map<int, dt_comm*> numbers;
    int next = 1;
    bool is_fork = false;  // this process was forked by a rank, and is no rank
};
Registry& registry() {
    static auto* kept = [] {
        pthread_atfork(nullptr, nullptr, [] { registry().is_fork = true; });
        return new Registry;  // never destroyed: ranks leave when the process ends
    }();
    return *kept;
}

std::string& last_fault() {
    thread_local std::string text;
    return text;
}

template <class Act>
int guarded(Act act) {
    try {
        if (registry().is_fork) throw std::runtime_error("this process was forked by a rank: only the rank may call");
        return act();
    } catch (const std::exception& error) {
        last_fault() = error.what();
        return other_fault;
    }
}

dt_comm* make(std::unique_ptr<Messages> messages) {
    auto* made = new dt_comm(std::move(messages));
    const std::lock_guard guard(registry().lock);
    registry().all.push_back(made);
    return made;
}

void release(dt_comm* comm) {
    {
        const std::lock_guard guard(registry().lock);
        std::erase(registry().all, comm);
    }
    delete comm;
}

// Makes and opens memory of one kind for all ranks of `on`; null if some rank cannot.
dt_comm* shared_by_all(MessageTransport& on, Segment::Kind kind) {
    const int rank = on.rank(), size = on.size();
    std::array<char, most_name> name{};
    std::shared_ptr<Segment> memory;
    dt_comm* made = nullptr;
    if (rank == 0) try {
            const std::size_t ring = kind == Segment::Kind::named ? RingMessages::ring_bytes(size, named_budget)
                                                                  : RingMessages::ring_bytes(size);
            memory = std::make_shared<Segment>(Segment::make(RingMessages::bytes(size, ring), kind));
            std::copy_n(memory->name().c_str(), std::min(memory->name().size(), most_name - 1), name.data());
        } catch (const std::runtime_error& error) {
            last_fault() = error.what();
        }
    on.collective({DT_BROADCAST, name.data(), name.data(), most_name, nullptr, DT_UINT8});
    try {
        if (rank && name[0]) memory = std::make_shared<Segment>(Segment::open(name.data()));
        if (memory) made = make(std::make_unique<RingMessages>(std::move(memory), rank, size));
    } catch (const std::runtime_error& error) {
        last_fault() = error.what();
    }
    std::int32_t opened = made != nullptr;
    on.collective({DT_ALL_REDUCE, &opened, &opened, 1, nullptr, DT_INT32, DT_MIN});
    if (made) made->transport.hide();
    if (opened) return made;
    if (made) release(made);
    return nullptr;
}

dt_comm* duplicate(MessageTransport& on) {
    if (auto messages = on.messages().another()) return make(std::move(messages));
    dt_comm* made = shared_by_all(on, Segment::Kind::anonymous);
    if (!made) made = shared_by_all(on, Segment::Kind::named);
    if (!made) throw std::runtime_error("the ranks cannot share memory: " + last_fault());
    return made;
}

int init(int* provided, dt_reduce_fn, dt_comm**) {
    *provided = multiple;
    last_fault() = "ranks without MPI join by dovetail.world()";
    return other_fault;
}

int finalize() { return 0; }

int setup(int* provided, int* is_main, dt_reduce_fn) {
    *provided = multiple;
    *is_main = 1;
    return 0;
}

int adopt(int number, void* owner, void (*ends)(void*), void (*freed)(void*), dt_comm** comm) {
    return guarded([&] {
        dt_comm* theirs = communicator(number);
        if (!theirs) throw std::runtime_error("the communicator was freed");
        *comm = theirs->adopted = duplicate(theirs->transport);
        theirs->adopted->owner = owner;
        theirs->adopted->ends = ends;
        theirs->adopted->freed = freed;
        return 0;
    });
}

int find(int number, void** owner) {
    const dt_comm* theirs = communicator(number);
    *owner = theirs && theirs->adopted ? theirs->adopted->owner : nullptr;
    return 0;
}

int rank(const dt_comm* comm) { return comm->transport.rank(); }
int size(const dt_comm* comm) { return comm->transport.size(); }

int isend(dt_comm* comm, const void* data, long long num_bytes, int dst, int tag, int matched, int* handle) {
    return guarded([&] { return *handle = comm->transport.isend(data, num_bytes, dst, tag, matched != 0), 0; });
}

int irecv(dt_comm* comm, void* data, long long num_bytes, int src, int tag, int* handle) {
    return guarded([&] { return *handle = comm->transport.irecv(data, num_bytes, src, tag), 0; });
}

int borrow(dt_comm* comm, void* data, long long num_bytes, int src, int tag, const void** lent, int* handle) {
    auto** place = reinterpret_cast<const std::byte**>(lent);
    return guarded([&] { return *handle = comm->transport.borrow(data, num_bytes, src, tag, place), 0; });
}

int give_back(dt_comm* comm, int handle, int* done) {
    return guarded([&] { return *done = comm->transport.give_back(handle), 0; });
}

int group(dt_comm* comm, const int* ranks, int num_ranks, int* made) {
    const std::vector<int> members(ranks, ranks + num_ranks);
    *made = comm->transport.group(members, comm->turns[members]++);
    return 0;
}

// Keeps what the code of a failed request means on this communicator, for `error_text`.
int said(dt_comm* comm, int code) {
    if (code <= 0) return code;
    last_fault() = comm->transport.messages().text(code);
    return other_fault;
}

int begin(dt_comm* comm, const run::LibraryCall& call, int* handle) {
    return guarded([&] { return *handle = comm->transport.icollective(call), 0; });
}

int finish(dt_comm* comm, const run::LibraryCall& call) {
    return guarded([&] { return said(comm, comm->transport.result(comm->transport.icollective(call))); });
}

int icollective(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op, int root,
                int group, int* handle) {
    return begin(comm, {kind, src, dst, count, nullptr, dtype, op, group, root}, handle);
}

int icollective_v(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype, int op,
                  int group, int* handle) {
    return begin(comm, {kind, src, dst, 0, counts, dtype, op, group, 0}, handle);
}

int collective(dt_comm* comm, int kind, const void* src, void* dst, long long count, int dtype, int op, int root,
               int group) {
    return finish(comm, {kind, src, dst, count, nullptr, dtype, op, group, root});
}

int collective_v(dt_comm* comm, int kind, const void* src, void* dst, const long long* counts, int dtype, int op,
                 int group) {
    return finish(comm, {kind, src, dst, 0, counts, dtype, op, group, 0});
}

int test(dt_comm* comm, int handle, int* done) {
    return guarded([&] {
        int code = 0;
        *done = comm->transport.test(handle, code);
        return said(comm, code);
    });
}

int wait(dt_comm* comm, int handle) {
    return guarded([&] { return said(comm, comm->transport.result(handle)); });
}

int cancel(dt_comm* comm, int handle) {
    comm->transport.cancel(handle);
    return 0;
}

void abort_all(int code) {
    for (dt_comm* comm : registry().all) comm->transport.leave(State::failed);  // no lock: this process ends
    std::fflush(nullptr);
    _exit(code);
}

void library(char* text, int size) {
    std::snprintf(text, static_cast<std::size_t>(size), "shared memory of one host, without MPI");
}

void hosts_library(char* text, int size) {
    std::snprintf(text, static_cast<std::size_t>(size), "sockets between hosts, without MPI");
}

void error_text(int code, char* text, int size) {
    const std::string found = code == other_fault ? last_fault() : text_of(code);
    std::snprintf(text, static_cast<std::size_t>(size), "%s", found.c_str());
}

constexpr dt_mpi_table table_of(void (*library)(char*, int), int (*wait)(dt_comm*, int)) {
    return {
        .version = DOVETAIL_MPI_TABLE_VERSION,
        .init = init,
        .finalize = finalize,
        .setup = setup,
        .adopt = adopt,
        .find = find,
        .release = release,
        .rank = rank,
        .size = size,
        .isend = isend,
        .irecv = irecv,
        .borrow = borrow,
        .give_back = give_back,
        .group = group,
        .icollective = icollective,
        .icollective_v = icollective_v,
        .collective = collective,
        .collective_v = collective_v,
        .test = test,
        .wait = wait,
        .cancel = cancel,
        .abort = abort_all,
        .library = library,
        .error_text = error_text,
    };
}

}  // namespace

int join(std::unique_ptr<Messages> messages) {
    dt_comm* made = make(std::move(messages));
    const std::lock_guard guard(registry().lock);
    registry().numbers[registry().next] = made;
    return registry().next++;
}

std::unique_ptr<Messages> taken(int number) {
    dt_comm* comm = communicator(number);
    if (!comm) throw std::runtime_error("the communicator was freed");
    auto messages = comm->transport.take_messages();
    {
        const std::lock_guard guard(registry().lock);
        registry().numbers.erase(number);
    }
    release(comm);
    return messages;
}

dt_comm* communicator(int number) {
    const std::lock_guard guard(registry().lock);
    const auto found = registry().numbers.find(number);
    return found == registry().numbers.end() ? nullptr : found->second;
}

void hide(int number) {
    if (dt_comm* comm = communicator(number)) comm->transport.hide();
}

void limit(int number, double seconds) {
    dt_comm* comm = communicator(number);
    if (!comm) return;
    comm->transport.limit_s = seconds;
    if (comm->adopted) comm->adopted->transport.limit_s = seconds;
}

void rest(int number, bool on) {
    dt_comm* comm = communicator(number);
    if (comm && comm->adopted) comm->adopted->transport.rests = on;
}

void fail(int number, const std::string& why) {
    const dt_comm* comm = communicator(number);
    if (comm && comm->adopted) comm->adopted->transport.fail(why);
}

void part(int number) {
    dt_comm* comm = communicator(number);
    if (!comm) return;
    if (dt_comm* adopted = comm->adopted) {
        adopted->ends(adopted->owner);
        adopted->transport.leave(State::left);
        adopted->freed(adopted->owner);
    }
    {
        const std::lock_guard guard(registry().lock);
        registry().numbers.erase(number);
    }
    release(comm);
}

void add_region(dt_comm* comm, std::shared_ptr<Region> region) { comm->transport.add(std::move(region)); }

void leave_all() {
    for (dt_comm* comm : registry().all) comm->transport.leave(State::left);
}

const dt_mpi_table shared_table = table_of(library, nullptr), hosts_table = table_of(hosts_library, wait);

}  // namespace dovetail::shm
