// The CUDA driver's entry points that we call, over a pretended device (world.hpp). Built as libcuda.so.1 for tests.
#include <cuda.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "cuda/host.hpp"
#include "cuda/move.hpp"
#include "test/device/world.hpp"

namespace cuda = dovetail::cuda;
using pretended::Engine;
using pretended::Event;
using pretended::Graph;
using pretended::Stream;
using pretended::World;

namespace {

std::recursive_mutex mutex;
struct Taken {
    std::size_t bytes;
    int device;
};
std::map<std::uintptr_t, Taken> taken;  // on devices
std::map<const void*, int> home;        // of streams and events: the device that was current when they were made
std::set<std::pair<int, int>> peers;    // devices that reach others' memory
thread_local int current = -1;

long long setting(const char* name, long long otherwise) {
    const char* value = std::getenv(name);
    return value ? std::atoll(value) : otherwise;
}

// In huge pages where it is long: to touch the small pages of a workspace for the first time takes half of a test's
// time.
void* new_block(std::size_t bytes) {
    constexpr std::size_t huge = 2 << 20;
    const std::size_t step = bytes < huge ? 256 : huge, whole = (bytes + step - 1) / step * step;
    void* found = std::aligned_alloc(step, whole);
    if (bytes >= huge) madvise(found, whole, MADV_HUGEPAGE);
    return found;
}

// Whether the device skips copies and kernels and only lets their time pass: what is left is the host's part.
bool idle() {
    static const bool is_set = setting("PRETENDED_IDLE", 0) != 0;
    return is_set;
}
std::function<void()> pass(Engine engine, std::size_t bytes) {
    const double seconds = 2e-6 + static_cast<double>(bytes) / (engine == Engine::copies ? 55e9 : 2e12);
    return [seconds] { World::get().pass(seconds); };
}

// Whether an access that begins in memory of a device ends there.
bool fits(std::uintptr_t address, std::size_t bytes) {
    auto it = taken.upper_bound(address);
    if (it == taken.begin() || (--it, address >= it->first + it->second.bytes)) return true;
    return address + bytes <= it->first + it->second.bytes;
}

constexpr std::size_t most_when_idle = 1 << 20;
std::size_t memory_bytes() { return static_cast<std::size_t>(setting("PRETENDED_MEMORY", 1ll << 30)); }
std::size_t taken_bytes() {
    std::size_t sum = 0;
    for (const auto& [at, block] : taken) sum += block.device == current ? block.bytes : 0;
    return sum;
}
int device_of(std::uintptr_t address) {  // -1: the host's
    auto it = taken.upper_bound(address);
    return it != taken.begin() && (--it, address < it->first + it->second.bytes) ? it->second.device : -1;
}
bool reaches(const cuda::Place& place) {
    const int there = device_of(reinterpret_cast<std::uintptr_t>(place.base));
    return there < 0 || there == current || peers.contains({current, there});
}
Stream& of(CUstream stream) { return *reinterpret_cast<Stream*>(stream); }
Event& of(CUevent event) { return *reinterpret_cast<Event*>(event); }

void copy_rows(const CUDA_MEMCPY2D& how) {
    for (std::size_t row = 0; row < how.Height; ++row)
        std::memcpy(reinterpret_cast<std::byte*>(how.dstDevice) + row * how.dstPitch,
                    reinterpret_cast<const std::byte*>(how.srcDevice) + row * how.srcPitch, how.WidthInBytes);
}

// As a large H100 seems to: within a device by kernels, unless asked to overlap; to and from the host by copy engines.
Engine engine_of(CUdeviceptr to, CUdeviceptr from) {
    return device_of(to) >= 0 && device_of(to) == device_of(from) ? Engine::processors : Engine::copies;
}

bool all_joined(const Graph& graph, const Stream& origin) {
    std::vector<bool> seen(graph.nodes.size());
    std::vector<int> open = origin.waits;
    if (origin.last >= 0) open.push_back(origin.last);
    std::size_t count = 0;
    while (!open.empty()) {
        const int next = open.back();
        open.pop_back();
        if (seen[static_cast<std::size_t>(next)]) continue;
        seen[static_cast<std::size_t>(next)] = true, ++count;
        const auto& after = graph.nodes[static_cast<std::size_t>(next)].after;
        open.insert(open.end(), after.begin(), after.end());
    }
    return count == graph.nodes.size();
}

std::int64_t bytes_of(const cuda::Place& place) { return place.slot * place.count * place.blocks; }

std::function<void()> kernel(const std::string& name, void** arguments, unsigned lanes) {
    if (idle() && name == "dovetail_move")
        return pass(Engine::processors,
                    3 * static_cast<std::size_t>(bytes_of(static_cast<cuda::Move*>(arguments[0])->to)));
    if (idle() && name != "dovetail_spin") return pass(Engine::processors, 1 << 20);
    if (name == "dovetail_move")
        return [move = *static_cast<cuda::Move*>(arguments[0])] {
            for (const int first : {2, 0, 3, 1}) cuda::run_move(move, first, 4);
        };
    if (name.starts_with("dovetail_interpret")) {
        const auto protocol = name.ends_with("128")  ? cuda::Protocol::ll128
                              : name.ends_with("ll") ? cuda::Protocol::ll
                                                     : cuda::Protocol::simple;
        cuda::Image image = *static_cast<cuda::Image*>(arguments[0]);
        if (static_cast<unsigned>(image.num_lanes) != lanes) std::abort();
        static cuda::Crew& crew = *new cuda::Crew;  // for as long as there is the device
        return [image, protocol] { cuda::run_on_threads(image, protocol, 2, crew); };
    }
    return [] {};
}

constexpr unsigned most_threads = 512;  // of our kernels but one, which __launch_bounds__ lets have 128 registers each

bool bounded(const std::string& name) { return name != "dovetail_spin"; }

// Aborts if the test has forbidden launches.
void may_launch() {
    if (setting("PRETENDED_LAUNCHES", 1) == 0) std::abort();
}

CUresult launch(CUfunction function, unsigned blocks, unsigned threads, void** arguments, CUstream stream) {
    may_launch();
    const auto& name = *reinterpret_cast<const std::string*>(function);
    if (blocks == 0 || threads == 0 || (bounded(name) && threads > most_threads)) return CUDA_ERROR_INVALID_VALUE;
    if (home[stream] != current) return CUDA_ERROR_INVALID_CONTEXT;
    if (name == "dovetail_move") {
        const auto& move = *static_cast<cuda::Move*>(arguments[0]);
        if (!reaches(move.to) || !reaches(move.a) || !reaches(move.b)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    std::function<bool()> holds;
    if (name == "dovetail_spin")
        holds = [flag = *static_cast<volatile unsigned**>(arguments[0])] { return *flag == 0; };
    World::get().add(of(stream), Engine::processors, kernel(name, arguments, blocks), holds);
    return CUDA_SUCCESS;
}

}  // namespace

// While a stream is captured, its thread must not call what may wait for the device or change what it holds.
#define UNLESS_CAPTURING \
    if (World::get().capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

// A thread without a context has no business here; nobody looks at what the end of a stream or an event returns.
#define ENTERED \
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT
#define MUST_HAVE_ENTERED \
    if (current < 0) std::abort()

#define LOCKED const std::lock_guard<std::recursive_mutex> lock(mutex)

// For the pretended library of products.
extern "C" void pretended_enqueue(void* stream, std::function<void()>* run) {
    LOCKED;
    if (home[stream] != current) std::abort();
    World::get().add(*static_cast<Stream*>(stream), Engine::processors, std::move(*run));
}

extern "C" {

CUresult cuInit(unsigned) { return setting("PRETENDED_DEVICES", 1) > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int* version) {
    *version = static_cast<int>(setting("PRETENDED_VERSION", 13000));
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** text) { return *text = "CUDA_ERROR", CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = error == CUDA_ERROR_NO_DEVICE ? "no CUDA-capable device is detected" : "an error that was pretended";
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
    return *count = static_cast<int>(setting("PRETENDED_DEVICES", 1)), CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int index) { return *device = index, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int, CUdevice) { return std::strcpy(name, "pretended device"), CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
    *value = which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? static_cast<int>(setting("PRETENDED_PROCESSORS", 132))
             : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
                                                                     : 0;
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) { return *bytes = memory_bytes(), CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    return *context = reinterpret_cast<CUcontext>(static_cast<std::intptr_t>(device) + 1), CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* possible, CUdevice, CUdevice) {
    return *possible = static_cast<int>(setting("PRETENDED_PEERS", 1)), CUDA_SUCCESS;
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned) {
    LOCKED;
    const int there = static_cast<int>(reinterpret_cast<std::intptr_t>(peer)) - 1;
    return peers.emplace(current, there).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) {
    return current = static_cast<int>(reinterpret_cast<std::intptr_t>(context)) - 1, CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    return *context = reinterpret_cast<CUcontext>(static_cast<std::intptr_t>(current) + 1), CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
    LOCKED;
    ENTERED;
    UNLESS_CAPTURING;
    return World::get().run(true), CUDA_SUCCESS;
}
CUresult cuMemGetInfo(std::size_t* available, std::size_t* total) {
    LOCKED;
    ENTERED;
    return *total = memory_bytes(), *available = *total - taken_bytes(), CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr* at, std::size_t bytes) {
    LOCKED;
    ENTERED;
    UNLESS_CAPTURING;
    if (taken_bytes() + bytes > memory_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
    void* found = new_block(bytes);
    if (!idle()) std::memset(found, 0xa5, bytes);
    *at = reinterpret_cast<CUdeviceptr>(found);
    taken[*at] = {bytes, current};
    return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr at) {
    LOCKED;
    MUST_HAVE_ENTERED;
    UNLESS_CAPTURING;
    World::get().run(true);
    if (taken.erase(at) != 1) std::abort();  // nobody looks at what it returns
    std::free(reinterpret_cast<void*>(at));
    return CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void** at, std::size_t bytes, unsigned) {
    LOCKED;
    ENTERED;
    UNLESS_CAPTURING;
    *at = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* at) { return std::free(at), CUDA_SUCCESS; }
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    LOCKED;
    ENTERED;
    if (!fits(to, bytes) || !fits(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (idle() && bytes > most_when_idle)
        return World::get().add(of(stream), engine_of(to, from), pass(engine_of(to, from), bytes)), CUDA_SUCCESS;
    World::get().add(of(stream), engine_of(to, from),
                     [=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
    return CUDA_SUCCESS;
}
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,
                            CUmemcpyAttributes*, std::size_t*, std::size_t, CUstream stream) {
    LOCKED;
    ENTERED;
    if (of(stream).captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (std::size_t i = 0; i < count; ++i) {
        if (!fits(to[i], bytes[i]) || !fits(from[i], bytes[i])) return CUDA_ERROR_INVALID_VALUE;
        if (idle()) continue;
        World::get().add(of(stream), Engine::copies, [a = to[i], b = from[i], n = bytes[i]] {
            std::memmove(reinterpret_cast<void*>(a), reinterpret_cast<const void*>(b), n);
        });
    }
    return CUDA_SUCCESS;
}
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* how, CUstream stream) {
    LOCKED;
    ENTERED;
    if (how->srcPitch < how->WidthInBytes || how->dstPitch < how->WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
    if (how->Height == 0 || how->WidthInBytes == 0) return CUDA_SUCCESS;
    const auto all = [&](std::size_t pitch) { return (how->Height - 1) * pitch + how->WidthInBytes; };
    if (!fits(how->dstDevice, all(how->dstPitch)) || !fits(how->srcDevice, all(how->srcPitch)))
        return CUDA_ERROR_INVALID_VALUE;
    const Engine engine = engine_of(how->dstDevice, how->srcDevice);
    if (idle())
        World::get().add(of(stream), engine, pass(engine, how->Height * how->WidthInBytes));
    else
        World::get().add(of(stream), engine, [how = *how] { copy_rows(how); });
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, std::size_t bytes, CUstream stream) {
    LOCKED;
    ENTERED;
    if (!fits(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (idle() && bytes > 64 * most_when_idle) bytes = 0;
    World::get().add(of(stream), Engine::processors, [=] { std::memset(reinterpret_cast<void*>(at), value, bytes); });
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned) {
    LOCKED;
    ENTERED;
    auto* made = new Stream;
    World::get().streams.insert(made);
    home[made] = current;
    return *stream = reinterpret_cast<CUstream>(made), CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) {
    LOCKED;
    MUST_HAVE_ENTERED;
    World::get().run(true);
    World::get().streams.erase(&of(stream));
    return delete &of(stream), CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
    LOCKED;
    ENTERED;
    if (of(stream).captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return World::get().run(true), CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    LOCKED;
    Stream& waits = of(stream);
    const Event& other = of(event);
    if (other.graph && !other.graph->open) return CUDA_ERROR_CAPTURED_EVENT;
    if (other.graph && !waits.captured) waits = {other.graph, -1, {}};
    if (waits.captured != other.graph) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (other.task >= 0) waits.waits.push_back(other.task);
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
    LOCKED;
    ENTERED;
    if (of(stream).captured) return CUDA_ERROR_ILLEGAL_STATE;
    of(stream) = {new Graph, -1, {}};
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    LOCKED;
    Graph* made = of(stream).captured;
    if (!made) return CUDA_ERROR_ILLEGAL_STATE;
    made->open = false;
    const bool joined = all_joined(*made, of(stream));
    for (Stream* each : World::get().streams)
        if (each->captured == made) *each = {};
    *graph = joined ? reinterpret_cast<CUgraph>(made) : nullptr;
    return joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
    LOCKED;
    ENTERED;
    *event = reinterpret_cast<CUevent>(new Event);
    return home[*event] = current, CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
    LOCKED;
    MUST_HAVE_ENTERED;
    World::get().run(true);
    return delete &of(event), CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
    LOCKED;
    if (home[event] != home[stream]) return CUDA_ERROR_INVALID_HANDLE;
    Event* made = &of(event);
    made->graph = of(stream).captured;
    made->recorded = false;  // within a graph it is no time that could be read
    made->task = World::get().add(of(stream), Engine::none, [made, within = made->graph != nullptr] {
        made->time_s = World::get().now_s();
        made->recorded |= !within;
    });
    return CUDA_SUCCESS;
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    LOCKED;
    if (flags != CU_EVENT_RECORD_EXTERNAL || !of(stream).captured) return cuEventRecord(event, stream);
    if (home[event] != home[stream]) return CUDA_ERROR_INVALID_HANDLE;
    of(event).graph = nullptr;
    World::get().add(of(stream), Engine::none, [made = &of(event)] {
        made->time_s = World::get().now_s();
        made->recorded = true;
    });
    return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) {
    LOCKED;
    ENTERED;
    if (of(event).graph) return CUDA_ERROR_CAPTURED_EVENT;
    World::get().run(false);
    return World::get().done(of(event).task) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
    LOCKED;
    ENTERED;
    if (!of(from).recorded || !of(to).recorded || home[from] != home[to]) return CUDA_ERROR_INVALID_HANDLE;
    return *milliseconds = static_cast<float>(1e3 * (of(to).time_s - of(from).time_s)), CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* made, CUgraph graph, unsigned long long) {
    if (!graph || reinterpret_cast<const Graph*>(graph)->open) return CUDA_ERROR_INVALID_VALUE;
    return *made = reinterpret_cast<CUgraphExec>(graph), CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    LOCKED;
    ENTERED;
    may_launch();
    if (of(stream).captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    World::get().add(of(stream), Engine::processors,
                     [graph] { World::get().run_graph(*reinterpret_cast<const Graph*>(graph)); });
    return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) { return delete reinterpret_cast<Graph*>(graph), CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(CUgraphExec) { return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule* module, const void*) { return *module = nullptr, CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
    return *function = reinterpret_cast<CUfunction>(new std::string(name)), CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                        unsigned, CUstream stream, void** arguments, void**) {
    LOCKED;
    return launch(function, blocks, threads, arguments, stream);
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                                   unsigned, unsigned, CUstream stream, void** arguments) {
    LOCKED;
    int held = 0;
    cuOccupancyMaxActiveBlocksPerMultiprocessor(&held, function, static_cast<int>(threads), 0);
    if (blocks > static_cast<unsigned>(held * setting("PRETENDED_PROCESSORS", 132)))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return launch(function, blocks, threads, arguments, stream);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, std::size_t) {
    const bool few = bounded(*reinterpret_cast<const std::string*>(function));
    return *blocks = (few ? static_cast<int>(most_threads) : 2048) / threads, CUDA_SUCCESS;
}

}  // extern "C"
