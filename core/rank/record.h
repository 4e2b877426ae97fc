#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
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

// The operators, collectives and waits of a rank's own step in the meta world, in the order of the compute
// stream. Each distinct action is recorded once. A cost model assigns seconds to operators and collectives;
// the replay runs the whole schedule.

/// An operator call. Equal calls share one entry.
struct RecordedOp {
  kernels::Operator op = kernels::Operator::copy;
  kernels::OpClass what;
  kernels::Cost cost;
};

/// A collective call. Equal calls share one entry.
struct RecordedCollective {
  int group = 0;  ///< index into RankRecord::groups
  parallel::OpKind kind = parallel::OpKind::barrier;
  std::string_view label;
  std::int64_t bytes = 0;   ///< as in parallel::MetaCollective
  bool background = false;  ///< runs in the background (see parallel::Progress)
  auto operator<=>(const RecordedCollective&) const = default;
};

struct RecordedEvent {
  enum class Kind : std::uint8_t { op, issue, wait } kind = Kind::op;
  std::int32_t index = 0;   ///< index of the operator, collective, or awaited group
  std::int64_t behind = 0;  ///< number of the group's collectives issued after the awaited one
  /// For an issue on a stream beside the compute stream: the group of the collective that the stream waited
  /// for last, after which it begins; -1: none.
  std::int32_t after = -1;
};
using RecordedSegment = std::vector<RecordedEvent>;

/// The first and the last microbatch of a step differ from the others: the first assigns gradients, the last
/// starts their reduction.
enum class MicrobatchRole : std::uint8_t { first, middle, last };
MicrobatchRole role_of(std::int64_t microbatch, std::int64_t microbatches);

struct ActionKey {
  int chunk = 0;  ///< index among the rank's chunks
  parallel::ActionKind kind = parallel::ActionKind::forward;
  MicrobatchRole role = MicrobatchRole::middle;
  /// The backward that takes turns with this forward.
  struct Other {
    int chunk = 0;
    MicrobatchRole role = MicrobatchRole::middle;
    auto operator<=>(const Other&) const = default;
  };
  std::optional<Other> other = {};
  auto operator<=>(const ActionKey&) const = default;
};
/// Of actions that run as one: see parallel::group_size.
ActionKey key_of(std::span<const parallel::Action> actions, const parallel::ScheduleShape& shape);
/// Number of times that each key's segment runs per step on one pipeline rank.
using ActionCounts = std::map<ActionKey, std::int64_t>;
/// By pipeline rank.
std::vector<ActionCounts> action_counts(const parallel::ScheduleShape& shape);

struct RankRecord {
  std::vector<RecordedOp> ops;
  std::vector<RecordedCollective> collectives;
  std::vector<parallel::Group> groups;
  RecordedSegment before;                        ///< events before the first action
  std::map<ActionKey, RecordedSegment> actions;  ///< without transfers, which are in the schedule
  RecordedSegment after;                         ///< events after the last action: gradients, norm, update
  kernels::MemoryBudget memory;
  std::vector<kernels::MemoryBudget> memory_alike;  ///< for each requested slot count
  std::int64_t snapshot_bytes = 0;                  ///< of this rank's share of a checkpoint
  std::int64_t attention_limit_bytes = 0;           ///< Target::attention_limit_bytes of this record
  std::vector<io::TensorSlice> state;               ///< see DryRun

  /// FLOPs of all operators per step, including recomputation.
  double flops(const ActionCounts& counts) const;
};

/// Builds a rank's trainer in a world that computes nothing, initialises it, and records its second step (the
/// first one learns the order in which parameters are used) over the fewest microbatches that show the
/// behaviour of many. Ranks that differ only in their slots get their memory from `alike`. Needs no data and
/// no device. If the limit of attention's workspace splits or prevents the library's backward, the step is
/// recorded again with the limit that the memory allows (`attention_limit`).
RankRecord record_rank(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
                       const kernels::Target& target, const train::SlotCounts& slots,
                       std::span<const train::SlotCounts> alike = {});

/// True if the workspace limit splits attention's backward or leaves it to our own kernels.
bool attention_is_limited(const RankRecord& record);
/// Attention's workspace gets at most 1 / kAttentionShareOfLeft of the memory that a rank's plan leaves. The
/// rest is for memory outside the plan (fragments, libraries).
constexpr std::int64_t kAttentionShareOfLeft = 2;
/// The target's attention workspace limit, doubled as often as that share allows, if the target's memory is
/// known. `used_bytes` is the memory used with the original limit.
std::int64_t attention_limit(const kernels::Target& target, std::int64_t used_bytes);

/// Bytes of one message between pipeline neighbours.
std::int64_t flow_bytes(const job::JobSpec& job);

}  // namespace trainerd::core::rank
