#include "core/run/worker/link_probe.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/base/clock.h"
#include "kernels/memory/memory.h"

namespace trainerd::core::run {
namespace {

constexpr std::int64_t kMessageBytes = 1 << 20;
// The first of each is not timed: it may make connections or buffers.
constexpr int kShortTrips = 6, kLongTrips = 4;

class Probe {
 public:
  Probe(kernels::Backend& backend, parallel::Communicator& world)
      : world_(world),
        buffer_(backend.allocate(kernels::MemoryKind::device, 2 * kMessageBytes)),
        arena_("link probe", buffer_.data(), buffer_.bytes()),
        sent_(arena_.take(kernels::DType::f32, {kMessageBytes / 4}, kernels::MemoryTerm::workspace)),
        received_(arena_.take(kernels::DType::f32, {kMessageBytes / 4}, kernels::MemoryTerm::workspace)),
        stream_(backend.make_stream("link probe", nullptr)) {
    backend.write(*stream_, std::vector<std::byte>(static_cast<std::size_t>(kMessageBytes)), sent_);
  }

  /// The shortest time of a message there and one back, of so many.
  double round_trip(std::int64_t peer, std::int64_t elements, int times) {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < times; ++i) {
      const double begin = base::monotonic_seconds();
      send(peer, elements);
      receive(peer, elements);
      if (i > 0) least = std::min(least, base::monotonic_seconds() - begin);
    }
    return least;
  }
  void answer(std::int64_t peer, std::int64_t elements, int times) {
    for (int i = 0; i < times; ++i) receive(peer, elements), send(peer, elements);
  }

 private:
  void send(std::int64_t peer, std::int64_t elements) {
    const std::array<parallel::Transfer, 1> to{{{peer, sent_.rows(0, elements)}}};
    world_.exchange(*stream_, to, {}, {.label = "link probe"})->wait(*stream_);
  }
  void receive(std::int64_t peer, std::int64_t elements) {
    const std::array<parallel::Transfer, 1> from{{{peer, received_.rows(0, elements)}}};
    world_.exchange(*stream_, {}, from, {.label = "link probe"})->wait(*stream_);
  }

  parallel::Communicator& world_;
  kernels::Buffer buffer_;
  kernels::Arena arena_;
  kernels::Tensor sent_, received_;
  std::unique_ptr<kernels::Stream> stream_;
};

}  // namespace

std::vector<LinkTime> probe_links(kernels::Backend& backend, parallel::Communicator& world,
                                  std::int64_t ranks_per_node) {
  const std::int64_t ranks = world.size(), nodes = ranks / ranks_per_node;
  std::vector<LinkTime> links;
  if (nodes < 2) return links;
  Probe probe(backend, world);
  constexpr std::int64_t kWhole = kMessageBytes / 4;
  const std::int64_t node = world.rank() / ranks_per_node;
  // Pairs of a node and the next, in rounds of pairs that have no node in common. Two nodes are one pair.
  const auto round_of = [&](std::int64_t first) {
    return first == nodes - 1 && nodes % 2 == 1 ? 2 : static_cast<int>(first % 2);
  };
  for (int round = 0; round < 3; ++round) {
    const bool begins = round_of(node) == round && (nodes > 2 || node == 0);
    const std::int64_t before = (node + nodes - 1) % nodes;
    const bool answers = round_of(before) == round && (nodes > 2 || node == 1);
    if (begins) {
      const std::int64_t peer = (world.rank() + ranks_per_node) % ranks;
      const double short_trip = probe.round_trip(peer, 1, kShortTrips);
      const double long_trip = probe.round_trip(peer, kWhole, kLongTrips);
      links.push_back({.from_rank = world.rank(),
                       .to_rank = peer,
                       .latency_seconds = short_trip / 2,
                       .bytes_per_second = 2.0 * kMessageBytes / long_trip});
    } else if (answers) {
      const std::int64_t peer = (world.rank() + ranks - ranks_per_node) % ranks;
      probe.answer(peer, 1, kShortTrips);
      probe.answer(peer, kWhole, kLongTrips);
    }
  }
  return links;
}

}  // namespace trainerd::core::run
