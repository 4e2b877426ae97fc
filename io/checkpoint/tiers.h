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
  /// The next attempt in the tier, of steps of which it has a complete one.
  std::map<std::int64_t, std::int64_t> next_attempts = {};
  std::string why = {};      ///< for people: what the other place has
  std::string warning = {};  ///< the durable tier could not be looked at; empty: it could, or there is none
};

/// The newest checkpoint that is whole, of the run's own directory and of its durable tier; of one step that
/// of the directory. One that is damaged is named through `rejected` and passed over.
/// The rules where something cannot be read:
/// - A checkpoint that is there and cannot be read is not replaced by an older one: CheckpointError.
/// - A durable tier that cannot be looked at is passed over where the directory has a checkpoint, since that
///   gets each one first; the warning says that the tier may hold a newer one.
/// - Where the directory has none, that is a CheckpointError: nothing begins at step 1 beside a tier that may
///   hold checkpoints.
/// Empty when there are none at all; CheckpointError when there are, but none is whole.
std::optional<TierChoice> newest_of_tiers(
    const CheckpointStore& own, const CheckpointStore& durable,
    const std::function<void(const std::string& path, const std::string& why)>& rejected);

}  // namespace trainerd::io
