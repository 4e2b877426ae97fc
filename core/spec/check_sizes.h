#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/job/job.h"

namespace trainerd::core::spec {

struct SizeProblem {
  std::string path;  ///< of the key to change
  std::string what;
};

/// Computations of a pass over the batch in one direction, of all pipeline ranks: their lists are made and
/// replayed as a whole.
inline constexpr std::int64_t kMaxComputations = 1 << 17;

/// What makes a job of valid keys larger than any machine: more bytes than 63 bits count, or more
/// microbatches or buckets of gradients than are worth a list. By arithmetic alone, in no time. Nothing when
/// every size is at hand or when sizes are missing.
std::optional<SizeProblem> size_problem(const job::JobSpec& job);

}  // namespace trainerd::core::spec
