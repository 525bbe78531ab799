// A pretended device: what streams are given runs in any order that streams and events allow, at random, once somebody
// waits for it. Kernels are our own, on host threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace pretended {

enum class Engine { processors, copies, none };

struct Task {
    std::function<void()> run;
    std::vector<int> after;
    Engine engine = Engine::none;
    std::function<bool()> holds;  // a kernel that holds all processors while this returns true
    bool done = false;
};

struct Graph {
    std::vector<Task> nodes;
    bool open = true;  // as long as it is captured
};

struct Stream {
    Graph* captured = nullptr;  // into which its tasks go
    int last = -1;
    std::vector<int> waits;
};

struct Event {
    Graph* graph = nullptr;  // of which `task` is a node
    int task = -1;
    bool recorded = false;
    double time_s = 0;
};

class World {
  public:
    static World& get();
    Graph& target(const Stream& stream) { return stream.captured ? *stream.captured : eager_; }
    int add(Stream& stream, Engine engine, std::function<void()> run, std::function<bool()> holds = nullptr);
    // Runs all that can run; with `to_the_end`, kernels that hold the processors are let go.
    void run(bool to_the_end);
    void run_graph(const Graph& graph);
    bool done(int task) const { return task < 0 || eager_.nodes[static_cast<std::size_t>(task)].done; }
    bool idle() const { return undone_ == 0; }
    bool capturing() const {
        return std::any_of(streams.begin(), streams.end(), [](const Stream* each) { return each->captured; });
    }
    double now_s() { return clock_s_ += 1e-6; }
    void pass(double seconds) { clock_s_ += seconds; }

    std::set<Stream*> streams;

  private:
    World();
    bool step(bool let_go);
    Graph eager_;
    std::size_t first_ = 0, undone_ = 0;
    std::mt19937 random_;
    double clock_s_ = 0;
};

}  // namespace pretended
