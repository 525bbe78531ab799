// Runs what a pretended device was given: see world.hpp.
#include "test/device/world.hpp"

#include <algorithm>
#include <cstdlib>

namespace pretended {

World& World::get() {
    static World world;
    return world;
}

World::World() {
    const char* seed = std::getenv("PRETENDED_SEED");
    random_.seed(seed ? static_cast<unsigned>(std::atoi(seed)) : 1u);
}

int World::add(Stream& stream, Engine engine, std::function<void()> run, std::function<bool()> holds) {
    Graph& graph = target(stream);
    Task task{std::move(run), std::move(stream.waits), engine, std::move(holds)};
    stream.waits.clear();
    if (stream.last >= 0) task.after.push_back(stream.last);
    graph.nodes.push_back(std::move(task));
    stream.last = static_cast<int>(graph.nodes.size()) - 1;
    if (!stream.captured) ++undone_;
    return stream.last;
}

// One task of those that can run, drawn by lot; false where there is none.
bool World::step(bool let_go) {
    std::vector<std::size_t> ready;
    bool held = false;
    for (std::size_t i = first_; i < eager_.nodes.size(); ++i) {
        const Task& task = eager_.nodes[i];
        if (task.done || !std::all_of(task.after.begin(), task.after.end(), [&](int other) { return done(other); }))
            continue;
        const bool holds = task.holds && task.holds() && !let_go;
        held |= holds;
        if (!holds) ready.push_back(i);
    }
    std::erase_if(ready, [&](std::size_t i) { return held && eager_.nodes[i].engine == Engine::processors; });
    if (ready.empty()) return false;
    Task& task = eager_.nodes[ready[random_() % ready.size()]];
    task.run();
    task.done = true, --undone_;
    while (first_ < eager_.nodes.size() && eager_.nodes[first_].done) ++first_;
    return true;
}

void World::run(bool to_the_end) {
    while (step(false) || (to_the_end && step(true))) {
    }
}

void World::run_graph(const Graph& graph) {
    std::vector<bool> done(graph.nodes.size());
    for (std::size_t left = graph.nodes.size(); left > 0; --left) {
        std::vector<std::size_t> ready;
        for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
            const auto& after = graph.nodes[i].after;
            const bool free = std::all_of(after.begin(), after.end(),
                                          [&](int other) { return done[static_cast<std::size_t>(other)]; });
            if (!done[i] && free) ready.push_back(i);
        }
        const std::size_t next = ready[random_() % ready.size()];
        graph.nodes[next].run();
        done[next] = true;
    }
}

}  // namespace pretended
