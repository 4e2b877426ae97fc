#pragma once

#include <nlohmann/json_fwd.hpp>

#include "io/tokens/token_blend.h"

namespace trainerd::core::run {

// JSON of the samples' order, for messages to workers and other nodes. `order_from` throws
// nlohmann::json::exception for invalid JSON.
nlohmann::json order_to_json(const io::DataOrder& order);
io::DataOrder order_from(const nlohmann::json& json);

}  // namespace trainerd::core::run
