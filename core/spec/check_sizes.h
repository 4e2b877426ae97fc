#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/job/job.h"

namespace trainerd::core::spec {

struct SizeProblem {
  std::string path;  ///< the key to change
  std::string what;
};

/// Maximum number of computations per pass over the batch, in one direction and over all pipeline ranks.
/// Their lists are built and replayed as a whole.
inline constexpr std::int64_t kMaxComputations = 1 << 17;

/// Why a job of valid keys is larger than any machine: its bytes exceed 63 bits, or it has too many
/// microbatches or gradient buckets for a list. Uses arithmetic only. Nothing if all sizes are acceptable or
/// sizes are missing.
std::optional<SizeProblem> size_problem(const job::JobSpec& job);

}  // namespace trainerd::core::spec
