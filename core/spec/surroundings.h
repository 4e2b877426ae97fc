#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/job/job.h"

namespace trainerd::core::spec {

/// An environment variable's value; none when it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// What a node has for a job's ranks.
struct Machine {
  std::int64_t cores = 1;         ///< that this process may use
  std::int64_t cuda_devices = 0;  ///< likewise
  std::string no_cuda = {};  ///< of GPUs that are there and cannot be used: how many, and why, in one line
};

/// What a job's value may depend on beside its text. Each is called only where a value needs it.
struct Surroundings {
  Environment environment = {};  ///< for ${NAME} and ~; empty: no variable is set
  std::function<Machine()> machine =
      {};  ///< for `device: auto` and `dp: auto`; empty: a device stays auto, and dp cannot be
  /// `machine` asks others, and throws where they do not answer. What is wrong on every machine is reported
  /// without asking.
  bool machine_asks_others = false;
  /// dp of the checkpoint that a run of this job resumes from, by its `output` and `checkpoint`; none when
  /// there is none.
  std::function<std::optional<std::int64_t>(const job::JobSpec& job)> trained_dp = {};
  /// Of the job's file: relative data paths that exist there are taken from there, and `extends` starts
  /// there.
  std::string directory = {};
  /// Nodes that a scheduler gave this process; none when no scheduler started it. For a job of the `local`
  /// cluster that does not say `cluster.nodes`.
  std::function<std::optional<std::int64_t>()> nodes = {};
  std::function<void(const std::string& line)> remark =
      {};  ///< called with choices that may surprise the user
};

}  // namespace trainerd::core::spec
