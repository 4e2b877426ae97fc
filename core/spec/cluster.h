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

/// One node of the cluster called `preset`: built in, or a YAML file of the same keys. Nothing, and problems,
/// when it cannot be read; `place` is where it is named.
std::optional<parallel::Topology> read_cluster(const std::string& preset, const Place& place,
                                               Problems& problems);

/// The same file's `failures` section, with "cluster.failures.KEY=VALUE" over it. `local` has no file.
std::optional<FailureSpec> read_cluster_failures(const std::string& preset, const Place& place,
                                                 const std::vector<std::string>& overrides,
                                                 Problems& problems);

}  // namespace trainerd::core::spec
