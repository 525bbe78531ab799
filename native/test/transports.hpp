// Transports of ranks that are threads of one process: in shared memory, or by sockets between pretended hosts.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "shm/ring_messages.hpp"
#include "shm/transport.hpp"
#include "tcp/host_messages.hpp"

namespace dovetail::test {

using shm::MessageTransport;
using shm::RingMessages;
using shm::Segment;
using tcp::HostMessages;
using Memory = std::shared_ptr<Segment>;
using Transports = std::vector<std::unique_ptr<shm::MessageTransport>>;

inline Memory rings(int size) {
    const std::size_t each = RingMessages::ring_bytes(size, std::size_t{1} << 18);
    return std::make_shared<Segment>(Segment::make(RingMessages::bytes(size, each)));
}

inline Transports on_one_host(int size) {
    Transports made;
    const Memory memory = rings(size);
    for (int rank = 0; rank < size; ++rank)
        made.push_back(std::make_unique<MessageTransport>(std::make_unique<RingMessages>(memory, rank, size)));
    return made;
}

// Rank r is on host r % hosts.
inline Transports on_hosts(int size, int hosts) {
    std::vector<std::vector<int>> files(static_cast<std::size_t>(size),
                                        std::vector<int>(static_cast<std::size_t>(size), -1));
    for (std::size_t a = 0; a < files.size(); ++a)
        for (std::size_t b = 0; b < a; ++b) {
            int ends[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) std::abort();
            files[a][b] = ends[0], files[b][a] = ends[1];
        }
    std::vector<std::vector<int>> members(static_cast<std::size_t>(hosts));
    for (int rank = 0; rank < size; ++rank) members[static_cast<std::size_t>(rank % hosts)].push_back(rank);
    std::vector<Memory> near, spare;
    for (const auto& here : members) {
        near.push_back(rings(static_cast<int>(here.size())));
        spare.push_back(rings(static_cast<int>(here.size())));
    }
    Transports made;
    for (int rank = 0; rank < size; ++rank) {
        const auto host = static_cast<std::size_t>(rank % hosts);
        const int own = rank / hosts, count = static_cast<int>(members[host].size());
        HostMessages first(rank, members[host], std::make_unique<RingMessages>(near[host], own, count),
                           std::make_unique<RingMessages>(spare[host], own, count),
                           std::make_shared<tcp::Sockets>(rank, files[static_cast<std::size_t>(rank)]), size);
        made.push_back(std::make_unique<MessageTransport>(first.another()));
    }
    return made;
}

}  // namespace dovetail::test
