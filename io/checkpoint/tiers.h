#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "io/checkpoint/checkpoint.h"

namespace trainerd::io {

/// Where a run goes on, of all places that hold its checkpoints.
struct TierChoice {
  CheckpointStore::Found found;
  bool durable = false;  ///< it is of the durable tier
  bool in_both = false;  ///< the tier has a complete one of its step
  /// The number of the next attempt in the tier, for a step that has a complete one there.
  std::map<std::int64_t, std::int64_t> next_attempts = {};
  std::string why = {};      ///< for people: what the other place has
  std::string warning = {};  ///< the durable tier could not be looked at; empty: it could, or there is none
};

/// The newest checkpoint that is whole, of the run's own directory and of its durable tier; of one step that
/// of the directory. One that is damaged is named through `rejected` and passed over.
/// The rules where something cannot be read:
/// - A checkpoint that is there and cannot be read is not replaced by an older one: CheckpointError.
/// - A durable tier that cannot be looked at is passed over where the directory has a checkpoint; the warning
///   says that the tier may hold a newer one.
/// - Where the directory has none, that is a CheckpointError: nothing begins at step 1 beside a tier that may
///   hold checkpoints.
/// Empty when there are none at all; CheckpointError when there are, but none is whole.
std::optional<TierChoice> newest_of_tiers(
    const CheckpointStore& own, const CheckpointStore& durable,
    const std::function<void(const std::string& path, const std::string& why)>& rejected);

/// In a durable tier: the run whose checkpoints it holds.
inline constexpr const char* kOwnerFile = "OWNER";
/// Its text. It is the same after the output was lost: the job's name and the absolute path of the output.
std::string tier_owner(const std::string& job, const std::string& output);
/// Throws SpecError when the tier is another run's. One without the file has no owner yet.
void require_tier_of(const Storage& tier, const std::string& owner);
/// The same, and makes it the tier of this run.
void claim_tier(Storage& tier, const std::string& owner);

}  // namespace trainerd::io
