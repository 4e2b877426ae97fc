#include "core/rank/dry_run.h"

#include <algorithm>
#include <vector>

#include "core/rank/attention_check.h"
#include "core/rank/fp8_check.h"
#include "core/rank/record.h"
#include "core/train/rank_groups.h"
#include "core/train/snapshot_copy.h"
#include "kernels/base/error.h"
#include "parallel/comm/staged/staged_communicator.h"

namespace trainerd::core::rank {
namespace {

std::string gibibytes(std::int64_t bytes) {
  const std::int64_t hundredths = (bytes * 100 + (std::int64_t{1} << 29)) >> 30;
  const std::string fraction = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + "." + (fraction.size() < 2 ? "0" : "") + fraction + " GiB";
}

std::string part_of(const parallel::Topology& topology) {
  return topology.ranks_per_device == 1
             ? "the device"
             : "its part of the device, which " + std::to_string(topology.ranks_per_device) + " ranks share,";
}

}  // namespace

parallel::ModelCosts model_costs(const job::ModelOptions& m) {
  const double d = static_cast<double>(m.hidden), attention = static_cast<double>(job::attention_weights(m)),
               heads = static_cast<double>(m.heads * (m.head_dim + job::value_head_dim(m)));
  // Forward FLOPs per token: matrix products, and causal attention over half of the sequence on average. Of
  // layers with experts and others, the mean.
  const double mlp = static_cast<double>(job::mlp_weights_of_token(m)) / static_cast<double>(m.layers);
  return {.layers = m.layers,
          .layer = 2 * (attention + mlp) + heads * static_cast<double>(m.seq_len),
          .embedding = d,
          .head = 2 * d * static_cast<double>(m.vocab)};
}

DryRun dry_run(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
               const kernels::Target& target) {
  const std::int64_t pipeline_rank =
      layout.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)];
  const RankRecord record =
      record_rank(job, layout, rank, target, train::count_slots(job, layout, pipeline_rank));
  require_attention(job, record);
  require_fp8(record, target);
  return {record.memory,
          record.snapshot_bytes,
          record.flops(action_counts(parallel::schedule_shape(
              layout.options, job.microbatches()))[static_cast<std::size_t>(pipeline_rank)]),
          staging_bytes(job, layout, rank),
          overhead_bytes(job, layout, rank),
          record.attention_limit_bytes,
          record.state};
}

std::int64_t overhead_bytes(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank) {
  std::int64_t bytes = kDeviceOverheadBytes;
  if (job::uses_nccl(job))
    for (const parallel::GroupMembers& group :
         parallel::groups_of(layout, rank, train::group_needs(job.model)))
      bytes += group.ranks.count > 1 ? kNcclOverheadBytes : 0;
  return bytes;
}

std::int64_t staging_bytes(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank) {
  std::int64_t bytes = job.device == job::DeviceChoice::cuda ? train::SnapshotCopy::kStagingBytes : 0;
  if (job::uses_staged(job))
    for (const parallel::GroupMembers& group :
         parallel::groups_of(layout, rank, train::group_needs(job.model)))
      bytes += parallel::staged_bytes(group.ranks.count);
  return bytes;
}

std::int64_t snapshot_segments(const job::JobSpec& job) {
  return 2 + (job.checkpoint.memory.never() ? 0 : 1) + (job.checkpoint.partner ? 2 : 0);
}

std::int64_t host_snapshots(const job::JobSpec& job) {
  return snapshot_segments(job) + (job.checkpoint.partner ? 2 : 0);
}

std::int64_t device_overhead(const parallel::Topology& t, std::int64_t reserve) {
  if (t.device_memory_bytes == 0) return 0;
  return t.device_overhead_bytes > 0 ? t.device_overhead_bytes : reserve;
}

Fit judge_fit(std::span<const RankNeeds> node, const parallel::Topology& t, std::int64_t snapshots) {
  const bool own_memory = t.device_memory_bytes > 0;
  Fit fit;
  for (const RankNeeds& rank : node) {
    fit.node_bytes +=
        snapshots * rank.snapshot_bytes + rank.staging_bytes + (own_memory ? 0 : rank.step_bytes);
    if (own_memory)
      fit.device_bytes =
          std::max(fit.device_bytes, rank.step_bytes + device_overhead(t, rank.overhead_bytes));
  }
  fit.on_device = !own_memory || fit.device_bytes <= t.device_memory_bytes;
  fit.on_node = fit.node_bytes <= t.node_memory_bytes;
  return fit;
}

void require_room_for_ranks(const job::JobSpec& job, const parallel::Topology& topology) {
  if (topology.device_memory_bytes > 0) return;
  constexpr std::int64_t kProcessBytes = std::int64_t{16}
                                         << 20;  // a worker's code, libraries, threads and sockets
  const std::int64_t ranks =
      std::min(parallel::make_grids(job.parallel).dense.ranks(), topology.devices_per_node);
  const std::int64_t most = std::max<std::int64_t>(1, topology.node_memory_bytes / kProcessBytes);
  if (ranks <= most) return;
  throw base::capacity_error("the job does not fit: " + std::to_string(ranks) +
                             " ranks on a node are processes of " + gibibytes(kProcessBytes) +
                             " at the least, and the node has " + gibibytes(topology.node_memory_bytes) +
                             ": use at most " + std::to_string(most) + " ranks, or more nodes");
}

void require_fits(std::span<const DryRun> ranks, const job::JobSpec& job, const parallel::Topology& topology,
                  std::int64_t snapshots, std::int64_t first_rank) {
  std::vector<RankNeeds> needs;
  std::size_t worst = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    needs.push_back({ranks[rank].memory.total_bytes(), ranks[rank].snapshot_bytes,
                     ranks[rank].staging_bytes + ranks[rank].memory.host_bytes(),
                     ranks[rank].overhead_bytes});
    if (needs[rank].step_bytes > needs[worst].step_bytes) worst = rank;
  }
  const Fit fit = judge_fit(needs, topology, snapshots);
  if (fit.fits()) return;
  const DryRun& plan = ranks[worst];
  using Kind = kernels::MemoryBudget::RegionKind;
  const kernels::MemoryBudget::Region* largest = nullptr;
  std::string terms, on_host;
  for (const auto& region : plan.memory.regions) {
    if (region.kind == Kind::host) {
      for (const auto& [term, bytes] : region.terms) on_host += "\n    " + term + ": " + gibibytes(bytes);
      continue;
    }
    if (largest == nullptr || region.bytes > largest->bytes) largest = &region;
    terms += "\n  " + region.name + ": " + gibibytes(region.bytes);
    for (const auto& [term, bytes] : region.terms) terms += "\n    " + term + ": " + gibibytes(bytes);
  }
  terms += "\n  snapshots of checkpoints (" + std::to_string(snapshots) +
           "): " + gibibytes(snapshots * plan.snapshot_bytes);
  if (plan.staging_bytes > 0)
    terms += "\n  staging of snapshots and communication, on the host: " + gibibytes(plan.staging_bytes);
  if (plan.memory.host_bytes() > 0)
    terms += "\n  offloaded to the host: " + gibibytes(plan.memory.host_bytes()) + on_host;
  std::string advice = "a smaller model (model.layers, model.hidden)";
  if (largest != nullptr && largest->kind != Kind::persistent && job.batch.micro > 1)
    advice = "batch.micro: " + std::to_string(std::max<std::int64_t>(1, job.batch.micro / 2)) + " (it is " +
             std::to_string(job.batch.micro) + ")";
  if (largest != nullptr && largest->kind == Kind::kept && job.recompute.kind == job::RecomputeKind::full &&
      !fit.on_device && !job.parallel.offload_activations)
    advice =
        "parallel: {offload_activations: true}, which keeps the inputs of layers on the host, or " + advice;
  if (largest != nullptr && largest->kind == Kind::kept && job.recompute.kind != job::RecomputeKind::full)
    advice = "recompute: {kind: full}, which keeps of a layer its input alone, or " + advice;
  if (largest != nullptr && largest->kind == Kind::persistent && !fit.on_device && !job.optimizer.offload)
    advice = "optimizer: {offload: true}, which keeps master weights and states on the host, or " + advice;
  else if (largest != nullptr && largest->kind == Kind::persistent && !fit.on_device &&
           !(job.parallel.offload_params && job.parallel.offload_grads) && job.parallel.zero_group == 0 &&
           !job.parallel.takes_turns())
    advice =
        "parallel: {zero: 3, offload_params: true, offload_grads: true}, which keep all but a few layers' "
        "parameters and gradients on the host, or " +
        advice;
  if (!fit.on_node && plan.memory.host_bytes() > 0)
    advice =
        "less that is offloaded (optimizer.offload, parallel.offload_params, offload_grads, "
        "offload_activations), more nodes, or fewer snapshots (checkpoint.memory, checkpoint.partner)";
  const std::string all =
      ranks.size() == 1 ? "it needs " : "the " + std::to_string(ranks.size()) + " ranks of its node need ";
  const std::string lacking =
      fit.on_device
          ? all + gibibytes(fit.node_bytes) + " and the node has " + gibibytes(topology.node_memory_bytes)
          : "it needs " + gibibytes(fit.device_bytes) + ", " +
                gibibytes(device_overhead(topology, plan.overhead_bytes)) +
                " of it for the driver and libraries, and " + part_of(topology) + " has " +
                gibibytes(topology.device_memory_bytes);
  throw base::capacity_error("rank " + std::to_string(first_rank + static_cast<std::int64_t>(worst)) +
                             " does not fit: " + lacking + terms + "\n  the largest region is " +
                             (largest == nullptr ? "none" : largest->name) + "; try " + advice);
}

}  // namespace trainerd::core::rank
