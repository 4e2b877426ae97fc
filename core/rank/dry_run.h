#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/job/job.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/memory/memory.h"
#include "kernels/target/target.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::rank {

/// What running the job's own step in the meta world tells.
struct DryRun {
  kernels::MemoryBudget memory;     ///< of one rank's device
  std::int64_t snapshot_bytes = 0;  ///< of one rank's share of a checkpoint
  double flops_per_step = 0;  ///< by operators, of this rank: hardware FLOPs, what is recomputed included
  std::int64_t staging_bytes =
      0;  ///< of pinned host memory, through which snapshots and staged communication pass
  std::int64_t overhead_bytes = 0;         ///< of a CUDA device, beside `memory`: the reserves below
  std::int64_t attention_limit_bytes = 0;  ///< for Backend::limit_attention
  /// The boxes of the rank's state, those included that other ranks save: what it loads of a checkpoint.
  std::vector<io::TensorSlice> state = {};
};

/// The totals of `record_rank`. The real run allocates exactly the memory that this reports. Throws
/// CapacityError where the job's `attention.require` is not met.
DryRun dry_run(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
               const kernels::Target& target);

/// The parts of a model by their FLOPs, for splitting it over pipeline stages.
parallel::ModelCosts model_costs(const job::ModelOptions& model);

/// What a CUDA device's driver and libraries take beside our allocations: context, modules, cuBLASLt's and
/// cuDNN's own memory. A reserve, not a measurement.
constexpr std::int64_t kDeviceOverheadBytes = std::int64_t{3} << 29;
/// What NCCL takes on the device for each communicator: likewise a reserve.
constexpr std::int64_t kNcclOverheadBytes = std::int64_t{1} << 28;

/// The reserves of one rank: a device's, and NCCL's for each group that it is a member of with others.
std::int64_t overhead_bytes(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank);
/// Host memory of a rank's staged communicators, and of the copy of its snapshots from a GPU.
std::int64_t staging_bytes(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank);

/// Snapshot segments that a node keeps of each of its ranks: one is filled while the other is written. With
/// snapshots that stay in memory there is a third: two take turns however long the other is written.
/// With copies by a partner there is one more, for what is being sent.
std::int64_t snapshot_segments(const job::JobSpec& job);
/// What a node has memory for, of each of its ranks: its segments, and with partners two copies of those of a
/// rank of another node.
std::int64_t host_snapshots(const job::JobSpec& job);

/// What a rank takes of its device, and of its node.
struct RankNeeds {
  std::int64_t step_bytes = 0;
  std::int64_t snapshot_bytes = 0;  ///< of one snapshot
  std::int64_t staging_bytes = 0;
  std::int64_t overhead_bytes = kDeviceOverheadBytes;  ///< the reserves: for clusters that give no figure
};
/// Whether the ranks of one node fit it: the one judgement of plan, search and run.
struct Fit {
  std::int64_t device_bytes =
      0;  ///< that the largest rank needs of a device with memory of its own, the overhead included; else 0
  std::int64_t node_bytes = 0;  ///< that all ranks need of the node
  bool on_device = true, on_node = true;
  bool fits() const { return on_device && on_node; }
};
Fit judge_fit(std::span<const RankNeeds> node, const parallel::Topology& topology, std::int64_t snapshots);
/// What driver and libraries take of a device with memory of its own: the cluster's figure, or else
/// `reserve`.
std::int64_t device_overhead(const parallel::Topology& topology, std::int64_t reserve = kDeviceOverheadBytes);

/// Throws CapacityError, before anything is planned, when a node of processors has too little memory for its
/// ranks' processes alone.
void require_room_for_ranks(const job::JobSpec& job, const parallel::Topology& topology);

/// Throws CapacityError when the plans of a node's ranks, from `first_rank` on (with `snapshots` snapshot
/// segments for each), exceed its memory, or on devices with memory of their own a rank's plan and the
/// overhead exceed that: which rank is the largest, its terms, and what would fit.
void require_fits(std::span<const DryRun> ranks, const job::JobSpec& job, const parallel::Topology& topology,
                  std::int64_t snapshots, std::int64_t first_rank = 0);

}  // namespace trainerd::core::rank
