#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job.h"
#include "core/train/rank_schedule.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/cost/cost.h"
#include "kernels/memory/memory.h"
#include "kernels/ops/op_class.h"
#include "kernels/ops/operators.h"
#include "parallel/comm/communicator.h"
#include "parallel/group/group.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::rank {

// What a rank's own step did in the meta world: its operators, collectives and waits in the order of the
// compute stream, each distinct action once. A cost model gives the operators and collectives their seconds;
// the replay runs the whole schedule.

/// An operator call; equal calls are one entry.
struct RecordedOp {
  kernels::Operator op = kernels::Operator::copy;
  kernels::OpClass what;
  kernels::Cost cost;
};

/// A collective call; equal calls are one entry.
struct RecordedCollective {
  int group = 0;  ///< index into RankRecord::groups
  parallel::OpKind kind = parallel::OpKind::barrier;
  std::string_view label;
  std::int64_t bytes = 0;   ///< as in parallel::MetaCollective
  bool background = false;  ///< by its progress
  auto operator<=>(const RecordedCollective&) const = default;
};

struct RecordedEvent {
  enum class Kind : std::uint8_t { op, issue, wait } kind = Kind::op;
  std::int32_t index = 0;   ///< of the operator, of the collective, or of the awaited group
  std::int64_t behind = 0;  ///< of a wait: how many the group has issued since the one that is awaited
};
using RecordedSegment = std::vector<RecordedEvent>;

/// The first and the last microbatch of a step do what the others do not: assign gradients, and start their
/// reduction.
enum class MicrobatchRole : std::uint8_t { first, middle, last };
MicrobatchRole role_of(std::int64_t microbatch, std::int64_t microbatches);

struct ActionKey {
  int chunk = 0;  ///< of the rank's own
  parallel::ActionKind kind = parallel::ActionKind::forward;
  MicrobatchRole role = MicrobatchRole::middle;
  auto operator<=>(const ActionKey&) const = default;
};

struct RankRecord {
  std::vector<RecordedOp> ops;
  std::vector<RecordedCollective> collectives;
  std::vector<parallel::Group> groups;
  RecordedSegment before;                        ///< the first action
  std::map<ActionKey, RecordedSegment> actions;  ///< but transfers: those are the schedule's
  RecordedSegment after;                         ///< the last action: gradients, norm, update
  kernels::MemoryBudget memory;
  std::vector<kernels::MemoryBudget> memory_alike;  ///< for each of the slot counts that were asked for
  std::int64_t snapshot_bytes = 0;                  ///< of this rank's share of a checkpoint
  std::int64_t attention_limit_bytes = 0;           ///< Target::attention_limit_bytes of this record
  std::vector<io::TensorSlice> state;               ///< see DryRun

  /// How often a key's segment runs in a step.
  static std::int64_t times(const ActionKey& key, std::int64_t microbatches);
  /// FLOPs of all operators of a step, what is recomputed included.
  double flops(std::int64_t microbatches) const;
};

/// Builds a rank's trainer in a world that computes nothing, initialises it, and records its second step (the
/// first learns in which order parameters are used) over as few microbatches as show everything that many do.
/// Ranks that differ from this one in their slots alone get their memory from `alike`. Looks at no data and
/// needs no device. Where the limit of attention's workspace cuts or forbids the library's backward, all is
/// recorded again with the limit that the memory allows (`attention_limit`).
RankRecord record_rank(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
                       const kernels::Target& target, const train::SlotCounts& slots,
                       std::span<const train::SlotCounts> alike = {});

/// Whether the limit of its workspace cuts attention's backward into pieces or leaves it to our own kernels.
bool attention_is_limited(const RankRecord& record);
/// Of the memory that a rank's plan leaves, one part in so many goes to attention's workspace at most: the
/// rest is for what no plan counts (fragments, libraries).
constexpr std::int64_t kAttentionShareOfLeft = 2;
/// The target's limit of attention's workspace, doubled as often as that part has room for, where the
/// target's memory is known and `used_bytes` of it are used with the limit as it is.
std::int64_t attention_limit(const kernels::Target& target, std::int64_t used_bytes);

/// Bytes of one message between pipeline neighbours.
std::int64_t flow_bytes(const job::JobSpec& job);

}  // namespace trainerd::core::rank
