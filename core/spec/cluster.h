#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/spec/problems.h"
#include "parallel/topology.h"

namespace trainerd::core {

/// Names of the built-in clusters (configs/clusters/), without `local`.
std::vector<std::string> cluster_preset_names();

/// One node of the cluster called `preset`: built in, or a YAML file of the same keys. Nothing, and problems,
/// when it cannot be read; `place` is where it is named.
std::optional<parallel::Topology> read_cluster(const std::string& preset, const Place& place,
                                               Problems& problems);

}  // namespace trainerd::core
