#pragma once

#include <nlohmann/json_fwd.hpp>

#include "parallel/layout/layout.h"

namespace trainerd::core::run {

// JSON of a layout, for messages from the agent to its workers. `layout_from` throws
// nlohmann::json::exception for invalid JSON.
nlohmann::json layout_to_json(const parallel::Layout& layout);
parallel::Layout layout_from(const nlohmann::json& json);

}  // namespace trainerd::core::run
