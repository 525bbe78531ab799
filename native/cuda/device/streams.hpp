// Streams: commands on streams that wait for one another by events; run as they stand, or as one graph.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "cuda/device/blas.hpp"
#include "cuda/device/device.hpp"
#include "cuda/move.hpp"

namespace dovetail::cuda {

struct Copy {  // `height` rows of `width` bytes; with one row, pitches mean nothing
    std::uintptr_t to = 0, from = 0;
    std::int64_t width = 0, height = 1, to_pitch = 0, from_pitch = 0;
};

struct Clear {
    std::uintptr_t at = 0;
    std::int64_t bytes = 0;
};

using Action = std::variant<std::monostate, Copy, Move, Product, Clear>;

struct Command {
    int stream = 0;
    std::int64_t row = -1;            // in the Program
    std::vector<std::int32_t> waits;  // commands before this one
    Action action;
};

struct StreamOptions {
    int copy_blocks = 0;         // threadblocks of the kernel that copies; 0: the driver copies
    int move_blocks = 32;        // threadblocks of moves that need a kernel
    int product_processors = 0;  // processors that products may use; 0: all
    bool overlapping = false;    // copies request a copy engine; works outside graphs only
    bool stamps = false;
};

struct Seat {  // where streams run: a device, and its library of products where there are products
    std::shared_ptr<Device> device;
    std::shared_ptr<Blas> blas;
};

class Streams {
  public:
    // `seat_of`: by stream. With several seats each reaches the memory of all others.
    Streams(std::vector<Seat> seats, std::vector<int> seat_of, std::vector<Command> commands,
            const StreamOptions& options);
    ~Streams();
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;

    void start();  // enqueues all commands
    bool ended() const;
    void wait();
    void run() { start(), wait(); }
    void capture();  // the same as a graph, for `replay`
    void replay();   // starts the graph, and waits for its end
    // Of the last run: rows of commands that did something, and when they began and ended, from the beginning on: on
    // each device from when it learnt of it, since clocks of devices cannot be compared.
    void spans(std::vector<std::int64_t>& rows, std::vector<double>& begin_s, std::vector<double>& end_s) const;
    double total_s() const;                          // on the device
    double enqueue_s() const { return enqueue_s_; }  // of the calling thread, until all was under way

  private:
    const Seat& seat(const Command& command) const;
    const Event& beginning(const Command& command) const;
    void warm_up(std::size_t seat);
    void enqueue(bool captured);
    void enqueue(std::size_t index, bool captured);
    void perform(const Command& command, CUstream stream);
    void copy(const Device& device, const Copy& copy, CUstream stream);
    void move(const Device& device, const Move& move, int blocks, CUstream stream);
    void stamp(const Event& event, CUstream stream, bool captured) const;

    const std::vector<Seat> seats_;
    const std::vector<int> seat_of_;
    const std::vector<Command> commands_;
    const StreamOptions options_;
    std::vector<Stream> streams_;
    std::vector<std::unique_ptr<Block>> workspaces_;  // by stream, where it has products
    std::vector<bool> awaited_;                       // by command: others wait for it
    std::vector<Event> done_, began_, ended_;
    std::vector<Event> learnt_;  // by seat: when it learnt that the run had begun
    std::unique_ptr<Stream> origin_;
    std::unique_ptr<Event> start_, finish_, fork_;
    std::vector<Event> joins_;
    CUgraph graph_{};
    CUgraphExec replayed_{};
    double enqueue_s_ = 0;
};

}  // namespace dovetail::cuda
