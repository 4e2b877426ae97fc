#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "io/checkpoint/checkpoint.h"

namespace trainerd::io {

/// Where a run continues, chosen from all places that hold its checkpoints.
struct TierChoice {
  CheckpointStore::Found found;
  bool durable = false;  ///< it is in the durable tier
  bool in_both = false;  ///< the tier has a complete checkpoint of the same step
  /// Next attempt number in the tier, per step that has a complete checkpoint there.
  std::map<std::int64_t, std::int64_t> next_attempts = {};
  std::string why = {};      ///< for display: what the other place holds
  std::string warning = {};  ///< why the durable tier could not be accessed; empty: it could, or none is set
};

/// Returns the newest valid checkpoint in the run's own directory and its durable tier; for equal steps the
/// directory's. Damaged checkpoints are reported through `rejected` and skipped. If something cannot be read:
/// - A checkpoint that exists but cannot be read is not replaced by an older one: throws CheckpointError.
/// - A durable tier that cannot be accessed is skipped if the directory has a checkpoint. The warning says
///   that the tier may hold a newer one.
/// - If the directory has none, that is a CheckpointError: a run must not begin at step 1 while the tier may
///   hold checkpoints.
/// Empty if there are no checkpoints at all; CheckpointError if there are some but none is valid.
std::optional<TierChoice> newest_of_tiers(
    const CheckpointStore& own, const CheckpointStore& durable,
    const std::function<void(const std::string& path, const std::string& why)>& rejected);

/// File in a durable tier that names the run whose checkpoints it holds.
inline constexpr const char* kOwnerFile = "OWNER";
/// Text of that file: the job's name and the absolute path of the output. It stays the same if the output is
/// lost.
std::string tier_owner(const std::string& job, const std::string& output);
/// Throws SpecError if the tier belongs to another run. A tier without the file has no owner yet.
void require_tier_of(const Storage& tier, const std::string& owner);
/// The same, and makes this run the owner.
void claim_tier(Storage& tier, const std::string& owner);

}  // namespace trainerd::io
