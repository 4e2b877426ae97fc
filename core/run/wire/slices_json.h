#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "io/checkpoint/checkpoint.h"

namespace trainerd::core::run {

// JSON of a shard's slices, for messages between worker, agent and leader: one array each, because there may
// be thousands. `slices_from` throws nlohmann::json::exception for invalid JSON, CommError for an unknown
// dtype.
nlohmann::json slices_to_json(const std::vector<io::TensorSlice>& slices);
std::vector<io::TensorSlice> slices_from(const nlohmann::json& list);

}  // namespace trainerd::core::run
