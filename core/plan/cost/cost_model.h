#pragma once

// Seconds of operators and collectives on the machines of a topology: one curve for each class of operator
// and of link.

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "core/rank/record.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

inline double real(std::int64_t n) { return static_cast<double>(n); }

/// A dense product's peak FLOP/s for operands of a dtype; 0: unknown. fp32 operands use the tf32 units where
/// there are any.
double peak_flops(const parallel::Topology& topology, kernels::DType dtype);
/// Whether the cluster has what seconds are made from; without it memory and communication alone are planned.
bool has_rates(const parallel::Topology& topology, kernels::DType dtype);
/// What to do about a topology that has not, as the end of a sentence.
std::string how_to_get_rates(const parallel::Topology& topology);

/// GEMM: whole waves of output tiles over the multiprocessors, each tile with the time of `start_depth` more
/// summands; sums are cut for more tiles where the workspace holds the parts, at the time of adding them up.
/// Attention by a library: the peak's part that grows with the sequence; by our own kernels on a
/// CUDA device: a part of that, or what shared memory feeds. Everything else: its bytes. No operator is
/// faster than its bytes. By measured curves instead, where the topology has them.
double op_seconds(const rank::RecordedOp& op, const parallel::Topology& topology);

/// The call as it would run if attention's workspace had no limit.
rank::RecordedOp unlimited(const rank::RecordedOp& op);

/// How a group's members lie: `per_domain` of them in each NVLink domain (or node, where there is none).
struct GroupPlace {
  std::int64_t size = 1;
  std::int64_t per_domain = 1;
  parallel::Link link = parallel::Link::none;  ///< the slowest on its way

  bool operator==(const GroupPlace&) const = default;
};
GroupPlace place_of(const parallel::PlacedGrid& placed, std::span<const std::int64_t> ranks);

/// What carries a rank's transfers: its NVLink, its network card, and where neither joins two ranks of a
/// node, the host's memory.
enum class Port : std::uint8_t { nvlink, network, host };
inline constexpr std::size_t kPorts = 3;

/// A transfer of a rank that has its links to itself: latency first, then the bytes, which take a part of
/// each of its ports.
struct TransferCost {
  double latency = 0, bandwidth = 0;    ///< seconds
  std::array<double, kPorts> shares{};  ///< by port, of its capacity: 0 to 1
  double seconds() const { return latency + bandwidth; }
};

/// Rings: (n - 1) / n of the bytes cross every member's link for a gather or scatter, twice that for a sum,
/// with a latency for each hop; sums take trees instead where those are faster (2 log2 of the domains in
/// latency). Between domains each member has a network card of its own, so that a group with several in a
/// domain goes out by all of them. `bytes` as recorded.
TransferCost collective_cost(parallel::OpKind kind, std::int64_t bytes, const GroupPlace& group,
                             const parallel::Topology& topology);
/// One message between two devices.
TransferCost message_cost(std::int64_t bytes, parallel::Link link, const parallel::Topology& topology);

inline double collective_seconds(parallel::OpKind kind, std::int64_t bytes, const GroupPlace& group,
                                 const parallel::Topology& topology) {
  return collective_cost(kind, bytes, group, topology).seconds();
}
inline double message_seconds(std::int64_t bytes, parallel::Link link, const parallel::Topology& topology) {
  return message_cost(bytes, link, topology).seconds();
}

}  // namespace trainerd::core::plan
