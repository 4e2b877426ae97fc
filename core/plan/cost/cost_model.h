#pragma once

// Predicted seconds of operators and collectives on the machines of a topology: one curve for each class of
// operator and of link.

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "core/rank/record.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

inline double real(std::int64_t n) { return static_cast<double>(n); }

/// Peak FLOP/s of a dense product for operands of a dtype; 0: unknown. fp32 operands use the tf32 units if
/// the device has them.
double peak_flops(const parallel::Topology& topology, kernels::DType dtype);
/// Bytes of the pass that rounds a product's operands to FP8: it reads two for each element and writes one.
double rounding_bytes(const kernels::OpClass& gemm);
/// True if the cluster's description has the rates needed to predict time. Without them the planner reports
/// memory and communication volume only.
bool has_rates(const parallel::Topology& topology, const job::JobSpec& job);
/// How to get rates for a topology without them, as the end of a sentence.
std::string how_to_get_rates(const parallel::Topology& topology, const job::JobSpec& job);

/// Predicted seconds of an operator: by measured curves if the topology has them, else by this model. No
/// operator takes less time than its memory traffic.
/// - GEMM: whole waves of output tiles over the multiprocessors. Each tile takes the time of its k plus
///   `start_depth` summands. k is split for more tiles if the workspace holds the partial sums; adding them
///   up costs time. In FP8: the same part of the FP8 peak, and before it a pass that rounds the operands.
/// - Attention by a library: a fraction of the peak that grows with the sequence. By our own CUDA kernels: a
///   fraction of the library's rate, or the rate of shared memory.
/// - Everything else: its memory traffic. What is in host memory crosses the device's link, one way at a
/// time.
double op_seconds(const rank::RecordedOp& op, const parallel::Topology& topology);

/// The call as it would run if attention's workspace had no limit.
rank::RecordedOp unlimited(const rank::RecordedOp& op);

/// Location of a group's members: at least `per_domain` of them are in each NVLink domain (or node, without
/// NVLink).
struct GroupPlace {
  std::int64_t size = 1;
  std::int64_t per_domain = 1;
  parallel::Link link = parallel::Link::none;  ///< the slowest link that the group uses

  bool operator==(const GroupPlace&) const = default;
};
GroupPlace place_of(const parallel::PlacedGrid& placed, std::span<const std::int64_t> ranks);

/// The hardware that carries a rank's transfers: its NVLink, its network card, or host memory if neither
/// joins two ranks of a node.
enum class Port : std::uint8_t { nvlink, network, host };
inline constexpr std::size_t kPorts = 3;

/// Cost of a transfer without contention: first the latency, then the bytes, which use a fraction of each
/// port.
struct TransferCost {
  double latency = 0, bandwidth = 0;    ///< seconds
  std::array<double, kPorts> shares{};  ///< by port: fraction of its capacity, 0 to 1
  double seconds() const { return latency + bandwidth; }
  bool uses(Port port) const { return shares[static_cast<std::size_t>(port)] > 0; }
};

/// Ring collectives: a gather or scatter moves (n - 1) / n of the bytes over each member's link, an
/// all-reduce twice that, with one latency per hop. All-reduces use trees if those are faster (2 log2 of the
/// domains in latency). Between domains each member has its own network card, so a group with several members
/// in a domain uses all of their cards. `bytes` as recorded.
TransferCost collective_cost(parallel::OpKind kind, std::int64_t bytes, const GroupPlace& group,
                             const parallel::Topology& topology);
/// By how much compute takes longer while a collective of NCCL's runs beside it, which takes multiprocessors
/// and memory bandwidth: the mean on A100, H100, MI210 and MI250 of arXiv 2507.03114
/// (Lee et al., 2025), 18.9%.
inline constexpr double kSlowdownBeside = 0.189;
/// A copy between a device and its host.
TransferCost host_cost(std::int64_t bytes, const parallel::Topology& topology);
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
