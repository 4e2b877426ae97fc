#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "io/checkpoint/checkpoint.h"

namespace trainerd::core::run {

// The boxes of a shard as they cross from a worker to its agent and back, and to the leader's when they are
// saved: one array each, because there may be thousands. `slices_from` throws nlohmann::json::exception on
// what is none, CommError for an unknown dtype.
nlohmann::json slices_to_json(const std::vector<io::TensorSlice>& slices);
std::vector<io::TensorSlice> slices_from(const nlohmann::json& list);

}  // namespace trainerd::core::run
