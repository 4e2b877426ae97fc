#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/job/job.h"

namespace trainerd::core::spec {

/// An environment variable's value; nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// Resources of a node for a job's ranks.
struct Machine {
  std::int64_t cores = 1;         ///< cores that this process may use
  std::int64_t cuda_devices = 0;  ///< GPUs that this process may use
  std::string no_cuda = {};       ///< number of unusable GPUs and the reason, in one line
};

/// What a job's value may depend on besides its text. Functions are called only if a value needs them.
struct Surroundings {
  Environment environment = {};           ///< for ${NAME} and ~; empty: no variable is set
  std::function<Machine()> machine = {};  ///< for `auto`; empty: `dp: auto` is refused
  /// dp of the checkpoint that a run of this job would resume from, by its `output` and `checkpoint`; nothing
  /// if there is no checkpoint.
  std::function<std::optional<std::int64_t>(const job::JobSpec& job)> trained_dp = {};
  /// Directory of the job's file. `extends` and relative data paths that exist there start from it.
  std::string directory = {};
  /// Number of nodes that a scheduler gave this process; nothing if no scheduler started it. Used for a job
  /// of the `local` cluster without `cluster.nodes`.
  std::function<std::optional<std::int64_t>()> nodes = {};
  std::function<void(const std::string& line)> remark = {};  ///< reports choices that may surprise the user
};

}  // namespace trainerd::core::spec
