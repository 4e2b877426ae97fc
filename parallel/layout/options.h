#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>

namespace trainerd::parallel {

/// Size of an axis that is derived from the machine. A checked job does not have it.
inline constexpr std::int64_t kAutomatic = 0;

enum class ScheduleKind : std::uint8_t {
  gpipe,
  one_f_one_b,
  interleaved,
  zb_h1,
  zb_v,
  v_half,
  v_min,
  dualpipe_v
};

/// True if the model goes forth over all ranks and back again, in two chunks on each.
constexpr bool goes_back(ScheduleKind kind) {
  return kind == ScheduleKind::zb_v || kind == ScheduleKind::v_half || kind == ScheduleKind::v_min ||
         kind == ScheduleKind::dualpipe_v;
}

/// True if a schedule computes all weight gradients apart from input gradients; dualpipe_v does only for a
/// few microbatches.
constexpr bool splits_backward(ScheduleKind kind) {
  return kind == ScheduleKind::zb_h1 || (goes_back(kind) && kind != ScheduleKind::dualpipe_v);
}

/// How context-parallel ranks bring together what attention needs: they gather the keys and values of all
/// ranks, or exchange rows for heads, so that each has all rows of some heads (DeepSpeed Ulysses, arXiv
/// 2309.14509). Automatic means all_to_all where the heads can be divided.
enum class ContextComm : std::uint8_t { automatic, all_gather, all_to_all };
/// How tokens reach the ranks of their experts: every rank gathers all tokens, or each token is sent to the
/// ranks of its experts, which have slots for as many as `ep_capacity` says.
enum class ExpertComm : std::uint8_t { all_gather, all_to_all };

/// Sizes of the axes of the process grid and what runs on them.
struct ParallelOptions {
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t dp = 1;
  std::int64_t cp = 1;
  std::int64_t ep = 1;   ///< ranks that share a layer's experts, out of those of a pipeline stage
  std::int64_t etp = 0;  ///< tensor-parallel ranks that share each expert: 1, or 0 for tp
  double ep_capacity =
      0;  ///< rows that a rank's experts have memory for, over the mean; 0: enough for any choice
  ContextComm cp_comm = ContextComm::automatic;
  ExpertComm ep_comm = ExpertComm::all_gather;
  bool sequence_parallel = false;
  std::int64_t tp_overlap_chunks = 1;  ///< TensorParallel::overlap_chunks
  std::int64_t zero = 1;
  std::int64_t zero_group = 0;  ///< number of ranks that ZeRO shards over; 0: all gradient_ranks
  bool offload_params = false;  ///< sharded parameters are in host memory (zero 3)
  bool offload_grads = false;   ///< sharded gradients are in host memory (zero 2 and 3)
  /// Inputs of layers are in host memory from forward to backward (full recomputation).
  bool offload_activations = false;
  std::int64_t bucket_bytes = 0;     ///< maximum bytes of gradients per reduction; 0: default_bucket_bytes
  bool overlap_tp_backward = true;   ///< TensorParallel::overlap_backward
  bool overlap_grad_reduce = true;   ///< reduce gradients while backward continues
  bool overlap_param_gather = true;  ///< gather parameters while earlier layers are computed
  bool overlap_ep = true;            ///< send tokens of experts and their results while the rank computes
  bool overlap_p2p = true;  ///< wait for pipeline messages where they are used, not where they are posted
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t virtual_stages = 1;
  std::string order = "tp-cp-ep-dp-pp";  ///< order of the axes, fastest with the rank first
  bool allow_tp_across_nodes = false;  ///< a tensor-parallel group may leave the NVLink domain (or the node)

  /// Ranks with the same parameters, which sum their gradients: data-parallel and context-parallel ones.
  std::int64_t gradient_ranks() const { return dp * cp; }
  /// Those with the same experts; and the most ranks that sum any gradient.
  std::int64_t expert_gradient_ranks() const { return tp * cp * dp / (expert_tp() * ep); }
  std::int64_t most_gradient_ranks() const { return std::max(gradient_ranks(), expert_gradient_ranks()); }
  std::int64_t expert_tp() const { return etp == 0 ? tp : etp; }
  /// True if each tensor-parallel rank routes its own tokens, and has whole experts.
  bool whole_experts() const { return expert_tp() < tp; }
  /// True if other ranks hold a parameter of experts than hold those of the same place in `tp` and `pp`.
  bool experts_apart() const { return ep > 1 || whole_experts(); }
  /// dp is a multiple of this: so many replicas share experts.
  std::int64_t dp_multiple() const {
    const std::int64_t sharing = ep * expert_tp();
    return sharing / std::gcd(sharing, tp * cp);
  }
  /// Number of ranks. ep is not a factor: experts are distributed over the same ranks.
  std::int64_t ranks() const { return tp * cp * dp * pp; }

  bool offloads_state() const { return offload_params || offload_grads; }
  /// True if tensors are copied between a device and its host in every pass.
  bool offloads() const { return offloads_state() || offload_activations; }

  /// True if a forward and a backward take turns: one computes while the other waits for messages of tp, cp
  /// or ep.
  bool takes_turns() const {
    return schedule == ScheduleKind::dualpipe_v && pp > 1 && (tp > 1 || cp > 1 || (ep > 1 && overlap_ep));
  }

  bool operator==(const ParallelOptions&) const = default;
};

/// How ranks on CUDA devices communicate; automatic means nccl.
enum class Communication : std::uint8_t { automatic, nccl, staged };

struct ClusterOptions {
  std::string preset = "local";  ///< local, a built-in cluster, or the path of a cluster's YAML file
  std::int64_t nodes = 1;
  std::int64_t spares = 0;        ///< further nodes, which replace lost ones
  bool elastic = false;           ///< continue with fewer replicas if a lost node has no spare
  bool replan = false;            ///< if it does, let the planner choose new tp and pp
  std::int64_t min_replicas = 1;  ///< dp below which an elastic job waits
  Communication communication = Communication::automatic;
  double timeout_seconds = 300;  ///< longest time for one communication

  bool operator==(const ClusterOptions&) const = default;
};

}  // namespace trainerd::parallel
