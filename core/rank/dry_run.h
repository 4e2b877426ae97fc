#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/job/job.h"
#include "kernels/memory/memory.h"
#include "kernels/target/target.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::rank {

/// Result of running the job's own step in the meta world.
struct DryRun {
  kernels::MemoryBudget memory;            ///< of one rank's device
  std::int64_t snapshot_bytes = 0;         ///< of one rank's share of a checkpoint
  double flops_per_step = 0;               ///< hardware FLOPs of this rank's operators, with recomputation
  std::int64_t staging_bytes = 0;          ///< pinned host memory for snapshots and staged communication
  std::int64_t overhead_bytes = 0;         ///< of a CUDA device, not in `memory`: the reserves below
  std::int64_t attention_limit_bytes = 0;  ///< for Backend::limit_attention
};

/// The totals of `record_rank`. The real run allocates exactly this memory. Throws CapacityError if the job's
/// `attention.require` is not met.
DryRun dry_run(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
               const kernels::Target& target);

/// FLOPs of a model's parts, to split it over pipeline stages.
parallel::ModelCosts model_costs(const job::ModelOptions& model);

/// Device memory of driver and libraries besides our allocations: context, modules, memory of cuBLASLt and
/// cuDNN. A reserve, not a measurement.
constexpr std::int64_t kDeviceOverheadBytes = std::int64_t{3} << 29;
/// Device memory of NCCL per communicator; also a reserve.
constexpr std::int64_t kNcclOverheadBytes = std::int64_t{1} << 28;

/// The reserves of one rank: the device's, and NCCL's for each of its groups with other members.
std::int64_t overhead_bytes(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank);
/// Host memory of a rank's staged communicators, and of the copy of its snapshots from a GPU.
std::int64_t staging_bytes(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank);

/// Snapshot segments that a node keeps per rank: one is filled while the other is written. Snapshots in
/// memory need a third, so that two alternate even during a long write. A partner needs two more: one for the
/// snapshot that all partners have, one for the snapshot being sent.
std::int64_t snapshot_segments(const job::JobSpec& job);
/// Snapshots per rank that a node needs memory for: its segments, and with partners two copies of a snapshot
/// of another node's rank.
std::int64_t host_snapshots(const job::JobSpec& job);

/// Memory that a rank needs on its device and its node.
struct RankNeeds {
  std::int64_t step_bytes = 0;
  std::int64_t snapshot_bytes = 0;  ///< per snapshot
  std::int64_t staging_bytes = 0;
  std::int64_t overhead_bytes = kDeviceOverheadBytes;  ///< the reserves, for clusters without a figure
};
/// Whether the ranks of one node fit it. Plan, search and run all use this.
struct Fit {
  std::int64_t device_bytes =
      0;                        ///< largest need of a rank on a device with own memory, with overhead; else 0
  std::int64_t node_bytes = 0;  ///< needed by all ranks of the node
  bool on_device = true, on_node = true;
  bool fits() const { return on_device && on_node; }
};
Fit judge_fit(std::span<const RankNeeds> node, const parallel::Topology& topology, std::int64_t snapshots);
/// Memory of driver and libraries on a device with its own memory: the cluster's figure, or else `reserve`.
std::int64_t device_overhead(const parallel::Topology& topology, std::int64_t reserve = kDeviceOverheadBytes);

/// Throws CapacityError, before any planning, if a node of CPUs has too little memory for its ranks'
/// processes.
void require_room_for_ranks(const job::JobSpec& job, const parallel::Topology& topology);

/// Throws CapacityError if the plans of a node's ranks, from `first_rank` on (with `snapshots` snapshot
/// segments each), exceed its memory, or if a rank's plan and overhead exceed its device's own memory. The
/// message names the largest rank, its memory terms, and what would fit.
void require_fits(std::span<const DryRun> ranks, const job::JobSpec& job, const parallel::Topology& topology,
                  std::int64_t snapshots, std::int64_t first_rank = 0);

}  // namespace trainerd::core::rank
