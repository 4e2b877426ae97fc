#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/spec/failures.h"
#include "core/spec/problems.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::spec {

/// Names of the built-in clusters (configs/clusters/), without `local`.
std::vector<std::string> cluster_preset_names();

/// One node of the cluster `preset`: built in, or a YAML file with the same keys. Nothing, with problems, if
/// it cannot be read. `place` is where the job names it.
std::optional<parallel::Topology> read_cluster(const std::string& preset, const Place& place,
                                               Problems& problems);

/// The `failures` section of the same file, with overrides "cluster.failures.KEY=VALUE". `local` has no file.
std::optional<FailureSpec> read_cluster_failures(const std::string& preset, const Place& place,
                                                 const std::vector<std::string>& overrides,
                                                 Problems& problems);

}  // namespace trainerd::core::spec
